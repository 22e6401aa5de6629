/* Goal: a choice of algorithm is read back exactly as it was written, a line that was touched is never used, and a cache file keeps what
 * others wrote. Method: round trips of all extremes, every single byte of a line changed or cut, files in a directory of their own. */
#include "ops/gemm_choice.h"
#include "base/hash.h"
#include "base/io.h"
#include "base/log.h"
#include "tensor/dtype.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../temp.h"

static struct gemm_place here(void)
{
    struct gemm_place p;
    gemm_choice_place(&p, "NVIDIA H200", 132, 130100);
    return p;
}

static struct gemm_choice choice(int64_t m)
{
    struct gemm_choice c = {.key = {.m = m,
                                    .n = 3072,
                                    .k = 2048,
                                    .trans_b = 1,
                                    .dt = DTYPE_BF16,
                                    .cdt = DTYPE_F32,
                                    .add = 1,
                                    .bias = 16,
                                    .align = {256, 16, 2, 0},
                                    .dt_b = DTYPE_BF16},
                            .way = GEMM_LIBRARY,
                            .time_ns = 133300};
    for (int i = 0; i < GEMM_ALGO_BYTES; i++) c.algo[i] = (uint8_t)(i * 37 + (int)m);
    return c;
}

/* The line without its newline; caller frees. */
static char *line_of(const struct gemm_place *p, const struct gemm_choice *c)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    gemm_choice_print(f, p, c);
    assert_int_equal(fclose(f), 0);
    assert_true(bytes > 0 && text[bytes - 1] == '\n');
    text[bytes - 1] = '\0';
    return text;
}

static void a_line_says_what_was_chosen(void **state)
{
    (void)state;
    enum { CHOICES = 7 };
    struct gemm_choice all[CHOICES] = {choice(8192), choice(1), choice(INT64_MAX), choice(77),
                                       choice(5),    choice(6), choice(7)};
    memset(all[1].algo, 0xff, sizeof all[1].algo);
    all[1].way = GEMM_UNFUSED;
    all[2].way = GEMM_PLAIN;
    all[2].key.n = all[2].key.k = all[2].time_ns = INT64_MAX;
    all[3].key = (struct gemm_key){
        .m = 1, .n = 1, .k = 1, .trans_a = 1, .dt = DTYPE_F32, .tf32 = 1, .dt_b = DTYPE_F32};
    all[4].key.add = 2, all[4].key.align[3] = 256;
    all[5].key.dt = all[5].key.dt_b = DTYPE_F8_E4M3, all[5].key.fast = 1;
    all[6].key.dt = DTYPE_F8_E5M2, all[6].key.dt_b = DTYPE_F8_E4M3, all[6].key.scales = 8 * 4 + 5;
    for (int i = 0; i < CHOICES; i++) {
        struct gemm_place place = here(), place_read;
        struct gemm_choice read;
        char *line = line_of(&place, &all[i]);
        if (!gemm_choice_parse(line, strlen(line), &place_read, &read)) fail_msg("refused: %s", line);
        assert_memory_equal(&read.key, &all[i].key, sizeof read.key);
        assert_memory_equal(read.algo, all[i].algo, sizeof read.algo);
        assert_int_equal(read.way, all[i].way);
        assert_true(read.time_ns == all[i].time_ns);
        assert_string_equal(place_read.gpu, "NVIDIA_H200");
        assert_true(place_read.sms == 132 && place_read.library == 130100);
        free(line);
    }
}

/* As the version before FP8 wrote them: a cache file or a checkpoint may be that old. */
static void lines_from_before_fp8_are_read_and_written_unchanged(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "gemm gpu=NVIDIA_H200 sms=132 lt=130100 m=8192 n=3072 k=2048 ta=0 tb=1 dt=BF16 cdt=BF16 add=2 bias=0 "
        "tf32=0 align=256,256,256,16 way=library "
        "algo=00070e151c232a31383f464d545b626970777e858c939aa1a8afb6bd"
        "c4cbd2d9e0e7eef5fc030a11181f262d343b424950575e656c737a81888f969da4abb2b9 ns=133300 crc=a90bed40",
        "gemm gpu=NVIDIA_H200 sms=132 lt=130100 m=64 n=48 k=40 ta=1 tb=0 dt=F32 cdt=F32 add=1 bias=16 tf32=1 "
        "align=256,16,2 way=unfused "
        "algo=0000000000000000000000000000000000000000000000000000000000000000000000"
        "0000000000000000000000000000000000000000000000000000000000 ns=0 crc=1f619795"};
    static const struct gemm_key keys[] = {{.m = 8192,
                                            .n = 3072,
                                            .k = 2048,
                                            .trans_b = 1,
                                            .dt = DTYPE_BF16,
                                            .cdt = DTYPE_BF16,
                                            .add = 2,
                                            .align = {256, 256, 256, 16},
                                            .dt_b = DTYPE_BF16},
                                           {.m = 64,
                                            .n = 48,
                                            .k = 40,
                                            .trans_a = 1,
                                            .dt = DTYPE_F32,
                                            .cdt = DTYPE_F32,
                                            .add = 1,
                                            .bias = 16,
                                            .tf32 = 1,
                                            .align = {256, 16, 2},
                                            .dt_b = DTYPE_F32}};
    for (int i = 0; i < 2; i++) {
        struct gemm_place place;
        struct gemm_choice read;
        if (!gemm_choice_parse(lines[i], strlen(lines[i]), &place, &read)) fail_msg("refused: %s", lines[i]);
        assert_memory_equal(&read.key, &keys[i], sizeof keys[i]);
        char *again = line_of(&place, &read);
        assert_string_equal(again, lines[i]);
        free(again);
    }
}

/* Whether `line` is read once `from` is replaced by `to` and the checksum is made for it. */
static bool read_with(const char *line, const char *from, const char *to)
{
    char text[1024];
    struct gemm_place place;
    struct gemm_choice read;
    const char *at = strstr(line, from), *end = strstr(line, " crc=");
    assert_true(at && end);
    size_t bytes = (size_t)snprintf(text, sizeof text, "%.*s%s%.*s", (int)(at - line), line, to,
                                    (int)(end - at - (ptrdiff_t)strlen(from)), at + strlen(from));
    bytes += (size_t)snprintf(text + bytes, sizeof text - bytes, " crc=%08x", crc32c(0, text, bytes));
    return gemm_choice_parse(text, bytes, &place, &read);
}

static void there_is_one_line_for_a_key(void **state)
{
    (void)state;
    struct gemm_place p = here();
    struct gemm_choice c = choice(32);
    c.key.dt = DTYPE_F8_E5M2, c.key.dt_b = DTYPE_F8_E4M3, c.key.fast = 1;
    char *line = line_of(&p, &c);
    assert_true(read_with(line, "fast=1", "fast=1"));
    assert_true(read_with(line, " fast=1", ""));
    assert_false(read_with(line, "fast=1", "fast=0"));
    assert_false(read_with(line, "fast=1", "fast=2"));
    assert_false(read_with(line, "fast=1", "fast=1 fast=1"));
    assert_true(read_with(line, "fast=1", "fast=1 scales=37"));
    assert_false(read_with(line, "fast=1", "fast=1 scales=0"));
    assert_false(read_with(line, "fast=1", "fast=1 scales=64"));
    assert_true(read_with(line, "dt=F8_E5M2,F8_E4M3", "dt=F8_E4M3,F8_E5M2"));
    assert_false(read_with(line, "dt=F8_E5M2,F8_E4M3", "dt=F8_E4M3,F8_E4M3"));
    assert_false(read_with(line, "dt=F8_E5M2,F8_E4M3", "dt=F8_E4M3,"));
    assert_false(read_with(line, "dt=F8_E5M2,F8_E4M3", "dt=F8_E5M2,F8_E4M3,BF16"));
    assert_false(read_with(line, "dt=F8_E5M2,F8_E4M3", "dt=F8_E5M2,F8_E4M3                   x"));
    free(line);
}

static void a_touched_line_is_refused(void **state)
{
    (void)state;
    struct gemm_place p = here(), place;
    struct gemm_choice c = choice(8192), read;
    char *line = line_of(&p, &c);
    size_t bytes = strlen(line);
    for (size_t cut = 0; cut < bytes; cut++) assert_false(gemm_choice_parse(line, cut, &place, &read));
    for (size_t at = 0; at < bytes; at++) {
        char was = line[at];
        for (int bit = 0; bit < 8; bit++) {
            line[at] = (char)(was ^ 1 << bit);
            if (gemm_choice_parse(line, bytes, &place, &read))
                fail_msg("byte %zu, bit %d: accepted %s", at, bit, line);
        }
        line[at] = was;
    }
    assert_true(gemm_choice_parse(line, bytes, &place, &read));
    free(line);
    for (uint8_t add = 1; add <= 2; add++) { /* an alignment of nothing, and nothing of what is added */
        c.key.add = add;
        c.key.align[3] = add == 1 ? 16 : 0;
        line = line_of(&p, &c);
        assert_false(gemm_choice_parse(line, strlen(line), &place, &read));
        free(line);
    }
    assert_false(gemm_choice_parse("", 0, &place, &read));
    char *huge = malloc(100000);
    memset(huge, 'g', 100000);
    assert_false(gemm_choice_parse(huge, 100000, &place, &read));
    free(huge);
}

static void a_list_takes_the_lines_of_its_place(void **state)
{
    (void)state;
    struct gemm_place places[3] = {here(), here(), here()};
    places[1].library++;
    places[2].sms--;
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    fprintf(f, "# a comment\n\n");
    for (int i = 0; i < 100; i++) {
        struct gemm_choice c = choice(1 + i / 2); /* every key twice: the later one counts */
        c.time_ns = i;
        gemm_choice_print(f, &places[0], &c);
    }
    for (int i = 1; i < 3; i++) {
        struct gemm_choice c = choice(1000);
        gemm_choice_print(f, &places[i], &c);
    }
    fprintf(f, "gemm gpu=NVIDIA_H200 sms=132 rubbish\nanother, without an end");
    assert_int_equal(fclose(f), 0);
    struct gemm_choice_list list = {0};
    struct gemm_choice_counts counts;
    assert_int_equal(gemm_choice_list_read(&list, &places[0], text, bytes, &counts), STATUS_OK);
    assert_int_equal(counts.used, 100);
    assert_int_equal(counts.foreign, 2);
    assert_int_equal(counts.damaged, 2);
    assert_int_equal(list.count, 50);
    for (int i = 0; i < 50; i++) {
        struct gemm_choice c = choice(1 + i);
        const struct gemm_choice *found = gemm_choice_find(&list, &c.key);
        assert_non_null(found);
        assert_true(found->time_ns == 2 * i + 1);
        assert_memory_equal(found->algo, c.algo, sizeof c.algo);
    }
    struct gemm_choice other = choice(1000);
    assert_null(gemm_choice_find(&list, &other.key));
    gemm_choice_free(&list);
    free(text);
}

static void a_file_keeps_what_others_wrote(void **state)
{
    (void)state;
    const char *path = temp_path("cache/of/gemm.txt");
    struct gemm_place mine = here(), other = here();
    snprintf(other.gpu, sizeof other.gpu, "NVIDIA_B200");
    struct gemm_choice_list none = {0}, list = {0}, back = {0};
    assert_int_equal(gemm_choice_file_read(&back, &mine, path), STATUS_OK); /* not there: empty */
    assert_int_equal(back.count, 0);
    assert_int_equal(gemm_choice_file_add(&none, &mine, path), STATUS_OK);
    assert_false(temp_there(path));
    struct gemm_choice c = choice(5);
    assert_int_equal(gemm_choice_add(&list, &c), STATUS_OK);
    assert_int_equal(gemm_choice_file_add(&list, &other, path), STATUS_OK);
    assert_int_equal(gemm_choice_file_add(&list, &mine, path), STATUS_OK);
    list.items[0].time_ns = 7;
    c = choice(6);
    assert_int_equal(gemm_choice_add(&list, &c), STATUS_OK);
    assert_int_equal(gemm_choice_file_add(&list, &mine, path), STATUS_OK); /* replaces one, adds one */

    assert_int_equal(gemm_choice_file_read(&back, &mine, path), STATUS_OK);
    assert_int_equal(back.count, 2);
    assert_true(gemm_choice_find(&back, &list.items[0].key)->time_ns == 7);
    gemm_choice_free(&back);
    assert_int_equal(gemm_choice_file_read(&back, &other, path), STATUS_OK);
    assert_int_equal(back.count, 1);
    assert_true(back.items[0].time_ns == 133300);
    gemm_choice_free(&back);
    gemm_choice_free(&list);
}

static void damaged_lines_of_a_file_go_with_the_next_addition(void **state)
{
    (void)state;
    const char *path = temp_path("damaged.txt");
    char *data;
    size_t bytes;
    struct gemm_place mine = here();
    struct gemm_choice c = choice(5);
    struct gemm_choice_list list = {0}, back = {0};
    assert_int_equal(gemm_choice_add(&list, &c), STATUS_OK);
    char *line = line_of(&mine, &c), text[4096];
    int length = snprintf(text, sizeof text, "# kept\n%s\n%.*s", line, (int)strlen(line) / 2, line);
    assert_int_equal(io_write_file(path, text, (size_t)length), STATUS_OK);
    assert_int_equal(gemm_choice_file_read(&back, &mine, path), STATUS_OK);
    assert_int_equal(back.count, 1);
    list.items[0].key.m = 6;
    assert_int_equal(gemm_choice_file_add(&list, &mine, path), STATUS_OK);
    assert_int_equal(io_read_file(path, 1 << 20, &data, &bytes), STATUS_OK);
    int lines = 0;
    for (size_t i = 0; i < bytes; i++) lines += data[i] == '\n';
    assert_int_equal(lines, 3);
    assert_memory_equal(data, text, strlen("# kept\n") + strlen(line) + 1);
    free(data);
    free(line);
    gemm_choice_free(&list);
    gemm_choice_free(&back);
}

/* Several processes time the same GEMMs at the same moment, each with another result. */
enum { SETTLERS = 6, GEMMS = 12 };
static const char *result_of(int who)
{
    char name[16];
    snprintf(name, sizeof name, "settled.%d", who);
    return temp_path(name);
}

static int settle_all(const char *path, int who)
{
    const struct gemm_place mine = here();
    FILE *out = fopen(result_of(who), "w");
    for (int i = 0; i < GEMMS; i++) {
        struct gemm_choice c = choice(1 + i);
        c.algo[0] = (uint8_t)who;
        if (gemm_choice_file_settle(&c, NULL, &mine, path) != STATUS_OK) return 1;
        fprintf(out, "%d\n", c.algo[0]);
    }
    return fclose(out);
}

static void the_first_to_time_a_gemm_decides_for_all(void **state)
{
    (void)state;
    const char *path = temp_path("first/gemm.txt");
    const struct gemm_place mine = here();
    char *first;
    size_t bytes;
    for (int who = 0; who < SETTLERS; who++)
        if (fork() == 0) _exit(settle_all(path, who));
    for (int who = 0; who < SETTLERS; who++) {
        int code;
        assert_true(wait(&code) > 0);
        assert_int_equal(code, 0);
    }
    assert_int_equal(io_read_file(result_of(0), 1 << 20, &first, &bytes), STATUS_OK);
    for (int who = 1; who < SETTLERS; who++) {
        char *other;
        assert_int_equal(io_read_file(result_of(who), 1 << 20, &other, &bytes), STATUS_OK);
        assert_string_equal(other, first);
        free(other);
    }
    struct gemm_choice_list list = {0};
    assert_int_equal(gemm_choice_file_read(&list, &mine, path), STATUS_OK);
    assert_int_equal(list.count, GEMMS);
    gemm_choice_free(&list);
    free(first);
}

static void a_line_of_no_use_is_replaced_once(void **state)
{
    (void)state;
    const char *path = temp_path("replaced.txt");
    const struct gemm_place mine = here();
    const struct gemm_choice refused = choice(1);
    struct gemm_choice c = refused, better = refused, late = refused;
    assert_int_equal(gemm_choice_file_settle(&c, NULL, &mine, path), STATUS_OK);
    better.algo[0] ^= 1;
    late.algo[0] ^= 2;
    assert_int_equal(gemm_choice_file_settle(&better, &refused, &mine, path), STATUS_OK);
    assert_int_equal(better.algo[0], refused.algo[0] ^ 1);
    assert_int_equal(gemm_choice_file_settle(&late, &refused, &mine, path), STATUS_OK);
    assert_int_equal(late.algo[0], refused.algo[0] ^ 1);
}

static void a_name_becomes_one_word(void **state)
{
    (void)state;
    struct gemm_place p;
    char name[300];
    gemm_choice_place(&p, "a b=c\td\n\xc3\xa9", 1, 2);
    assert_string_equal(p.gpu, "a_b=c_d___");
    gemm_choice_place(&p, "", 1, 2);
    assert_string_equal(p.gpu, "_");
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    gemm_choice_place(&p, name, INT32_MAX, INT64_MAX);
    struct gemm_choice c = choice(3), read;
    struct gemm_place back;
    char *line = line_of(&p, &c);
    assert_true(gemm_choice_parse(line, strlen(line), &back, &read));
    assert_string_equal(back.gpu, p.gpu);
    free(line);
}

int main(void)
{
    log_level_set(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_says_what_was_chosen),
        cmocka_unit_test(lines_from_before_fp8_are_read_and_written_unchanged),
        cmocka_unit_test(there_is_one_line_for_a_key),
        cmocka_unit_test(a_touched_line_is_refused),
        cmocka_unit_test(a_list_takes_the_lines_of_its_place),
        cmocka_unit_test(a_file_keeps_what_others_wrote),
        cmocka_unit_test(damaged_lines_of_a_file_go_with_the_next_addition),
        cmocka_unit_test(the_first_to_time_a_gemm_decides_for_all),
        cmocka_unit_test(a_line_of_no_use_is_replaced_once),
        cmocka_unit_test(a_name_becomes_one_word),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
