/* The stored form of a block of documents:
 *
 *   rows of pieces    end[k]: one past the last piece of row k, minus 1 (a row has at least one piece), into order[]
 *   order[]           documents (local numbers) whose rest is packed, row by row
 *   whole[]           documents with whole rows: local number, and the whole rows of the block before it
 *
 * Rows [0, packed) of the block hold pieces, rows [packed, rows) are full.
 *
 * Best fit searches the least free space >= n. Free space is at most T, so there is one stack of rows per
 * free space, and a bitmap with summaries (64 to 1 per level) finds the next free space that has a row. A
 * piece costs a few dozen instructions for any T. */
#include "data/load/pack.h"
#include "base/parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 16 /* blocks that share a thread's scratch */, LEVELS = 4, NONE = -1 };
_Static_assert(PACK_DOCUMENTS - 1 <= UINT16_MAX, "local numbers are 16 bits");

struct whole {
    uint32_t before; /* whole rows of earlier documents of the block */
    uint32_t document;
};
struct block {
    int64_t rows_before; /* in earlier blocks */
    int64_t pairs;
    int32_t packed, pieces, long_count;
    uint32_t whole_rows;
    struct whole *whole; /* one allocation: whole, end, order */
    uint16_t *end, *order;
};
struct pack {
    const int64_t *starts;
    int64_t count, row_tokens, rows, pairs;
    size_t bytes;
    int64_t block_count;
    struct block *blocks;
};

/* Pairs of document d. */
static inline int64_t pairs_of(const struct pack *p, int64_t d)
{
    return p->starts[d + 1] - p->starts[d] - 1;
}

/* Scratch of one thread that packs a block. */
struct scratch {
    uint64_t *bits[LEVELS]; /* free spaces that have rows; level k + 1: words of level k that are not 0 */
    int32_t *top;           /* [T+1] by free space: last row pushed */
    int32_t *under;         /* [PACK_DOCUMENTS] by row: the next one in its stack */
    uint32_t *starts;       /* [T+2] counting sort */
    uint16_t *sorted;       /* [PACK_DOCUMENTS] documents, longest remainder first */
    int32_t *rest;          /* [PACK_DOCUMENTS] pairs in the remainder, by document */
    int32_t *row_of;        /* [PACK_DOCUMENTS] by position in `sorted` */
    int32_t *row_pieces;    /* [PACK_DOCUMENTS] */
    struct whole *whole;    /* [PACK_DOCUMENTS] */
};

static bool scratch_open(struct scratch *s, int64_t t)
{
    *s = (struct scratch){0};
    bool good = true;
    int64_t words = t + 1;
    for (int k = 0; k < LEVELS; k++) {
        words = (words + 63) / 64;
        good = good && (s->bits[k] = calloc((size_t)words, 8));
    }
    s->top = malloc((size_t)(t + 1) * sizeof *s->top);
    s->starts = malloc((size_t)(t + 2) * sizeof *s->starts);
    s->under = malloc(PACK_DOCUMENTS * sizeof *s->under);
    s->sorted = malloc(PACK_DOCUMENTS * sizeof *s->sorted);
    s->rest = malloc(PACK_DOCUMENTS * sizeof *s->rest);
    s->row_of = malloc(PACK_DOCUMENTS * sizeof *s->row_of);
    s->row_pieces = malloc(PACK_DOCUMENTS * sizeof *s->row_pieces);
    s->whole = malloc(PACK_DOCUMENTS * sizeof *s->whole);
    return good && s->top && s->starts && s->under && s->sorted && s->rest && s->row_of && s->row_pieces &&
           s->whole;
}

static void scratch_close(struct scratch *s)
{
    for (int k = 0; k < LEVELS; k++) free(s->bits[k]);
    free(s->top);
    free(s->starts);
    free(s->under);
    free(s->sorted);
    free(s->rest);
    free(s->row_of);
    free(s->row_pieces);
    free(s->whole);
}

static inline bool room_has_rows(const struct scratch *s, int64_t room)
{
    return s->bits[0][room >> 6] >> (room & 63) & 1;
}

static inline void push_row(struct scratch *s, int64_t room, int32_t row)
{
    s->under[row] = room_has_rows(s, room) ? s->top[room] : NONE;
    s->top[room] = row;
    for (int k = 0; k < LEVELS; k++, room >>= 6) {
        uint64_t *word = &s->bits[k][room >> 6], before = *word;
        *word |= 1ull << (room & 63);
        if (before) return; /* the summary bit is set already */
    }
}

static inline int32_t pop_row(struct scratch *s, int64_t room)
{
    int32_t row = s->top[room];
    s->top[room] = s->under[row];
    if (s->top[room] != NONE) return row;
    for (int k = 0; k < LEVELS; k++, room >>= 6) {
        uint64_t *word = &s->bits[k][room >> 6];
        *word &= ~(1ull << (room & 63));
        if (*word) break;
    }
    return row;
}

/* The least free space >= n that has a row; NONE. */
static inline int64_t room_for(const struct scratch *s, int64_t n, const int64_t *words)
{
    int64_t at = n; /* search level k from position `at` on */
    for (int k = 0; k < LEVELS; k++) {
        if (at >> 6 >= words[k]) return NONE;
        uint64_t word = s->bits[k][at >> 6] >> (at & 63);
        if (word) {
            at += __builtin_ctzll(word);
            while (k-- > 0) at = at << 6 | __builtin_ctzll(s->bits[k][at]);
            return at;
        }
        at = (at >> 6) + 1;
    }
    return NONE;
}

/* Lists rows that one document fills. Sorts remainders, longest first, stable. Returns the number of
 * remainders. */
static int32_t sort_rests(const struct pack *p, struct scratch *s, int64_t first, int32_t documents,
                          struct block *b)
{
    const int64_t t = p->row_tokens;
    uint64_t whole_rows = 0;
    memset(s->starts, 0, (size_t)(t + 2) * sizeof *s->starts);
    for (int32_t d = 0; d < documents; d++) {
        int64_t pairs = pairs_of(p, first + d);
        b->pairs += pairs > 0 ? pairs : 0;
        if (pairs > t) { /* a document of exactly T pairs is a remainder, too */
            s->whole[b->long_count++] = (struct whole){(uint32_t)whole_rows, (uint32_t)d};
            whole_rows += (uint64_t)(pairs / t);
            pairs %= t;
        }
        s->rest[d] = pairs > 0 ? (int32_t)pairs : 0;
        s->starts[t - s->rest[d] + 1]++; /* bin 0: remainders of T; the last bin, of length 0, is dropped */
    }
    b->whole_rows = whole_rows <= UINT32_MAX / 2 ? (uint32_t)whole_rows : UINT32_MAX;
    for (int64_t k = 1; k <= t; k++) s->starts[k] += s->starts[k - 1];
    const int32_t rests = (int32_t)s->starts[t];
    for (int32_t d = 0; d < documents; d++)
        if (s->rest[d]) s->sorted[s->starts[t - s->rest[d]]++] = (uint16_t)d;
    return rests;
}

/* Assigns a row to each remainder, in sorted order. Returns the number of rows. */
static int32_t best_fit(const struct pack *p, struct scratch *s, int32_t rests)
{
    int64_t words[LEVELS], t = p->row_tokens, level = t + 1;
    for (int k = 0; k < LEVELS; k++) words[k] = level = (level + 63) / 64;
    int32_t rows = 0;
    for (int32_t i = 0; i < rests; i++) {
        int64_t n = s->rest[s->sorted[i]], room = room_for(s, n, words);
        int32_t row;
        if (room == NONE) {
            row = rows++;
            room = t;
            s->row_pieces[row] = 0;
        } else {
            row = pop_row(s, room);
        }
        s->row_of[i] = row;
        s->row_pieces[row]++;
        if (room > n) push_row(s, room - n, row);
    }
    for (int k = 0; k < LEVELS; k++) memset(s->bits[k], 0, (size_t)words[k] * 8);
    return rows;
}

static int32_t alone(struct scratch *s, int32_t rests)
{
    for (int32_t i = 0; i < rests; i++) s->row_of[i] = i, s->row_pieces[i] = 1;
    return rests;
}

static status pack_block(struct pack *p, struct scratch *s, int64_t index, enum pack_policy policy)
{
    struct block *b = &p->blocks[index];
    const int64_t first = index * PACK_DOCUMENTS;
    const int32_t documents =
        (int32_t)(p->count - first < PACK_DOCUMENTS ? p->count - first : PACK_DOCUMENTS);
    const int32_t rests = sort_rests(p, s, first, documents, b);
    if (b->whole_rows == UINT32_MAX)
        return FAIL(STATUS_CONFIG, "documents of more than 2^31 rows of %lld tokens: the rows are too short",
                    (long long)p->row_tokens);
    b->packed = policy == PACK_BEST_FIT ? best_fit(p, s, rests) : alone(s, rests);
    b->pieces = rests;
    size_t bytes = (size_t)b->long_count * sizeof *b->whole + (size_t)(b->packed + rests) * 2;
    b->whole = malloc(bytes + 1);
    if (!b->whole) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the packing of %d documents", documents);
    memcpy(b->whole, s->whole, (size_t)b->long_count * sizeof *b->whole);
    b->end = (uint16_t *)(void *)(b->whole + b->long_count);
    b->order = b->end + b->packed;
    int32_t sum = 0;
    for (int32_t row = 0; row < b->packed; row++) {
        int32_t n = s->row_pieces[row];
        s->row_pieces[row] = sum; /* from here on: where the row's next piece starts */
        sum += n;
        b->end[row] = (uint16_t)(sum - 1);
    }
    for (int32_t i = 0; i < rests; i++) b->order[s->row_pieces[s->row_of[i]]++] = s->sorted[i];
    return STATUS_OK;
}

/* Result of a group of blocks: the error record belongs to the thread. */
struct group {
    status st;
    char message[256];
};

/* Blocks [span.begin, span.end), with their own scratch. */
static void pack_group(struct pack *p, struct span span, enum pack_policy policy, struct group *g)
{
    struct scratch s;
    g->st = scratch_open(&s, p->row_tokens) ? STATUS_OK
                                            : FAIL(STATUS_OUT_OF_MEMORY, "no memory to pack documents");
    for (int64_t i = span.begin; i < span.end && g->st == STATUS_OK; i++)
        g->st = pack_block(p, &s, i, policy);
    if (g->st != STATUS_OK) snprintf(g->message, sizeof g->message, "%s", status_message());
    scratch_close(&s);
}

static status pack_all(struct pack *p, enum pack_policy policy)
{
    const int64_t count = chunk_count(p->block_count, GROUP);
    struct group *groups = calloc((size_t)count + 1, sizeof *groups);
    status st = groups ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory for a packing");
    if (groups) PARALLEL_CHUNKS(g, count)
        {
            pack_group(p, chunk_span(g, p->block_count, GROUP), policy, &groups[g]);
        }
    for (int64_t g = 0; g < count && st == STATUS_OK; g++)
        if (groups[g].st != STATUS_OK) st = FAIL(groups[g].st, "%s", groups[g].message);
    free(groups);
    return st;
}

static status sum_up(struct pack *p)
{
    p->bytes = sizeof *p + (size_t)p->block_count * sizeof *p->blocks;
    for (int64_t i = 0; i < p->block_count; i++) {
        struct block *b = &p->blocks[i];
        b->rows_before = p->rows;
        p->rows += b->packed + (int64_t)b->whole_rows;
        p->pairs += b->pairs;
        p->bytes += (size_t)b->long_count * sizeof *b->whole + (size_t)(b->packed + b->pieces) * 2;
    }
    return p->rows > 0 ? STATUS_OK
                       : FAIL(STATUS_DATA, "none of %lld documents has two tokens: there is nothing to pack",
                              (long long)p->count);
}

status pack_open(struct pack **out, const int64_t *starts, int64_t count, int64_t row_tokens,
                 enum pack_policy policy)
{
    *out = NULL;
    CHECK(row_tokens > 0 && count >= 0, "%lld documents in rows of %lld", (long long)count,
          (long long)row_tokens);
    if (row_tokens > PACK_ROW_MAX)
        return FAIL(STATUS_CONFIG,
                    "train.sequence_length %lld: data.packing best_fit and pad serve up to %d; "
                    "data.packing=documents has no limit",
                    (long long)row_tokens, PACK_ROW_MAX);
    struct pack *p = calloc(1, sizeof *p);
    if (!p) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a packing");
    *p = (struct pack){.starts = starts, .count = count, .row_tokens = row_tokens};
    p->block_count = chunk_count(count, PACK_DOCUMENTS);
    p->blocks = calloc((size_t)p->block_count + 1, sizeof *p->blocks);
    status st = p->blocks ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory for a packing");
    if (st == STATUS_OK) st = pack_all(p, policy);
    if (st == STATUS_OK) st = sum_up(p);
    if (st != STATUS_OK)
        pack_close(p);
    else
        *out = p;
    return st;
}

void pack_close(struct pack *p)
{
    if (!p) return;
    for (int64_t i = 0; p->blocks && i < p->block_count; i++) free(p->blocks[i].whole);
    free(p->blocks);
    free(p);
}

int64_t pack_rows(const struct pack *p)
{
    return p->rows;
}
int64_t pack_pairs(const struct pack *p)
{
    return p->pairs;
}
size_t pack_bytes(const struct pack *p)
{
    return p->bytes;
}

void pack_row(const struct pack *p, int64_t row, struct pack_cursor *c)
{
    CHECK(row >= 0 && row < p->rows, "row %lld of %lld", (long long)row, (long long)p->rows);
    int64_t low = 0, high = p->block_count; /* the last block with rows_before <= row */
    while (high - low > 1) {
        int64_t mid = low + (high - low) / 2;
        if (p->blocks[mid].rows_before <= row)
            low = mid;
        else
            high = mid;
    }
    const struct block *b = &p->blocks[low];
    int64_t k = row - b->rows_before;
    *c = (struct pack_cursor){.pack = p, .block = b, .whole = -1};
    if (k >= b->packed) {
        c->whole = k - b->packed;
        return;
    }
    c->next = k ? b->end[k - 1] + 1 : 0;
    c->end = b->end[k] + 1;
}

/* Full row k of the block: its document, and which row of the document. */
static struct pack_piece whole_piece(const struct pack *p, const struct block *b, int64_t k)
{
    int32_t low = 0, high = b->long_count; /* the last with before <= k */
    while (high - low > 1) {
        int32_t mid = low + (high - low) / 2;
        if (b->whole[mid].before <= k)
            low = mid;
        else
            high = mid;
    }
    int64_t document = (b - p->blocks) * PACK_DOCUMENTS + b->whole[low].document;
    return (struct pack_piece){.document = document,
                               .at = p->starts[document] + (k - b->whole[low].before) * p->row_tokens,
                               .count = p->row_tokens};
}

bool pack_next(struct pack_cursor *c, struct pack_piece *piece)
{
    const struct pack *p = c->pack;
    const struct block *b = c->block;
    if (c->whole >= 0) {
        *piece = whole_piece(p, b, c->whole);
        c->whole = -1;
        return true;
    }
    if (c->next == c->end) return false;
    int64_t document = (b - p->blocks) * PACK_DOCUMENTS + b->order[c->next++], pairs = pairs_of(p, document),
            rest = pairs > p->row_tokens ? pairs % p->row_tokens : pairs;
    *piece =
        (struct pack_piece){.document = document, .at = p->starts[document] + pairs - rest, .count = rest};
    return true;
}
