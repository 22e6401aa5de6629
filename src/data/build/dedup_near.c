#include "data/build/dedup.h"

#include "base/io.h"
#include "data/build/dedup_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

enum { SKETCH_BYTES = DEDUP_PERMUTATIONS * 4, BUFFER_ROWS = 512, BITS = 64 };
static const double threshold = 0.8;

/* --- sketches ------------------------------------------------------------------------------------------- */

struct dedup_sketcher {
    uint32_t multiply[DEDUP_PERMUTATIONS], add[DEDUP_PERMUTATIONS];
    uint8_t kind[256], lower[256];
};
enum { SEPARATOR, LETTER, ALONE, CONTINUATION };

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

status dedup_sketcher_open(struct dedup_sketcher **out)
{
    struct dedup_sketcher *s = *out = calloc(1, sizeof *s);
    MEMORY_CHECK(s, "no memory for a sketcher");
    for (uint32_t i = 0; i < DEDUP_PERMUTATIONS; i++) {
        s->multiply[i] = (uint32_t)mix(2 * i + 1) | 1;
        s->add[i] = (uint32_t)mix(2 * i + 2);
    }
    for (int c = 0; c < 256; c++) {
        bool upper = c >= 'A' && c <= 'Z';
        s->lower[c] = (uint8_t)(upper ? c + 32 : c);
        bool letter = upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (letter || (c >= 0xc3 && c <= 0xe1)) s->kind[c] = LETTER; /* lead bytes of U+00C0 to U+1FFF */
        if (c >= 0x80 && c < 0xc0) s->kind[c] = CONTINUATION;
        if (c >= 0xe3) s->kind[c] = ALONE; /* from U+3000; U+2000 to U+2FFF and U+0080 to U+00BF separate */
    }
    return STATUS_OK;
}

void dedup_sketcher_close(struct dedup_sketcher *s)
{
    free(s);
}

static void add_shingle(const struct dedup_sketcher *s, uint32_t x, uint32_t *restrict least)
{
    for (int i = 0; i < DEDUP_PERMUTATIONS; i++) {
        uint32_t v = x * s->multiply[i] + s->add[i];
        least[i] = v < least[i] ? v : least[i];
    }
}

/* The hash of the next word after *at; false at the end. */
static bool next_word(const struct dedup_sketcher *s, const uint8_t *p, size_t bytes, size_t *at,
                      uint64_t *word)
{
    size_t i = *at;
    while (i < bytes && (s->kind[p[i]] == SEPARATOR || s->kind[p[i]] == CONTINUATION)) i++;
    *at = i;
    if (i == bytes) return false;
    bool alone = s->kind[p[i]] == ALONE;
    uint64_t h = 0xcbf29ce484222325u;
    do h = (h ^ s->lower[p[i++]]) * 0x100000001b3u;
    while (i < bytes && (s->kind[p[i]] == CONTINUATION || (!alone && s->kind[p[i]] == LETTER)));
    *at = i;
    *word = mix(h);
    return true;
}

void dedup_sketch(struct dedup_sketcher *s, const char *text, size_t bytes,
                  uint32_t sketch[DEDUP_PERMUTATIONS])
{
    const uint8_t *p = (const uint8_t *)text;
    uint64_t words[DEDUP_SHINGLE_WORDS] = {0}, word;
    int64_t count = 0;
    memset(sketch, 0xff, SKETCH_BYTES);
    for (size_t at = 0; next_word(s, p, bytes, &at, &word);) {
        words[count++ % DEDUP_SHINGLE_WORDS] = word;
        if (count < DEDUP_SHINGLE_WORDS) continue;
        uint64_t h = 0;
        for (int64_t i = 0; i < DEDUP_SHINGLE_WORDS; i++) /* in the order of the text */
            h = (h ^ words[(count + i) % DEDUP_SHINGLE_WORDS]) * 0x9e3779b97f4a7c15u;
        add_shingle(s, (uint32_t)(mix(h) >> 32), sketch);
    }
    if (count == 0 || count >= DEDUP_SHINGLE_WORDS) return;
    uint64_t h = (uint64_t)count;
    for (int64_t i = 0; i < count; i++) h = (h ^ words[i]) * 0x9e3779b97f4a7c15u;
    add_shingle(s, (uint32_t)(mix(h) >> 32), sketch);
}

double dedup_similarity(const uint32_t *a, const uint32_t *b)
{
    int equal = 0;
    for (int i = 0; i < DEDUP_PERMUTATIONS; i++) equal += a[i] == b[i];
    return (double)equal / DEDUP_PERMUTATIONS;
}

/* --- the file ------------------------------------------------------------------------------------------- */

struct row {
    int64_t record;
    uint32_t sketch[DEDUP_PERMUTATIONS];
};
struct dedup_near {
    struct io_file file;
    enum dedup_near_use use;
    struct dedup_index index;
    int64_t count;
    size_t buffered;
    struct row buffer[BUFFER_ROWS];
};

/* A text without words: no band of it means anything. */
static bool is_wordless(const uint32_t *sketch)
{
    return sketch[0] == UINT32_MAX && sketch[1] == UINT32_MAX;
}

static status enter(struct dedup_near *d, int64_t at, const uint32_t *sketch)
{
    if (d->use != DEDUP_NEAR_FIND || is_wordless(sketch)) return STATUS_OK;
    if (at > UINT32_MAX)
        return FAIL(STATUS_OUT_OF_MEMORY, "--dedup near can tell at most 2^32 documents apart");
    return dedup_index_put(&d->index, sketch, (uint32_t)at);
}

static status read_back(struct dedup_near *d)
{
    int fd;
    int64_t bytes;
    TRY(io_open(d->file.temp, LINKS_REFUSE, &fd, &bytes));
    status st = STATUS_OK;
    for (int64_t at = 0; st == STATUS_OK && at < d->count; at += BUFFER_ROWS) {
        const int64_t n = d->count - at < BUFFER_ROWS ? d->count - at : BUFFER_ROWS;
        st = io_pread(fd, d->file.temp, d->buffer, (size_t)n * sizeof *d->buffer,
                      at * (int64_t)sizeof *d->buffer);
        for (int64_t i = 0; st == STATUS_OK && i < n; i++) st = enter(d, at + i, d->buffer[i].sketch);
    }
    io_close(&fd);
    return st;
}

status dedup_near_open(struct dedup_near **out, const char *path, int64_t count, enum dedup_near_use use)
{
    struct dedup_near *d = *out = calloc(1, sizeof *d);
    MEMORY_CHECK(d, "no memory for sketches");
    d->count = count;
    d->use = use;
    status st = io_reopen(&d->file, path, path, count * (int64_t)sizeof(struct row));
    if (st == STATUS_OK && count > 0 && use == DEDUP_NEAR_FIND) st = read_back(d);
    if (st != STATUS_OK) dedup_near_close(out, true);
    return st;
}

static status flush(struct dedup_near *d)
{
    TRY(io_write(&d->file, d->buffer, d->buffered * sizeof *d->buffer));
    d->buffered = 0;
    return STATUS_OK;
}

status dedup_near_add(struct dedup_near *d, int64_t record, const uint32_t sketch[DEDUP_PERMUTATIONS])
{
    TRY(enter(d, d->count, sketch));
    struct row *row = &d->buffer[d->buffered++];
    row->record = record;
    memcpy(row->sketch, sketch, SKETCH_BYTES);
    d->count++;
    return d->buffered == BUFFER_ROWS ? flush(d) : STATUS_OK;
}

static status is_like(const struct dedup_near *d, int64_t at, const uint32_t *sketch, bool *like)
{
    const int64_t on_disk = d->count - (int64_t)d->buffered;
    struct row row;
    const struct row *other = &row;
    if (at >= on_disk)
        other = &d->buffer[at - on_disk];
    else
        TRY(io_pread(d->file.fd, d->file.temp, &row, sizeof row, at * (int64_t)sizeof row));
    *like = dedup_similarity(other->sketch, sketch) >= threshold;
    return STATUS_OK;
}

status dedup_near_find(struct dedup_near *d, const uint32_t sketch[DEDUP_PERMUTATIONS], bool *like)
{
    CHECK(d->use == DEDUP_NEAR_FIND, "sketches that were opened for a report");
    int64_t looked = -1;
    *like = false;
    for (int band = 0; band < DEDUP_BANDS && !*like && !is_wordless(sketch); band++) {
        const struct dedup_index_slot *slot = dedup_index_find(&d->index, sketch, band);
        if (!slot) continue;
        if (slot->first != looked) TRY(is_like(d, slot->first, sketch, like));
        looked = slot->first; /* most bands name the same document */
        if (!*like && slot->last != slot->first) TRY(is_like(d, slot->last, sketch, like));
    }
    return STATUS_OK;
}

status dedup_near_sync(struct dedup_near *d)
{
    TRY(flush(d));
    return io_sync(&d->file);
}

int64_t dedup_near_count(const struct dedup_near *d)
{
    return d->count;
}

void dedup_near_close(struct dedup_near **out, bool keep_file)
{
    if (!*out) return;
    dedup_index_free(&(*out)->index);
    if (keep_file)
        io_leave(&(*out)->file);
    else
        io_abandon(&(*out)->file);
    free(*out);
    *out = NULL;
}

/* --- the report ----------------------------------------------------------------------------------------- */

struct entry {
    uint64_t key; /* of the band */
    int64_t at;   /* row */
};

static int by_key(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static int pair_order(const struct dedup_pair *x, const struct dedup_pair *y)
{
    if (x->b != y->b) return x->b < y->b ? -1 : 1;
    return x->a < y->a ? -1 : x->a > y->a;
}

/* Keeps the first DEDUP_EXAMPLES pairs by (b, a). */
static void add_example(struct dedup_near_report *r, struct dedup_pair pair)
{
    int at = r->example_count;
    while (at > 0 && pair_order(&pair, &r->examples[at - 1]) < 0) at--;
    if (at == DEDUP_EXAMPLES || (at > 0 && pair_order(&pair, &r->examples[at - 1]) == 0)) return;
    int kept = r->example_count < DEDUP_EXAMPLES ? r->example_count++ : DEDUP_EXAMPLES - 1;
    memmove(&r->examples[at + 1], &r->examples[at], (size_t)(kept - at) * sizeof pair);
    r->examples[at] = pair;
}

static void compare(const struct row *rows, int64_t a, int64_t b, uint64_t *found,
                    struct dedup_near_report *r)
{
    double similarity = dedup_similarity(rows[a].sketch, rows[b].sketch);
    r->pairs++;
    if (similarity < threshold) return;
    uint64_t bit = 1ull << (b % BITS);
    r->near += (found[b / BITS] & bit) == 0;
    found[b / BITS] |= bit;
    add_example(r, (struct dedup_pair){rows[a].record, rows[b].record, similarity});
}

/* Compares each document of a group with the group's first and with the one before it. All pairs would be
 * quadratic where thousands of pages share a template. */
static void scan_band(const struct row *rows, int64_t count, int band, struct entry *entries, uint64_t *found,
                      struct dedup_near_report *r)
{
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t *part = rows[i].sketch + band * DEDUP_ROWS;
        if (is_wordless(part)) continue;
        entries[n++] = (struct entry){XXH3_64bits(part, DEDUP_ROWS * sizeof *part), i};
    }
    r->documents = n;
    qsort(entries, (size_t)n, sizeof *entries, by_key);
    int64_t first = 0;
    for (int64_t i = 1; i < n; i++) {
        if (entries[i].key != entries[first].key) {
            first = i;
            continue;
        }
        compare(rows, entries[first].at, entries[i].at, found, r);
        if (i - 1 != first) compare(rows, entries[i - 1].at, entries[i].at, found, r);
    }
}

status dedup_near_report(struct dedup_near *d, struct dedup_near_report *report)
{
    *report = (struct dedup_near_report){.threshold = threshold};
    TRY(flush(d));
    if (d->count == 0) return STATUS_OK;
    size_t bytes = (size_t)d->count * sizeof(struct row);
    struct entry *entries = malloc((size_t)d->count * sizeof *entries);
    uint64_t *found = calloc((size_t)(d->count / BITS) + 1, sizeof *found);
    struct row *rows = MAP_FAILED;
    status st = STATUS_OK;
    if (!entries || !found) {
        st = FAIL(STATUS_OUT_OF_MEMORY, "no memory to sort %lld sketches", (long long)d->count);
        goto out;
    }
    rows = mmap(NULL, bytes, PROT_READ, MAP_SHARED, d->file.fd, 0);
    if (rows == MAP_FAILED) {
        st = FAIL(status_of_errno(errno), "%s: cannot map %zu bytes: %s", d->file.path, bytes,
                  strerror(errno));
        goto out;
    }
    for (int band = 0; band < DEDUP_BANDS; band++) scan_band(rows, d->count, band, entries, found, report);
out:
    if (rows != MAP_FAILED) munmap(rows, bytes);
    free(entries);
    free(found);
    return st;
}
