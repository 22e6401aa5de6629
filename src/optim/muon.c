#include "optim/muon.h"
#include "base/scope.h"
#include "dev/dev.h"

#include <math.h>
#include <stdlib.h>

enum { ROUNDS = 5, ALIGN = 256 };

static int64_t shorter(struct param_matrix m)
{
    return m.rows < m.cols ? m.rows : m.cols;
}

static struct param_matrix matrix_of(const struct params *p, struct param_ref ref)
{
    return params_matrix(&p->rows[ref.row], ref.matrix);
}

/* FLOPs up to a factor. */
static double cost(struct param_matrix m)
{
    const double n = (double)shorter(m), k = (double)(m.rows + m.cols) - n;
    return n * n * (2 * k + n);
}

struct weighed {
    struct param_ref ref;
    double cost;
};
static int by_cost(const void *a, const void *b)
{
    const struct weighed *x = a, *y = b;
    if (x->cost != y->cost) return x->cost < y->cost ? 1 : -1;
    if (x->ref.row != y->ref.row) return x->ref.row < y->ref.row ? -1 : 1;
    return x->ref.matrix < y->ref.matrix ? -1 : x->ref.matrix > y->ref.matrix;
}

/* The costliest first. */
static status list_matrices(struct params *p, int64_t count)
{
    struct weighed *all = malloc((size_t)(count + 1) * sizeof *all);
    free(p->ortho);
    p->ortho = malloc((size_t)(count + 1) * sizeof *p->ortho);
    p->ortho_count = 0;
    if (all == NULL || p->ortho == NULL) {
        free(all);
        return FAIL(STATUS_FIT, "no memory for the list of %lld matrices", (long long)count);
    }
    int64_t n = 0;
    for (int i = 0; i < p->count; i++) {
        const struct param *row = &p->rows[i];
        for (int64_t k = 0; k < params_matrix_count(row) && row->ortho && p->units[row->unit].here; k++)
            all[n++] = (struct weighed){.ref = {.row = i, .matrix = k}, .cost = cost(params_matrix(row, k))};
    }
    CHECK(n == count, "%lld matrices, and %lld were counted", (long long)n, (long long)count);
    qsort(all, (size_t)n, sizeof *all, by_cost);
    for (int64_t k = 0; k < n; k++) p->ortho[k] = all[k].ref;
    p->ortho_count = n;
    free(all);
    return STATUS_OK;
}

status muon_claim(struct params *p)
{
    int64_t count = 0;
    for (int i = 0; i < p->count; i++) {
        struct param *row = &p->rows[i];
        row->ortho = (row->role == ROLE_MATRIX || row->role == ROLE_RESIDUAL) && !row->rowwise;
        CHECK(!row->ortho || row->stored, "%s: its gradient is formed by adding alone", row->name);
        if (row->ortho && p->units[row->unit].here) count += params_matrix_count(row);
    }
    return list_matrices(p, count);
}

/* What a rank has of a matrix whose row ranks share out: elements [from, from + count) of it. */
struct span {
    int64_t from, count;
};
static struct span span_by(const struct params *p, struct param_ref ref, int shard)
{
    const struct param_matrix m = matrix_of(p, ref);
    const struct param_held h = params_held_by(p, ref.row, shard);
    const int64_t count = m.rows * m.cols, from = h.from > m.begin ? h.from - m.begin : 0,
                  to = h.to - m.begin < count ? h.to - m.begin : count;
    return (struct span){from, to > from ? to - from : 0};
}

/* Places of the largest matrix and of the largest square: two of each, in turn input and output of a product. Of several ranks that have
 * everything, what they gather in a round; of those that have parts, what they exchange in a round, and a gradient that has come together. */
struct work {
    void *x[2], *square[2], *round, *sent, *received;
    float *whole;
    size_t bytes;
};
static size_t room(int64_t count, dtype dt)
{
    return ((size_t)count * dtype_bytes(dt) + ALIGN - 1) / ALIGN * ALIGN;
}
static int ranks_of(const struct params *p, const struct mesh *mesh)
{
    return p->zero ? p->shards : mesh ? mesh->shape.dp : 1;
}

/* The most that one rank has of one of `count` matrices. */
static int64_t largest_span(const struct params *p, const struct param_ref *refs, int64_t count)
{
    int64_t most = 0;
    for (int64_t k = 0; k < count; k++)
        for (int s = 0; s < p->shards; s++) {
            const struct span h = span_by(p, refs[k], s);
            if (h.count > most) most = h.count;
        }
    return most;
}

struct muon_most muon_most(const struct params *p)
{
    struct muon_most most = {0};
    for (int64_t k = 0; k < p->ortho_count; k++) {
        const struct param_matrix m = matrix_of(p, p->ortho[k]);
        if (m.rows * m.cols > most.count) most.count = m.rows * m.cols;
        if (shorter(m) > most.side) most.side = shorter(m);
    }
    return most;
}

static void *take(char *at, size_t *bytes, size_t count)
{
    void *place = at ? at + *bytes : NULL;
    *bytes += count;
    return place;
}
static struct work work_at(char *at, struct muon_most most, dtype dt, int ranks, int64_t piece)
{
    const size_t x = room(most.count, dt), square = room(most.side * most.side, dt);
    struct work w = {0};
    for (int k = 0; k < 2; k++) {
        w.x[k] = take(at, &w.bytes, x);
        w.square[k] = take(at, &w.bytes, square);
    }
    if (piece > 0) {
        w.whole = take(at, &w.bytes, room(most.count, DTYPE_F32));
        w.sent = take(at, &w.bytes, (size_t)ranks * room(piece, DTYPE_F32));
        w.received = take(at, &w.bytes, (size_t)ranks * room(piece, DTYPE_F32));
    } else if (ranks > 1) {
        w.round = take(at, &w.bytes, (size_t)ranks * x);
    }
    return w;
}
static struct work work_of(const struct params *p, int ranks)
{
    return work_at(p->work, muon_most(p), p->dt, ranks,
                   p->zero ? largest_span(p, p->ortho, p->ortho_count) : 0);
}

size_t muon_bytes(struct muon_most most, dtype dt, int ranks, int64_t piece)
{
    return work_at(NULL, most, dt, ranks, piece).bytes;
}

void muon_lay(struct params *p, const struct mesh *mesh, struct arena *a)
{
    p->work = NULL;
    p->work = arena_take(a, work_of(p, ranks_of(p, mesh)).bytes, "products of muon");
}

/* One round: from w->x[0] to w->x[1]. */
static status refine(const struct run *r, const struct work *w, struct param_matrix m)
{
    const dtype dt = r->params->dt;
    const int64_t n = shorter(m), k = m.rows + m.cols - n;
    const bool wide = m.rows <= m.cols;
    TRY(r->ops->gemm(&(struct gemm_args){.a = w->x[0],
                                         .b = w->x[0],
                                         .c = w->square[0],
                                         .m = n,
                                         .n = n,
                                         .k = k,
                                         .trans_a = !wide,
                                         .trans_b = wide,
                                         .dt = dt,
                                         .cdt = dt},
                     r->stream));
    TRY(r->ops->gemm(&(struct gemm_args){.a = w->square[0],
                                         .b = w->square[0],
                                         .c = w->square[1],
                                         .m = n,
                                         .n = n,
                                         .k = n,
                                         .dt = dt,
                                         .cdt = dt},
                     r->stream));
    TRY(r->ops->ortho_poly(&(struct ortho_poly_args){.x = w->square[0],
                                                     .xx = w->square[1],
                                                     .y = w->square[1],
                                                     .n = n,
                                                     .a = 3.4445,
                                                     .b = -4.7750,
                                                     .c = 2.0315,
                                                     .dt = dt},
                           r->stream));
    return r->ops->gemm(&(struct gemm_args){.a = wide ? w->square[1] : w->x[0],
                                            .b = wide ? w->x[0] : w->square[1],
                                            .c = w->x[1],
                                            .m = m.rows,
                                            .n = m.cols,
                                            .k = n,
                                            .dt = dt,
                                            .cdt = dt},
                        r->stream);
}

/* X of a matrix, from its g, into w->x[0]. */
static status orthogonalise(const struct run *r, struct work *w, struct param_matrix m, const float *g)
{
    TRY(r->ops->ortho_unit(
        &(struct ortho_unit_args){
            .g = g, .x = w->x[0], .count = m.rows * m.cols, .eps = 1e-7, .dt = r->params->dt},
        r->stream));
    for (int round = 0; round < ROUNDS; round++) {
        TRY(refine(r, w, m));
        void *next = w->x[1];
        w->x[1] = w->x[0];
        w->x[0] = next;
    }
    return STATUS_OK;
}

/* Where elements of a matrix that are here lie: in the gradients, and in the weights that products read. */
static int64_t place_of(const struct params *p, struct param_ref ref, int64_t from, int whole_below)
{
    const struct param_held h = params_held(p, ref.row);
    const int64_t at = matrix_of(p, ref).begin + from;
    return p->zero < whole_below ? p->rows[ref.row].offset + at : h.at + at - h.from;
}
static const float *gradient(const struct params *p, struct param_ref ref, int64_t from)
{
    return (const float *)p->grad + place_of(p, ref, from, 2);
}

/* The step of what is here of a matrix: x [span.count]. */
static status apply(const struct run *r, const struct run_spec *spec, struct param_ref ref, struct span span,
                    const void *x)
{
    const struct params *p = r->params;
    const struct param_matrix m = matrix_of(p, ref);
    const struct param_held h = params_held(p, ref.row);
    const int64_t longer = m.rows > m.cols ? m.rows : m.cols;
    return r->ops->ortho_step(
        &(struct ortho_step_args){
            .x = x,
            .p = (float *)p->master + h.master + m.begin + span.from - h.from,
            .w = p->dt == DTYPE_BF16 ? (bf16 *)p->weight + place_of(p, ref, span.from, 3) : NULL,
            .count = span.count,
            .scale = 0.2 * sqrt((double)longer),
            .weight_decay = spec->optim_weight_decay,
            .scalars = r->scalars,
            .dt = p->dt},
        r->stream);
}
static status apply_whole(const struct run *r, const struct run_spec *spec, struct param_ref ref,
                          const void *x)
{
    const struct param_matrix m = matrix_of(r->params, ref);
    return apply(r, spec, ref, (struct span){0, m.rows * m.cols}, x);
}

/* Matrices of the list, one for each rank; the last round may have none for some. */
struct round {
    const struct param_ref *refs; /* [count] */
    int64_t count;
    struct comm *comm;
};

/* Every rank has all of each matrix, and moves all of it. */
static status whole_round(const struct run *r, const struct run_spec *spec, struct work *w,
                          const struct round *t)
{
    const struct params *p = r->params;
    const int rank = comm_rank(t->comm);
    size_t bytes = 0;
    for (int64_t k = 0; k < t->count; k++) {
        const struct param_matrix m = matrix_of(p, t->refs[k]);
        if (room(m.rows * m.cols, p->dt) > bytes) bytes = room(m.rows * m.cols, p->dt);
    }
    if (rank < t->count) TRY(orthogonalise(r, w, matrix_of(p, t->refs[rank]), gradient(p, t->refs[rank], 0)));
    TRY(comm_all_gather(t->comm, "steps of muon", w->x[0], w->round, bytes, r->stream));
    for (int64_t k = 0; k < t->count; k++)
        TRY(apply_whole(r, spec, t->refs[k], (char *)w->round + (size_t)k * bytes));
    return STATUS_OK;
}

/* The gradient of this rank's matrix, from the parts that all have of it. */
static status bring_together(const struct run *r, struct work *w, const struct round *t, size_t piece)
{
    const struct params *p = r->params;
    const int rank = comm_rank(t->comm);
    for (int64_t k = 0; k < t->count; k++) {
        const struct span mine = span_by(p, t->refs[k], rank);
        if (mine.count > 0)
            TRY(dev_copy(r->stream, (char *)w->sent + (size_t)k * piece, gradient(p, t->refs[k], mine.from),
                         (size_t)mine.count * sizeof(float)));
    }
    TRY(comm_all_to_all(t->comm, "parts for muon", w->sent, w->received, piece, r->stream));
    for (int s = 0; s < p->shards && rank < t->count; s++) {
        const struct span part = span_by(p, t->refs[rank], s);
        if (part.count > 0)
            TRY(dev_copy(r->stream, w->whole + part.from, (char *)w->received + (size_t)s * piece,
                         (size_t)part.count * sizeof(float)));
    }
    return STATUS_OK;
}

/* The parts that this rank has of all steps, from the ranks that made them. */
static status deal_out(const struct run *r, struct work *w, const struct round *t, size_t piece)
{
    const struct params *p = r->params;
    const int rank = comm_rank(t->comm);
    const size_t element = dtype_bytes(p->dt);
    for (int s = 0; s < p->shards && rank < t->count; s++) {
        const struct span part = span_by(p, t->refs[rank], s);
        if (part.count > 0)
            TRY(dev_copy(r->stream, (char *)w->sent + (size_t)s * piece,
                         (char *)w->x[0] + (size_t)part.from * element, (size_t)part.count * element));
    }
    return comm_all_to_all(t->comm, "steps of muon", w->sent, w->received, piece, r->stream);
}

/* Every rank has a part of some, and moves that. */
static status parts_round(const struct run *r, const struct run_spec *spec, struct work *w,
                          const struct round *t)
{
    const struct params *p = r->params;
    const int rank = comm_rank(t->comm);
    const int64_t most = largest_span(p, t->refs, t->count);
    const size_t piece = room(most, p->dt);
    TRY(bring_together(r, w, t, room(most, DTYPE_F32)));
    if (rank < t->count) TRY(orthogonalise(r, w, matrix_of(p, t->refs[rank]), w->whole));
    TRY(deal_out(r, w, t, piece));
    for (int64_t k = 0; k < t->count; k++) {
        const struct span mine = span_by(p, t->refs[k], rank);
        if (mine.count > 0) TRY(apply(r, spec, t->refs[k], mine, (char *)w->received + (size_t)k * piece));
    }
    return STATUS_OK;
}

status muon_step(const struct run *r, const struct run_spec *spec, const struct mesh *mesh)
{
    SCOPE("optim.muon", -1);
    const struct params *p = r->params;
    const int ranks = ranks_of(p, mesh);
    struct work w = work_of(p, ranks);
    struct round t = {.comm = p->zero ? mesh_shards(mesh) : mesh ? mesh->dp : NULL};
    for (int64_t k = 0; k < p->ortho_count; k += ranks) {
        t.refs = p->ortho + k;
        t.count = p->ortho_count - k < ranks ? p->ortho_count - k : ranks;
        if (t.comm) {
            TRY(p->zero ? parts_round(r, spec, &w, &t) : whole_round(r, spec, &w, &t));
            continue;
        }
        TRY(orthogonalise(r, &w, matrix_of(p, *t.refs), gradient(p, *t.refs, 0)));
        TRY(apply_whole(r, spec, *t.refs, w.x[0]));
    }
    return STATUS_OK;
}
