/* Complete training steps on random tokens: forward, backward, clip, optimizer, as `ingot train` runs them,
 * without data loading and files. tools/peer_torch_cpu.py does the same work in PyTorch;
 * scripts/bench_cpu.sh alternates the two. */
#include "bench/bench.h"
#include "base/clock.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "base/text.h"
#include "observe/kernels.h"
#include "observe/observe.h"
#include "plan/machine.h"
#include "plan/mfu.h"
#include "train/trainer.h"
#include "dev/power.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { RECORDED = 10 }; /* steps after the timed ones, for --breakdown */

struct options {
    const char *preset, *precision, *recompute, *optimizer, *device, *isa;
    int64_t batch, sequence, micro, steps, threads, layers;
    bool json, eager, breakdown;
    int rest_count; /* --section.key=value: keys that have no flag */
    char **rest;
};

/* Whether fp8.recipe names one that has no warm-up. */
static bool other_recipe(const struct options *o)
{
    static const char name[] = "--fp8.recipe=";
    bool other = false;
    for (int i = 0; i < o->rest_count; i++)
        if (strncmp(o->rest[i], name, sizeof name - 1) == 0)
            other = strcmp(o->rest[i] + sizeof name - 1, "bound") != 0;
    return other;
}

static status make_spec(const struct options *o, struct spec *s)
{
    enum { OWN = 13, ALL = 64 };
    char text[OWN][96];
    char *keys[ALL];
    int n = 0;
    for (int i = 0; i < OWN; i++) keys[i] = text[i];
    snprintf(text[n++], 96, "model.preset=%s", o->preset);
    snprintf(text[n++], 96, "train.sequence_length=%lld", (long long)o->sequence);
    snprintf(text[n++], 96, "train.micro_batch=%lld", (long long)o->batch);
    snprintf(text[n++], 96, "train.batch_tokens=%lld", (long long)(o->batch * o->sequence * o->micro));
    snprintf(text[n++], 96, "train.steps=%lld", (long long)(o->steps + 4 + RECORDED));
    snprintf(text[n++], 96, "train.precision=%s", o->precision);
    snprintf(text[n++], 96, "train.recompute=%s", o->recompute);
    snprintf(text[n++], 96, "optim.name=%s", o->optimizer);
    snprintf(text[n++], 96, "machine.device=%s", o->device);
    snprintf(text[n++], 96, "train.graph=%s", o->eager ? "false" : "true");
    if (o->layers) snprintf(text[n++], 96, "model.layer_count=%lld", (long long)o->layers);
    if (strcmp(o->precision, "fp8") == 0 && !other_recipe(o)) snprintf(text[n++], 96, "fp8.warmup=1");
    if (o->rest_count > ALL - OWN) return FAIL(STATUS_CONFIG, "more than %d keys", ALL - OWN);
    for (int i = 0; i < o->rest_count; i++) keys[n++] = o->rest[i];
    TRY(spec_load(s, NULL, n, keys, NULL));
    if (s->model.vocab_size == 0) s->model.vocab_size = 4096;
    return STATUS_OK;
}

/* One step's data for this rank: random tokens, one sequence per document, in one block that the caller
 * frees. */
static int32_t *random_batch(const struct trainer *trainer, int64_t micro, struct step_batch *b,
                             struct batch *parts)
{
    const struct spec *s = &trainer->spec;
    const uint64_t first = (uint64_t)trainer->mesh.dp_rank * (uint64_t)micro; /* each rank has its own */
    int64_t t = s->run.train_sequence_length, sequences = s->run.train_micro_batch, rows = t * sequences;
    int32_t *memory = malloc((size_t)(micro * (3 * rows + sequences + 1)) * sizeof *memory), *at = memory;
    if (memory == NULL) return NULL;
    for (int64_t m = 0; m < micro; m++) {
        int32_t *tokens = at, *targets = at + rows, *positions = at + 2 * rows, *cu = at + 3 * rows;
        at += 3 * rows + sequences + 1;
        for (int64_t i = 0; i < rows; i++) {
            tokens[i] = (int32_t)(rng_uniform(1, RNG_TEST, first + (uint64_t)m, (uint64_t)i) *
                                  (double)s->model.vocab_size);
            targets[i] = (int32_t)(rng_uniform(2, RNG_TEST, first + (uint64_t)m, (uint64_t)i) *
                                   (double)s->model.vocab_size);
            positions[i] = (int32_t)(i % t);
        }
        for (int64_t i = 0; i <= sequences; i++) cu[i] = (int32_t)(i * t);
        parts[m] = (struct batch){.rows = rows,
                                  .docs = sequences,
                                  .len_max = t,
                                  .tokens = tokens,
                                  .targets = targets,
                                  .positions = positions,
                                  .cu_seqlens = cu};
    }
    *b = (struct step_batch){.valid = rows * micro, .micro_count = (int)micro, .micro = parts};
    return memory;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double peak_rss_gib(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_maxrss / 1048576;
}

struct timing {
    double *seconds;        /* of each timed step, ascending */
    double begin_s, cold_s; /* clock at the command's start; seconds to the end of the first step */
    double first_loss, last_loss;
    struct breakdown breakdown;
    struct power_draw draw; /* of this rank's GPU during the timed steps */
};

/* MFU in both conventions, beside the rate; nothing for a GPU whose peak is not known. */
static double peak_of(const struct trainer *t)
{
    return mfu_peak(t->dev.name, (enum precision)t->spec.run.train_precision) * comm_ranks(t->mesh.world);
}

static void add_mfu(json_t *j, const struct trainer *t, const struct options *o, double tokens_per_s)
{
    double peak = peak_of(t);
    if (peak <= 0) return;
    json_object_set_new(j, "peak_gflops_per_s", json_real(peak / 1e9));
    json_object_set_new(j, "mfu",
                        json_real(tokens_per_s * plan_model_flops(&t->spec.model, o->sequence) / peak));
    json_object_set_new(j, "mfu_full",
                        json_real(tokens_per_s * mfu_flops_full(&t->spec.model, o->sequence) / peak));
}

static void print_mfu(const struct trainer *t, const struct options *o, double tokens_per_s)
{
    double peak = peak_of(t);
    if (peak <= 0) return;
    printf(" mfu=%.3f mfu_full=%.3f", tokens_per_s * plan_model_flops(&t->spec.model, o->sequence) / peak,
           tokens_per_s * mfu_flops_full(&t->spec.model, o->sequence) / peak);
}

static void add_power(json_t *j, const struct power_draw *draw, double tokens_per_s)
{
    if (draw->sm_mhz > 0) {
        json_object_set_new(j, "sm_mhz", json_real(draw->sm_mhz));
        json_object_set_new(j, "power_capped", json_real(draw->capped));
    }
    if (draw->watts <= 0) return;
    json_object_set_new(j, "watts", json_real(draw->watts));
    json_object_set_new(j, "power_limit_watts", json_real(draw->limit_watts));
    json_object_set_new(j, "tokens_per_joule", json_real(tokens_per_s / draw->watts));
}

static void print_power(const struct power_draw *draw, double tokens_per_s)
{
    if (draw->watts > 0)
        printf(" watts=%.0f power_limit_watts=%.0f tokens_per_joule=%.1f", draw->watts, draw->limit_watts,
               tokens_per_s / draw->watts);
    if (draw->sm_mhz > 0) printf(" sm_mhz=%.0f power_capped=%.2f", draw->sm_mhz, draw->capped);
}

static void print_result(const struct options *o, const struct trainer *t, const struct timing *m)
{
    const double *seconds = m->seconds;
    double median = seconds[o->steps / 2], tokens = (double)t->spec.run.train_batch_tokens;
    double flops = plan_model_flops(&t->spec.model, o->sequence) * tokens / median;
    const int64_t sequences = o->batch * o->micro * t->mesh.shape.dp;
    const struct mesh_shape *mesh = &t->mesh.shape;
    const double ranks_tokens = tokens / comm_ranks(t->mesh.world); /* the FLOPs of this rank's GPU */
    struct stage stages[STAGES_MAX];
    double sum = 0;
    for (int64_t i = 0; i < o->steps; i++) sum += seconds[i];
    int count = stages_list(stages, sum);
    if (o->json) {
        json_t *parts = json_object();
        for (int i = 0; i < count; i++)
            json_object_set_new(parts, stages[i].name, json_real(stages[i].percent));
        json_t *j = json_pack(
            "{s:s, s:s, s:s, s:I, s:I, s:i, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:f, s:b, s:o}", "preset",
            o->preset, "device", t->ops.name, "precision", o->precision, "batch", (json_int_t)sequences,
            "seq", (json_int_t)o->sequence, "threads", parallel_threads(), "step_s", median, "tokens_per_s",
            tokens / median, "model_gflops_per_s", flops / 1e9, "peak_rss_gib", peak_rss_gib(), "loss_last",
            m->last_loss, "planned_bytes", (json_int_t)memory_peak(&t->memory), "device_bytes",
            (json_int_t)dev_bytes_used(&t->dev), "cold_start_s", m->cold_s, "step_s_best", seconds[0],
            "graph", t->mode == STEP_REPLAY, "stages_percent", parts);
        add_mfu(j, t, o, tokens / median);
        add_power(j, &m->draw, ranks_tokens / median);
        if (t->mesh.world)
            json_object_set_new(j, "mesh",
                                json_pack("{s:i, s:i, s:i, s:i}", "pp", mesh->pp, "dp", mesh->dp, "tp",
                                          mesh->tp, "zero", mesh->zero));
        if (t->mesh.pp) json_object_set_new(j, "bubble", json_real(t->pipeline.bubble));
        json_object_set_new(j, "micro_batch", json_integer((json_int_t)t->spec.run.train_micro_batch));
        json_object_set_new(j, "host_bytes", json_integer((json_int_t)t->memory.host.peak));
        if (m->breakdown.steps) json_object_set_new(j, "breakdown", breakdown_json(&m->breakdown, median));
        json_dumpf(j, stdout, JSON_INDENT(2));
        printf("\n");
        json_decref(j);
        return;
    }
    printf("ingot preset=%s device=%s precision=%s batch=%lld seq=%lld threads=%d step_s=%.3f "
           "tokens_per_s=%.1f gflops_per_s=%.0f "
           "peak_rss_gib=%.2f planned_gib=%.2f device_gib=%.2f cold_start_s=%.2f loss_first=%.4f "
           "loss_last=%.4f%s",
           o->preset, t->ops.name, o->precision, (long long)sequences, (long long)o->sequence,
           parallel_threads(), median, tokens / median, flops / 1e9, peak_rss_gib(),
           (double)memory_peak(&t->memory) / 1073741824, (double)dev_bytes_used(&t->dev) / 1073741824,
           m->cold_s, m->first_loss, m->last_loss, t->mode == STEP_REPLAY ? " graph" : "");
    print_mfu(t, o, tokens / median);
    print_power(&m->draw, ranks_tokens / median);
    if (t->mesh.world) printf(" pp=%d dp=%d tp=%d zero=%d", mesh->pp, mesh->dp, mesh->tp, mesh->zero);
    if (t->memory.host.peak > 0) printf(" host_gib=%.2f", (double)t->memory.host.peak / 1073741824);
    printf(" micro_batch=%lld\n", (long long)t->spec.run.train_micro_batch);
    for (int i = 0; i < count; i++)
        printf("  %-20s %5.1f %%  %8.3f s\n", stages[i].name, stages[i].percent, stages[i].seconds);
    if (m->breakdown.steps) breakdown_print(stdout, &m->breakdown, median);
    pipeline_log(&t->pipeline);
}

/* Records some more steps. The timed ones are not recorded, since recording costs time. */
static status record_steps(struct trainer *t, struct step_batch *b, struct breakdown *out)
{
    struct step_result r;
    TRY(kernels_record(true));
    kernels_flush(0);
    for (int i = 0; i < RECORDED; i++) {
        b->step = t->step;
        TRY(train_step(t, b, &r));
        kernels_flush(1);
    }
    kernels_breakdown(out);
    return kernels_record(false);
}

static status run_steps(const struct options *o, struct trainer *t, struct step_batch *b,
                        struct power_meter *meter, struct timing *m)
{
    struct step_result r;
    int64_t warm = t->exec.stream ? 3 : 1;              /* a GPU: eager, captured, replayed */
    if (t->fp8.linears) warm += t->spec.run.fp8_warmup; /* then all of it again, in FP8 */
    for (int64_t i = -warm; i < o->steps; i++) {
        double begin = clock_s();
        b->step = t->step;
        TRY(train_step(t, b, &r));
        if (i == -warm) m->first_loss = r.loss, m->cold_s = clock_s() - m->begin_s;
        if (i == -1) {
            stages_start(); /* the first steps warm caches: not measured */
            power_begin(meter);
        }
        if (i >= 0) m->seconds[i] = clock_s() - begin;
    }
    stages_stop();
    power_end(meter, &m->draw);
    m->last_loss = r.loss;
    if (o->breakdown && record_steps(t, b, &m->breakdown) != STATUS_OK) log_warn("%s", status_message());
    m->breakdown.link_rate = machine_host_both(machine_of_gpu(t->dev.name));
    qsort(m->seconds, (size_t)o->steps, sizeof *m->seconds, ascending);
    if (comm_rank(t->mesh.world) == 0) print_result(o, t, m);
    return STATUS_OK;
}

/* Before the first step, so that graph nodes get their scopes. Without device times the bench continues. */
static bool kernels_wanted(const struct trainer *t)
{
    if (t->dev.kind != DEV_CUDA)
        log_warn("--breakdown shows what a GPU does; this is %s", t->dev.name);
    else if (kernels_open() != STATUS_OK)
        log_warn("%s", status_message());
    else
        return true;
    return false;
}

static status bench_rank(struct options *o, struct comm *world)
{
    struct spec s;
    struct trainer t;
    struct step_batch b;
    struct timing m = {.begin_s = clock_s()};
    TRY(make_spec(o, &s));
    /* --batch and --micro are per data-parallel rank */
    const int64_t others = s.run.parallel_tensor * s.run.parallel_pipeline * s.run.parallel_context;
    if (comm_ranks(world) > others) s.run.train_batch_tokens *= comm_ranks(world) / others;
    parallel_threads_set((int)o->threads);
    TRY(trainer_open_rank(&t, &s, o->isa, world));
    o->breakdown = o->breakdown && kernels_wanted(&t);
    const int64_t micro =
        plan_micro_count(&t.spec) / t.mesh.shape.dp; /* train.micro_batch=auto is a number now */
    struct batch *parts = calloc((size_t)micro, sizeof *parts);
    m.seconds = calloc((size_t)o->steps, sizeof *m.seconds);
    int32_t *tokens = parts && m.seconds ? random_batch(&t, micro, &b, parts) : NULL;
    status st = tokens ? trainer_init_weights(&t) : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the batch");
    struct power_meter *meter = NULL;
    if (t.dev.kind == DEV_CUDA && power_open(&meter, &t.dev) != STATUS_OK) log_warn("%s", status_message());
    if (st == STATUS_OK) st = run_steps(o, &t, &b, meter, &m);
    power_close(meter);
    kernels_close();
    free(tokens);
    free(m.seconds);
    free(parts);
    trainer_close(&t);
    return st;
}

status bench_train(struct args *a)
{
    struct options o = {.preset = "gpt2-124m",
                        .precision = "fp32",
                        .recompute = "none",
                        .optimizer = "adamw",
                        .device = "cpu",
                        .batch = 4,
                        .micro = 1,
                        .steps = 5};
    const struct flag flags[] = {FLAG("preset", &o.preset),
                                 FLAG("precision", &o.precision),
                                 FLAG("recompute", &o.recompute),
                                 FLAG("optimizer", &o.optimizer),
                                 FLAG("batch", &o.batch),
                                 FLAG("micro", &o.micro),
                                 FLAG("seq", &o.sequence),
                                 FLAG("layers", &o.layers),
                                 FLAG("steps", &o.steps),
                                 FLAG("threads", &o.threads),
                                 FLAG("device", &o.device),
                                 FLAG("eager", &o.eager),
                                 FLAG("isa", &o.isa),
                                 FLAG("breakdown", &o.breakdown),
                                 FLAG("json", &o.json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    o.rest_count = a->key_count;
    o.rest = a->keys;
    if (o.steps < 1 || o.steps > 10000 || o.micro < 1 || o.micro > 4096)
        return FAIL(STATUS_CONFIG, "--steps is 1 to 10000, --micro 1 to 4096");
    if (o.sequence == 0) { /* not given */
        struct model_spec m;
        TRY(preset_find(o.preset, &m));
        o.sequence = m.context_length < 1024 ? m.context_length : 1024;
    }
    struct comm_env env;
    struct comm *world;
    TRY(comm_env_read(&env));
    TRY(comm_open(&world, &env));
    const status st = bench_rank(&o, world);
    comm_close(world, st);
    return st;
}
