/* Duplicate documents.
 *
 * Exact: a 128-bit hash of each text (XXH3) in a table of 20 to 25 bytes per document. Two different texts with the
 * same hash are not expected before 10^18 documents. The hashes are also written to a file, 16 bytes each in input
 * order, from which an interrupted build restores them.
 *
 * Near: MinHash over the shingles of 5 words (Broder 1997), with 112 permutations in 14 bands of 8, as in the FineWeb
 * recipe. Two documents whose sets of shingles have the Jaccard similarity s share a band with probability 1 - (1 -
 * s^8)^14: 0.5 at s = 0.72, 0.92 at 0.8, 0.0009 at 0.3. The sketches are written to a file, 456 bytes per document;
 * the report sorts one band after another, 16 bytes per document in memory. A build that removes near duplicates looks
 * each document up before it adds it, in input order, and adds only what it keeps: 280 to 420 bytes of memory per
 * document (data/build/dedup_index.h).
 *
 * A word is a run of ASCII letters in lower case, of digits and of characters from U+00C0 to U+1FFF, or any single
 * character from U+3000 on (which gives Chinese and Japanese text shingles too). A text of fewer than 5 words is one
 * shingle; a text without words has no sketch and is not compared. */
#ifndef INGOT_DATA_BUILD_DEDUP_H
#define INGOT_DATA_BUILD_DEDUP_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dedup_hash {
    uint64_t low, high;
};
struct dedup_hash dedup_hash(const void *text, size_t bytes);

struct dedup;
/* Opens the file `path`, restores its first `count` hashes, and truncates the rest. STATUS_DATA: it has fewer. */
status dedup_open(struct dedup **d, const char *path, int64_t count) WARN_UNUSED;
/* *seen: an earlier document has the same hash. */
status dedup_add(struct dedup *d, struct dedup_hash h, bool *seen) WARN_UNUSED;
/* Prefetches the table entry of a hash that dedup_add will soon look up. */
void dedup_prefetch(const struct dedup *d, struct dedup_hash h);
status dedup_sync(struct dedup *d) WARN_UNUSED;
int64_t dedup_count(const struct dedup *d); /* calls of dedup_add since the start of the build */
size_t dedup_bytes(const struct dedup *d);  /* memory of the table */
void dedup_close(struct dedup **d, bool keep_file);

enum { DEDUP_PERMUTATIONS = 112, DEDUP_BANDS = 14, DEDUP_ROWS = 8, DEDUP_SHINGLE_WORDS = 5 };
/* Scratch memory of one thread. */
struct dedup_sketcher;
status dedup_sketcher_open(struct dedup_sketcher **s) WARN_UNUSED;
void dedup_sketcher_close(struct dedup_sketcher *s);
/* Computes the sketch of a text; all ones for a text without words. */
void dedup_sketch(struct dedup_sketcher *s, const char *text, size_t bytes, uint32_t sketch[DEDUP_PERMUTATIONS]);
/* The fraction of equal entries: an estimate of the Jaccard similarity with a standard error of at most 0.047. */
double dedup_similarity(const uint32_t *a, const uint32_t *b);

struct dedup_near;
enum dedup_near_use { DEDUP_NEAR_REPORT, DEDUP_NEAR_FIND };
/* Opens the file `path` and keeps its first `count` sketches; DEDUP_NEAR_FIND also enters them into the table that
 * dedup_near_find needs. STATUS_DATA: the file has fewer. */
status dedup_near_open(struct dedup_near **d, const char *path, int64_t count, enum dedup_near_use use) WARN_UNUSED;
/* *like: a document added before is similar, at least 0.8 by estimate. Only the first and the last document of each
 * band are compared, so that the cost does not grow with the number of pages that share a template. */
status dedup_near_find(struct dedup_near *d, const uint32_t sketch[DEDUP_PERMUTATIONS], bool *like) WARN_UNUSED;
/* `record` is the number of the input document, for the report. */
status dedup_near_add(struct dedup_near *d, int64_t record, const uint32_t sketch[DEDUP_PERMUTATIONS]) WARN_UNUSED;
status dedup_near_sync(struct dedup_near *d) WARN_UNUSED;
int64_t dedup_near_count(const struct dedup_near *d);
void dedup_near_close(struct dedup_near **d, bool keep_file);

enum { DEDUP_EXAMPLES = 10 };
struct dedup_near_report {
    int64_t documents;  /* documents with a sketch */
    int64_t pairs;      /* compared candidates: they share a band and are neighbours within its group */
    int64_t near;       /* documents with an earlier similar one (at least `threshold`) */
    double threshold;   /* 0.8 */
    struct dedup_pair {
        int64_t a, b; /* records, a before b */
        double similarity;
    } examples[DEDUP_EXAMPLES]; /* the first ones, sorted by b, a */
    int example_count;
};
status dedup_near_report(struct dedup_near *d, struct dedup_near_report *report) WARN_UNUSED;
#endif
