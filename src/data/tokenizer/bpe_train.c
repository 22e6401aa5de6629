/* Training of byte-pair encoding (Sennrich, Haddow, Birch: arXiv:1508.07909) on unique pieces with their
 * counts.
 *
 * One step takes the most frequent pair of neighbours (a, b), makes the token ab and replaces the pair
 * everywhere.
 *
 *   words    the unique pieces as symbols; they shrink in place
 *   pairs    (a, b) -> count over all words (times the count of the word), and the words in which it may
 *            occur
 *   heap     pairs by count, then by smaller (a, b); lazy: an entry with an outdated count is put back with
 *            its current count. Most pairs are rare and never reach the top: those below `floor` stay out
 *            until the heap is empty, then the floor is lowered
 *
 * A step touches only the words of its pair. The counts of the neighbours change; only pairs with the new
 * token increase, and the words seen for them are written as one run per pair and step into a pool
 * (`runs`), so no list ever grows in place.
 *
 * Two different merges can make the same bytes (ab+c, a+bc). Both then give the same token, and the
 * vocabulary stays a set of strings. Only in this case can a merged pair appear again; it is merged again
 * without a new rule.
 *
 * Time is about the number of replaced symbols; memory is about 4 bytes per byte of unique pieces and 30
 * per pair. All counts are i64. The loop is serial: counting the text, in parallel (bpe_count.c), takes
 * most of the time of a large text. */
#include "data/tokenizer/bpe_train.h"
#include "base/clock.h"
#include "base/log.h"
#include "data/text/alphabet.h"
#include "data/text/array.h"
#include "data/tokenizer/bpe_count.h"
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct word {
    size_t at; /* first symbol in trainer.symbols */
    uint32_t length;
    int64_t count;
};

struct pair {
    uint64_t key; /* left << 32 | right */
    int64_t count;
    size_t run;         /* newest run + 1; 0: none */
    uint32_t last_word; /* the word recorded last */
    uint32_t fresh;     /* words recorded in this step */
    bool merged;        /* it has been merged already */
};

/* In trainer.runs: [0] the next run + 1, low half; [1] its high half; [2] the count; then the words. */
enum { RUN_HEADER = 3, AHEAD = 12, FLOOR_STEP = 16 };

struct record {
    uint32_t pair, word;
};

struct heap_item {
    int64_t count;
    uint64_t key;
    uint32_t pair;
};

struct trainer {
    struct tokenizer *t;
    int32_t *symbols;
    struct word *words;
    size_t word_count;
    struct pair *pairs;
    size_t pair_count, pair_cap;
    uint32_t *slots; /* open addressing: index of a pair, or NONE */
    size_t slot_count;
    uint32_t *runs;
    size_t run_used, run_cap;
    struct record *records; /* of this step */
    size_t record_count, record_cap;
    uint32_t *fresh; /* pairs with records in this step */
    size_t fresh_count, fresh_cap;
    struct heap_item *heap;
    size_t heap_count, heap_cap;
    int64_t floor; /* pairs with lower counts are not in the heap */
};

static void trainer_fini(struct trainer *r)
{
    free(r->symbols);
    free(r->words);
    free(r->pairs);
    free(r->slots);
    free(r->runs);
    free(r->records);
    free(r->fresh);
    free(r->heap);
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)left << 32 | (uint32_t)right;
}

static uint32_t *find_slot(const struct trainer *r, uint64_t key)
{
    size_t mask = r->slot_count - 1;
    for (size_t i = (key * 0x9e3779b97f4a7c15u) >> 32 & mask;; i = (i + 1) & mask)
        if (r->slots[i] == NONE || r->pairs[r->slots[i]].key == key) return &r->slots[i];
}

static status grow_slots(struct trainer *r)
{
    size_t want = r->slot_count != 0 ? 2 * r->slot_count : 1 << 17;
    uint32_t *slots;
    TRY(array_new(&slots, want, sizeof *slots));
    memset(slots, 0xff, want * sizeof *slots);
    free(r->slots);
    r->slots = slots;
    r->slot_count = want;
    for (size_t i = 0; i < r->pair_count; i++) *find_slot(r, r->pairs[i].key) = (uint32_t)i;
    return STATUS_OK;
}

static status find_or_add(struct trainer *r, uint64_t key, uint32_t *index)
{
    if (2 * (r->pair_count + 1) > r->slot_count) TRY(grow_slots(r));
    uint32_t *slot = find_slot(r, key);
    if (*slot == NONE) {
        if (r->pair_count >= NONE - 1)
            return FAIL(STATUS_OUT_OF_MEMORY, "more than 2^32 different pairs; train on less text");
        TRY(array_grow(&r->pairs, &r->pair_cap, r->pair_count + 1, sizeof *r->pairs));
        *slot = (uint32_t)r->pair_count;
        r->pairs[r->pair_count++] = (struct pair){.key = key, .last_word = NONE};
    }
    *index = *slot;
    return STATUS_OK;
}

/* Records that the pair appeared in the word. */
static status pair_up(struct trainer *r, uint64_t key, uint32_t word)
{
    uint32_t index = NONE;
    TRY(find_or_add(r, key, &index));
    struct pair *p = &r->pairs[index];
    p->count += r->words[word].count;
    if (p->last_word == word) return STATUS_OK;
    p->last_word = word;
    if (p->fresh++ == 0) {
        TRY(array_grow(&r->fresh, &r->fresh_cap, r->fresh_count + 1, sizeof *r->fresh));
        r->fresh[r->fresh_count++] = index;
    }
    TRY(array_grow(&r->records, &r->record_cap, r->record_count + 1, sizeof *r->records));
    r->records[r->record_count++] = (struct record){index, word};
    return STATUS_OK;
}

static void pair_down(struct trainer *r, uint64_t key, uint32_t word)
{
    uint32_t *slot = find_slot(r, key);
    CHECK(*slot != NONE, "pair %llx was never counted", (unsigned long long)key);
    r->pairs[*slot].count -= r->words[word].count;
}

static bool comes_before(const struct heap_item *a, const struct heap_item *b)
{
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static status heap_push(struct trainer *r, uint32_t pair)
{
    struct heap_item item = {r->pairs[pair].count, r->pairs[pair].key, pair};
    if (item.count < r->floor) return STATUS_OK;
    TRY(array_grow(&r->heap, &r->heap_cap, r->heap_count + 1, sizeof *r->heap));
    size_t i = r->heap_count++;
    for (; i > 0 && comes_before(&item, &r->heap[(i - 1) / 2]); i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = item;
    return STATUS_OK;
}

static struct heap_item heap_pop(struct trainer *r)
{
    struct heap_item top = r->heap[0], last = r->heap[--r->heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < r->heap_count; i = child) {
        if (child + 1 < r->heap_count && comes_before(&r->heap[child + 1], &r->heap[child])) child++;
        if (!comes_before(&r->heap[child], &last)) break;
        r->heap[i] = r->heap[child];
    }
    if (r->heap_count != 0) r->heap[i] = last;
    return top;
}

/* Ends a step: turns records into runs and pushes their pairs to the heap. */
static status close_step(struct trainer *r)
{
    TRY(array_grow(&r->runs, &r->run_cap, r->run_used + r->record_count + RUN_HEADER * r->fresh_count,
                   sizeof *r->runs));
    for (size_t i = 0; i < r->fresh_count; i++) {
        struct pair *p = &r->pairs[r->fresh[i]];
        uint32_t *run = r->runs + r->run_used;
        run[0] = (uint32_t)p->run;
        run[1] = (uint32_t)(p->run >> 32);
        run[2] = 0; /* its count rises below */
        p->run = r->run_used + 1;
        r->run_used += RUN_HEADER + p->fresh;
        p->fresh = 0;
        TRY(heap_push(r, r->fresh[i]));
    }
    for (size_t i = 0; i < r->record_count; i++) {
        uint32_t *run = r->runs + (r->pairs[r->records[i].pair].run - 1);
        run[RUN_HEADER + run[2]++] = r->records[i].word;
    }
    r->record_count = r->fresh_count = 0;
    return STATUS_OK;
}

/* Lowers the floor by a factor, or down to the next pair. *any false: no pair is left. */
static status lower_floor(struct trainer *r, bool *any)
{
    int64_t most = 0;
    for (size_t i = 0; i < r->pair_count; i++)
        if (r->pairs[i].count > most) most = r->pairs[i].count;
    *any = most > 0;
    r->floor = most / FLOOR_STEP > 1 ? most / FLOOR_STEP : 1;
    for (size_t i = 0; i < r->pair_count; i++) TRY(heap_push(r, (uint32_t)i));
    return STATUS_OK;
}

/* A pair of bytes before any merge. */
struct first {
    int64_t count;
    uint32_t words, last_word, at; /* words that contain it; the last such word; next position in its run */
};

static void count_first(const struct trainer *r, struct first *first)
{
    for (size_t i = 0; i < r->word_count; i++) {
        const struct word *w = &r->words[i];
        const int32_t *s = r->symbols + w->at;
        for (uint32_t k = 0; k + 1 < w->length; k++) {
            struct first *f = &first[s[k] * 256 + s[k + 1]];
            f->count += w->count;
            f->words += f->last_word != i;
            f->last_word = (uint32_t)i;
        }
    }
}

static status open_first_runs(struct trainer *r, struct first *first)
{
    size_t room = 0;
    for (int key = 0; key < 256 * 256; key++)
        room += first[key].words != 0 ? first[key].words + RUN_HEADER : 0;
    TRY(array_grow(&r->runs, &r->run_cap, room, sizeof *r->runs));
    for (int key = 0; key < 256 * 256; key++) {
        struct first *f = &first[key];
        uint32_t index = NONE;
        if (f->words == 0) continue;
        TRY(find_or_add(r, pair_key(key / 256, key % 256), &index));
        struct pair *p = &r->pairs[index];
        p->count = f->count;
        p->run = r->run_used + 1;
        memset(r->runs + r->run_used, 0, 2 * sizeof *r->runs);
        r->runs[r->run_used + 2] = f->words;
        f->at = 0;
        f->last_word = index; /* from here on: its pair */
        r->run_used += RUN_HEADER + f->words;
    }
    return STATUS_OK;
}

/* Byte pairs, counted in a table without hashing; their runs are written in place. */
static status load_pairs(struct trainer *r)
{
    struct first *first;
    status st;
    TRY(array_new(&first, 256 * 256, sizeof *first));
    for (int key = 0; key < 256 * 256; key++) first[key].last_word = NONE;
    count_first(r, first);
    TRY_OUT(open_first_runs(r, first));
    for (size_t i = 0; i < r->word_count; i++) {
        const struct word *w = &r->words[i];
        const int32_t *s = r->symbols + w->at;
        for (uint32_t k = 0; k + 1 < w->length; k++) {
            struct first *f = &first[s[k] * 256 + s[k + 1]];
            uint32_t *run = r->runs + (r->pairs[f->last_word].run - 1) + RUN_HEADER;
            if (f->at == 0 || run[f->at - 1] != i) run[f->at++] = (uint32_t)i;
        }
    }
out:
    free(first);
    return st;
}

static status load_words(struct trainer *r, const struct bpe_pieces *pieces)
{
    size_t symbols = 0, at = 0;
    for (size_t i = 0; i < pieces->count; i++) symbols += pieces->items[i].bytes;
    if (pieces->count >= NONE)
        return FAIL(STATUS_OUT_OF_MEMORY, "%zu different pieces are too many; train on less text",
                    pieces->count);
    TRY(array_new(&r->words, pieces->count, sizeof *r->words));
    TRY(array_new(&r->symbols, symbols, sizeof *r->symbols));
    r->word_count = pieces->count;
    int32_t byte_id[256];
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        byte_id[byte] = vocab_find(&r->t->vocab, &c, 1);
        CHECK(byte_id[byte] >= 0 && byte_id[byte] < 256, "the bytes have the first ids");
    }
    for (size_t i = 0; i < pieces->count; i++) {
        const struct bpe_piece *p = &pieces->items[i];
        if (i + AHEAD < pieces->count) __builtin_prefetch(p[AHEAD].data);
        r->words[i] = (struct word){at, p->bytes, p->count};
        for (uint32_t k = 0; k < p->bytes; k++) r->symbols[at++] = byte_id[(uint8_t)p->data[k]];
    }
    return load_pairs(r);
}

/* Replaces a, b by ab from left to right; counts as if each replacement were made on its own. */
static status merge_word(struct trainer *r, uint32_t word, struct merge m)
{
    struct word *w = &r->words[word];
    int32_t *s = r->symbols + w->at;
    uint32_t to = 0;
    for (uint32_t from = 0; from < w->length; from++) {
        if (s[from] != m.left || from + 1 >= w->length || s[from + 1] != m.right) {
            s[to++] = s[from];
            continue;
        }
        if (to > 0) {
            pair_down(r, pair_key(s[to - 1], m.left), word);
            TRY(pair_up(r, pair_key(s[to - 1], m.id), word));
        }
        if (from + 2 < w->length) {
            pair_down(r, pair_key(m.right, s[from + 2]), word);
            TRY(pair_up(r, pair_key(m.id, s[from + 2]), word));
        }
        s[to++] = m.id;
        from++;
    }
    w->length = to;
    return STATUS_OK;
}

static status merge_everywhere(struct trainer *r, uint32_t pair, struct merge m)
{
    size_t run = r->pairs[pair].run;
    r->pairs[pair].run = 0;
    r->pairs[pair].last_word = NONE;
    while (run != 0) { /* only close_step moves the pool */
        const uint32_t *header = r->runs + (run - 1), *words = header + RUN_HEADER;
        for (uint32_t i = 0, n = header[2]; i < n; i++) {
            /* Prefetches: the words of a run are scattered, and memory latency took most of the time. */
            if (i + 2 * AHEAD < n) __builtin_prefetch(&r->words[words[i + 2 * AHEAD]]);
            if (i + AHEAD < n) __builtin_prefetch(r->symbols + r->words[words[i + AHEAD]].at);
            TRY(merge_word(r, words[i], m));
        }
        run = (size_t)header[1] << 32 | header[0];
    }
    r->pairs[pair].count = 0;
    return close_step(r);
}

/* The token of the concatenation: a new one unless its bytes are a token already. */
static status token_of(struct vocab *v, struct merge *m)
{
    struct text a = vocab_bytes(v, m->left), b = vocab_bytes(v, m->right);
    char small[256], *bytes = small;
    if (a.bytes + b.bytes > sizeof small) TRY(array_new(&bytes, a.bytes + b.bytes, 1));
    memcpy(bytes, a.data, a.bytes);
    memcpy(bytes + a.bytes, b.data, b.bytes);
    m->id = vocab_find(v, bytes, a.bytes + b.bytes);
    status st = STATUS_OK;
    if (m->id < 0) {
        m->id = (int32_t)v->count;
        st = vocab_append(v, bytes, a.bytes + b.bytes, TOKEN_MODEL);
    }
    if (bytes != small) free(bytes);
    return st;
}

/* Merges until there are `tokens_max` tokens; `fewer`: or no pair is left. */
static status learn(struct trainer *r, size_t tokens_max, bool fewer)
{
    struct tokenizer *t = r->t;
    while (t->vocab.count < tokens_max) {
        bool any = true;
        if (r->heap_count == 0) TRY(lower_floor(r, &any));
        if (!any && fewer) return STATUS_OK;
        if (!any)
            return FAIL(STATUS_DATA,
                        "the text has pairs for %zu tokens of bytes and merges, %zu were asked for; take "
                        "more text or a smaller vocabulary",
                        t->vocab.count, tokens_max);
        struct heap_item top = heap_pop(r);
        struct pair *p = &r->pairs[top.pair];
        if (p->count != top.count) { /* the count went down, or went up and has a higher entry in the heap */
            if (p->count < top.count) TRY(heap_push(r, top.pair));
            continue;
        }
        struct merge m = {(int32_t)(p->key >> 32), (int32_t)p->key, 0};
        TRY(token_of(&t->vocab, &m));
        if (!p->merged) {
            p->merged = true;
            if (t->merge_count + 2 > RANK_MAX)
                return FAIL(STATUS_OUT_OF_MEMORY, "more than %d merges", RANK_MAX);
            TRY(array_grow(&t->merges, &t->merge_cap, t->merge_count + 1, sizeof *t->merges));
            t->merges[t->merge_count++] = m;
        }
        TRY(merge_everywhere(r, top.pair, m));
    }
    return STATUS_OK;
}

/* The 256 bytes, in the order of their letters: the numbering of GPT-2. */
static status add_bytes(struct vocab *v)
{
    for (uint32_t code = 0; code < ALPHABET_END; code++) {
        char byte = (char)alphabet_byte(code);
        if (alphabet_byte(code) >= 0) TRY(vocab_append(v, &byte, 1, TOKEN_MODEL));
    }
    CHECK(v->count == 256, "%zu letters", v->count);
    return STATUS_OK;
}

static status add_specials(struct tokenizer *t, const struct tokenizer_train_config *c)
{
    for (int i = 0; i < c->special_count; i++) {
        TRY(array_grow(&t->added, &t->added_cap, t->added_count + 1, sizeof *t->added));
        t->added[t->added_count++] = (struct added){.id = (int32_t)t->vocab.count, .special = true};
        TRY(vocab_append(&t->vocab, c->specials[i], strlen(c->specials[i]), TOKEN_ADDED));
    }
    return STATUS_OK;
}

static status check_config(const struct tokenizer_train_config *c)
{
    int smallest = 256 + c->special_count;
    if (c->vocab_size < smallest || c->vocab_size >= TOKEN_MAX)
        return FAIL(STATUS_CONFIG, "vocabulary size %d: it must be from %d (256 bytes and %d specials) to %d",
                    (int)c->vocab_size, smallest, c->special_count, TOKEN_MAX - 1);
    for (int i = 0; i < c->special_count; i++) {
        size_t bytes = strlen(c->specials[i]);
        if (bytes == 0 || utf8_valid(c->specials[i], bytes) != bytes)
            return FAIL(STATUS_CONFIG, "special token %d is empty or not UTF-8", i + 1);
        for (int k = 0; k < i; k++)
            if (strcmp(c->specials[k], c->specials[i]) == 0)
                return FAIL(STATUS_CONFIG, "special token %s is given twice", c->specials[i]);
    }
    return STATUS_OK;
}

status bpe_train(struct tokenizer *t, const struct tokenizer_train_config *config, const struct text *docs,
                 int64_t count)
{
    TRY(check_config(config));
    TRY(pretokenizer_named(&t->pretokenizer, config->pretokenizer));
    struct trainer r = {.t = t};
    struct bpe_pieces pieces = {0};
    double start = clock_s();
    status st;
    TRY_OUT(add_bytes(&t->vocab));
    TRY_OUT(bpe_count(&pieces, &t->pretokenizer, docs, count));
    double counted = clock_s();
    TRY_OUT(load_words(&r, &pieces));
    double loaded = clock_s();
    TRY_OUT(learn(&r, (size_t)(config->vocab_size - config->special_count), config->fewer));
    log_debug("tokenizer: %zu pieces counted in %.2f s, %zu pairs set up in %.2f s, %zu merges in %.2f s",
              pieces.count, counted - start, r.pair_count, loaded - counted, t->merge_count,
              clock_s() - loaded);
    st = add_specials(t, config);
out:
    bpe_count_free(&pieces);
    trainer_fini(&r);
    return st;
}
