/* Batches per second from the page cache: shards -> samples -> batches, as `ingot train` draws them,
 * without a consumer. Without shards it writes its own: random ids in documents of log-normal lengths, like
 * web pages. */
#include "base/clock.h"
#include "base/flags.h"
#include "base/io.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/bench.h"
#include "data/load/loader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PACKINGS = 4, LENGTHS_MAX = 8, REPEATS_MAX = 21, EOT_ID = 50256 };
static const char *const packing_names[PACKINGS] = {"stream", "documents", "best_fit", "pad"};

struct loader_bench {
    int64_t tokens, median, threads, repeats, sequence, step_tokens, documents;
    double sigma;
    bool json;
};

/* Writes shards of about b->tokens tokens below `dir`. */
static status write_shards(const struct loader_bench *b, const char *dir)
{
    enum { SHARD = 50000000, CHUNK = 1 << 16 };
    char path[512];
    struct shard_writer *w = NULL;
    int32_t *ids = malloc(CHUNK * sizeof *ids);
    MEMORY_CHECK(ids, "no memory for a chunk");
    status st = STATUS_OK;
    int64_t written = 0, left = 0, in_shard = 0;
    uint64_t documents = 0;
    while (written < b->tokens) {
        if (w && in_shard >= SHARD) TRY_OUT(shard_commit(&w, NULL));
        if (!w) {
            snprintf(path, sizeof path, "%.400s/bench_train_%06lld.bin", dir, (long long)(written / SHARD));
            TRY_OUT(shard_create(&w, path, SHARD_LLMC, 2));
            in_shard = 0;
        }
        for (int64_t i = 0; i < CHUNK; i++) {
            struct rng_block r = rng_at(1, RNG_TEST, 0, (uint64_t)(written + i));
            ids[i] = (int32_t)(r.u[0] % EOT_ID);
            if (left-- > 0) continue;
            ids[i] = EOT_ID;
            left = (int64_t)exp(log((double)b->median) + b->sigma * rng_normal(2, RNG_TEST, 0, documents++));
        }
        TRY_OUT(shard_append(w, ids, CHUNK));
        written += CHUNK;
        in_shard += CHUNK;
    }
    st = shard_commit(&w, NULL);
out:
    shard_abandon(&w);
    free(ids);
    return st;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Tokens per second of one pass over b->tokens or the whole set, whichever is less. From the second pass on
 * the page cache is warm. */
static status pass(const struct loader_bench *b, const struct samples *samples, const struct shard_set *set,
                   double *rate)
{
    const int64_t t = samples_config_of(samples)->sequence_length;
    const struct loader_config c = {.sequences = b->step_tokens / t > 0 ? b->step_tokens / t : 1,
                                    .micro_count = 1,
                                    .threads = (int)b->threads};
    struct loader *l;
    int64_t most = set->tokens < b->tokens ? set->tokens : b->tokens, steps = most / (c.sequences * t) + 1,
            done = 0;
    TRY(loader_open(&l, samples, &c, 0));
    status st = STATUS_OK;
    double begin = clock_s();
    for (int64_t i = 0; i < steps; i++) {
        const struct step_batch *s;
        TRY_OUT(loader_next(l, &s));
        done += s->micro->rows;
    }
    *rate = (double)done / (clock_s() - begin);
out:
    loader_close(l);
    return st;
}

static status measure(const struct loader_bench *b, const struct shard_set *set, int packing, int64_t t)
{
    struct samples *samples;
    const struct samples_config c = {.seed = 1, .sequence_length = t, .packing = packing, .shuffle = 1};
    double begin = clock_s(), rates[REPEATS_MAX + 1];
    TRY(samples_open(&samples, &(struct samples_source){.set = set}, 1, &c));
    double open_s = clock_s() - begin;
    status st = STATUS_OK;
    for (int64_t i = -1; i < b->repeats && st == STATUS_OK; i++) st = pass(b, samples, set, &rates[i + 1]);
    if (st == STATUS_OK) {
        qsort(rates + 1, (size_t)b->repeats, sizeof *rates, ascending);
        double median = rates[1 + b->repeats / 2], padding = samples_padding(samples, 0);
        char memory[32];
        if (b->json)
            printf("{\"bench\":\"loader\",\"packing\":\"%s\",\"sequence_length\":%lld,\"threads\":%lld,"
                   "\"tokens_per_s\":%.0f,\"best_tokens_per_s\":%.0f,\"open_s\":%.3f,\"padding\":%.6f,"
                   "\"bytes\":%zu}\n",
                   packing_names[packing], (long long)t, (long long)b->threads, median, rates[b->repeats],
                   open_s, padding, samples_bytes(samples));
        else
            printf("%-10s %6lld %12.1f %10.1f %9.2f %10.3f %12s\n", packing_names[packing], (long long)t,
                   median * 1e-6, rates[b->repeats] * 1e-6, open_s, 100 * padding,
                   text_bytes(memory, (double)samples_bytes(samples)));
        fflush(stdout);
    }
    samples_close(samples);
    return st;
}

/* Documents per second that best fit packs at start, on one thread and on all. Uses lengths only, no shards. */
static status measure_packing(const struct loader_bench *b)
{
    if (b->documents == 0) return STATUS_OK;
    const int64_t n = b->documents, t = b->sequence ? b->sequence : 2048;
    int64_t *starts = malloc((size_t)(n + 1) * sizeof *starts);
    if (!starts) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld documents", (long long)n);
    starts[0] = 0;
    for (int64_t i = 0; i < n; i++)
        starts[i + 1] =
            starts[i] + 1 +
            (int64_t)exp(log((double)b->median) + b->sigma * rng_normal(2, RNG_TEST, 0, (uint64_t)i));
    status st = STATUS_OK;
    for (int threads = 1; threads >= 0 && st == STATUS_OK; threads--) {
        double rates[REPEATS_MAX], padding = 0, bytes = 0;
        parallel_threads_set(threads);
        for (int64_t i = 0; i < b->repeats && st == STATUS_OK; i++) {
            struct pack *p;
            double begin = clock_s();
            st = pack_open(&p, starts, n, t, PACK_BEST_FIT);
            rates[i] = (double)n / (clock_s() - begin);
            if (st != STATUS_OK) break;
            padding = 1 - (double)pack_pairs(p) / ((double)pack_rows(p) * (double)t);
            bytes = (double)pack_bytes(p) / (double)n;
            pack_close(p);
        }
        if (st != STATUS_OK) break;
        qsort(rates, (size_t)b->repeats, sizeof *rates, ascending);
        const double median = rates[b->repeats / 2], best = rates[b->repeats - 1];
        if (b->json)
            printf("{\"bench\":\"packing\",\"documents\":%lld,\"sequence_length\":%lld,\"threads\":%d,"
                   "\"documents_per_s\":%.0f,\"best_documents_per_s\":%.0f,\"padding\":%.6f,\"bytes_per_"
                   "document\":%.2f}\n",
                   (long long)n, (long long)t, parallel_threads(), median, best, padding, bytes);
        else
            printf(
                "packing %lld documents, T %lld, %d threads: %.1fM documents/s, best %.1fM; %.2f bytes each, "
                "padding %.4f %%\n",
                (long long)n, (long long)t, parallel_threads(), median * 1e-6, best * 1e-6, bytes,
                100 * padding);
    }
    free(starts);
    return st;
}

static status measure_all(const struct loader_bench *b, const char *pattern)
{
    static const int64_t lengths[] = {1024, 2048, 4096, 8192};
    struct shard_set set;
    char text[32];
    TRY(shard_set_open(&set, pattern));
    if (!b->json) {
        printf("%s tokens of %d bytes, %lld loader threads, median of %lld passes\n",
               text_count(text, (double)set.tokens), set.shards[0].width, (long long)b->threads,
               (long long)b->repeats);
        printf("packing         T  M tokens/s       best    open s  padding %%       memory\n");
    }
    status st = STATUS_OK;
    for (int packing = 0; packing < PACKINGS && st == STATUS_OK; packing++) {
        if (packing > 0 && !set.bounded) break;
        for (int i = 0; i < 4 && st == STATUS_OK; i++)
            if (b->sequence == 0 || i == 0)
                st = measure(b, &set, packing, b->sequence ? b->sequence : lengths[i]);
    }
    shard_set_close(&set);
    return st;
}

status bench_loader(struct args *a)
{
    struct loader_bench b = {.tokens = 100000000,
                             .median = 400,
                             .sigma = 1.1,
                             .threads = 2,
                             .repeats = 3,
                             .step_tokens = 65536,
                             .documents = 10000000};
    const struct flag flags[] = {
        FLAG("tokens", &b.tokens),       FLAG("median", &b.median),    FLAG("sigma", &b.sigma),
        FLAG("seq", &b.sequence),        FLAG("step", &b.step_tokens), FLAG("threads", &b.threads),
        FLAG("documents", &b.documents), FLAG("runs", &b.repeats),     FLAG("json", &b.json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 1));
    if (b.tokens < 1000000 || b.tokens > 4000000000 || b.median < 1 || b.repeats < 1 ||
        b.repeats > REPEATS_MAX || b.threads < 1 || b.threads > LOADER_THREADS_MAX || b.sequence < 0 ||
        b.documents < 0 || b.documents > 1000000000 || b.sequence > PACK_ROW_MAX || b.step_tokens < 1 ||
        b.step_tokens > 100000000)
        return FAIL(STATUS_CONFIG,
                    "--tokens is 1M to 4B, --documents up to 1B, --median 1 or more, --runs 1 to %d, "
                    "--threads 1 to %d, --seq up to "
                    "%d, --step up to 100M",
                    REPEATS_MAX, LOADER_THREADS_MAX, PACK_ROW_MAX);
    if (a->word_count == 1) return measure_all(&b, a->words[0]);
    char dir[256], pattern[300];
    const char *base = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%.200s/ingot-bench-XXXXXX", base ? base : "/tmp");
    if (mkdtemp(dir) == NULL) return FAIL(STATUS_IO, "%s: cannot make a directory for shards", dir);
    snprintf(pattern, sizeof pattern, "%s/bench_train_*.bin", dir);
    status st = write_shards(&b, dir);
    if (st == STATUS_OK) st = measure_all(&b, pattern);
    if (st == STATUS_OK) st = measure_packing(&b);
    if (io_remove_tree(dir) != STATUS_OK && st == STATUS_OK) return STATUS_IO;
    return st;
}
