/* ingot bench tokenizer FILE: speed of training on a text, of loading, of normalizing and splitting it alone, and of
 * encoding and decoding it, on one thread but for the training. The tokenizer is trained on the file, or taken from a directory. */
#include "bench/bench.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/parallel.h"
#include "base/text.h"
#include "data/tokenizer_int.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, FILE_BYTES_MAX = 1 << 30 };

static double megabytes_per_s(size_t bytes, double seconds)
{
    return (double)bytes / 1e6 / seconds;
}

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* What encoding does before it looks for tokens. Medians; *normal is normalized text, in *room. */
static status bench_split(const struct pretokenizer *p, const char *text, size_t bytes,
                          struct pretokenizer_room *room, const char **normal, size_t *normal_bytes)
{
    double normalize[ROUNDS], split[ROUNDS], start;
    int64_t pieces = 0;
    for (int i = 0; i < ROUNDS; i++) {
        start = clock_s();
        TRY(pretokenizer_normalize(p, text, bytes, room, normal, normal_bytes));
        normalize[i] = clock_s() - start;
    }
    for (int i = 0; i < ROUNDS; i++) {
        size_t ends[128];
        struct pretokenizer_cursor c = pretokenizer_begin(*normal, *normal_bytes);
        pieces = 0;
        start = clock_s();
        for (int n; (n = pretokenizer_scan(p, &c, ends, 128)) > 0;) pieces += n;
        split[i] = clock_s() - start;
    }
    qsort(normalize, ROUNDS, sizeof *normalize, compare_doubles);
    qsort(split, ROUNDS, sizeof *split, compare_doubles);
    if (p->nfc) printf("NFC      %8.1f MB/s\n", megabytes_per_s(bytes, normalize[ROUNDS / 2]));
    printf("split    %8.1f MB/s  (%lld pieces, %.2f bytes each)\n",
           megabytes_per_s(*normal_bytes, split[ROUNDS / 2]), (long long)pieces,
           (double)*normal_bytes / (double)(pieces > 0 ? pieces : 1));
    return STATUS_OK;
}

/* Median over ROUNDS after one that warms up; the first one is printed apart: a cold cache, as for a single
 * text. */
static status bench_encode(const struct tokenizer *t, const char *text, size_t bytes)
{
    struct encoder *e;
    const int32_t *ids = NULL;
    int64_t count = 0;
    double seconds[ROUNDS], cold = 0, start;
    struct pretokenizer_room room = {0};
    const char *normal = text;
    size_t normal_bytes = bytes;
    TRY(encoder_open(&e, t));
    status st = bench_split(&t->pretokenizer, text, bytes, &room, &normal, &normal_bytes);
    for (int i = -1; st == STATUS_OK && i < ROUNDS; i++) {
        start = clock_s();
        st = encoder_encode(e, text, bytes, SPECIALS_AS_TEXT, &ids, &count);
        *(i < 0 ? &cold : &seconds[i]) = clock_s() - start;
    }
    if (st == STATUS_OK) {
        qsort(seconds, ROUNDS, sizeof *seconds, compare_doubles);
        printf("encode   %8.1f MB/s  (first time %.1f; %lld tokens, %.3f bytes per token, one thread)\n",
               megabytes_per_s(bytes, seconds[ROUNDS / 2]), megabytes_per_s(bytes, cold), (long long)count,
               (double)bytes / (double)count);
        char *back = NULL;
        size_t back_bytes = 0;
        start = clock_s();
        st = tokenizer_decode(t, ids, count, &back, &back_bytes);
        if (st == STATUS_OK) printf("decode   %8.1f MB/s\n", megabytes_per_s(bytes, clock_s() - start));
        CHECK(st != STATUS_OK || (back_bytes == normal_bytes && memcmp(back, normal, normal_bytes) == 0),
              "decoded text differs");
        free(back);
    }
    free(room.data);
    encoder_close(e);
    return st;
}

static status train_or_load(struct tokenizer **t, const char *dir, const char *pretokenizer,
                            int32_t vocab_size, const char *text, size_t bytes)
{
    double start = clock_s();
    if (dir != NULL) {
        TRY(tokenizer_load(t, dir));
        printf("load     %8.1f ms\n", 1e3 * (clock_s() - start));
        return STATUS_OK;
    }
    const struct tokenizer_train_config config = {.pretokenizer = pretokenizer, .vocab_size = vocab_size};
    const struct text doc = {text, bytes};
    TRY(tokenizer_train(t, &config, &doc, 1));
    double seconds = clock_s() - start;
    printf("train    %8.1f MB/s  (%.2f s, vocabulary %d, %d threads)\n", megabytes_per_s(bytes, seconds),
           seconds, (int)vocab_size, parallel_threads());
    return STATUS_OK;
}

status bench_tokenizer(int argc, char **argv)
{
    const char *path = NULL, *dir = NULL, *split = "llama3";
    int64_t vocab_size = 32000;
    for (int i = 0; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--tokenizer") == 0 && has_value)
            dir = argv[++i];
        else if (strcmp(argv[i], "--split") == 0 && has_value)
            split = argv[++i];
        else if (strcmp(argv[i], "--vocab-size") == 0 && has_value && text_to_int(argv[i + 1], &vocab_size))
            i++;
        else if (path == NULL && argv[i][0] != '-')
            path = argv[i];
        else
            return FAIL(STATUS_CONFIG,
                        "'%s': usage: bench tokenizer FILE [--tokenizer DIR | --vocab-size N --split NAME]",
                        argv[i]);
    }
    if (path == NULL) return FAIL(STATUS_CONFIG, "a text file is needed: bench tokenizer FILE");
    if (vocab_size < 256 || vocab_size > INT32_MAX)
        return FAIL(STATUS_CONFIG, "--vocab-size %lld: it begins at 256", (long long)vocab_size);
    char *text = NULL;
    size_t bytes = 0;
    struct tokenizer *t = NULL;
    TRY(io_read_file(path, FILE_BYTES_MAX, &text, &bytes));
    status st = train_or_load(&t, dir, split, (int32_t)vocab_size, text, bytes);
    if (st == STATUS_OK) st = bench_encode(t, text, bytes);
    tokenizer_free(t);
    free(text);
    return st;
}
