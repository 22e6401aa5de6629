/* ingot train. */
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/sample.h"
#include "train/loop.h"
#include "train/restore.h"

#include <math.h>
#include <stdlib.h>

status cmd_load_spec(const char *verb, int argc, char **argv, struct spec *spec)
{
    const char *path = NULL;
    int kept = 0;
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1] == '-')
            argv[kept++] = argv[i];
        else if (path == NULL)
            path = argv[i];
        else
            return FAIL(STATUS_CONFIG, "ingot %s takes one RUN.yaml; '%s' is one too many", verb, argv[i]);
    }
    if (path == NULL && kept == 0)
        return FAIL(STATUS_CONFIG,
                    "ingot %s needs a RUN.yaml, or --model.preset=NAME and other keys; examples/ has some",
                    verb);
    return spec_load(spec, path, kept, argv, NULL);
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

status cmd_train(int argc, char **argv)
{
    bool resume = false, trace = false;
    const char *isa = NULL;
    const struct flag flags[] = {
        {"resume", FLAG_SWITCH, &resume, "go on from the newest checkpoint of the run directory"},
        {"trace", FLAG_SWITCH, &trace,
         "write RUN/trace/*.json for chrome://tracing or Perfetto; on a GPU with device times of ten steps"},
        {"isa", FLAG_TEXT, &isa, "use at most avx2, avx512 or amx (default: the best of this machine)"},
    };
    int help;
    TRY(flags_parse("train RUN.yaml [--resume] [--section.key=value ...]", flags, 3, &argc, argv, 1, &help));
    if (help) return STATUS_OK;
    struct spec spec;
    TRY(cmd_load_spec("train", argc, argv, &spec));
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
