#include "infer/score.h"
#include "base/scope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUND = 64 }; /* rows of a batch: a multiple, so that GEMMs see few shapes */

/* A batch in host memory, and what the head says of its rows. */
struct packed {
    int32_t *tokens, *targets, *positions, *cu;
    void *loss, *hits;
    int64_t rows, docs, longest;
};

static void packed_free(struct packed *p)
{
    void *all[] = {p->tokens, p->targets, p->positions, p->cu, p->loss, p->hits};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static status packed_open(struct packed *p, int64_t rows, size_t real)
{
    const size_t n = (size_t)rows;
    *p = (struct packed){.tokens = malloc(n * sizeof *p->tokens),
                         .targets = malloc(n * sizeof *p->targets),
                         .positions = malloc(n * sizeof *p->positions),
                         .cu = malloc((n + 1) * sizeof *p->cu),
                         .loss = malloc(n * real),
                         .hits = malloc(n * real)};
    if (p->tokens && p->targets && p->positions && p->cu && p->loss && p->hits) return STATUS_OK;
    packed_free(p);
    return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a batch of %lld tokens", (long long)rows);
}

static void packed_end(struct packed *p, int64_t length)
{
    p->cu[++p->docs] = (int32_t)p->rows;
    p->longest = length > p->longest ? length : p->longest;
}

/* Nothing follows the last token, unless that is asked. */
static int64_t rows_for(const struct score_request *q)
{
    return q->count - 1 + (q->next != NULL);
}

static void packed_add(struct packed *p, const struct score_request *q)
{
    const int64_t length = rows_for(q);
    for (int64_t i = 0; i < length; i++, p->rows++) {
        p->tokens[p->rows] = q->tokens[i];
        p->targets[p->rows] = i + 1 >= q->first && i + 1 < q->count ? q->tokens[i + 1] : LOADER_IGNORE;
        p->positions[p->rows] = (int32_t)i;
    }
    packed_end(p, length);
}

/* Rows of no request, up to a multiple of ROUND. */
static void packed_pad(struct packed *p, int64_t most)
{
    int64_t to = (p->rows + ROUND - 1) / ROUND * ROUND;
    if (to > most) to = most;
    const int64_t length = to - p->rows;
    if (length == 0) return;
    for (int64_t i = 0; i < length; i++, p->rows++) {
        p->tokens[p->rows] = 0;
        p->targets[p->rows] = LOADER_IGNORE;
        p->positions[p->rows] = 0; /* a model may have fewer positions than there are rows */
    }
    packed_end(p, length);
}

static status forward(const struct scorer *s, struct packed *p)
{
    SCOPE("score", -1);
    const struct batch b = {.rows = p->rows,
                            .docs = p->docs,
                            .len_max = p->longest,
                            .tokens = p->tokens,
                            .targets = p->targets,
                            .positions = p->positions,
                            .cu_seqlens = p->cu};
    const struct head_saved *head = &s->acts->head;
    const size_t bytes = (size_t)p->rows * dtype_bytes(head->loss.dt);
    struct step_scalars scalars = {0};
    TRY(feed_put(s->feed, &b, 1, &scalars));
    TRY(decoder_loss(s->decoder, s->acts, &s->feed->micro[0], 0, s->run));
    TRY(dev_download(s->run->stream, p->loss, head->loss.data, bytes));
    TRY(dev_download(s->run->stream, p->hits, head->hits.data, bytes));
    return feed_read(s->feed, &scalars);
}

static double real_at(const void *data, dtype dt, int64_t i)
{
    return dt == DTYPE_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

/* The request's sum, from the rows that begin at `row`. */
static status take(const struct packed *p, dtype dt, int64_t row, struct score_request *q)
{
    q->loglik = 0;
    q->greedy = true;
    for (int64_t i = q->first; i < q->count; i++) {
        const double nats = -real_at(p->loss, dt, row + i - 1);
        q->loglik += nats;
        q->greedy = q->greedy && real_at(p->hits, dt, row + i - 1) > 0;
        if (q->each) q->each[i - q->first] = nats;
    }
    if (isfinite(q->loglik)) return STATUS_OK;
    return FAIL(STATUS_NUMERIC, "a log-likelihood is not finite: the weights are of a run that diverged");
}

/* ---- what else could have stood there */

void score_likely(const float *logits, int64_t vocab, int32_t id, struct score_likely *out, int64_t count)
{
    struct score_likely *top = out + 1;
    int64_t found = 0;
    float most = logits[0];
    double sum = 0;
    for (int64_t k = 1; k < vocab; k++) most = logits[k] > most ? logits[k] : most;
    for (int64_t k = 0; k < vocab; k++) {
        const double x = (double)logits[k] - (double)most;
        sum += exp(x);
        if (found == count && (count == 0 || !(x > top[count - 1].nats))) continue;
        int64_t at = found < count ? found++ : count - 1;
        for (; at > 0 && x > top[at - 1].nats; at--) top[at] = top[at - 1];
        top[at] = (struct score_likely){(int32_t)k, x};
    }
    out[0] = (struct score_likely){id, (double)logits[id] - (double)most};
    for (int64_t i = 0; i <= count; i++) out[i].nats -= log(sum);
}

static bool wants_logits(const struct score_request *q)
{
    return q->likely != NULL || q->next != NULL;
}

/* One row of logits of a request: row i says what follows token i. */
static void take_row(struct score_request *q, int64_t i, const float *logits, int64_t vocab)
{
    if (i + 1 == q->count)
        memcpy(q->next, logits, (size_t)vocab * sizeof *logits);
    else if (q->likely && i + 1 >= q->first)
        score_likely(logits, vocab, q->tokens[i + 1], q->likely + (i + 1 - q->first) * (1 + q->likely_count),
                     q->likely_count);
}

/* Rows [at, at + count) of a batch, and room for one of them in f32. */
struct chunk {
    int64_t at, count, width, vocab;
    dtype dt;
    void *logits; /* [count, width] */
    float *row;   /* [vocab] */
};

/* As the loss saw them: in the same chunks and the same dtype. */
static status chunk_logits(const struct scorer *s, struct chunk *c)
{
    struct tensor y = s->acts->y, logits = s->acts->head.logits;
    y.data = (char *)y.data + (size_t)(c->at * y.shape[1]) * dtype_bytes(y.dt);
    y.shape[0] = logits.shape[0] = c->count;
    TRY(head_logits(&s->decoder->head, y, logits, s->run));
    TRY(dev_download(s->run->stream, c->logits, logits.data,
                     (size_t)(c->count * c->width) * dtype_bytes(c->dt)));
    return dev_sync(s->run->stream);
}

/* The chunk's rows among those of the requests, which lie one behind the other from row 0 on. */
static void take_chunk(const struct chunk *c, struct score_request *q, int64_t count)
{
    const int64_t end = c->at + c->count;
    for (int64_t i = 0, row = 0; i < count && row < end; row += rows_for(&q[i++])) {
        if (!wants_logits(&q[i])) continue;
        for (int64_t r = row > c->at ? row : c->at; r < end && r < row + rows_for(&q[i]); r++) {
            for (int64_t k = 0; k < c->vocab; k++)
                c->row[k] = (float)dtype_load(c->logits, (r - c->at) * c->width + k, c->dt);
            take_row(&q[i], r - row, c->row, c->vocab);
        }
    }
}

static status alternatives(const struct scorer *s, struct score_request *q, int64_t count, int64_t rows)
{
    const struct tensor *l = &s->acts->head.logits;
    const int64_t most = l->shape[0];
    struct chunk c = {.width = l->shape[1], .vocab = s->decoder->spec.vocab_size, .dt = l->dt};
    bool wanted = false;
    for (int64_t i = 0; i < count; i++) wanted = wanted || wants_logits(&q[i]);
    if (!wanted) return STATUS_OK;
    c.logits = malloc((size_t)(most * c.width) * dtype_bytes(c.dt));
    c.row = malloc((size_t)c.vocab * sizeof *c.row);
    status st = c.logits && c.row
                    ? STATUS_OK
                    : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the logits of %lld tokens", (long long)most);
    for (; c.at < rows && st == STATUS_OK; c.at += most) {
        c.count = rows - c.at < most ? rows - c.at : most;
        st = chunk_logits(s, &c);
        if (st == STATUS_OK) take_chunk(&c, q, count);
    }
    free(c.logits);
    free(c.row);
    return st;
}

static status check(const struct scorer *s, const struct score_request *q)
{
    CHECK(q->first >= 1 && q->first < q->count + (q->next != NULL) && rows_for(q) <= s->rows,
          "tokens %lld to %lld are scored in batches of %lld", (long long)q->first, (long long)q->count,
          (long long)s->rows);
    for (int64_t i = 0; i < q->count; i++)
        if (q->tokens[i] < 0 || q->tokens[i] >= s->decoder->spec.vocab_size)
            return FAIL(STATUS_DATA, "token id %d is outside the model's vocabulary of %lld", q->tokens[i],
                        (long long)s->decoder->spec.vocab_size);
    return STATUS_OK;
}

/* Packs requests from `at` on until the next does not fit; returns the first that is left. */
static int64_t packed_fill(const struct scorer *s, struct packed *p, const struct score_request *q,
                           int64_t at, int64_t count)
{
    p->rows = p->docs = p->longest = 0;
    p->cu[0] = 0;
    for (; at < count && p->rows + rows_for(&q[at]) <= s->rows; at++) packed_add(p, &q[at]);
    packed_pad(p, s->rows);
    return at;
}

status score(const struct scorer *s, struct score_request *requests, int64_t count,
             const struct score_tick *tick)
{
    const dtype dt = s->acts->head.loss.dt;
    struct packed p;
    for (int64_t i = 0; i < count; i++) TRY(check(s, &requests[i]));
    TRY(packed_open(&p, s->rows, dtype_bytes(dt)));
    status st = STATUS_OK;
    for (int64_t at = 0; at < count && st == STATUS_OK;) {
        const int64_t end = packed_fill(s, &p, requests, at, count);
        st = forward(s, &p);
        for (int64_t row = 0, i = at; i < end && st == STATUS_OK; row += rows_for(&requests[i++]))
            st = take(&p, dt, row, &requests[i]);
        if (st == STATUS_OK) st = alternatives(s, requests + at, end - at, p.rows);
        at = end;
        if (st == STATUS_OK && tick && tick->fn) st = tick->fn(tick->ctx, at, count);
    }
    packed_free(&p);
    return st;
}
