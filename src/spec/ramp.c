#include "spec/ramp.h"
#include "base/text.h"

#include <string.h>

typedef long long ll;

/* One "SIZE@UNTIL". */
static bool take_stage(const char *word, struct ramp_stage *s)
{
    char size[32];
    const char *at = strchr(word, '@');
    if (at == NULL || at - word >= (ptrdiff_t)sizeof size) return false;
    snprintf(size, sizeof size, "%.*s", (int)(at - word), word);
    return text_to_int(size, &s->size) && text_to_int(at + 1, &s->until) && s->size > 0 && s->until > 0 &&
           s->until < INT64_MAX / 4;
}

/* Steps and tokens before each stage: a stage ends with the step that reaches its end. */
static void count_stages(struct ramp *r)
{
    for (int i = 1; i < r->count; i++) {
        const struct ramp_stage *before = &r->stage[i - 1];
        const int64_t left = before->until - before->tokens,
                      steps = left <= 0 ? 0 : (left - 1) / before->size + 1;
        r->stage[i].step = before->step + steps;
        r->stage[i].tokens = before->tokens + steps * before->size;
    }
}

status ramp_open(struct ramp *r, const char *key, const char *text, int64_t last)
{
    char words[SPEC_TEXT], *rest = words;
    *r = (struct ramp){0};
    snprintf(words, sizeof words, "%s", text);
    for (char *word; text[0] && (word = strsep(&rest, ","));) {
        struct ramp_stage *s = &r->stage[r->count];
        word += strspn(word, " ");
        word[strcspn(word, " ")] = 0;
        if (r->count == RAMP_STAGES)
            return FAIL(STATUS_CONFIG, "%s has more than %d stages", key, RAMP_STAGES);
        if (!take_stage(word, s))
            return FAIL(STATUS_CONFIG, "%s: '%s' is no SIZE@TOKENS, such as 32Ki@1M,64Ki@4M", key, word);
        if (r->count > 0 && s->until <= s[-1].until)
            return FAIL(STATUS_CONFIG, "%s: the stages' ends must ascend, %lld follows %lld", key,
                        (ll)s->until, (ll)s[-1].until);
        r->count++;
    }
    r->stage[r->count++] = (struct ramp_stage){.size = last, .until = INT64_MAX};
    count_stages(r);
    return STATUS_OK;
}

static struct ramp opened(const char *key, const char *text, int64_t last)
{
    struct ramp r;
    const status st = ramp_open(&r, key, text, last);
    CHECK(st == STATUS_OK, "%s was not checked: %s", key, status_message());
    return r;
}

struct ramp ramp_batch(const struct run_spec *r)
{
    return opened("train.batch_schedule", r->train_batch_schedule, r->train_batch_tokens);
}

struct ramp ramp_sequence(const struct run_spec *r)
{
    return opened("train.sequence_schedule", r->train_sequence_schedule, r->train_sequence_length);
}

static const struct ramp_stage *stage_of(const struct ramp *r, int64_t step)
{
    int i = r->count - 1;
    while (i > 0 && r->stage[i].step > step) i--;
    return &r->stage[i];
}

int64_t ramp_size(const struct ramp *r, int64_t step)
{
    return stage_of(r, step)->size;
}

int64_t ramp_tokens(const struct ramp *r, int64_t step)
{
    const struct ramp_stage *s = stage_of(r, step);
    int64_t tokens;
    if (__builtin_mul_overflow(step - s->step, s->size, &tokens) ||
        __builtin_add_overflow(tokens, s->tokens, &tokens))
        return INT64_MAX;
    return tokens;
}

int64_t ramp_steps(const struct ramp *r, int64_t tokens)
{
    int i = r->count - 1;
    while (i > 0 && r->stage[i].tokens >= tokens) i--;
    const struct ramp_stage *s = &r->stage[i];
    const int64_t left = tokens - s->tokens;
    return s->step + left / s->size + (left % s->size != 0);
}

int64_t ramp_at(const struct ramp *r, int64_t tokens)
{
    int i = 0;
    while (tokens >= r->stage[i].until && i + 1 < r->count) i++;
    return r->stage[i].size;
}

int64_t ramp_unit(const struct ramp *r)
{
    int64_t a = r->stage[0].size;
    for (int i = 1; i < r->count; i++)
        for (int64_t b = r->stage[i].size; b;) {
            const int64_t rest = a % b;
            a = b;
            b = rest;
        }
    return a;
}

int64_t ramp_least(const struct ramp *r)
{
    int64_t least = r->stage[0].size;
    for (int i = 1; i < r->count; i++)
        if (r->stage[i].size < least) least = r->stage[i].size;
    return least;
}

static status check_batch(const struct spec *s)
{
    const struct run_spec *r = &s->run;
    const int64_t micro = (r->train_micro_batch ? r->train_micro_batch : 1) * r->train_sequence_length;
    struct ramp ramp;
    TRY(ramp_open(&ramp, "train.batch_schedule", r->train_batch_schedule, r->train_batch_tokens));
    for (int i = 0; i < ramp.count; i++)
        if (ramp.stage[i].size % micro != 0 || ramp.stage[i].size > r->train_batch_tokens)
            return FAIL(STATUS_CONFIG,
                        "train.batch_schedule: %lld tokens per step are no multiple of micro_batch x "
                        "sequence_length = %lld, or more than train.batch_tokens %lld",
                        (ll)ramp.stage[i].size, (ll)micro, (ll)r->train_batch_tokens);
    const char *apart = r->parallel_zero >= 2                  ? "parallel.zero 2 and 3"
                        : r->parallel_pipeline > 1             ? "parallel.pipeline"
                        : s->model.engram_layers[0]            ? "model.engram_layers"
                        : r->train_on_spike == ON_SPIKE_REWIND ? "train.on_spike rewind"
                                                               : NULL;
    if (ramp.count > 1 && apart)
        return FAIL(STATUS_CONFIG, "train.batch_schedule does not go with %s, which needs steps of one size",
                    apart);
    return STATUS_OK;
}

static status check_sequence(const struct spec *s)
{
    const struct run_spec *r = &s->run;
    struct ramp ramp;
    TRY(ramp_open(&ramp, "train.sequence_schedule", r->train_sequence_schedule, r->train_sequence_length));
    for (int i = 0; i + 1 < ramp.count; i++)
        if (ramp.stage[i].size > r->train_sequence_length)
            return FAIL(STATUS_CONFIG,
                        "train.sequence_schedule: %lld tokens are more than train.sequence_length %lld",
                        (ll)ramp.stage[i].size, (ll)r->train_sequence_length);
    if (ramp.count > 1 && r->parallel_context > 1)
        return FAIL(STATUS_CONFIG,
                    "train.sequence_schedule does not go with parallel.context, whose ranks share "
                    "whole sequences");
    return STATUS_OK;
}

status ramp_check(const struct spec *s)
{
    TRY(check_batch(s));
    return check_sequence(s);
}
