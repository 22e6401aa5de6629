#include "train/algorithm_record.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Removes the lines of `other` from a text. */
static void subtract(char *text, const char *other)
{
    char *to = text;
    for (char *line = text, *next; *line; line = next) {
        char *end = strchr(line, '\n');
        next = end ? end + 1 : line + strlen(line);
        const char after = *next;
        *next = 0;
        const bool there = strstr(other, line) != NULL;
        *next = after;
        if (there) continue;
        memmove(to, line, (size_t)(next - line));
        to += next - line;
    }
    *to = 0;
}

/* *all: rank 0's text, on every rank; caller frees. */
static status first_text(struct comm *world, const char *mine, char **all)
{
    int64_t bytes = mine ? (int64_t)strlen(mine) + 1 : 1;
    TRY(comm_broadcast(world, "size of algorithms", &bytes, sizeof bytes, NULL));
    *all = calloc(1, (size_t)bytes);
    if (*all == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a record of algorithms");
    if (comm_rank(world) == 0 && mine) memcpy(*all, mine, (size_t)bytes);
    return comm_broadcast(world, "algorithms", *all, (size_t)bytes, NULL);
}

/* Puts the texts of all ranks into `by_rank` on rank 0, without empty ones. */
static status gather_texts(struct comm *world, const char *mine, json_t *by_rank)
{
    const int64_t length = (int64_t)strlen(mine);
    int64_t lengths[COMM_RANKS_MAX], most = 0;
    TRY(comm_all_gather(world, "sizes of algorithms", &length, lengths, sizeof length, NULL));
    for (int r = 0; r < comm_ranks(world); r++)
        if (lengths[r] > most) most = lengths[r];
    if (most == 0) return STATUS_OK;
    const size_t each = (size_t)most + 1;
    char *send = calloc(1, each), *all = malloc(each * (size_t)comm_ranks(world));
    status st = send && all ? STATUS_OK
                            : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the ranks' records of algorithms");
    if (st == STATUS_OK) {
        memcpy(send, mine, (size_t)length);
        st = comm_gather(world, "algorithms by rank", send, all, each);
    }
    for (int r = 0; st == STATUS_OK && by_rank && r < comm_ranks(world); r++) {
        char name[16];
        snprintf(name, sizeof name, "%d", r);
        if (lengths[r]) json_object_set_new(by_rank, name, json_string(all + (size_t)r * each));
    }
    free(send);
    free(all);
    return st;
}

static status gather(struct comm *world, char *mine, json_t *record)
{
    char *first = NULL;
    json_t *by_rank = record ? json_object() : NULL;
    status st = first_text(world, mine, &first);
    if (st == STATUS_OK && mine) subtract(mine, first);
    if (st == STATUS_OK) st = gather_texts(world, mine ? mine : "", by_rank);
    if (record && first && *first) json_object_set_new(record, "algorithms", json_string(first));
    if (by_rank && json_object_size(by_rank)) json_object_set(record, "algorithms_by_rank", by_rank);
    json_decref(by_rank);
    free(first);
    return st;
}

status algorithm_record_gather(struct comm *world, char *mine, json_t **out)
{
    *out = comm_rank(world) == 0 ? json_object() : NULL;
    return gather(world, mine, *out);
}

static void append(FILE *out, const json_t *text)
{
    if (json_is_string(text)) fputs(json_string_value(text), out);
}

char *algorithm_record_text(const json_t *record, int rank)
{
    const json_t *by_rank = json_object_get(record, "algorithms_by_rank");
    char name[16], *text = NULL;
    size_t bytes;
    FILE *out = memory_stream(&text, &bytes);
    for (int r = COMM_RANKS_MAX - 1; r > 0; r--) {
        snprintf(name, sizeof name, "%d", r);
        append(out, json_object_get(by_rank, name));
    }
    append(out, json_object_get(record, "algorithms"));
    snprintf(name, sizeof name, "%d", rank);
    append(out, json_object_get(by_rank, name));
    memory_stream_close(out);
    return text;
}
