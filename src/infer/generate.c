#include "infer/generate.h"
#include "base/log.h"
#include "base/scope.h"

#include <stdlib.h>

int64_t generate_limit(const struct decoder *d)
{
    int64_t rope = d->rope.heads.half || d->rope.tails.half ? d->rope.positions : INT64_MAX,
            learned = d->embed.pos >= 0 ? d->embed.positions : INT64_MAX;
    return rope < learned ? rope : learned;
}

/* Rows of `inputs`. */
enum { TOKENS, POSITIONS, LENGTHS, CU_SEQLENS, INPUTS };

static int64_t inputs_width(const struct generator *g)
{
    return g->layout.sequences + 1;
}
static int32_t *inputs_row(const struct generator *g, int32_t *base, int row)
{
    return base + row * inputs_width(g);
}

/* First counts the caches' memory, then allocates. */
static void layout(struct generator *g, const struct feed_shape *shape)
{
    const dtype dt = g->acts->layout.dt;
    const struct cache_layout l = {
        .sequences = g->layout.sequences, .capacity = g->layout.capacity, .dt = dt, .memory = &g->memory};
    struct block_cache *k = g->caches;
    for (int64_t p = 0; p < model_passes(&g->decoder->spec); p++) {
        const struct layer_range at = model_pass(&g->decoder->spec, p);
        for (int64_t i = at.from; i < at.to; i++) block_cache_layout(&g->decoder->blocks[i], k++, &l);
    }
    g->last =
        tensor_take(&g->memory, "logits", dtype_acc(dt), 2, g->layout.sequences, g->decoder->head.width);
    g->inputs = tensor_take(&g->memory, "input of a step", DTYPE_I32, 2, (int64_t)INPUTS, inputs_width(g));
    g->block = arena_take(&g->memory, feed_bytes(g->run->stream ? DEV_CUDA : DEV_CPU, shape), "batch");
}

/* Bytes of the caches of sequences of `length` tokens: laid out once more, counting. */
double generate_cache_bytes(const struct generator *g, int64_t length)
{
    struct arena count = {0};
    const struct cache_layout l = {
        .sequences = g->layout.sequences, .capacity = length, .dt = g->acts->layout.dt, .memory = &count};
    for (int64_t p = 0; p < model_passes(&g->decoder->spec); p++) {
        const struct layer_range at = model_pass(&g->decoder->spec, p);
        struct block_cache ignored;
        for (int64_t i = at.from; i < at.to; i++) block_cache_layout(&g->decoder->blocks[i], &ignored, &l);
    }
    return (double)count.peak;
}

static size_t bytes_of(struct tensor t)
{
    return (size_t)tensor_count(t) * dtype_bytes(t.dt);
}

/* On a GPU the memory is the device's, and tokens and logits have pinned copies on the host. */
static status reserve(struct generator *g)
{
    struct stream *s = g->run->stream;
    const struct dev host = {.kind = DEV_CPU}, *dev = s ? s->dev : &host;
    const struct feed_shape shape = {.micro_count = 1, .rows = g->acts->layout.n, .docs_max = 1};
    void *staged, *logits;
    layout(g, &shape);
    TRY(dev_arena_reserve(dev, &g->memory, "generation cache", g->memory.peak));
    layout(g, &shape);
    TRY(feed_open(&g->feed, dev, s, &shape, g->block));
    g->logits = g->last;
    g->staged = g->inputs.data;
    if (s == NULL) return STATUS_OK;
    g->logits.data = NULL;
    g->staged = NULL;
    TRY(dev_pinned_open(dev, bytes_of(g->inputs), &staged));
    g->staged = staged;
    if (g->layout.blind) return STATUS_OK;
    TRY(dev_pinned_open(dev, bytes_of(g->last), &logits));
    g->logits.data = logits;
    return STATUS_OK;
}

/* A captured step does not tell hooks which weights it needs (ZeRO). */
static enum generate_mode first_mode(const struct generator *g)
{
    return g->run->stream && !g->layout.eager && g->run->params->hooks == NULL ? GENERATE_FIRST
                                                                               : GENERATE_EAGER;
}

status generate_open(struct generator *g, const struct decoder *d, struct activations *acts,
                     const struct generate_layout *given, const struct exec *run)
{
    *g = (struct generator){.decoder = d, .run = run, .acts = acts, .layout = *given};
    CHECK(given->sequences > 0 && given->sequences <= acts->layout.n &&
              given->sequences <= acts->layout.docs_max,
          "%lld sequences in a layout for %lld rows in %lld documents", (long long)given->sequences,
          (long long)acts->layout.n, (long long)acts->layout.docs_max);
    if (given->capacity > generate_limit(d))
        return FAIL(STATUS_CONFIG,
                    "%lld tokens with the prompt, the model has %lld positions: shorten the prompt or ask "
                    "for fewer tokens",
                    (long long)given->capacity, (long long)generate_limit(d));
    g->mode = first_mode(g);
    g->caches = calloc((size_t)decoder_visits(&d->spec), sizeof *g->caches);
    g->lengths = calloc((size_t)given->sequences, sizeof *g->lengths);
    status st = g->caches && g->lengths ? STATUS_OK
                                        : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the cache's description");
    if (st == STATUS_OK) st = reserve(g);
    if (st != STATUS_OK) generate_close(g);
    return st;
}

void generate_close(struct generator *g)
{
    const struct stream *s = g->run ? g->run->stream : NULL;
    if (s) {
        dev_graph_close(s->dev, &g->graph);
        dev_pinned_close(s->dev, g->staged);
        dev_pinned_close(s->dev, g->logits.data);
    }
    feed_close(&g->feed);
    free(g->caches);
    free(g->lengths);
    arena_free(&g->memory);
    *g = (struct generator){0};
}

/* Logits of `count` rows of the final norm from row `first` on, as those of the sequences from `sequence` on. */
static status head(struct generator *g, int64_t first, int64_t count, int64_t sequence)
{
    struct tensor y = g->acts->y, to = g->last;
    y.data = (char *)y.data + (size_t)(first * y.shape[1]) * dtype_bytes(y.dt);
    to.data = (char *)to.data + (size_t)(sequence * to.shape[1]) * dtype_bytes(to.dt);
    y.shape[0] = to.shape[0] = count;
    return head_logits(&g->decoder->head, y, to, g->run);
}

static status download(struct generator *g)
{
    if (g->run->stream == NULL || g->layout.blind) return STATUS_OK;
    return dev_download(g->run->stream, g->logits.data, g->last.data, bytes_of(g->last));
}

/* One visit of a block: all rows of a prompt, or one more row of every sequence. */
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
    TRY(block_fwd(m, s, v->ctx, v->io, g->run));
    return block_cache_fill(m, s, &g->caches[v->index], &b->at, g->run);
}

static status one_token(void *ctx, const struct visit *v)
{
    const struct at_block *b = ctx;
    struct generator *g = b->g;
    return block_step(&g->decoder->blocks[v->block], &g->acts->blocks[v->block], &g->caches[v->index], v->ctx,
                      &b->at, v->io, g->run);
}

static status prefill_sequence(struct generator *g, const int32_t *tokens, int32_t *positions, int64_t rows,
                               int64_t sequence)
{
    const int32_t cu[2] = {0, (int32_t)rows};
    const struct batch b = {
        .rows = rows, .docs = 1, .len_max = rows, .tokens = tokens, .positions = positions, .cu_seqlens = cu};
    const struct step_scalars none = {0};
    TRY(feed_put(&g->feed, &b, 1, &none));
    struct at_block at = {.g = g,
                          .at = {.sequence = sequence,
                                 .rows = rows,
                                 .sequences = g->layout.sequences,
                                 .capacity = g->layout.capacity,
                                 .batch = &g->feed.micro[0]}};
    const struct visitor by = {.visit = prefill, .ctx = &at};
    TRY(decoder_walk(g->decoder, g->acts, &g->feed.micro[0], &by, g->run));
    TRY(head(g, rows - 1, 1, sequence));
    return dev_sync(g->run->stream); /* the feed's memory is reused */
}

static status check_tokens(const struct generator *g, const int32_t *tokens, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= g->decoder->spec.vocab_size)
            return FAIL(STATUS_DATA, "token id %d is outside the model's vocabulary of %lld", tokens[i],
                        (long long)g->decoder->spec.vocab_size);
    return STATUS_OK;
}

/* Sequence by sequence; then the logits of all are there. */
static status prefill_all(struct generator *g, const int32_t *const *prompts, const int64_t *counts)
{
    SCOPE("generate.prefill", -1);
    int64_t most = 0;
    for (int64_t b = 0; b < g->layout.sequences; b++) most = counts[b] > most ? counts[b] : most;
    int32_t *positions = malloc((size_t)most * sizeof *positions);
    if (positions == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld positions", (long long)most);
    for (int64_t i = 0; i < most; i++) positions[i] = (int32_t)i;
    status st = STATUS_OK;
    for (int64_t b = 0; b < g->layout.sequences && st == STATUS_OK; b++) {
        st = prefill_sequence(g, prompts[b], positions, counts[b], b);
        g->lengths[b] = counts[b];
    }
    free(positions);
    TRY(st);
    g->length = most;
    TRY(download(g));
    return dev_sync(g->run->stream);
}

status generate_prompts(struct generator *g, const int32_t *const *prompts, const int64_t *counts)
{
    CHECK(g->length == 0, "%lld tokens are in the caches", (long long)g->length);
    for (int64_t b = 0; b < g->layout.sequences; b++) {
        CHECK(counts[b] > 0 && counts[b] <= g->acts->layout.n && counts[b] <= g->layout.capacity,
              "a prompt of %lld tokens for %lld rows and a cache of %lld", (long long)counts[b],
              (long long)g->acts->layout.n, (long long)g->layout.capacity);
        TRY(check_tokens(g, prompts[b], counts[b]));
    }
    return prefill_all(g, prompts, counts);
}

/* Of the longest sequence that takes tokens; when none does, it stays. */
static void measure(struct generator *g)
{
    int64_t most = GENERATE_IDLE;
    for (int64_t i = 0; i < g->layout.sequences; i++) most = g->lengths[i] > most ? g->lengths[i] : most;
    if (most != GENERATE_IDLE) g->length = most;
}

void generate_idle(struct generator *g, int64_t sequence)
{
    g->lengths[sequence] = GENERATE_IDLE;
    measure(g);
}

/* The first `rows` tokens of the sequences, whose tokens are `count` apart. */
static status prefill_even(struct generator *g, const int32_t *tokens, int64_t count, int64_t rows)
{
    const int64_t n = g->layout.sequences;
    const int32_t **prompts = calloc((size_t)n, sizeof *prompts);
    int64_t *counts = calloc((size_t)n, sizeof *counts);
    status st = prompts && counts ? STATUS_OK
                                  : FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld prompts", (long long)n);
    for (int64_t b = 0; b < n && st == STATUS_OK; b++) prompts[b] = tokens + b * count, counts[b] = rows;
    if (st == STATUS_OK) st = prefill_all(g, prompts, counts);
    free(prompts);
    free(counts);
    return st;
}

/* Everything that the device does in a step. */
static status queue_step(struct generator *g)
{
    const int64_t n = g->layout.sequences;
    int32_t *in = g->inputs.data;
    const struct batch b = {.rows = n,
                            .docs = n,
                            .len_max = 1,
                            .tokens = inputs_row(g, in, TOKENS),
                            .positions = inputs_row(g, in, POSITIONS),
                            .cu_seqlens = inputs_row(g, in, CU_SEQLENS)};
    struct at_block at = {.g = g,
                          .at = {.sequences = n,
                                 .capacity = g->layout.capacity,
                                 .batch = &b,
                                 .lengths = inputs_row(g, in, LENGTHS)}};
    const struct visitor by = {.visit = one_token, .ctx = &at};
    if (g->run->stream) TRY(dev_upload(g->run->stream, in, g->staged, bytes_of(g->inputs)));
    TRY(decoder_walk(g->decoder, g->acts, &b, &by, g->run));
    TRY(head(g, 0, n, 0));
    return download(g);
}

static status capture_step(struct generator *g)
{
    TRY(dev_graph_begin(g->run->stream));
    const status st = queue_step(g), end = dev_graph_end(g->run->stream, &g->graph, st == STATUS_OK);
    g->mode = st == STATUS_OK && end == STATUS_OK ? GENERATE_REPLAY : GENERATE_EAGER;
    if (g->mode == GENERATE_EAGER)
        log_warn("a step of generation cannot be captured as a CUDA graph, and all run op by op: %s",
                 status_message());
    else
        log_detail("generation: a step of %lld sequences is a graph of %lld nodes",
                   (long long)g->layout.sequences, (long long)g->graph.nodes);
    return STATUS_OK;
}

/* tokens: of each sequence the next, `stride` apart. */
static status step(struct generator *g, const int32_t *tokens, int64_t stride)
{
    SCOPE("generate.step", -1);
    for (int64_t i = 0; i <= g->layout.sequences; i++) {
        /* an idle sequence is at its first place, where it costs little */
        const bool used = i < g->layout.sequences && g->lengths[i] != GENERATE_IDLE;
        const int32_t length = used ? (int32_t)g->lengths[i] : 0;
        inputs_row(g, g->staged, TOKENS)[i] = used ? tokens[i * stride] : 0;
        inputs_row(g, g->staged, POSITIONS)[i] = length;
        inputs_row(g, g->staged, LENGTHS)[i] = length + 1;
        inputs_row(g, g->staged, CU_SEQLENS)[i] = (int32_t)i;
    }
    if (g->mode == GENERATE_CAPTURE) TRY(capture_step(g));
    if (g->mode == GENERATE_REPLAY)
        TRY(dev_graph_launch(g->run->stream, &g->graph));
    else
        TRY(queue_step(g));
    if (g->mode == GENERATE_FIRST) g->mode = GENERATE_CAPTURE;
    TRY(dev_sync(g->run->stream));
    for (int64_t i = 0; i < g->layout.sequences; i++)
        if (g->lengths[i] != GENERATE_IDLE) g->lengths[i]++;
    measure(g);
    return STATUS_OK;
}

status generate_append(struct generator *g, const int32_t *tokens, int64_t count)
{
    CHECK(count > 0 && g->length + count <= g->layout.capacity, "%lld + %lld tokens in a cache for %lld",
          (long long)g->length, (long long)count, (long long)g->layout.capacity);
    for (int64_t b = 0; b < g->layout.sequences; b++)
        if (g->lengths[b] != GENERATE_IDLE) TRY(check_tokens(g, tokens + b * count, count));
    int64_t done = 0;
    if (g->length == 0) {
        done = count < g->acts->layout.n ? count : g->acts->layout.n;
        TRY(prefill_even(g, tokens, count, done));
    }
    for (; done < count; done++) TRY(step(g, tokens + done, count));
    return STATUS_OK;
}
