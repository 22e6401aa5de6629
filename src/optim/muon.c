#include "optim/muon.h"
#include "base/scope.h"

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

/* Places of the largest matrix and of the largest square: two of each, in turn input and output of a product. With several ranks, what
 * they gather in a round. */
struct work {
    void *x[2], *square[2], *round;
    size_t bytes;
};
static size_t room(int64_t count, dtype dt)
{
    return ((size_t)count * dtype_bytes(dt) + ALIGN - 1) / ALIGN * ALIGN;
}
static struct work work_of(const struct params *p, int ranks)
{
    int64_t count = 0, side = 0;
    for (int64_t k = 0; k < p->ortho_count; k++) {
        const struct param_matrix m = matrix_of(p, p->ortho[k]);
        if (m.rows * m.cols > count) count = m.rows * m.cols;
        if (shorter(m) > side) side = shorter(m);
    }
    const size_t x = room(count, p->dt), square = room(side * side, p->dt);
    struct work w = {.bytes = 2 * (x + square) + (ranks > 1 ? (size_t)ranks * x : 0)};
    if (p->work == NULL) return w;
    for (size_t k = 0; k < 2; k++) {
        w.x[k] = (char *)p->work + k * x;
        w.square[k] = (char *)p->work + 2 * x + k * square;
    }
    w.round = (char *)p->work + 2 * (x + square);
    return w;
}

static struct comm *ranks_of(const struct mesh *mesh)
{
    return mesh ? mesh->dp : NULL;
}

void muon_lay(struct params *p, const struct mesh *mesh, struct arena *a)
{
    p->work = NULL;
    p->work = arena_take(a, work_of(p, mesh ? mesh->shape.dp : 1).bytes, "products of muon");
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

/* Where a matrix begins in the flat arrays. */
static int64_t place_of(const struct params *p, struct param_ref ref)
{
    return p->rows[ref.row].offset + matrix_of(p, ref).begin;
}

/* X of a matrix, into w->x[0]. */
static status orthogonalise(const struct run *r, struct work *w, struct param_ref ref)
{
    const struct params *p = r->params;
    const struct param_matrix m = matrix_of(p, ref);
    TRY(r->ops->ortho_unit(&(struct ortho_unit_args){.g = (const float *)p->grad + place_of(p, ref),
                                                     .x = w->x[0],
                                                     .count = m.rows * m.cols,
                                                     .eps = 1e-7,
                                                     .dt = p->dt},
                           r->stream));
    for (int round = 0; round < ROUNDS; round++) {
        TRY(refine(r, w, m));
        void *next = w->x[1];
        w->x[1] = w->x[0];
        w->x[0] = next;
    }
    return STATUS_OK;
}

static status apply(const struct run *r, const struct run_spec *spec, struct param_ref ref, const void *x)
{
    const struct params *p = r->params;
    const struct param_matrix m = matrix_of(p, ref);
    const int64_t at = place_of(p, ref), longer = m.rows > m.cols ? m.rows : m.cols;
    return r->ops->ortho_step(
        &(struct ortho_step_args){.x = x,
                                  .p = (float *)p->master + at,
                                  .w = p->dt == DTYPE_BF16 ? (bf16 *)p->weight + at : NULL,
                                  .count = m.rows * m.cols,
                                  .scale = 0.2 * sqrt((double)longer),
                                  .weight_decay = spec->optim_weight_decay,
                                  .scalars = r->scalars,
                                  .dt = p->dt},
        r->stream);
}

/* Matrices [first, first + ranks) of the list, one for each rank; the last round may have none for some. */
static status shared_round(const struct run *r, const struct run_spec *spec, struct comm *comm, int64_t first)
{
    const struct params *p = r->params;
    const int rank = comm_rank(comm), ranks = comm_ranks(comm);
    const int64_t left = p->ortho_count - first, count = left < ranks ? left : ranks;
    struct work w = work_of(p, ranks);
    size_t bytes = 0;
    for (int64_t k = 0; k < count; k++) {
        const struct param_matrix m = matrix_of(p, p->ortho[first + k]);
        if (room(m.rows * m.cols, p->dt) > bytes) bytes = room(m.rows * m.cols, p->dt);
    }
    if (rank < count) TRY(orthogonalise(r, &w, p->ortho[first + rank]));
    TRY(comm_all_gather(comm, "steps of muon", w.x[0], w.round, bytes));
    for (int64_t k = 0; k < count; k++)
        TRY(apply(r, spec, p->ortho[first + k], (char *)w.round + (size_t)k * bytes));
    return STATUS_OK;
}

status muon_step(const struct run *r, const struct run_spec *spec, const struct mesh *mesh)
{
    SCOPE("optim.muon", -1);
    const struct params *p = r->params;
    struct comm *comm = ranks_of(mesh);
    if (comm) {
        for (int64_t k = 0; k < p->ortho_count; k += comm_ranks(comm)) TRY(shared_round(r, spec, comm, k));
        return STATUS_OK;
    }
    struct work w = work_of(p, 1);
    for (int64_t k = 0; k < p->ortho_count; k++) {
        TRY(orthogonalise(r, &w, p->ortho[k]));
        TRY(apply(r, spec, p->ortho[k], w.x[0]));
    }
    return STATUS_OK;
}
