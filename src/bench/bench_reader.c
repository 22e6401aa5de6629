/* ingot bench reader FILE: speed of reading documents from a file. First only record splitting (reading,
 * decompressing, finding records), then splitting and extracting the text of each record (checking UTF-8
 * and JSON, unescaping), on one thread. Parquet pages are decompressed on all threads (OMP_NUM_THREADS=1:
 * on one). MB count the decompressed text of the file. The hash is XXH64 over each document's number of
 * bytes (8, little-endian) and its bytes; two files with the same documents have the same hash. */
#include "bench/bench.h"

#include "base/clock.h"
#include "base/text.h"
#include "data/read/reader.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

struct sum {
    int64_t documents, failed, nulls, bytes, ids, text_bytes; /* bytes: of the records */
    double seconds, cpu_seconds;                              /* wall clock; CPU time of all threads */
    char message[256];                                        /* the first that failed */
};

static void add_document(const struct reader_batch *b, int64_t i, const char *key, XXH64_state_t *hash,
                         struct sum *s)
{
    struct reader_document d;
    if (reader_text(b, i, key, &d) != STATUS_OK) {
        if (s->failed++ == 0) snprintf(s->message, sizeof s->message, "%s", status_message());
        return;
    }
    uint64_t bytes = d.bytes;
    s->documents++;
    s->text_bytes += (int64_t)bytes;
    s->ids += d.id_count;
    if (hash) {
        XXH64_update(hash, &bytes, sizeof bytes);
        if (bytes > 0) XXH64_update(hash, d.ids ? (const void *)d.ids : d.text, bytes);
    }
    reader_document_free(&d);
}

static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

enum pass { PASS_CUT, PASS_TEXT, PASS_HASH };
static status read_all(const char *path, const struct reader_config *c, enum pass pass, XXH64_state_t *hash,
                       struct sum *s)
{
    struct reader *r;
    struct reader_batch b;
    *s = (struct sum){0};
    double start = clock_s(), cpu_start = cpu_s();
    TRY(reader_open(&r, path, c));
    status st = STATUS_OK;
    for (bool more = true; st == STATUS_OK;) {
        st = reader_next(r, &b, &more);
        if (st != STATUS_OK || !more) break;
        s->nulls += b.nulls;
        for (int64_t i = 0; i < b.count; i++) {
            s->bytes += (int64_t)b.records[i].bytes;
            if (pass != PASS_CUT) add_document(&b, i, c->key, pass == PASS_HASH ? hash : NULL, s);
        }
    }
    s->seconds = clock_s() - start;
    s->cpu_seconds = cpu_s() - cpu_start;
    reader_close(r);
    return st;
}

static status take_arguments(struct args *a, struct reader_config *c, int64_t *runs)
{
    static const char *const formats[] = {[READER_AUTO] = "auto",
                                          [READER_PLAIN] = "text",
                                          [READER_JSONL] = "jsonl",
                                          [READER_PARQUET] = "parquet"};
    const char *input = "auto";
    int64_t batch = 0;
    const struct flag flags[] = {FLAG("key", &c->key), FLAG("input", &input), FLAG("batch-bytes", &batch),
                                 FLAG("runs", runs)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, 1));
    int format = 0;
    while (format < 4 && strcmp(input, formats[format]) != 0) format++;
    if (format == 4)
        return FAIL(STATUS_CONFIG, "--input %s: auto, text, jsonl or parquet is expected", input);
    if (batch < 0 || *runs < 1) return FAIL(STATUS_CONFIG, "--batch-bytes and --runs are above 0");
    c->format = (enum reader_format)format;
    c->batch_bytes = (size_t)batch;
    c->separator = READER_LINE;
    return STATUS_OK;
}

static void keep_best(struct sum *best, const struct sum *s, bool first)
{
    double seconds = first || s->seconds < best->seconds ? s->seconds : best->seconds;
    double cpu_seconds = first || s->cpu_seconds < best->cpu_seconds ? s->cpu_seconds : best->cpu_seconds;
    *best = *s;
    best->seconds = seconds;
    best->cpu_seconds = cpu_seconds;
}

static void print_rate(const char *name, const struct sum *s)
{
    double megabytes = (double)s->bytes / 1e6;
    printf("%-8s %8.0f MB/s, %8.0f MB per second of CPU  (best: %.3f s, %.3f s)\n", name,
           megabytes / s->seconds, megabytes / s->cpu_seconds, s->seconds, s->cpu_seconds);
}

status bench_reader(struct args *a)
{
    struct reader_config c = {0};
    int64_t runs = 3;
    TRY(take_arguments(a, &c, &runs));
    if (a->help) return STATUS_OK;
    const char *path = a->words[0];
    struct sum cut = {0}, text = {0}, all;
    for (int64_t i = 0; i < runs; i++) {
        TRY(read_all(path, &c, PASS_CUT, NULL, &all));
        keep_best(&cut, &all, i == 0);
        TRY(read_all(path, &c, PASS_TEXT, NULL, &all));
        keep_best(&text, &all, i == 0);
    }
    XXH64_state_t *hash = XXH64_createState();
    MEMORY_CHECK(hash, "no memory for a hash");
    XXH64_reset(hash, 0);
    status st = read_all(path, &c, PASS_HASH, hash, &all);
    uint64_t digest = XXH64_digest(hash);
    XXH64_freeState(hash);
    TRY(st);
    print_rate("cut", &cut);
    print_rate("text", &text);
    printf("%lld documents, %lld null, %lld bytes, %lld token ids, xxh64 %016llx\n", (long long)all.documents,
           (long long)all.nulls, (long long)all.text_bytes, (long long)all.ids, (unsigned long long)digest);
    if (all.failed > 0) printf("%lld cannot be read; the first: %s\n", (long long)all.failed, all.message);
    return STATUS_OK;
}
