/* ingot data synth: writes synthetic sequences that test recall. */
#include "base/io.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cmd_data.h"
#include "data/build/synth.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define USAGE                                                                                                \
    "data synth mqar|copy -o PREFIX [--items N] [--length N] [--samples N] ...\n"                            \
    "Shards in which the answers alone are targets; `ingot eval` tells how many were right."

struct synth_flags {
    const char *out;
    double power;
    int64_t items, length, vocab_size, samples, val_samples, seed;
    bool force;
};

static status take_task(int argc, char **argv, enum synth_task *task)
{
    static const char *const words[] = {
#define X(value, word) [SYNTH_##value] = (word),
        SYNTH_TASKS(X)
#undef X
    };
    if (argc == 1)
        for (int i = 0; i < COUNT(words); i++)
            if (strcmp(argv[0], words[i]) == 0) {
                *task = (enum synth_task)i;
                return STATUS_OK;
            }
    const char *near = argc == 1 ? text_nearest(argv[0], words, COUNT(words)) : NULL;
    return FAIL(STATUS_CONFIG, "ingot data synth takes one task, mqar or copy%s%s%s",
                near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* Both splits: their names first, so that nothing is written where one of them stands. */
static status write_all(const struct synth_flags *f, const struct synth_config *c)
{
    static const char *const splits[] = {[SYNTH_TRAIN] = "train", [SYNTH_VAL] = "val"};
    char path[2][1024];
    for (int i = 0; i < 2; i++) {
        if (snprintf(path[i], sizeof path[i], "%s_%s_000000.bin", f->out, splits[i]) >= (int)sizeof path[i])
            return FAIL(STATUS_CONFIG, "-o PREFIX is too long");
        if (!f->force && io_exists(path[i]))
            return FAIL(STATUS_CONFIG, "%s is there already; --force replaces it", path[i]);
    }
    for (int i = 0; i < 2; i++) {
        if (c->samples[i] == 0) continue;
        TRY(synth_write(c, (enum synth_split)i, path[i]));
        printf("%s: %lld samples of %lld tokens, %lld answers\n", path[i], (long long)c->samples[i],
               (long long)c->length, (long long)(c->samples[i] * c->items));
    }
    printf("train with --data.train=%s_train_000000.bin --data.val=%s_val_000000.bin "
           "--train.sequence_length=%lld\n",
           f->out, f->out, (long long)c->length);
    return STATUS_OK;
}

status cmd_data_synth(int argc, char **argv)
{
    struct synth_flags f = {.power = 0.01,
                            .items = 8,
                            .length = 64,
                            .vocab_size = 256,
                            .samples = 20000,
                            .val_samples = 500,
                            .seed = 1};
    const struct flag flags[] = {
        {"out", FLAG_TEXT, &f.out, "-o PREFIX: writes PREFIX_train_000000.bin and PREFIX_val_000000.bin"},
        {"items", FLAG_INT, &f.items, "pairs to remember (mqar), symbols to copy (copy); default 8"},
        {"length", FLAG_INT, &f.length, "tokens of a sample; default 64"},
        {"vocab-size", FLAG_INT, &f.vocab_size, "ids, three of them no symbols; default 256"},
        {"samples", FLAG_INT, &f.samples, "to train on; default 20000"},
        {"val-samples", FLAG_INT, &f.val_samples, "to evaluate on; default 500; 0: no such shard"},
        {"power", FLAG_REAL, &f.power,
         "mqar: how far away the questions are: 1: all places alike; near 0: most soon (default 0.01)"},
        {"seed", FLAG_INT, &f.seed, "another seed, other samples; default 1"},
        {"force", FLAG_SWITCH, &f.force, "replace shards that have this prefix"},
    };
    int help;
    struct synth_config c;
    TRY(flags_parse(USAGE, flags, COUNT(flags), &argc, argv, 0, &help));
    if (help) return STATUS_OK;
    TRY(take_task(argc, argv, &c.task));
    if (f.out == NULL) return FAIL(STATUS_CONFIG, "ingot data synth needs -o PREFIX");
    c = (struct synth_config){.task = c.task,
                              .items = f.items,
                              .length = f.length,
                              .vocab_size = f.vocab_size,
                              .samples = {f.samples, f.val_samples},
                              .power = f.power,
                              .seed = (uint64_t)f.seed};
    if (f.samples < 1) return FAIL(STATUS_CONFIG, "--samples %lld: at least 1", (long long)f.samples);
    TRY(synth_check(&c));
    return write_all(&f, &c);
}
