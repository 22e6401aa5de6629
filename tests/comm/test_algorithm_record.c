/* Goal: a checkpoint's record holds what every rank chose, and gives each rank its own back. Method: ranks with equal, missing and
 * differing lines gather; their texts are read back and compared line by line, also for a rank that was not there. */
#include "support_ranks.h"
#include "train/algorithm_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4 };
/* A GEMM's name and what was chosen. Rank 1 lacks one of rank 0's, rank 2 has another algorithm and one more GEMM, rank 3 the same more. */
static const char *const texts[RANKS] = {"a=1\nb=1\nc=1\n", "a=1\nc=1\n", "a=1\nb=2\nc=1\nd=2\n",
                                         "c=1\nd=3\na=1\n"};

/* The number in the last line of a GEMM; 0: there is none. */
static char chosen(const char *text, char product)
{
    char found = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        if (line[0] == product) found = line[2];
    return found;
}

/* `want`: of GEMMs a to d. */
static bool gives(const json_t *record, int rank, const char *want)
{
    char *text = algorithm_record_text(record, rank);
    bool same = text != NULL;
    for (int i = 0; same && i < 4; i++) same = chosen(text, (char)('a' + i)) == want[i];
    if (!same) fprintf(stderr, "rank %d: %s\n", rank, text ? text : "no text");
    free(text);
    return same;
}

static int gathers(struct comm *c, const void *arg)
{
    (void)arg;
    json_t *record = NULL, *none = NULL;
    char *mine = strdup(texts[comm_rank(c)]);
    const status st = algorithm_record_gather(c, mine, &record),
                 empty = algorithm_record_gather(c, NULL, &none);
    bool good = st == STATUS_OK && empty == STATUS_OK && (record != NULL) == (comm_rank(c) == 0);
    if (record) {
        good = good && gives(record, 0, "1112") && gives(record, 1, "1112") && gives(record, 2, "1212") &&
               gives(record, 3, "1113") && gives(record, 99, "1112");
        const json_t *by_rank = json_object_get(record, "algorithms_by_rank");
        good = good && json_object_size(by_rank) == 2 && json_object_size(none) == 0;
        good = good && strcmp(json_string_value(json_object_get(by_rank, "3")), "d=3\n") == 0;
    }
    json_decref(record);
    json_decref(none);
    free(mine);
    return good ? 0 : 1;
}

static void a_record_holds_what_all_ranks_chose(void **state)
{
    (void)state;
    expect_all(&(struct job){.ranks = RANKS, .run = gathers}, 0);
}

static void one_rank_alone_records_its_own(void **state)
{
    (void)state;
    json_t *record = NULL;
    char *mine = strdup(texts[2]);
    assert_int_equal(algorithm_record_gather(NULL, mine, &record), STATUS_OK);
    assert_int_equal(json_object_size(record), 1);
    assert_true(gives(record, 0, "1212"));
    free(mine);
    json_decref(record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_holds_what_all_ranks_chose),
        cmocka_unit_test(one_rank_alone_records_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
