/* ingot bench tokenizer FILE: speed of training on a text, of loading, of normalizing and splitting only,
 * and of encoding and decoding. Single-threaded work is measured in CPU time, which a busy machine changes
 * less. The tokenizer is trained on the file, or loaded. */
#include "bench/bench.h"
#include "base/clock.h"
#include "base/flags.h"
#include "base/io.h"
#include "base/log.h"
#include "base/parallel.h"
#include "data/tokenizer/tokenizer_int.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 101, FILE_BYTES_MAX = 1 << 30 };

struct numbers {
    double train_s, load_ms, normalize_s /* 0: no work */, split_s, cold_s, warm_s, decode_s;
    int64_t pieces, tokens;
};

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(double *values, int64_t count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return values[count / 2];
}

/* What encoding does before it looks up tokens. */
static status bench_split(const struct tokenizer *t, struct text text, int64_t rounds, struct numbers *out)
{
    double normalize[ROUNDS_MAX], split[ROUNDS_MAX];
    struct pretokenizer_room room = {0};
    const struct pretokenizer *p = &t->pretokenizer;
    status st = STATUS_OK;
    for (int64_t i = 0; st == STATUS_OK && i < rounds; i++) {
        const char *normal;
        size_t bytes, ends[128];
        double start = clock_cpu_s();
        st = pretokenizer_normalize(p, text.data, text.bytes, &room, &normal, &bytes);
        normalize[i] = clock_cpu_s() - start;
        if (st != STATUS_OK) break;
        struct pretokenizer_cursor c = pretokenizer_begin(normal, bytes);
        out->pieces = 0;
        start = clock_cpu_s();
        for (int n; (n = pretokenizer_scan(p, &c, ends, 128)) > 0;) out->pieces += n;
        split[i] = clock_cpu_s() - start;
    }
    free(room.data);
    TRY(st);
    out->normalize_s = p->nfc ? median(normalize, rounds) : 0;
    out->split_s = median(split, rounds);
    return STATUS_OK;
}

/* One round: a fresh encoder over the text, then the same again with a warm cache. */
static status encode_twice(const struct tokenizer *t, struct text text, double *cold, double *warm,
                           double *decode, int64_t *tokens)
{
    struct encoder *e;
    const int32_t *ids = NULL;
    char *back = NULL;
    size_t back_bytes = 0;
    TRY(encoder_open(&e, t));
    double start = clock_cpu_s();
    status st = encoder_encode(e, text.data, text.bytes, SPECIALS_AS_TEXT, &ids, tokens);
    *cold = clock_cpu_s() - start;
    start = clock_cpu_s();
    if (st == STATUS_OK) st = encoder_encode(e, text.data, text.bytes, SPECIALS_AS_TEXT, &ids, tokens);
    *warm = clock_cpu_s() - start;
    start = clock_cpu_s();
    if (st == STATUS_OK) st = tokenizer_decode(t, ids, *tokens, &back, &back_bytes);
    *decode = clock_cpu_s() - start;
    free(back);
    encoder_close(e);
    return st;
}

static status bench_encode(const struct tokenizer *t, struct text text, int64_t rounds, struct numbers *out)
{
    double cold[ROUNDS_MAX], warm[ROUNDS_MAX], decode[ROUNDS_MAX];
    for (int64_t i = 0; i < rounds; i++)
        TRY(encode_twice(t, text, &cold[i], &warm[i], &decode[i], &out->tokens));
    out->cold_s = median(cold, rounds);
    out->warm_s = median(warm, rounds);
    out->decode_s = median(decode, rounds);
    return STATUS_OK;
}

static status bench_load(struct tokenizer **t, const char *path, int64_t rounds, struct numbers *out)
{
    double ms[ROUNDS_MAX];
    *t = NULL;
    for (int64_t i = 0; i < rounds; i++) {
        tokenizer_free(*t);
        double start = clock_cpu_s();
        TRY(tokenizer_load(t, path));
        ms[i] = 1e3 * (clock_cpu_s() - start);
    }
    out->load_ms = median(ms, rounds);
    return STATUS_OK;
}

static void print(const struct numbers *n, size_t bytes, bool json)
{
    double mb = (double)bytes / 1e6;
    if (json) {
        printf(
            "{\"bytes\": %zu, \"tokens\": %lld, \"train_s\": %.3f, \"load_ms\": %.2f, \"encode_cold_mb_s\": "
            "%.2f, \"encode_warm_mb_s\": %.2f, \"decode_mb_s\": %.2f}\n",
            bytes, (long long)n->tokens, n->train_s, n->load_ms, mb / n->cold_s, mb / n->warm_s,
            mb / n->decode_s);
        return;
    }
    if (n->train_s > 0)
        printf("train    %8.1f MB/s  (%.2f s, %d threads)\n", mb / n->train_s, n->train_s,
               parallel_threads());
    else
        printf("load     %8.1f ms of CPU time\n", n->load_ms);
    printf(
        "encode   %8.1f MB/s with an empty cache, %.1f MB/s when all was seen once (%lld tokens, %.3f bytes "
        "per token; one thread, CPU time)\n",
        mb / n->cold_s, mb / n->warm_s, (long long)n->tokens, (double)bytes / (double)n->tokens);
    printf("decode   %8.1f MB/s\n", mb / n->decode_s);
}

static status train(struct tokenizer **t, const char *split, int64_t vocab_size, struct text text,
                    struct numbers *out)
{
    const bool given = vocab_size != 0;
    status st = STATUS_DATA;
    if (!given) vocab_size = 32000;
    for (; st == STATUS_DATA && vocab_size >= 256; vocab_size /= 2) {
        const struct tokenizer_train_config config = {.pretokenizer = split,
                                                      .vocab_size = (int32_t)vocab_size};
        const double start = clock_s();
        st = tokenizer_train(t, &config, &text, 1);
        out->train_s = clock_s() - start;
        if (given) break;
    }
    if (st == STATUS_OK && !given && 2 * vocab_size < 32000)
        log_info("a vocabulary of %d: the text has no pairs for a larger one of 32000, 16000, ...",
                 (int)tokenizer_vocab_size(*t));
    return st;
}

status bench_tokenizer(struct args *a)
{
    const char *dir = NULL, *split = "llama3";
    int64_t vocab_size = 0, rounds = 5; /* 0: not given */
    bool json = false;
    const struct flag flags[] = {FLAG("tokenizer", &dir), FLAG("vocab-size", &vocab_size),
                                 FLAG("split", &split), FLAG("rounds", &rounds), FLAG("json", &json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, 1));
    if (vocab_size != 0 && (vocab_size < 256 || vocab_size > INT32_MAX))
        return FAIL(STATUS_CONFIG, "--vocab-size %lld: it begins at 256", (long long)vocab_size);
    if (rounds < 1 || rounds > ROUNDS_MAX)
        return FAIL(STATUS_CONFIG, "--rounds %lld: 1 to %d are possible", (long long)rounds, ROUNDS_MAX);
    char *data = NULL;
    size_t bytes = 0;
    struct tokenizer *t = NULL;
    struct numbers numbers = {0};
    TRY(io_read_file(a->words[0], FILE_BYTES_MAX, &data, &bytes));
    struct text text = {data, bytes};
    status st =
        dir != NULL ? bench_load(&t, dir, rounds, &numbers) : train(&t, split, vocab_size, text, &numbers);
    if (st == STATUS_OK) st = bench_split(t, text, rounds, &numbers);
    if (st == STATUS_OK) st = bench_encode(t, text, rounds, &numbers);
    if (st == STATUS_OK) print(&numbers, bytes, json);
    tokenizer_free(t);
    free(data);
    return st;
}
