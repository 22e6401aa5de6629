#include "train/support_overlay.h"
#include "base/rng.h"
#include "plan/grad_overlay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64, SEQUENCES = 4, ROWS = TOKENS * SEQUENCES, KEYS = 40 };

static const char *const common[] = {"model.layer_count=4",
                                     "model.hidden_size=64",
                                     "model.ffn_size=96",
                                     "model.head_count=2",
                                     "model.context_length=64",
                                     "model.vocab_size=250",
                                     "model.tied_embeddings=false",
                                     "train.micro_batch=4",
                                     "train.batch_tokens=256",
                                     "train.steps=10",
                                     "optim.lr=1e-3"};
#define LAYERNORM "model.norm=layernorm", "model.activation=gelu", "model.position=learned"
#define BIASES    "model.qkv_bias=true", "model.out_bias=true", "model.mlp_bias=true"
#define GDN                                                                                                  \
    "model.gdn_key_heads=1", "model.gdn_value_heads=2", "model.gdn_key_dim=16", "model.gdn_value_dim=16"
#define ENGRAM "model.engram_layers=0,2", "model.engram_dim=16", "model.engram_base=50"
#define MOE    "model.moe_experts=4", "model.moe_top_k=2", "model.moe_size=48", "model.moe_shared_size=48"
#define ROUTER "model.moe_router=sigmoid", "model.moe_balance_rate=0.001"
const struct overlay_family overlay_families[OVERLAY_FAMILIES] = {
    {"gqa", {"model.norm=rmsnorm"}},
    {"layernorm and biases", {LAYERNORM, BIASES}},
    {"a wide head", {"model.vocab_size=4099", "model.layer_count=2"}},
    {"gdn and mla", {"model.layers=2*gdn,2*mla", GDN, "model.mla_kv_rank=32"}},
    {"moe", {"model.layers=2*gqa/moe,2*swa/mlp", "model.window=16", MOE, ROUTER}},
    {"dense tables", {ENGRAM, "optim.table_gradients=dense"}},
    {"rows of tables", {ENGRAM, "optim.table_gradients=sparse"}},
    {"muon", {"optim.name=muon"}},
};

static void must(status st, const char *what)
{
    if (st != STATUS_OK) fail_msg("%s: %s", what, status_message());
}

void overlay_spec(struct spec *s, const struct overlay_family *f, const struct overlay_way *way)
{
    char text[4][64], *keys[KEYS];
    int n = 0;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) keys[n++] = (char *)(uintptr_t)common[i];
    for (int i = 0; f->keys[i]; i++) keys[n++] = (char *)(uintptr_t)f->keys[i];
    snprintf(text[0], sizeof text[0], "machine.device=%s", way->device);
    snprintf(text[1], sizeof text[1], "train.precision=%s", way->precision);
    snprintf(text[2], sizeof text[2], "train.recompute=%s", way->recompute);
    snprintf(text[3], sizeof text[3], "train.graph=%s", way->graph);
    for (int i = 0; i < 4; i++) keys[n++] = text[i];
    must(spec_load(s, NULL, n, keys, NULL), f->name);
}

void overlay_open(struct trainer *t, const struct spec *s, const char *name, bool overlay)
{
    struct plan_layout_args args = plan_args(s, NULL);
    if (!args.overlay) fail_msg("%s: gradients are laid apart", name);
    args.overlay = overlay;
    must(trainer_open(t, s, &args, NULL), name);
    must(trainer_init_weights(t), name);
}

struct data {
    int32_t tokens[ROWS], targets[ROWS], positions[ROWS], cu[SEQUENCES + 1];
    struct batch micro;
    struct step_batch step;
};
static void draw(struct data *d, int64_t step, int64_t vocab)
{
    for (int i = 0; i < ROWS; i++) {
        d->tokens[i] = (int32_t)(rng_uniform(1, RNG_TEST, (uint64_t)step, (uint64_t)i) * (double)vocab);
        d->targets[i] = (int32_t)(rng_uniform(2, RNG_TEST, (uint64_t)step, (uint64_t)i) * (double)vocab);
        d->positions[i] = i % TOKENS;
    }
    for (int i = 0; i <= SEQUENCES; i++) d->cu[i] = i * TOKENS;
    d->micro = (struct batch){.rows = ROWS,
                              .docs = SEQUENCES,
                              .len_max = TOKENS,
                              .tokens = d->tokens,
                              .targets = d->targets,
                              .positions = d->positions,
                              .cu_seqlens = d->cu};
    d->step = (struct step_batch){.step = step, .valid = ROWS, .micro_count = 1, .micro = &d->micro};
}

static void *copy_of(const struct trainer *t, const void *array, size_t bytes, const char *name)
{
    void *copy = malloc(bytes);
    assert_non_null(copy);
    must(dev_download(t->exec.stream, copy, array, bytes), name);
    must(dev_sync(t->exec.stream), name);
    return copy;
}

/* Both are where the trainers' devices have them. */
struct pair {
    const struct trainer *a, *b;
    const char *name;
};
static void same(const struct pair *of, const void *a, const void *b, size_t bytes, const char *what)
{
    void *x = copy_of(of->a, a, bytes, what), *y = copy_of(of->b, b, bytes, what);
    if (memcmp(x, y, bytes) != 0) fail_msg("%s: %s differ", of->name, what);
    free(x);
    free(y);
}

/* Gradients stay until the next forward; of rows that are not stored the array of its own has zeros by then. */
static void same_state(const struct pair *of)
{
    const struct params *p = &of->a->decoder.params, *q = &of->b->decoder.params;
    const size_t bytes = (size_t)p->total * sizeof(float);
    if (p->master_residual)
        same(of, p->master_residual, q->master_residual, bytes / 2, "lower halves of master weights");
    same(of, p->weight, q->weight, (size_t)p->total * dtype_bytes(p->dt), "weights");
    same(of, p->m, q->m, bytes, "first moments");
    same(of, p->v, q->v, (size_t)p->total_v * sizeof(float), "second moments");
    for (int i = 0; i < p->count; i++)
        if (p->rows[i].gemm_overwrites_grad)
            same(of, params_grad(p, i), params_grad(q, i), (size_t)p->rows[i].count * sizeof(float),
                 p->rows[i].name);
}

static void poison(const struct trainer *t, const char *name)
{
    const struct arena *act = &t->memory.act;
    void *nan = malloc(act->size);
    assert_non_null(nan);
    memset(nan, 0xFF, act->size);
    must(dev_upload(t->exec.stream, act->base, nan, act->size), name);
    must(dev_sync(t->exec.stream), name);
    free(nan);
}

static void step_both(struct trainer *over, struct trainer *apart, int64_t step, const char *name)
{
    struct data *d = malloc(sizeof *d);
    struct step_result a, b;
    assert_non_null(d);
    draw(d, step, over->spec.model.vocab_size);
    poison(over, name);
    must(train_step(over, &d->step, &a), name);
    must(train_step(apart, &d->step, &b), name);
    free(d);
    if (memcmp(&a.loss, &b.loss, sizeof a.loss) != 0 ||
        memcmp(&a.grad_norm, &b.grad_norm, sizeof a.grad_norm) != 0)
        fail_msg("%s, step %lld: loss %.9g, norm %.9g; apart %.9g, %.9g", name, (long long)step, a.loss,
                 a.grad_norm, b.loss, b.grad_norm);
    same_state(&(struct pair){over, apart, name});
}

void overlay_train_both(const struct overlay_family *f, const struct overlay_way *way)
{
    struct spec s;
    struct trainer over, apart;
    char name[128];
    snprintf(name, sizeof name, "%s on %s, %s, recompute %s, graph %s", f->name, way->device, way->precision,
             way->recompute, way->graph);
    overlay_spec(&s, f, way);
    overlay_open(&over, &s, name, true);
    overlay_open(&apart, &s, name, false);
    const struct params *p = &over.decoder.params;
    assert_true(p->overlaid && !apart.decoder.params.overlaid);
    const char *grad = p->grad, *act = over.memory.act.base;
    assert_true(grad >= act && grad + grad_overlay_bytes(p) <= act + over.memory.act.size);
    if (memory_peak(&over.memory) >= memory_peak(&apart.memory)) fail_msg("%s: nothing is saved", name);
    /* Of a graph: op by op, captured, and replayed twice. */
    const int steps = over.exec.stream && s.run.train_graph ? 4 : 2;
    for (int step = 0; step < steps; step++) step_both(&over, &apart, step, name);
    assert_true(steps == 2 || over.mode == STEP_REPLAY);
    trainer_close(&over);
    trainer_close(&apart);
}
