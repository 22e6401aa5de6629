#include "optim/muon.h"
#include "base/scope.h"

#include <math.h>

enum { ROUNDS = 5, ALIGN = 256 };

void muon_claim(struct params *p)
{
    for (int i = 0; i < p->count; i++) {
        struct param *row = &p->rows[i];
        row->ortho = (row->role == ROLE_MATRIX || row->role == ROLE_RESIDUAL) && !row->rowwise;
        CHECK(!row->ortho || row->stored, "%s: its gradient is formed by adding alone", row->name);
    }
}

static int64_t shorter(struct param_matrix m)
{
    return m.rows < m.cols ? m.rows : m.cols;
}

/* Places of the largest matrix and of the largest square: two of each, in turn input and output of a product. */
struct work {
    void *x[2], *square[2];
    size_t bytes;
};
static struct work work_of(const struct params *p)
{
    int64_t count = 0, side = 0;
    for (int i = 0; i < p->count; i++) {
        const struct param *row = &p->rows[i];
        for (int64_t k = 0; k < params_matrix_count(row) && row->ortho && p->units[row->unit].here; k++) {
            const struct param_matrix m = params_matrix(row, k);
            if (m.rows * m.cols > count) count = m.rows * m.cols;
            if (shorter(m) > side) side = shorter(m);
        }
    }
    const size_t x = ((size_t)count * dtype_bytes(p->dt) + ALIGN - 1) / ALIGN * ALIGN,
                 square = ((size_t)(side * side) * dtype_bytes(p->dt) + ALIGN - 1) / ALIGN * ALIGN;
    struct work w = {.bytes = 2 * (x + square)};
    for (size_t k = 0; k < 2 && p->work; k++) {
        w.x[k] = (char *)p->work + k * x;
        w.square[k] = (char *)p->work + 2 * x + k * square;
    }
    return w;
}

void muon_lay(struct params *p, struct arena *a)
{
    p->work = NULL;
    p->work = arena_take(a, work_of(p).bytes, "products of muon");
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

/* The matrix that begins at element `at` of the flat arrays. */
static status matrix_step(const struct run *r, const struct run_spec *spec, struct param_matrix m, int64_t at)
{
    const struct params *p = r->params;
    struct work w = work_of(p);
    TRY(r->ops->ortho_unit(&(struct ortho_unit_args){.g = (const float *)p->grad + at,
                                                     .x = w.x[0],
                                                     .count = m.rows * m.cols,
                                                     .eps = 1e-7,
                                                     .dt = p->dt},
                           r->stream));
    for (int round = 0; round < ROUNDS; round++) {
        TRY(refine(r, &w, m));
        void *next = w.x[1];
        w.x[1] = w.x[0];
        w.x[0] = next;
    }
    const int64_t longer = m.rows > m.cols ? m.rows : m.cols;
    return r->ops->ortho_step(
        &(struct ortho_step_args){.x = w.x[0],
                                  .p = (float *)p->master + at,
                                  .w = p->dt == DTYPE_BF16 ? (bf16 *)p->weight + at : NULL,
                                  .count = m.rows * m.cols,
                                  .scale = 0.2 * sqrt((double)longer),
                                  .weight_decay = spec->optim_weight_decay,
                                  .scalars = r->scalars,
                                  .dt = p->dt},
        r->stream);
}

status muon_step(const struct run *r, const struct run_spec *spec)
{
    SCOPE("optim.muon", -1);
    const struct params *p = r->params;
    for (int i = 0; i < p->count; i++) {
        const struct param *row = &p->rows[i];
        for (int64_t k = 0; k < params_matrix_count(row) && row->ortho && p->units[row->unit].here; k++) {
            const struct param_matrix m = params_matrix(row, k);
            TRY(matrix_step(r, spec, m, row->offset + m.begin));
        }
    }
    return STATUS_OK;
}
