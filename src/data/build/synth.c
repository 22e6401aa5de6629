#include "data/build/synth.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    END = 0,
    BLANK = 1,
    SIGN = 2,
    BEHIND = 3 /* first id of copy's symbols; mqar's begin one earlier */
};
enum { HEADER_BYTES = 1024 };

typedef long long ll;

struct draw {
    double key;
    int32_t id;
};

static int64_t keys_of(const struct synth_config *c)
{
    return (c->vocab_size - SIGN) / 2;
}

/* Slots for queries: pairs of tokens after the list of keys and values. */
static int64_t places_of(const struct synth_config *c)
{
    return (c->length - 1 - 2 * c->items) / 2;
}

/* Least tokens of a sample. */
static int64_t least_length(const struct synth_config *c)
{
    switch (c->task) {
    case SYNTH_MQAR: return 4 * c->items + 1;
    case SYNTH_COPY: return 2 * c->items + 2;
    case SYNTH_PARITY: return c->items + 3;
    case SYNTH_NEEDLE: return 2 * c->items + 3;
    }
    return 0;
}

int64_t synth_answers(const struct synth_config *c)
{
    return c->task == SYNTH_PARITY ? 1 : c->items;
}

status synth_check(const struct synth_config *c)
{
    const bool mqar = c->task == SYNTH_MQAR; /* which has no sign */
    const int64_t symbols = mqar ? keys_of(c) : c->vocab_size - BEHIND;
    const int64_t need = least_length(c), least = mqar ? c->items : c->task == SYNTH_PARITY ? 2 : 1;
    if (c->items < 1 || c->items > 1000000)
        return FAIL(STATUS_CONFIG, "%lld items: 1 to 1000000 are expected", (ll)c->items);
    if (c->vocab_size > 1 << 24 || symbols < least)
        return FAIL(STATUS_CONFIG,
                    "a vocabulary of %lld has %lld %s: at least %lld are needed, and at most 2^24 ids",
                    (ll)c->vocab_size, (ll)(symbols > 0 ? symbols : 0), mqar ? "keys" : "symbols", (ll)least);
    if (c->length < need || c->length > 1 << 24)
        return FAIL(STATUS_CONFIG, "%lld items need samples of %lld tokens at least, not %lld", (ll)c->items,
                    (ll)need, (ll)c->length);
    for (int i = 0; i < 2; i++)
        if (c->samples[i] < 0 || c->samples[i] > (INT32_MAX - 1) / c->length)
            return FAIL(STATUS_CONFIG, "%lld samples of %lld tokens do not fit in one shard of 2^31 tokens",
                        (ll)c->samples[i], (ll)c->length);
    if (!(c->power > 0 && c->power <= 1))
        return FAIL(STATUS_CONFIG, "a power of %g: more than 0 and at most 1 is expected", c->power);
    return STATUS_OK;
}

static int64_t draws_of(const struct synth_config *c)
{
    const int64_t keys = keys_of(c), room = c->length;
    return keys > room ? keys : room;
}

size_t synth_space(const struct synth_config *c)
{
    return (size_t)draws_of(c) * sizeof(struct draw) + 2 * (size_t)c->items * sizeof(int32_t);
}

static int by_key(const void *a, const void *b)
{
    const struct draw *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The random numbers of one sample. */
struct dice {
    uint64_t seed, sample, at;
};
static double roll(struct dice *d)
{
    return rng_uniform(d->seed, RNG_SYNTH, d->sample, d->at++);
}

/* Draws `count` of the ids [0, of) without replacement, in order; id i has weight (i + 1)^(power - 1). They
 * are the smallest of exponential waiting times at these rates. */
static void choose(struct dice *d, int64_t of, double power, int64_t count, struct draw *space, int32_t *out)
{
    for (int64_t i = 0; i < of; i++)
        space[i] = (struct draw){-log1p(-roll(d)) * pow((double)(i + 1), 1 - power), (int32_t)i};
    qsort(space, (size_t)of, sizeof *space, by_key);
    for (int64_t i = 0; i < count; i++) out[i] = space[i].id;
}

static void mqar(const struct synth_config *c, struct dice *d, int32_t *tokens, uint8_t *answers,
                 struct draw *space)
{
    const int64_t n = c->items, keys = keys_of(c);
    int32_t *chosen = (int32_t *)(space + draws_of(c)), *places = chosen + n;
    choose(d, keys, 1, n, space, chosen);
    for (int64_t i = 0; i < n; i++) tokens[2 * i] = SIGN + chosen[i];
    choose(d, c->vocab_size - SIGN - keys, 1, n, space, chosen);
    for (int64_t i = 0; i < n; i++) tokens[2 * i + 1] = (int32_t)(SIGN + keys) + chosen[i];
    choose(d, places_of(c), c->power, n, space, places);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = 2 * n + 2 * (int64_t)places[i];
        tokens[at] = tokens[2 * i];
        tokens[at + 1] = tokens[2 * i + 1];
        answers[at + 1] = 1;
    }
}

static void copy(const struct synth_config *c, struct dice *d, int32_t *tokens, uint8_t *answers,
                 struct draw *space)
{
    const int64_t n = c->items, sign = c->length - 2 - n;
    int32_t *places = (int32_t *)(space + draws_of(c));
    choose(d, sign, 1, n, space, places);
    for (int64_t i = 0; i < n; i++) tokens[places[i]] = END; /* taken */
    tokens[sign] = SIGN;
    for (int64_t t = 0, i = 0; t < sign; t++) {
        if (tokens[t] == BLANK) continue;
        tokens[t] = BEHIND + (int32_t)(roll(d) * (double)(c->vocab_size - BEHIND));
        tokens[sign + 1 + i] = tokens[t];
        answers[sign + 1 + i] = 1;
        i++;
    }
}

static void parity(const struct synth_config *c, struct dice *d, int32_t *tokens, uint8_t *answers,
                   struct draw *space)
{
    const int64_t sign = c->length - 3;
    int32_t *places = (int32_t *)(space + draws_of(c)), odd = 0;
    choose(d, sign, 1, c->items, space, places);
    for (int64_t i = 0; i < c->items; i++) {
        const int32_t bit = roll(d) < 0.5;
        tokens[places[i]] = BEHIND + bit;
        odd ^= bit;
    }
    tokens[sign] = SIGN;
    tokens[sign + 1] = BEHIND + odd;
    answers[sign + 1] = 1;
}

static void needle(const struct synth_config *c, struct dice *d, int32_t *tokens, uint8_t *answers)
{
    const int64_t n = c->items, sign = c->length - 2 - n;
    const int64_t place = (int64_t)(roll(d) * (double)(sign - n));
    for (int64_t t = 0; t < sign; t++)
        tokens[t] = BEHIND + (int32_t)(roll(d) * (double)(c->vocab_size - BEHIND));
    tokens[place] = tokens[sign] = SIGN;
    for (int64_t i = 1; i <= n; i++) {
        tokens[sign + i] = tokens[place + i];
        answers[sign + i] = 1;
    }
}

void synth_sample(const struct synth_config *c, enum synth_split split, int64_t index, int32_t *tokens,
                  uint8_t *answers, void *space)
{
    struct dice d = {.seed = c->seed, .sample = (uint64_t)index * 2 + (uint64_t)split};
    for (int64_t t = 0; t < c->length; t++) tokens[t] = BLANK, answers[t] = 0;
    switch (c->task) {
    case SYNTH_MQAR: mqar(c, &d, tokens, answers, space); break;
    case SYNTH_COPY: copy(c, &d, tokens, answers, space); break;
    case SYNTH_PARITY: parity(c, &d, tokens, answers, space); break;
    case SYNTH_NEEDLE: needle(c, &d, tokens, answers); break;
    }
    tokens[c->length - 1] = END;
}

static status write_header(const struct synth_config *c, int64_t count, struct io_file *f)
{
    char header[HEADER_BYTES] = "BIN.TOK\n";
    const int32_t words[] = {2, 4, (int32_t)count, (int32_t)c->vocab_size, 1};
    memcpy(header + 8, words, sizeof words);
    return io_write(f, header, sizeof header);
}

/* Tokens are written at once; the mask, one bit each, is kept and written after them. */
static status write_samples(const struct synth_config *c, enum synth_split split, struct io_file *f,
                            uint8_t *mask, int32_t *tokens, uint8_t *answers, void *space)
{
    const int32_t end = END;
    for (int64_t i = 0; i < c->samples[split]; i++) {
        synth_sample(c, split, i, tokens, answers, space);
        for (int64_t t = 0; t < c->length; t++) {
            const int64_t bit = i * c->length + t;
            mask[bit / 8] = (uint8_t)(mask[bit / 8] | answers[t] << bit % 8);
        }
        TRY(io_write(f, tokens, (size_t)c->length * sizeof *tokens));
    }
    TRY(io_write(f, &end, sizeof end));
    return io_write(f, mask, (size_t)(c->samples[split] * c->length / 8 + 1));
}

status synth_write(const struct synth_config *c, enum synth_split split, const char *path)
{
    const int64_t count = c->samples[split] * c->length + 1;
    struct io_file f;
    TRY(io_create(&f, path));
    uint8_t *mask = calloc((size_t)(count / 8 + 1), 1), *answers = malloc((size_t)c->length);
    int32_t *tokens = malloc((size_t)c->length * sizeof *tokens);
    void *space = malloc(synth_space(c));
    status st = mask && answers && tokens && space
                    ? write_header(c, count, &f)
                    : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the mask of %s", path);
    if (st == STATUS_OK) st = write_samples(c, split, &f, mask, tokens, answers, space);
    if (st == STATUS_OK)
        st = io_commit(&f);
    else
        io_abandon(&f);
    free(mask);
    free(answers);
    free(tokens);
    free(space);
    return st;
}

static void put_words(FILE *out, const int32_t *tokens, int64_t count)
{
    fputs("{\"text\": \"", out);
    for (int64_t t = 0; t < count; t++) {
        if (t > 0) fputc(' ', out);
        if (tokens[t] == BLANK)
            fputc('.', out);
        else if (tokens[t] == SIGN)
            fputc('=', out);
        else
            fprintf(out, "%d", tokens[t]);
    }
    fputs("\"}\n", out);
}

static status write_rows(const struct synth_config *c, struct io_file *f, int32_t *tokens, uint8_t *answers,
                         void *space)
{
    for (int64_t i = 0; i < c->samples[SYNTH_VAL]; i++) {
        char *text = NULL;
        size_t bytes = 0;
        synth_sample(c, SYNTH_VAL, i, tokens, answers, space);
        int64_t count = c->length;
        while (count > 0 && !answers[count - 1]) count--;
        FILE *out = memory_stream(&text, &bytes);
        put_words(out, tokens, count);
        memory_stream_close(out);
        status st = io_write(f, text, bytes);
        free(text);
        TRY(st);
    }
    return STATUS_OK;
}

status synth_write_text(const struct synth_config *c, const char *path)
{
    struct io_file f;
    TRY(io_create(&f, path));
    uint8_t *answers = malloc((size_t)c->length);
    int32_t *tokens = malloc((size_t)c->length * sizeof *tokens);
    void *space = malloc(synth_space(c));
    status st = answers && tokens && space
                    ? write_rows(c, &f, tokens, answers, space)
                    : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the samples of %s", path);
    if (st == STATUS_OK)
        st = io_commit(&f);
    else
        io_abandon(&f);
    free(answers);
    free(tokens);
    free(space);
    return st;
}
