/* ingot train. */
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/sample.h"
#include "train/loop.h"
#include "train/restore.h"

#include <math.h>
#include <stdlib.h>

status cmd_load_spec(const struct args *a, struct spec *spec)
{
    TRY(args_words(a, 0, 1));
    if (a->word_count == 0 && a->key_count == 0)
        return FAIL(STATUS_CONFIG,
                    "ingot %s needs a RUN.yaml, or --model.preset=NAME and other keys; examples/ has some",
                    a->verb->name);
    return spec_load(spec, a->word_count ? a->words[0] : NULL, a->key_count, a->keys, NULL);
}

struct sampler {
    struct tokenizer *tokenizer;
    const struct run_spec *spec;
};

static status sample_after_eval(void *ctx, struct trainer *t, struct observe *o)
{
    const struct sampler *s = ctx;
    char *text;
    TRY(sample_text(
        t, s->tokenizer,
        &(struct sample_config){.prompt = s->spec->log_sample_prompt,
                                .tokens = s->spec->log_sample_tokens,
                                .sampling = {.temperature = 0.8, .top_p = 0.95, .seed = (uint64_t)t->step}},
        &text));
    observe_sample(o, t->step, s->spec->log_sample_prompt, text);
    log_info("sample    %s%s", s->spec->log_sample_prompt, text);
    free(text);
    return STATUS_OK;
}

/* As one of the ranks that `ingot launch` started, or alone. */
static status train_rank(const struct spec *spec, struct loop_options *o, const struct comm_env *env,
                         struct loop_result *r)
{
    TRY(comm_open(&o->comm, env));
    status st = loop_run(spec, o, r);
    comm_close(o->comm, st);
    return st;
}

status cmd_train(struct args *a)
{
    bool resume = false, trace = false;
    const char *isa = NULL;
    const struct flag flags[] = {FLAG("resume", &resume), FLAG("trace", &trace), FLAG("isa", &isa)};
    TRY(args_parse(a, flags, 3));
    if (a->help) return STATUS_OK;
    struct spec spec;
    TRY(cmd_load_spec(a, &spec));
    struct sampler sampler = {.spec = &spec.run};
    struct loop_options o = {
        .resume = resume, .trace = trace, .isa = isa, .again = "the same command with --resume resumes it"};
    if (spec.run.log_sample_prompt[0]) {
        char dir[SPEC_TEXT];
        TRY(restore_tokenizer_dir(&spec, dir, sizeof dir));
        TRY(tokenizer_load(&sampler.tokenizer, dir));
        o.hooks.ctx = &sampler;
        o.hooks.sample = sample_after_eval;
    }
    struct loop_result r;
    struct comm_env env;
    status st = comm_env_read(&env);
    if (st == STATUS_OK) st = train_rank(&spec, &o, &env, &r);
    tokenizer_free(sampler.tokenizer);
    if (st != STATUS_OK || env.rank > 0) return st;
    printf("step=%lld", (long long)r.step);
    if (!isnan(r.loss)) printf(" loss=%.6f", r.loss); /* a run that was over did no step */
    if (!isnan(r.eval.loss)) printf(" val_loss=%.6f", r.eval.loss);
    if (!isnan(r.eval.bits_per_byte)) printf(" bits_per_byte=%.4f", r.eval.bits_per_byte);
    printf(" report=%s/report.html\n", spec.run.run_dir);
    return STATUS_OK;
}
