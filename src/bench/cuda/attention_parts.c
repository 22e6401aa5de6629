/* Attention of context-parallel ranks on one GPU: the kernels of every rank, one rank after the other, beside attention
 * to the whole sequence. What is above the whole is the cost of splitting: of blocks of queries that end with a chunk, and
 * of more launches. Ranks also move keys, values and their gradients, which is not measured here. */
#include "bench/cuda/attention.h"

#include <stdio.h>

static const struct shape shapes[] = {
    {1, 1 << 15, 8, 2, 128, 0, EQUAL, 0}, {1, 1 << 16, 8, 2, 128, 0, EQUAL, 0},
    {1, 1 << 17, 8, 2, 128, 0, EQUAL, 0}, {1, 1 << 18, 8, 2, 128, 0, EQUAL, 0},
    {1, 1 << 15, 16, 4, 64, 0, EQUAL, 0}, {1, 1 << 17, 16, 4, 64, 0, EQUAL, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static size_t scratch_of(const struct ops *o, const struct shape *s, int64_t ranks)
{
    const struct attn_shape part = {.rows = s->len / ranks,
                                    .docs = 1,
                                    .len_max = s->len / ranks,
                                    .heads = s->heads,
                                    .heads_kv = s->heads_kv,
                                    .head_dim = s->head_dim,
                                    .head_dim_v = s->head_dim,
                                    .window = s->window,
                                    .dt = DTYPE_BF16,
                                    .keys = s->len};
    return o->attn_scratch(&part, ATTN_BWD);
}

/* The whole, and room for a list of one document. */
static struct attn_doc *layout(struct call *k, const struct shape *s, const struct ops *o, int64_t ranks,
                               struct arena *a)
{
    attention_layout(k, s, o, scratch_of(o, s, ranks), a);
    return arena_take(a, sizeof(struct attn_doc), "document");
}

size_t attention_parts_bytes(const struct gpu *c, const struct attention_bench *b)
{
    size_t most = 0;
    for (int i = 0; i < SHAPES; i++) {
        struct arena count = {.name = "bench attention"};
        struct call k;
        (void)layout(&k, &shapes[i], &c->ops, b->ranks, &count);
        if (most < count.peak) most = count.peak;
    }
    return most;
}

int attention_parts_shapes(void)
{
    return SHAPES;
}

int64_t attention_parts_rows(void)
{
    int64_t most = 0;
    for (int i = 0; i < SHAPES; i++)
        if (most < shapes[i].len) most = shapes[i].len;
    return most;
}

/* Of rank `rank`: its two chunks of the sequence, in the first rows of q, o and their gradients (parallel/context.h). */
static status part_of(struct gpu *c, const struct call *whole, int64_t rank, int64_t ranks,
                      struct attn_doc *at, struct call *out)
{
    const int64_t keys = whole->fwd.rows, chunk = keys / (2 * ranks);
    const int32_t rows = (int32_t)chunk;
    const struct attn_doc doc = {.key = 0,
                                 .keys = (int32_t)(keys - rank * chunk),
                                 .part = {{0, rows, (int32_t)(rank * chunk)},
                                          {rows, rows, (int32_t)((2 * ranks - 1 - rank) * chunk)}}};
    TRY(dev_upload(&c->s, at, &doc, sizeof doc));
    TRY(dev_sync(&c->s));
    *out = *whole;
    out->fwd.cp_docs = out->bwd.cp_docs = at;
    out->fwd.keys = out->bwd.keys = keys;
    out->fwd.rows = out->bwd.rows = 2 * chunk;
    return STATUS_OK;
}

static void print(const struct gpu *c, const struct shape *s, int i, int pass,
                  const struct attention_bench *b, double whole, double parts)
{
    const double over = 100 * (parts / whole - 1);
    const double flops = 4.0 * (double)(s->head_dim * s->heads) * (double)s->len * (double)(s->len + 1) / 2;
    const char *name = pass == BWD ? "bwd" : "fwd";
    if (b->json)
        printf(
            "{\"bench\":\"attention\",\"set\":\"cuda\",\"device\":\"%s\",\"dtype\":\"bf16\",\"ranks\":%lld,"
            "\"shape\":%d,"
            "\"tokens\":%lld,\"heads\":%lld,\"heads_kv\":%lld,\"hd\":%lld,\"pass\":\"%s\",\"whole_ms\":%.4f,"
            "\"parts_ms\":%.4f,\"tflops\":%.1f,\"overhead_percent\":%.2f}\n",
            c->dev.name, (long long)b->ranks, i, (long long)s->len, (long long)s->heads,
            (long long)s->heads_kv, (long long)s->head_dim, name, whole, parts,
            1e-9 * flops * (pass == BWD ? 2.5 : 1) / parts, over);
    else
        printf("%2d  %6lld tokens  %2lld/%-2lld x %3lld  %s  whole %9.3f ms  %lld ranks in turn %9.3f ms "
               "%6.1f TFLOP/s  "
               "overhead %+5.2f %%\n",
               i, (long long)s->len, (long long)s->heads, (long long)s->heads_kv, (long long)s->head_dim,
               name, whole, (long long)b->ranks, parts, 1e-9 * flops * (pass == BWD ? 2.5 : 1) / parts, over);
    fflush(stdout);
}

static status measure(struct gpu *c, int i, const struct attention_bench *b)
{
    const struct shape *s = &shapes[i];
    double ms[RUNS_MAX], whole[2], parts[2] = {0, 0};
    struct arena pool = {0};
    struct call k, part;
    arena_attach(&pool, "bench attention", c->pool, c->pool_bytes, NULL);
    struct attn_doc *at = layout(&k, s, &c->ops, b->ranks, &pool);
    TRY(attention_fill(c, &k, s));
    for (int pass = FWD; pass <= BWD; pass++) {
        TRY(attention_sample(c, &k, pass, b->runs, ms));
        whole[pass] = ms[b->runs / 2];
    }
    for (int64_t r = 0; r < b->ranks; r++) {
        TRY(part_of(c, &k, r, b->ranks, at, &part));
        for (int pass = FWD; pass <= BWD; pass++) { /* backward reads what this rank's forward has left */
            TRY(attention_sample(c, &part, pass, b->runs, ms));
            parts[pass] += ms[b->runs / 2];
        }
    }
    for (int pass = FWD; pass <= BWD; pass++) print(c, s, i, pass, b, whole[pass], parts[pass]);
    return STATUS_OK;
}

status attention_parts(struct gpu *c, const struct attention_bench *b)
{
    TRY(attention_set_open(c, &(struct cuda_options){.attention = CUDA_ATTENTION_OWN}));
    status st = STATUS_OK;
    for (int i = 0; i < SHAPES && st == STATUS_OK; i++)
        if (b->shape < 0 || b->shape == i) st = measure(c, i, b);
    ops_cuda_close(&c->s);
    return st;
}
