/* ingot data synth: writes synthetic sequences that test recall. */
#include "base/io.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cmd_data.h"
#include "cli/print_json.h"
#include "observe/progress.h"
#include "data/build/synth.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

struct synth_flags {
    const char *out, *text;
    double power;
    int64_t items, length, vocab_size, samples, val_samples, seed;
    bool force, json;
};

static status take_task(const struct args *a, enum synth_task *task)
{
    static const char *const words[] = {
#define X(value, word) [SYNTH_##value] = (word),
        SYNTH_TASKS(X)
#undef X
    };
    if (a->word_count == 1)
        for (int i = 0; i < COUNT(words); i++)
            if (strcmp(a->words[0], words[i]) == 0) {
                *task = (enum synth_task)i;
                return STATUS_OK;
            }
    const char *near = a->word_count == 1 ? text_nearest(a->words[0], words, COUNT(words)) : NULL;
    return FAIL(STATUS_CONFIG, "ingot data synth takes one task, mqar, copy, parity or needle%s%s%s",
                near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* Both splits: their names first, so that nothing is written where one of them stands. */
static status write_all(const struct synth_flags *f, const struct synth_config *c, json_t *rows)
{
    static const char *const splits[] = {[SYNTH_TRAIN] = "train", [SYNTH_VAL] = "val"};
    char path[2][1024];
    for (int i = 0; i < 2; i++) {
        if (snprintf(path[i], sizeof path[i], "%s_%s_000000.bin", f->out, splits[i]) >= (int)sizeof path[i])
            return FAIL(STATUS_CONFIG, "-o PREFIX is too long");
        bool there = false;
        if (!f->force) TRY(io_exists(path[i], &there));
        if (there) return FAIL(STATUS_CONFIG, "%s is there already; --force replaces it", path[i]);
    }
    bool text_there = false;
    if (f->text && !f->force) TRY(io_exists(f->text, &text_there));
    if (text_there) return FAIL(STATUS_CONFIG, "%s is there already; --force replaces it", f->text);
    for (int i = 0; i < 2; i++) {
        if (c->samples[i] == 0) continue;
        progress_start();
        progress_begin(WORK_OTHER, "writing samples", 0);
        const status st = synth_write(c, (enum synth_split)i, path[i]);
        progress_end();
        progress_stop();
        TRY(st);
        if (rows)
            json_array_append_new(rows, json_pack("{s:s, s:I, s:I, s:I}", "path", path[i], "samples",
                                                  (json_int_t)c->samples[i], "length", (json_int_t)c->length,
                                                  "answers", (json_int_t)(c->samples[i] * synth_answers(c))));
        else
            printf("%s: %lld samples of %lld tokens, %lld answers\n", path[i], (long long)c->samples[i],
                   (long long)c->length, (long long)(c->samples[i] * synth_answers(c)));
    }
    if (f->text) TRY(synth_write_text(c, f->text));
    if (f->text && !rows)
        printf("%s: %lld texts; ingot eval RUN --tasks lambada=%s\n", f->text,
               (long long)c->samples[SYNTH_VAL], f->text);
    if (!rows)
        printf("train with --data.train=%s_train_000000.bin --data.val=%s_val_000000.bin "
               "--train.sequence_length=%lld\n",
               f->out, f->out, (long long)c->length);
    return STATUS_OK;
}

status cmd_data_synth(struct args *a)
{
    struct synth_flags f = {.power = 0.01,
                            .items = 8,
                            .length = 64,
                            .vocab_size = 256,
                            .samples = 20000,
                            .val_samples = 500,
                            .seed = 1};
    const struct flag flags[] = {FLAG("out", &f.out),         FLAG("items", &f.items),
                                 FLAG("length", &f.length),   FLAG("vocab-size", &f.vocab_size),
                                 FLAG("samples", &f.samples), FLAG("val-samples", &f.val_samples),
                                 FLAG("power", &f.power),     FLAG("seed", &f.seed),
                                 FLAG("text", &f.text),       FLAG("force", &f.force),
                                 FLAG("json", &f.json)};
    struct synth_config c;
    TRY(args_parse(a, flags, COUNT(flags)));
    if (a->help) return STATUS_OK;
    TRY(take_task(a, &c.task));
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
    json_t *rows = f.json ? json_array() : NULL;
    status st = write_all(&f, &c, rows);
    if (st == STATUS_OK && rows) print_json(json_pack("{s:O}", "shards", rows));
    json_decref(rows);
    return st;
}
