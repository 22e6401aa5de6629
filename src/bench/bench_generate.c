/* Generation with random weights and tokens, for batches of sequences of equal length: the prompt through the training
 * forward, then one token each. What a step must read is its weights and caches; the roofline is the time of those
 * bytes at the rate of a plain copy. Drawing tokens, and logits on their way to the host, are not in it. */
#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "infer/generate.h"
#include "observe/progress.h"
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 16, WARM = 3 }; /* WARM: op by op, captured, replayed */

struct options {
    const char *preset, *precision, *device, *isa, *batch;
    int64_t context, tokens, layers, threads;
    bool eager, json;
    int64_t batches[BATCHES];
    int count, rest_count;
    char **rest; /* --section.key=value */
};

static status make_spec(const struct options *o, struct spec *s)
{
    enum { OWN = 12, ALL = 64 };
    struct model_spec m;
    char text[OWN][96];
    char *keys[ALL];
    int n = 0;
    const int64_t positions = o->context + WARM + o->tokens;
    TRY(preset_find(o->preset, &m));
    for (int i = 0; i < OWN; i++) keys[i] = text[i];
    snprintf(text[n++], 96, "model.preset=%s", o->preset);
    if (m.context_length < positions)
        snprintf(text[n++], 96, "model.context_length=%lld", (long long)positions);
    snprintf(text[n++], 96, "train.sequence_length=%lld", (long long)o->context);
    snprintf(text[n++], 96, "train.steps=1");
    snprintf(text[n++], 96, "train.micro_batch=1");
    snprintf(text[n++], 96, "train.batch_tokens=%lld", (long long)o->context);
    snprintf(text[n++], 96, "train.precision=%s", o->precision);
    snprintf(text[n++], 96, "machine.device=%s", o->device);
    if (o->layers) snprintf(text[n++], 96, "model.layer_count=%lld", (long long)o->layers);
    if (o->rest_count > ALL - OWN) return FAIL(STATUS_CONFIG, "more than %d keys", ALL - OWN);
    for (int i = 0; i < o->rest_count; i++) keys[n++] = o->rest[i];
    TRY(spec_load(s, NULL, n, keys, NULL));
    if (s->model.vocab_size == 0) s->model.vocab_size = 4096;
    return STATUS_OK;
}

/* Memory for a prompt at a time, and for a row of every sequence. */
static status open_model(const struct options *o, struct trainer *t)
{
    struct spec s;
    int64_t most = 1;
    TRY(make_spec(o, &s));
    for (int i = 0; i < o->count; i++)
        if (o->batches[i] > most) most = o->batches[i];
    struct plan_layout_args args = plan_args(&s, NULL);
    args.use = PLAN_FORWARD;
    args.tokens = o->context > most ? o->context : most;
    args.docs_max = most;
    args.len_max = args.tokens;
    args.positions = o->context + WARM + o->tokens;
    args.micro_count = 1;
    TRY(trainer_open(t, &s, &args, o->isa));
    const status st = trainer_init_weights(t);
    if (st != STATUS_OK) trainer_close(t);
    return st;
}

/* ------------------------------------------------------------------ what a step must read */

/* Bytes of weights: tables are read by rows, and of n experts a batch of tokens that choose k each reads n (1 - (1 -
 * k/n)^batch) if it chooses at random. */
static double weight_bytes(const struct trainer *t, int64_t batch)
{
    const struct params *p = &t->decoder.params;
    double elements = 0;
    for (int i = 0; i < p->count; i++) {
        const struct param *r = &p->rows[i];
        const bool table = r->role == ROLE_TABLE || r->role == ROLE_POSITION ||
                           (r->role == ROLE_EMBED && i != t->decoder.head.w);
        const double chosen = (double)t->spec.model.moe_top_k / (double)(r->experts > 0 ? r->experts : 1);
        if (table)
            elements += (double)(batch * r->shape[1]);
        else if (r->experts > 0)
            elements += (double)r->count * (1 - pow(1 - fmin(chosen, 1), (double)batch));
        else
            elements += (double)r->count;
    }
    return elements * (double)dtype_bytes(p->dt);
}

enum { COPY_MIB = 256, COPIES = 7 };

static status copies_on_device(struct stream *s, char *to, const char *from, size_t bytes, double *best)
{
    struct event begin = {0}, end = {0};
    double ms = 0;
    status st = dev_event_open(s->dev, &begin);
    if (st == STATUS_OK) st = dev_event_open(s->dev, &end);
    for (int i = 0; i < COPIES && st == STATUS_OK; i++) {
        st = dev_event_record(s, &begin);
        if (st == STATUS_OK) st = dev_copy(s, to, from, bytes);
        if (st == STATUS_OK) st = dev_event_record(s, &end);
        if (st == STATUS_OK) st = dev_event_ms(s->dev, &begin, &end, &ms);
        if (st == STATUS_OK) *best = fmin(*best, ms / 1e3);
    }
    dev_event_close(s->dev, &begin);
    dev_event_close(s->dev, &end);
    return st;
}

static status copies_on_host(char *to, const char *from, size_t bytes, double *best)
{
    enum { GRAIN = 1 << 20 };
    for (int i = 0; i < COPIES; i++) {
        const double begin = clock_s();
        PARALLEL_CHUNKS(c, chunk_count((int64_t)bytes, GRAIN))
        {
            const struct span part = chunk_span(c, (int64_t)bytes, GRAIN);
            memcpy(to + part.begin, from + part.begin, (size_t)(part.end - part.begin));
        }
        *best = fmin(*best, clock_s() - begin);
    }
    return STATUS_OK;
}

/* Bytes read and written per second by the fastest of some copies (`ingot bench copy`). */
static status copy_rate(struct trainer *t, double *rate)
{
    struct arena memory = {0};
    const size_t bytes = (size_t)COPY_MIB << 20;
    double best = INFINITY;
    TRY(dev_arena_reserve(&t->dev, &memory, "copies", 2 * bytes));
    char *from = arena_take(&memory, bytes, "source"), *to = arena_take(&memory, bytes, "destination");
    const status st = t->exec.stream ? copies_on_device(t->exec.stream, to, from, bytes, &best)
                                     : copies_on_host(to, from, bytes, &best);
    arena_free(&memory);
    *rate = 2 * (double)bytes / best;
    return st;
}

/* ------------------------------------------------------------------ one batch */

struct result {
    double prefill_s; /* of all sequences */
    double step_s;    /* median */
    double bytes;     /* of weights and caches, read by a step in the middle */
    int64_t nodes;    /* of the graph; 0: op by op */
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void random_tokens(const struct trainer *t, int32_t *tokens, int64_t count, uint64_t stream)
{
    for (int64_t i = 0; i < count; i++)
        tokens[i] =
            (int32_t)(rng_uniform(1, RNG_TEST, stream, (uint64_t)i) * (double)t->spec.model.vocab_size);
}

static status run_steps(const struct options *o, struct trainer *t, struct generator *g, int32_t *tokens,
                        double *seconds, struct result *r)
{
    const int64_t batch = g->layout.sequences;
    random_tokens(t, tokens, batch * o->context, 0);
    double begin = clock_s();
    TRY(generate_append(g, tokens, o->context));
    r->prefill_s = clock_s() - begin;
    for (int64_t i = -WARM; i < o->tokens; i++) {
        random_tokens(t, tokens, batch, (uint64_t)(i + WARM + 1));
        begin = clock_s();
        TRY(generate_append(g, tokens, 1));
        if (i >= 0) seconds[i] = clock_s() - begin;
    }
    qsort(seconds, (size_t)o->tokens, sizeof *seconds, ascending);
    r->step_s = seconds[o->tokens / 2];
    r->bytes = weight_bytes(t, batch) + generate_cache_bytes(g, o->context + WARM + o->tokens / 2);
    r->nodes = g->mode == GENERATE_REPLAY ? g->graph.nodes : 0;
    return STATUS_OK;
}

static status measure(const struct options *o, struct trainer *t, int64_t batch, struct result *r)
{
    struct generator g;
    const struct generate_layout layout = {
        .sequences = batch, .capacity = o->context + WARM + o->tokens, .eager = o->eager, .blind = true};
    TRY(generate_open(&g, &t->decoder, &t->acts, &layout, &t->exec));
    int32_t *tokens = malloc((size_t)(batch * o->context) * sizeof *tokens);
    double *seconds = malloc((size_t)o->tokens * sizeof *seconds);
    const status st = tokens && seconds ? run_steps(o, t, &g, tokens, seconds, r)
                                        : FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld tokens",
                                               (long long)(batch * o->context));
    free(seconds);
    free(tokens);
    generate_close(&g);
    return st;
}

/* A prompt before the measured ones: libraries load, algorithms are chosen. */
static status warm_up(const struct options *o, struct trainer *t)
{
    struct options once = *o;
    struct result ignored;
    once.tokens = 1;
    return t->exec.stream ? measure(&once, t, 1, &ignored) : STATUS_OK;
}

static void print_result(const struct options *o, const struct trainer *t, int64_t batch,
                         const struct result *r, double rate)
{
    const double decode = (double)batch / r->step_s, prefill = (double)(batch * o->context) / r->prefill_s;
    printf(
        o->json
            ? "{\"bench\":\"generate\",\"preset\":\"%s\",\"device\":\"%s\",\"precision\":\"%s\",\"context\":%"
              "lld,"
              "\"batch\":%lld,\"prefill_tokens_per_s\":%.1f,\"decode_tokens_per_s\":%.1f,\"step_ms\":%.4f,"
              "\"step_bytes\":%.0f,\"copy_gbs\":%.1f,\"roofline\":%.4f,\"graph_nodes\":%lld,\"threads\":%d}\n"
            : "%s %s %s context=%lld batch=%lld prefill_tokens_per_s=%.1f decode_tokens_per_s=%.1f "
              "step_ms=%.4f "
              "step_bytes=%.0f copy_gbs=%.1f roofline=%.4f graph_nodes=%lld threads=%d\n",
        o->preset, t->ops.name, o->precision, (long long)o->context, (long long)batch, prefill, decode,
        r->step_s * 1e3, r->bytes, rate / 1e9, r->bytes / rate / r->step_s, (long long)r->nodes,
        parallel_threads());
    fflush(stdout);
}

/* Larger batches may need more memory than there is: a warning, and the next. */
static status bench_model(const struct options *o, struct trainer *t)
{
    double rate;
    progress_begin(WORK_OTHER, "warming up", 0);
    TRY(copy_rate(t, &rate));
    TRY(warm_up(o, t));
    progress_end();
    for (int i = 0; i < o->count; i++) {
        struct result r;
        progress_begin(WORK_OTHER, "generating", 0);
        const status st = measure(o, t, o->batches[i], &r);
        progress_end();
        if (st == STATUS_OK)
            print_result(o, t, o->batches[i], &r, rate);
        else if (st == STATUS_OUT_OF_MEMORY)
            log_warn("a batch of %lld: %s", (long long)o->batches[i], status_message());
        else
            return st;
    }
    return STATUS_OK;
}

/* "1,8,64" */
static status read_batches(struct options *o)
{
    const char *at = o->batch;
    while (o->count < BATCHES) {
        char *end;
        const long long n = strtoll(at, &end, 10);
        if (end == at || n < 1 || n > 4096 || (*end && *end != ',')) break;
        o->batches[o->count++] = n;
        if (*end == 0) return STATUS_OK;
        at = end + 1;
    }
    return FAIL(STATUS_CONFIG, "--batch=%s: up to %d numbers from 1 to 4096, as in 1,8,64", o->batch,
                BATCHES);
}

status bench_generate(struct args *a)
{
    struct options o = {.preset = "gpt2-124m",
                        .precision = "bf16",
                        .device = "cpu",
                        .batch = "1",
                        .context = 1024,
                        .tokens = 64};
    const struct flag flags[] = {FLAG("preset", &o.preset),   FLAG("precision", &o.precision),
                                 FLAG("device", &o.device),   FLAG("batch", &o.batch),
                                 FLAG("context", &o.context), FLAG("tokens", &o.tokens),
                                 FLAG("layers", &o.layers),   FLAG("threads", &o.threads),
                                 FLAG("eager", &o.eager),     FLAG("isa", &o.isa),
                                 FLAG("json", &o.json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    o.rest_count = a->key_count;
    o.rest = a->keys;
    TRY(read_batches(&o));
    if (o.context < 1 || o.context > 1 << 20 || o.tokens < 1 || o.tokens > 100000)
        return FAIL(STATUS_CONFIG, "--context is 1 to 1048576, --tokens 1 to 100000");
    struct trainer t;
    parallel_threads_set((int)o.threads);
    progress_start();
    progress_begin(WORK_OTHER, "preparing", 0);
    status st = open_model(&o, &t);
    progress_end();
    if (st == STATUS_OK) {
        st = bench_model(&o, &t);
        trainer_close(&t);
    }
    progress_stop();
    return st;
}
