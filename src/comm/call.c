#include "comm/call.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

const char *comm_op_text(enum comm_op op)
{
    static const char *const texts[] = {
#define X(name, text) text,
        COMM_OPS(X)
#undef X
    };
    return texts[op];
}

const char *comm_rank_text(const struct comm *c, int rank, char text[COMM_TEXT])
{
    if (c == c->world)
        snprintf(text, COMM_TEXT, "rank %d", rank);
    else
        snprintf(text, COMM_TEXT, "rank %d (rank %d of '%s')", c->members[rank], rank, c->name);
    return text;
}

const char *comm_call_text(const struct comm *c, const struct comm_call *call, char text[COMM_TEXT])
{
    const bool message = call->op == COMM_SEND || call->op == COMM_RECV, all = c == c->world;
    snprintf(text, COMM_TEXT, "%s %llu%s%s%s, %s '%s'", message ? "message" : "collective",
             (unsigned long long)call->sequence, all ? "" : " of '", c->name, all ? "" : "'",
             comm_op_text(call->op), call->name);
    return text;
}

int comm_neighbour(const struct comm *c, const struct comm_call *call)
{
    const bool forward = (call->way == COMM_NEXT) == (call->op == COMM_SEND);
    return (c->rank + (forward ? 1 : c->ranks - 1)) % c->ranks;
}

void comm_header_fill(struct comm_header *h, const struct comm *c, const struct comm_call *call)
{
    const size_t pairs = (size_t)c->ranks * (size_t)c->ranks;
    *h = (struct comm_header){.sequence = call->sequence, .bytes = call->bytes, .op = (int32_t)call->op};
    if (call->counts && call->stream == NULL)
        h->counts = XXH64(call->counts, pairs * sizeof *call->counts, 0);
    snprintf(h->name, sizeof h->name, "%s", call->name);
}

int64_t comm_rows_sent_before(const struct comm *c, const struct comm_call *call, int i, int j)
{
    int64_t rows = 0;
    for (int r = 0; r < j; r++) rows += call->counts[i * c->ranks + r];
    return rows;
}

int64_t comm_rows_received_before(const struct comm *c, const struct comm_call *call, int i, int j)
{
    int64_t rows = 0;
    for (int r = 0; r < i; r++) rows += call->counts[r * c->ranks + j];
    return rows;
}

status comm_header_check(const struct comm *c, const struct comm_header *a, int rank_a,
                         const struct comm_header *b, int rank_b)
{
    char who_a[COMM_TEXT], who_b[COMM_TEXT];
    const bool same =
        a->sequence == b->sequence && a->bytes == b->bytes && a->op == b->op && strcmp(a->name, b->name) == 0;
    if (same && a->counts == b->counts) return STATUS_OK; /* field by field: the struct has padding */
    if (rank_b < rank_a) return comm_header_check(c, b, rank_b, a, rank_a);
    if (same)
        return FAIL(STATUS_COMM,
                    "the ranks do different things: %.100s and %.100s call %s '%s' (number %llu) with other "
                    "numbers of rows",
                    comm_rank_text(c, rank_a, who_a), comm_rank_text(c, rank_b, who_b),
                    comm_op_text((enum comm_op)a->op), a->name, (unsigned long long)a->sequence);
    return FAIL(
        STATUS_COMM,
        "the ranks do different things: %.100s calls %s '%s' of %llu bytes (number %llu), %.100s calls %s "
        "'%s' of %llu bytes (number %llu); give all of them the same command",
        comm_rank_text(c, rank_a, who_a), comm_op_text((enum comm_op)a->op), a->name,
        (unsigned long long)a->bytes, (unsigned long long)a->sequence, comm_rank_text(c, rank_b, who_b),
        comm_op_text((enum comm_op)b->op), b->name, (unsigned long long)b->bytes,
        (unsigned long long)b->sequence);
}

status comm_message_check(const struct comm *c, const struct comm_header *sent, const struct comm_call *call)
{
    char from[COMM_TEXT], to[COMM_TEXT];
    struct comm_header asked;
    comm_header_fill(&asked, c, call);
    if (sent->sequence == asked.sequence && sent->bytes == asked.bytes && strcmp(sent->name, asked.name) == 0)
        return STATUS_OK;
    return FAIL(STATUS_COMM,
                "the ranks do different things: %.100s sends '%s' of %llu bytes to the %s rank (message "
                "%llu), and there %.100s asks for '%s' of %zu bytes (message %llu)",
                comm_rank_text(c, comm_neighbour(c, call), from), sent->name, (unsigned long long)sent->bytes,
                call->way == COMM_NEXT ? "next" : "previous", (unsigned long long)sent->sequence,
                comm_rank_text(c, c->rank, to), call->name, call->bytes, (unsigned long long)call->sequence);
}
