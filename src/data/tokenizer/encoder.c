/* Encodes text to ids. Added tokens are cut out first; the rest is split, and each piece becomes ids.
 *
 * Language repeats itself: almost every piece occurred before. Each encoder therefore caches pieces in a
 * direct-mapped cache, and the speed of a hit matters most. A line of this cache is one line of the CPU's
 * cache,
 *
 *   0   key    the bytes of the piece, zero-filled: 32
 *   32  ids    7 of 4 bytes
 *   60  meta   bytes of the piece << 8 | ids; 0: free line
 *
 * compared and copied with one vector instruction each. The cache has up to 16 MB: with a quarter of that,
 * dictionary text (GCIDE) is encoded at two thirds of the speed. It starts small, because most texts need
 * no more and memory costs time, too. Pieces are processed in batches: all keys are hashed and their lines
 * prefetched, then looked up. Longer pieces, and those with more ids, are merged each time. */
#include "base/bytes32.h"
#include "data/text/array.h"
#include "data/tokenizer/bpe_merge.h"
#include "data/tokenizer/tokenizer_int.h"
#include "data/text/unicode.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 32, LINE_IDS = 7, LINES_MIN = 1 << 9, LINES_MAX = 1 << 18, LINES_STEP = 8, BATCH = 128 };

struct line {
    uint8_t key[KEY_BYTES];
    int32_t ids[LINE_IDS];
    uint32_t meta;
};
static_assert(sizeof(struct line) == 64, "a cache line");

struct encoder {
    const struct tokenizer *t;
    struct line *lines; /* [line_count], a power of two */
    size_t line_count, misses /* since it grew */;
    int32_t *ids;
    size_t count, cap;
    struct bpe_scratch scratch;
    struct pretokenizer_room room;
    bool plain_added[2]; /* raw, normalized: added tokens that are not special are always matched */
};

/* Space kept free during a batch: all its short pieces as single bytes, and one vector store past the end. */
enum { SLACK = BATCH * KEY_BYTES + 8 };

static inline size_t hash_key(bytes32 key);

/* LINES_STEP times the lines, or the first ones. */
static status grow_cache(struct encoder *e)
{
    size_t count = e->line_count != 0 ? e->line_count * LINES_STEP : LINES_MIN;
    struct line *lines;
    TRY(array_new_table(&lines, count, sizeof *lines, 0));
    for (size_t i = 0; i < e->line_count; i++) {
        const struct line *line = &e->lines[i];
        if (line->meta != 0) lines[hash_key(bytes32_load(line->key)) & (count - 1)] = *line;
    }
    free(e->lines);
    e->lines = lines;
    e->line_count = count;
    e->misses = 0;
    return STATUS_OK;
}

status encoder_open(struct encoder **out, const struct tokenizer *t)
{
    struct encoder *e;
    *out = NULL;
    TRY(array_new(&e, 1, sizeof *e));
    e->t = t;
    status st = grow_cache(e);
    if (st != STATUS_OK) {
        free(e);
        return st;
    }
    for (size_t i = 0; i < t->added_count; i++)
        if (!t->added[i].special) e->plain_added[t->added[i].normalized] = true;
    *out = e;
    return STATUS_OK;
}

void encoder_close(struct encoder *e)
{
    if (e == NULL) return;
    free(e->lines);
    free(e->ids);
    free(e->room.data);
    bpe_scratch_fini(&e->scratch);
    free(e);
}

static inline bytes32 load_key(const uint8_t *piece, size_t bytes, size_t readable)
{
    static const uint8_t keep[2 * KEY_BYTES] = {[0 ... KEY_BYTES - 1] = 0xff};
    if (readable < KEY_BYTES) { /* the end of the text */
        uint8_t key[KEY_BYTES] = {0};
        memcpy(key, piece, bytes);
        return bytes32_load(key);
    }
    bytes32 mask = bytes32_load(keep + KEY_BYTES - bytes);
    return bytes32_and(bytes32_load(piece), mask);
}

static inline uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static inline size_t hash_key(bytes32 key)
{
    uint64_t a = bytes32_word(key, 0), b = bytes32_word(key, 1);
    uint64_t c = bytes32_word(key, 2), d = bytes32_word(key, 3);
    return fold(a ^ 0x9e3779b97f4a7c15u, b ^ 0xd1b54a32d192ed03u) ^
           fold(c ^ 0x8cb92ba72f3d8dd7u, d ^ 0xaaaaaaaaaaaaaaabu);
}

/* Merges a piece, appends its ids and, if they fit, caches them in *line (NULL: no caching). */
static __attribute__((noinline)) status encode_piece(struct encoder *e, const uint8_t *piece, size_t bytes,
                                                     struct line *line)
{
    const struct tokenizer *t = e->t;
    TRY(array_grow(&e->ids, &e->cap, e->count + bytes + SLACK, sizeof *e->ids));
    int32_t *out = e->ids + e->count,
            whole = t->ignore_merges ? vocab_find(&t->vocab, (const char *)piece, bytes) : -1;
    size_t count = 1;
    if (whole >= 0)
        out[0] = whole;
    else
        TRY(bpe_merge(t, &e->scratch, piece, bytes, out, &count));
    e->count += count;
    e->misses++;
    if (line == NULL || count > LINE_IDS) return STATUS_OK;
    *line = (struct line){.meta = (uint32_t)(bytes << 8 | count)};
    memcpy(line->key, piece, bytes);
    memcpy(line->ids, out, count * sizeof *out);
    return STATUS_OK;
}

static status encode_batch(struct encoder *e, const uint8_t *text, size_t at, size_t readable_end,
                           const size_t *ends, int n)
{
    bytes32 keys[BATCH];
    struct line *lines[BATCH];
    size_t begin = at;
    if (e->misses > e->line_count && e->line_count < LINES_MAX) TRY(grow_cache(e));
    for (int i = 0; i < n; begin = ends[i++]) {
        size_t bytes = ends[i] - begin;
        if (bytes > KEY_BYTES) continue;
        keys[i] = load_key(text + begin, bytes, readable_end - begin);
        lines[i] = &e->lines[hash_key(keys[i]) & (e->line_count - 1)];
        __builtin_prefetch(lines[i]);
    }
    TRY(array_grow(&e->ids, &e->cap, e->count + SLACK, sizeof *e->ids));
    begin = at;
    for (int i = 0; i < n; begin = ends[i++]) {
        size_t bytes = ends[i] - begin;
        if (bytes > KEY_BYTES) {
            TRY(encode_piece(e, text + begin, bytes, NULL));
            continue;
        }
        const struct line *line = lines[i];
        const bool same = bytes32_is_zero(bytes32_xor(keys[i], bytes32_load(line->key)));
        if (!same || line->meta >> 8 != bytes) {
            TRY(encode_piece(e, text + begin, bytes, lines[i]));
            continue;
        }
        bytes32_store(e->ids + e->count, bytes32_load(line->ids));
        e->count += line->meta & 0xff;
    }
    return STATUS_OK;
}

/* text[at, end) contains no added token. Bytes up to readable_end may be read. */
static status encode_plain(struct encoder *e, const uint8_t *text, size_t at, size_t end, size_t readable_end)
{
    struct pretokenizer_cursor c = pretokenizer_begin((const char *)text + at, end - at);
    size_t ends[BATCH], begin = 0;
    for (int n; (n = pretokenizer_scan(&e->t->pretokenizer, &c, ends, BATCH)) > 0; begin = c.at)
        TRY(encode_batch(e, text + at, begin, readable_end - at, ends, n));
    return STATUS_OK;
}

/* The longest of the added tokens [lo, hi), sorted by bytes, that is a prefix of text; NULL: none. Each byte
 * narrows the range. */
static const struct added *longest_added(const struct tokenizer *t, size_t lo, size_t hi, const uint8_t *text,
                                         size_t left)
{
    const struct added *best = NULL;
    for (size_t depth = 0; lo < hi; depth++) {
        if (vocab_bytes(&t->vocab, t->added[lo].id).bytes == depth) best = &t->added[lo++];
        if (depth == left) break;
        size_t bounds[2] = {lo, hi}; /* the first with a byte >= text[depth], the first with a larger one */
        for (int b = 0; b < 2; b++) {
            size_t from = lo, to = hi;
            while (from < to) {
                size_t mid = (from + to) / 2;
                if ((uint8_t)vocab_bytes(&t->vocab, t->added[mid].id).data[depth] < text[depth] + b)
                    from = mid + 1;
                else
                    to = mid;
            }
            bounds[b] = from;
        }
        lo = bounds[0];
        hi = bounds[1];
    }
    return best;
}

static size_t blanks_begin(const uint8_t *text, size_t at)
{
    while (at > 0) {
        size_t before = at - 1;
        while ((text[before] & 0xc0) == 0x80) before--;
        if (unicode_class_of(utf8_read(text + before).code) != UNICODE_SPACE) break;
        at = before;
    }
    return at;
}

static size_t blanks_end(const uint8_t *text, size_t at, size_t bytes)
{
    while (at < bytes) {
        struct utf8_char c = utf8_read(text + at);
        if (unicode_class_of(c.code) != UNICODE_SPACE) break;
        at += c.bytes;
    }
    return at;
}

static status encode_normalized(struct encoder *e, const uint8_t *text, size_t bytes, size_t readable,
                                enum specials specials);

/* The text between added tokens goes to the next level: level 0 cuts out raw tokens, level 1 normalized ones,
 * level 2 encodes. */
static status encode_gap(struct encoder *e, int level, const uint8_t *text, size_t bytes, size_t readable,
                         enum specials specials)
{
    if (bytes == 0) return STATUS_OK;
    return level == 1 ? encode_normalized(e, text, bytes, readable, specials)
                      : encode_plain(e, text, 0, bytes, readable);
}

/* As in HF: finds matches from left to right, the longest at each position. A match that counts as text here
 * (a special token with SPECIALS_AS_TEXT) still hides shorter ones. Stripping extends a token, but the next
 * match may begin in what rstrip took. */
static status encode_level(struct encoder *e, int level, const uint8_t *text, size_t bytes, size_t readable,
                           enum specials specials)
{
    const struct tokenizer *t = e->t;
    size_t lo = level == 0 ? 0 : t->added_raw, hi = level == 0 ? t->added_raw : t->added_count, done = 0;
    if (lo == hi || (specials == SPECIALS_AS_TEXT && !e->plain_added[level]))
        return encode_gap(e, level + 1, text, bytes, readable, specials);
    for (size_t i = 0; i < bytes; i++) {
        if (!t->first_byte[text[i]]) continue;
        const struct added *found = longest_added(t, lo, hi, text + i, bytes - i);
        if (found == NULL) continue;
        size_t start = i, stop = i + vocab_bytes(&t->vocab, found->id).bytes;
        i = stop - 1;
        if (found->special && specials == SPECIALS_AS_TEXT) continue;
        if (found->lstrip) {
            start = blanks_begin(text, start);
            if (start < done) start = done;
        }
        if (found->rstrip) stop = blanks_end(text, stop, bytes);
        if (done < start) TRY(encode_gap(e, level + 1, text + done, start - done, readable - done, specials));
        TRY(array_grow(&e->ids, &e->cap, e->count + 1 + SLACK, sizeof *e->ids));
        e->ids[e->count++] = found->id;
        done = stop;
    }
    return done == bytes ? STATUS_OK
                         : encode_gap(e, level + 1, text + done, bytes - done, readable - done, specials);
}

static status encode_normalized(struct encoder *e, const uint8_t *text, size_t bytes, size_t readable,
                                enum specials specials)
{
    const char *normal;
    size_t normal_bytes;
    TRY(pretokenizer_normalize(&e->t->pretokenizer, (const char *)text, bytes, &e->room, &normal,
                               &normal_bytes));
    if (normal != (const char *)text) readable = normal_bytes;
    return encode_level(e, 1, (const uint8_t *)normal, normal_bytes, readable, specials);
}

status encoder_encode(struct encoder *e, const char *text, size_t bytes, enum specials specials,
                      const int32_t **ids, int64_t *count)
{
    size_t valid = utf8_valid(text, bytes);
    if (valid != bytes)
        return FAIL(STATUS_DATA, "invalid UTF-8 at byte offset %zu (0x%02x)", valid,
                    (unsigned)(uint8_t)text[valid]);
    e->count = 0;
    TRY(array_grow(&e->ids, &e->cap, SLACK, sizeof *e->ids));
    TRY(encode_level(e, 0, (const uint8_t *)text, bytes, bytes, specials));
    *ids = e->ids;
    *count = (int64_t)e->count;
    return STATUS_OK;
}

size_t encoder_cut(const struct encoder *e, const char *text, size_t bytes, size_t want)
{
    /* An added token that is always matched may span any cut. */
    if (e->plain_added[0] || e->plain_added[1]) return bytes;
    return pretokenizer_cut(&e->t->pretokenizer, text, bytes, want);
}
