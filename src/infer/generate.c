#include "infer/generate.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

int64_t generate_limit(const struct decoder *d)
{
    int64_t rope = d->rope.heads.half || d->rope.tails.half ? d->rope.positions : INT64_MAX,
            learned = d->embed.pos >= 0 ? d->embed.positions : INT64_MAX;
    return rope < learned ? rope : learned;
}

/* First counts the caches' memory, then allocates. */
static void lay(struct generator *g, const struct feed_shape *shape)
{
    dtype dt = g->acts->lay.dt;
    const struct cache_lay l = {.capacity = g->capacity, .dt = dt, .memory = &g->memory};
    struct block_cache *k = g->caches;
    for (int64_t p = 0; p < model_passes(&g->decoder->spec); p++) {
        const struct layer_range at = model_pass(&g->decoder->spec, p);
        for (int64_t i = at.from; i < at.to; i++) block_cache_lay(&g->decoder->blocks[i], k++, &l);
    }
    g->last = tensor_take(&g->memory, "logits", dtype_acc(dt), 2, (int64_t)1, g->decoder->head.width);
    g->length_now = tensor_take(&g->memory, "cache length", DTYPE_I32, 1, (int64_t)1);
    g->block = arena_take(&g->memory, feed_bytes(g->run->stream ? DEV_CUDA : DEV_CPU, shape), "batch");
}

/* On a GPU the memory is the device's, and logits are copied to the host. */
static status reserve(struct generator *g)
{
    struct stream *s = g->run->stream;
    const struct dev host = {.kind = DEV_CPU}, *dev = s ? s->dev : &host;
    const struct feed_shape shape = {.micro_count = 1, .rows = g->acts->lay.n, .docs_max = 1};
    lay(g, &shape);
    TRY(dev_arena_reserve(dev, &g->memory, "generation cache", g->memory.peak));
    lay(g, &shape);
    TRY(feed_open(&g->feed, dev, s, &shape, g->block));
    g->logits = g->last;
    if (s == NULL) return STATUS_OK;
    g->logits.data = malloc((size_t)tensor_count(g->last) * dtype_bytes(g->last.dt));
    return g->logits.data ? STATUS_OK : FAIL(STATUS_FIT, "no memory for the logits");
}

status generate_open(struct generator *g, const struct decoder *d, struct activations *acts, int64_t capacity,
                     const struct exec *run)
{
    *g = (struct generator){.decoder = d, .run = run, .acts = acts, .capacity = capacity};
    if (capacity > generate_limit(d))
        return FAIL(STATUS_CONFIG,
                    "%lld tokens with the prompt, the model has %lld positions: shorten the prompt or ask "
                    "for fewer tokens",
                    (long long)capacity, (long long)generate_limit(d));
    g->caches = calloc((size_t)decoder_visits(&d->spec), sizeof *g->caches);
    status st = g->caches ? STATUS_OK : FAIL(STATUS_FIT, "no memory for the cache's description");
    if (st == STATUS_OK) st = reserve(g);
    if (st != STATUS_OK) generate_close(g);
    return st;
}

void generate_close(struct generator *g)
{
    if (g->logits.data != g->last.data) free(g->logits.data);
    feed_close(&g->feed);
    free(g->caches);
    arena_free(&g->memory);
    *g = (struct generator){0};
}

static status head(struct generator *g, int64_t rows)
{
    struct tensor last = g->acts->y;
    last.data = (char *)last.data + (size_t)((rows - 1) * last.shape[1]) * dtype_bytes(last.dt);
    last.shape[0] = 1;
    TRY(head_logits(&g->decoder->head, last, g->last, g->run));
    TRY(dev_download(g->run->stream, g->logits.data, g->last.data,
                     (size_t)tensor_count(g->last) * dtype_bytes(g->last.dt)));
    return dev_sync(g->run->stream);
}

/* One visit of a block: all rows of the prompt, or one more row. */
struct at_block {
    struct generator *g;
    struct cache_at at;
};

/* The prompt: the training forward, keeping keys and values. Under PLAN_FORWARD all layers share their
 * scratch, so a layer's keys are copied before the next layer runs. */
static status prefill(void *ctx, const struct visit *v)
{
    const struct at_block *b = ctx;
    struct generator *g = b->g;
    const struct block *m = &g->decoder->blocks[v->block];
    struct block_saved *s = &g->acts->blocks[v->block];
    TRY(block_fwd(m, s, v->mix, v->io, g->run));
    return block_cache_fill(m, s, &g->caches[v->index], &b->at, g->run);
}

static status one_token(void *ctx, const struct visit *v)
{
    const struct at_block *b = ctx;
    struct generator *g = b->g;
    return block_step(&g->decoder->blocks[v->block], &g->acts->blocks[v->block], &g->caches[v->index], v->mix,
                      &b->at, v->io, g->run);
}

static status forward(struct generator *g, const struct batch *b)
{
    struct at_block at = {.g = g,
                          .at = {.at = g->length,
                                 .rows = b->rows,
                                 .capacity = g->capacity,
                                 .batch = b,
                                 .length = g->length_now.data}};
    const struct visitor by = {.visit = g->length == 0 ? prefill : one_token, .ctx = &at};
    return decoder_walk(g->decoder, g->acts, b, &by, g->run);
}

status generate_append(struct generator *g, const int32_t *tokens, int64_t count)
{
    CHECK(count > 0 && g->length + count <= g->capacity, "%lld + %lld tokens in a cache for %lld",
          (long long)g->length, (long long)count, (long long)g->capacity);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= g->decoder->spec.vocab_size)
            return FAIL(STATUS_DATA, "token id %d is outside the model's vocabulary of %lld", tokens[i],
                        (long long)g->decoder->spec.vocab_size);
    for (int64_t done = 0; done < count;) {
        int64_t rows = g->length == 0 ? (count < g->acts->lay.n ? count : g->acts->lay.n) : 1;
        int32_t *positions = malloc((size_t)rows * sizeof *positions), cu[2] = {0, (int32_t)rows};
        if (positions == NULL) return FAIL(STATUS_FIT, "no memory for %lld positions", (long long)rows);
        for (int64_t i = 0; i < rows; i++) positions[i] = (int32_t)(g->length + i);
        struct batch b = {.rows = rows,
                          .docs = 1,
                          .len_max = rows,
                          .tokens = tokens + done,
                          .positions = positions,
                          .cu_seqlens = cu};
        const struct step_scalars none = {0};
        int32_t length = (int32_t)(g->length + rows);
        status st = feed_put(&g->feed, &b, 1, &none);
        if (st == STATUS_OK) st = dev_upload(g->run->stream, g->length_now.data, &length, sizeof length);
        if (st == STATUS_OK) st = forward(g, &g->feed.micro[0]);
        if (st == STATUS_OK) st = dev_sync(g->run->stream); /* the feed's memory is reused */
        free(positions);
        TRY(st);
        g->length += rows;
        done += rows;
        if (done == count) TRY(head(g, rows));
    }
    return STATUS_OK;
}

struct choice {
    float logit;
    int32_t id;
};

static int by_logit(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

int32_t generate_sample(const float *logits, int64_t vocab, const struct sampling *s, uint64_t index)
{
    struct choice *c = malloc((size_t)vocab * sizeof *c);
    CHECK(c != NULL, "no memory for %lld choices", (long long)vocab);
    for (int64_t i = 0; i < vocab; i++) c[i] = (struct choice){logits[i], (int32_t)i};
    qsort(c, (size_t)vocab, sizeof *c, by_logit);
    int64_t count = s->temperature == 0 ? 1 : s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    double sum = 0, kept = 0;
    double *p = malloc((size_t)count * sizeof *p);
    CHECK(p != NULL, "no memory for %lld probabilities", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        p[i] = s->temperature == 0 ? 1 : exp((double)(c[i].logit - c[0].logit) / s->temperature);
        sum += p[i];
    }
    /* The nucleus: the smallest set of most likely tokens whose probabilities reach top_p (Holtzman et al., arXiv:1904.09751). */
    int64_t n = 0;
    while (n < count && (n == 0 || kept < s->top_p * sum)) kept += p[n++];
    double at = rng_uniform(s->seed, RNG_SAMPLE, 0, index) * kept;
    int64_t pick = 0;
    while (pick + 1 < n && at >= p[pick]) at -= p[pick++];
    int32_t id = c[pick].id;
    free(p);
    free(c);
    return id;
}
