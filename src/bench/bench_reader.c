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
    double seconds, cpu_seconds;                              /* of the clock; of all threads */
    char message[256];                                        /* of the first that failed */
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

static status take_arguments(int argc, char **argv, const char **path, struct reader_config *c, int64_t *runs)
{
    static const char *const formats[] = {[READER_AUTO] = "auto",
                                          [READER_PLAIN] = "text",
                                          [READER_JSONL] = "jsonl",
                                          [READER_PARQUET] = "parquet"};
    int64_t batch;
    c->separator = READER_LINE;
    for (int i = 0; i < argc; i++) {
        bool has_value = i + 1 < argc;
        int format = -1;
        if (strcmp(argv[i], "--key") == 0 && has_value)
            c->key = argv[++i];
        else if (strcmp(argv[i], "--input") == 0 && has_value) {
            for (int f = 0; f < 4; f++)
                if (strcmp(argv[i + 1], formats[f]) == 0) format = f;
            if (format < 0)
                return FAIL(STATUS_CONFIG, "--input %s: auto, text, jsonl or parquet is expected",
                            argv[i + 1]);
            c->format = (enum reader_format)format;
            i++;
        } else if (strcmp(argv[i], "--batch-bytes") == 0 && has_value && text_to_int(argv[i + 1], &batch) &&
                   batch > 0) {
            c->batch_bytes = (size_t)batch;
            i++;
        } else if (strcmp(argv[i], "--runs") == 0 && has_value && text_to_int(argv[i + 1], runs) && *runs > 0)
            i++;
        else if (!*path && argv[i][0] != '-')
            *path = argv[i];
        else
            return FAIL(STATUS_CONFIG,
                        "'%s': usage: bench reader FILE [--key K] [--input auto|text|jsonl|parquet] "
                        "[--batch-bytes N] [--runs N]",
                        argv[i]);
    }
    return *path ? STATUS_OK : FAIL(STATUS_CONFIG, "a file is needed: bench reader FILE");
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

status bench_reader(int argc, char **argv)
{
    const char *path = NULL;
    struct reader_config c = {0};
    int64_t runs = 3;
    TRY(take_arguments(argc, argv, &path, &c, &runs));
    struct sum cut = {0}, text = {0}, all;
    for (int64_t i = 0; i < runs; i++) {
        TRY(read_all(path, &c, PASS_CUT, NULL, &all));
        keep_best(&cut, &all, i == 0);
        TRY(read_all(path, &c, PASS_TEXT, NULL, &all));
        keep_best(&text, &all, i == 0);
    }
    XXH64_state_t *hash = XXH64_createState();
    CHECK(hash, "no memory for a hash");
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
