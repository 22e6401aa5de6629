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

/* FLOPs, up to a constant factor. */
static double cost(struct param_matrix m)
{
    const double n = (double)shorter(m), k = (double)(m.rows + m.cols) - n;
    return n * n * (2 * k + n);
}

struct weighed {
    struct param_ref ref;
    double cost;
    bool experts; /* of a unit of experts: other ranks have the same ones */
};
static int by_cost(const void *a, const void *b)
{
    const struct weighed *x = a, *y = b;
    if (x->experts != y->experts) return x->experts ? 1 : -1;
    if (x->cost != y->cost) return x->cost < y->cost ? 1 : -1;
    if (x->ref.row != y->ref.row) return x->ref.row < y->ref.row ? -1 : 1;
    return x->ref.matrix < y->ref.matrix ? -1 : x->ref.matrix > y->ref.matrix;
}

/* The matrices of a row that this rank has, or a part of each: consecutive ones. */
static int64_t own_matrices(const struct params *p, const struct param *row)
{
    return params_matrix_count(row) / (row->experts_sharded ? p->expert_ranks : 1);
}
static int64_t first_matrix(const struct params *p, const struct param *row)
{
    return row->experts_sharded ? p->expert_rank * own_matrices(p, row) : 0;
}

/* Most expensive first; experts that ranks shard follow the others. */
static status list_matrices(struct params *p, int64_t count)
{
    struct weighed *all = malloc((size_t)(count + 1) * sizeof *all);
    free(p->muon_matrices);
    p->muon_matrices = malloc((size_t)(count + 1) * sizeof *p->muon_matrices);
    p->muon_count = 0;
    if (all == NULL || p->muon_matrices == NULL) {
        free(all);
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the list of %lld matrices", (long long)count);
    }
    int64_t n = 0;
    p->muon_expert_count = 0;
    for (int i = 0; i < p->count; i++) {
        const struct param *row = &p->rows[i];
        const bool experts = p->units[row->unit].experts;
        const int64_t first = first_matrix(p, row), own = own_matrices(p, row);
        for (int64_t k = first; k < first + own && row->muon && p->units[row->unit].is_local; k++) {
            all[n++] = (struct weighed){{.row = i, .matrix = k}, cost(params_matrix(row, k)), experts};
            p->muon_expert_count += experts;
        }
    }
    CHECK(n == count, "%lld matrices, and %lld were counted", (long long)n, (long long)count);
    qsort(all, (size_t)n, sizeof *all, by_cost);
    for (int64_t k = 0; k < n; k++) p->muon_matrices[k] = all[k].ref;
    p->muon_count = n;
    free(all);
    return STATUS_OK;
}

status muon_claim(struct params *p)
{
    int64_t count = 0;
    for (int i = 0; i < p->count; i++) {
        struct param *row = &p->rows[i];
        row->muon = (row->role == ROLE_MATRIX || row->role == ROLE_RESIDUAL) && !row->rowwise;
        CHECK(!row->muon || row->gemm_overwrites_grad, "%s: its gradient is formed by adding alone",
              row->name);
        if (row->muon && p->units[row->unit].is_local) count += own_matrices(p, row);
    }
    return list_matrices(p, count);
}

/* A slab: the part of a matrix on one tensor-parallel rank. Elements [local, local + count) of its slice of the row, in
 * lines of `width`, which start at `at` in the matrix and are `stride` apart. */
struct slab {
    int64_t local, count, at, width, stride;
};
static struct slab slab_by(const struct params *p, struct param_ref ref, int slice)
{
    const struct param *row = &p->rows[ref.row];
    const struct param_matrix m = matrix_of(p, ref);
    const int64_t slices = params_tp_size(p), all = m.rows * m.cols, part = m.cols / slices,
                  begin = m.begin -
                          params_matrix(row, first_matrix(p, row)).begin; /* among this rank's experts */
    if (slices == 1 || !params_sliced(row)) return (struct slab){begin, all, 0, all, all};
    if (row->split == SPLIT_ROW_PARALLEL)
        return (struct slab){begin / slices, m.rows * part, slice * part, part, m.cols};
    struct param_block blocks[PARAM_PARTS];
    const int count = params_blocks(p, ref.row, params_place_of(p, slice, p->expert_rank), blocks);
    const struct param_block *b = &blocks[ref.matrix % count];
    const int64_t period = (ref.matrix - first_matrix(p, row)) / count;
    return (struct slab){b->local + period * b->pitch, b->width, b->global + period * b->stride - m.begin,
                         b->width, b->width};
}

/* The ZeRO shard of a slab on one rank: elements [from, from + count) of it. */
struct span {
    int64_t from, count;
};
static struct span span_by(const struct params *p, struct param_ref ref, int shard)
{
    const struct slab b = slab_by(p, ref, p->tp_rank);
    const struct param_local_range h = params_local_range_of(p, ref.row, shard);
    const int64_t from = h.from > b.local ? h.from - b.local : 0,
                  to = h.to - b.local < b.count ? h.to - b.local : b.count;
    return (struct span){from, to > from ? to - from : 0};
}

static const struct param_unit *unit_of(const struct params *p, struct param_ref ref)
{
    return &p->units[p->rows[ref.row].unit];
}
static struct span own_span(const struct params *p, struct param_ref ref)
{
    return span_by(p, ref, unit_of(p, ref)->shard);
}

struct muon_span muon_span(const struct params *p, int64_t k)
{
    const struct param_ref ref = p->muon_matrices[k];
    const struct param_local_range h = params_local_range(p, ref.row);
    const struct span span = own_span(p, ref);
    return (struct muon_span){h.master + slab_by(p, ref, p->tp_rank).local + span.from - h.from, span.count};
}

/* The largest shard of one of `count` matrices on one rank. */
static int64_t largest_span(const struct params *p, const struct param_ref *refs, int64_t count)
{
    int64_t most = 0;
    for (int64_t k = 0; k < count; k++)
        for (int s = 0; s < unit_of(p, refs[k])->shards; s++) {
            const struct span h = span_by(p, refs[k], s);
            if (h.count > most) most = h.count;
        }
    return most;
}
static int64_t largest_slab(const struct params *p, const struct param_ref *refs, int64_t count)
{
    int64_t most = 0;
    for (int64_t k = 0; k < count; k++) {
        const struct slab b = slab_by(p, refs[k], p->tp_rank);
        if (b.count > most) most = b.count;
    }
    return most;
}

struct muon_most muon_most(const struct params *p)
{
    struct muon_most most = {.slab = largest_slab(p, p->muon_matrices, p->muon_count)};
    for (int64_t k = 0; k < p->muon_count; k++) {
        const struct param_matrix m = matrix_of(p, p->muon_matrices[k]);
        if (m.rows * m.cols > most.count) most.count = m.rows * m.cols;
        if (shorter(m) > most.side) most.side = shorter(m);
    }
    return most;
}

/* Buffers: two of the largest matrix and two of the largest square, alternately input and output of a GEMM; a gradient
 * that is being collected; slabs that tensor-parallel ranks exchange in a round; shards of slabs that ZeRO ranks exchange,
 * or the updates that ranks without ZeRO all-gather. */
struct work {
    void *x[2], *square[2], *round;
    float *whole;
    char *slabs, *others, *sent, *received;
    size_t bytes;
};
static size_t room(int64_t count, dtype dt)
{
    return ((size_t)count * dtype_bytes(dt) + ALIGN - 1) / ALIGN * ALIGN;
}
static void *take(char *at, size_t *bytes, size_t count)
{
    void *place = at ? at + *bytes : NULL;
    *bytes += count;
    return place;
}
static struct work work_at(char *at, const struct muon_most *most, dtype dt, const struct muon_ranks *by)
{
    const size_t x = room(most->count, dt), square = room(most->side * most->side, dt),
                 slabs = by->slices > 1 ? (size_t)by->slices * room(most->slab, DTYPE_F32) : 0,
                 pieces = (size_t)by->ranks * room(by->piece, DTYPE_F32);
    struct work w = {0};
    for (int k = 0; k < 2; k++) {
        w.x[k] = take(at, &w.bytes, x);
        w.square[k] = take(at, &w.bytes, square);
    }
    if (by->slices > 1 || by->piece > 0) w.whole = take(at, &w.bytes, room(most->count, DTYPE_F32));
    w.slabs = take(at, &w.bytes, slabs);
    w.others = take(at, &w.bytes, slabs);
    if (by->piece > 0) {
        w.sent = take(at, &w.bytes, pieces);
        w.received = take(at, &w.bytes, pieces);
    } else if (by->ranks > 1) {
        w.round = take(at, &w.bytes, (size_t)by->ranks * room(most->slab, dt));
    }
    return w;
}
static struct muon_ranks ranks_of(const struct params *p, const struct mesh *mesh)
{
    if (p->zero == 0)
        return (struct muon_ranks){.ranks = mesh ? mesh_dp_cp(&mesh->shape) : 1,
                                   .slices = (int)params_tp_size(p)};
    return (struct muon_ranks){.ranks = p->shards,
                               .slices = (int)params_tp_size(p),
                               .piece = largest_span(p, p->muon_matrices, p->muon_count)};
}

size_t muon_bytes(const struct muon_most *most, dtype dt, const struct muon_ranks *by)
{
    return work_at(NULL, most, dt, by).bytes;
}

void muon_layout(struct params *p, const struct mesh *mesh, struct arena *a)
{
    const struct muon_most most = muon_most(p);
    const struct muon_ranks by = ranks_of(p, mesh);
    p->work = arena_take(a, muon_bytes(&most, p->dt, &by), "GEMMs of muon");
}

/* One Newton-Schulz iteration: from w->x[0] to w->x[1]. */
static status refine(const struct exec *r, const struct work *w, struct param_matrix m)
{
    const dtype dt = r->params->dt;
    const int64_t n = shorter(m), k = m.rows + m.cols - n;
    const bool wide = m.rows <= m.cols;
    TRY(r->ops->gemm(&(struct gemm_args){.a = operand_at(w->x[0], dt, !wide),
                                         .b = operand_at(w->x[0], dt, wide),
                                         .c = w->square[0],
                                         .m = n,
                                         .n = n,
                                         .k = k,
                                         .cdt = dt},
                     r->stream));
    TRY(r->ops->gemm(&(struct gemm_args){.a = operand_at(w->square[0], dt, false),
                                         .b = operand_at(w->square[0], dt, false),
                                         .c = w->square[1],
                                         .m = n,
                                         .n = n,
                                         .k = n,
                                         .cdt = dt},
                     r->stream));
    TRY(r->ops->newton_schulz_poly(&(struct newton_schulz_poly_args){.x = w->square[0],
                                                                     .xx = w->square[1],
                                                                     .y = w->square[1],
                                                                     .n = n,
                                                                     .a = 3.4445,
                                                                     .b = -4.7750,
                                                                     .c = 2.0315,
                                                                     .dt = dt},
                                   r->stream));
    return r->ops->gemm(&(struct gemm_args){.a = operand_at(wide ? w->square[1] : w->x[0], dt, false),
                                            .b = operand_at(wide ? w->x[0] : w->square[1], dt, false),
                                            .c = w->x[1],
                                            .m = m.rows,
                                            .n = m.cols,
                                            .k = n,
                                            .cdt = dt},
                        r->stream);
}

/* Computes X of a matrix from its g, into w->x[0]. */
static status orthogonalise(const struct exec *r, struct work *w, struct param_matrix m, const float *g)
{
    TRY(r->ops->muon_normalize(
        &(struct muon_normalize_args){
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

/* State of one optimizer step. */
struct step {
    const struct exec *run;
    const struct run_spec *spec;
    struct offload *offload;
};

/* Updates weights from an element of this rank's slab on. */
static const float *gradient(const struct params *p, struct param_ref ref, int64_t from)
{
    const struct param_local_range h = params_local_range(p, ref.row);
    const int64_t at = slab_by(p, ref, p->tp_rank).local + from;
    return (const float *)p->grad + (p->zero < 2 ? p->rows[ref.row].offset + at : h.at + at - h.from);
}

/* Updates this rank's elements of a matrix by x [span.count]: at once, or piece by piece as offload copies master weights. */
static status apply(const struct step *q, struct param_ref ref, struct span span, const void *x)
{
    const struct exec *r = q->run;
    const struct params *p = r->params;
    const struct param_matrix m = matrix_of(p, ref);
    const struct param *row = &p->rows[ref.row];
    const struct param_local_range h = params_local_range(p, ref.row);
    const int64_t longer = m.rows > m.cols ? m.rows : m.cols,
                  at = slab_by(p, ref, p->tp_rank).local + span.from;
    const bool away = params_host_master(p), half = p->dt == DTYPE_BF16;
    for (int64_t done = 0, count; done < span.count; done += count) {
        const int64_t into = at + done - h.from;
        float *master = params_split_master(p) ? NULL : (float *)p->master + h.master + into;
        count = span.count - done;
        if (away) TRY(offload_acquire(q->offload, r, &master, &count));
        TRY(r->ops->muon_apply(
            &(struct muon_apply_args){
                .x = (const char *)x + (size_t)done * dtype_bytes(p->dt),
                .p = master,
                .w = half ? (bf16 *)p->weight + h.weight + into : NULL,
                .master_residual = params_split_master(p) ? p->master_residual + h.master + into : NULL,
                .count = count,
                .scale = row->lr_scale * 0.2 * sqrt((double)longer),
                .weight_decay = row->lr_scale * row->decay * q->spec->optim_weight_decay,
                .scalars = r->scalars,
                .dt = p->dt},
            r->stream));
        if (away) TRY(offload_release(q->offload, r));
    }
    return STATUS_OK;
}

/* A round: one matrix per rank, or per rank and slice, with those of a slice contiguous. The last round may have none for
 * some ranks. */
struct round {
    const struct param_ref *refs; /* [count] */
    int64_t count;
    int ranks;
    struct comm *comm; /* of the ranks */
};
static struct round of_slice(const struct round *t, int slice)
{
    const int64_t before = (int64_t)slice * t->ranks, left = t->count - before;
    struct round part = *t;
    part.refs = t->refs + before;
    part.count = left < 0 ? 0 : left < t->ranks ? left : t->ranks;
    return part;
}
/* This rank's matrix; NULL: none. */
static const struct param_ref *own(const struct round *t)
{
    const int rank = comm_rank(t->comm);
    return rank < t->count ? t->refs + rank : NULL;
}

/* Collects this rank's slab of the gradient of its matrix from the shards of all ranks. */
static status bring_together(const struct exec *r, const struct work *w, const struct round *t, float *slab)
{
    const struct params *p = r->params;
    const struct param_ref *mine = own(t);
    const size_t piece = room(largest_span(p, t->refs, t->count), DTYPE_F32);
    for (int64_t k = 0; k < t->count; k++) {
        const struct span part = own_span(p, t->refs[k]);
        if (part.count > 0)
            TRY(dev_copy(r->stream, w->sent + (size_t)k * piece, gradient(p, t->refs[k], part.from),
                         (size_t)part.count * sizeof(float)));
    }
    TRY(comm_all_to_all(t->comm, "parts for muon", w->sent, w->received, piece, r->stream));
    for (int s = 0; mine && s < unit_of(p, *mine)->shards; s++) {
        const struct span part = span_by(p, *mine, s);
        if (part.count > 0)
            TRY(dev_copy(r->stream, slab + part.from, w->received + (size_t)s * piece,
                         (size_t)part.count * sizeof(float)));
    }
    return STATUS_OK;
}

/* Returns updates to the ranks that hold shards of the weights, and applies them. */
static status deal_out(const struct step *q, const struct work *w, const struct round *t, const char *slab)
{
    const struct exec *r = q->run;
    const struct params *p = r->params;
    const struct param_ref *mine = own(t);
    const size_t element = dtype_bytes(p->dt), piece = room(largest_span(p, t->refs, t->count), p->dt);
    for (int s = 0; mine && s < unit_of(p, *mine)->shards; s++) {
        const struct span part = span_by(p, *mine, s);
        if (part.count > 0)
            TRY(dev_copy(r->stream, w->sent + (size_t)s * piece, slab + (size_t)part.from * element,
                         (size_t)part.count * element));
    }
    TRY(comm_all_to_all(t->comm, "steps of muon", w->sent, w->received, piece, r->stream));
    for (int64_t k = 0; k < t->count; k++)
        TRY(apply(q, t->refs[k], own_span(p, t->refs[k]), w->received + (size_t)k * piece));
    return STATUS_OK;
}

/* The same without ZeRO: every rank holds and updates all slabs. */
static status gather(const struct step *q, const struct work *w, const struct round *t, const void *slab)
{
    const struct exec *r = q->run;
    const struct params *p = r->params;
    const size_t bytes = room(largest_slab(p, t->refs, t->count), p->dt);
    if (t->comm) TRY(comm_all_gather(t->comm, "steps of muon", slab, w->round, bytes, r->stream));
    for (int64_t k = 0; k < t->count; k++) {
        const struct span all = {0, slab_by(p, t->refs[k], p->tp_rank).count};
        TRY(apply(q, t->refs[k], all, t->comm ? (const char *)w->round + (size_t)k * bytes : slab));
    }
    return STATUS_OK;
}

/* Copies between a matrix and a slab of it. */
enum way { INTO_MATRIX, FROM_MATRIX };
static status move_slab(const struct exec *r, const struct slab *b, char *matrix, char *slab, size_t element,
                        enum way way)
{
    const size_t width = (size_t)b->width * element, stride = (size_t)b->stride * element;
    struct dev_lines l = {.to = matrix + (size_t)b->at * element,
                          .from = slab,
                          .to_stride = stride,
                          .from_stride = width,
                          .bytes = width,
                          .count = (size_t)(b->count / b->width)};
    if (way == FROM_MATRIX)
        l = (struct dev_lines){slab, matrix + (size_t)b->at * element, width, stride, width, l.count};
    return dev_copy_lines(r->stream, &l);
}

/* Tensor-parallel ranks: slabs of the gradients of `t`, one per slice, become the whole gradient of this slice's matrix; its
 * update becomes slabs of all updates. */
static status join(const struct exec *r, const struct work *w, const struct param_ref *mine, size_t piece)
{
    const struct params *p = r->params;
    TRY(comm_all_to_all(r->tp, "slices for muon", w->slabs, w->others, piece, r->stream));
    for (int s = 0; mine && s < p->tp_size; s++) {
        const struct slab b = slab_by(p, *mine, s);
        TRY(move_slab(r, &b, (char *)w->whole, w->others + (size_t)s * piece, sizeof(float), INTO_MATRIX));
    }
    return STATUS_OK;
}
static status cut(const struct exec *r, const struct work *w, const struct param_ref *mine, size_t piece)
{
    const struct params *p = r->params;
    for (int s = 0; mine && s < p->tp_size; s++) {
        const struct slab b = slab_by(p, *mine, s);
        TRY(move_slab(r, &b, w->x[0], w->slabs + (size_t)s * piece, dtype_bytes(p->dt), FROM_MATRIX));
    }
    return comm_all_to_all(r->tp, "slices of muon's steps", w->slabs, w->others, piece, r->stream);
}

/* The whole gradient of this rank's matrix of a round. */
static status gradient_of(const struct exec *r, const struct work *w, const struct round *t, const float **g)
{
    const struct params *p = r->params;
    const int slices = (int)params_tp_size(p);
    const size_t piece = room(largest_slab(p, t->refs, t->count), DTYPE_F32);
    const struct round mine = of_slice(t, p->tp_rank);
    *g = w->whole;
    if (slices == 1 && p->zero == 0 && own(t)) *g = gradient(p, *own(t), 0);
    for (int j = 0; j < slices && (slices > 1 || p->zero > 0); j++) {
        const struct round part = of_slice(t, j);
        float *slab = slices > 1 ? (float *)(void *)(w->slabs + (size_t)j * piece) : w->whole;
        if (p->zero > 0)
            TRY(bring_together(r, w, &part, slab));
        else if (own(&part))
            TRY(dev_copy(r->stream, slab, gradient(p, *own(&part), 0),
                         (size_t)slab_by(p, *own(&part), p->tp_rank).count * sizeof *slab));
    }
    return slices > 1 ? join(r, w, own(&mine), piece) : STATUS_OK;
}

static status one_round(const struct step *q, struct work w, const struct round *t)
{
    const struct exec *r = q->run;
    const struct params *p = r->params;
    const int slices = (int)params_tp_size(p);
    const size_t piece = room(largest_slab(p, t->refs, t->count), p->dt);
    const struct round mine = of_slice(t, p->tp_rank);
    const float *g;
    TRY(gradient_of(r, &w, t, &g));
    if (own(&mine)) TRY(orthogonalise(r, &w, matrix_of(p, *own(&mine)), g));
    if (slices > 1) TRY(cut(r, &w, own(&mine), piece));
    for (int j = 0; j < slices; j++) {
        const struct round part = of_slice(t, j);
        const char *slab = slices > 1 ? w.others + (size_t)j * piece : w.x[0];
        if (part.count > 0) TRY(p->zero > 0 ? deal_out(q, &w, &part, slab) : gather(q, &w, &part, slab));
    }
    return STATUS_OK;
}

/* Matrices [from, to), all of them experts that ranks shard, or none. */
static status rounds(const struct step *q, const struct mesh *mesh, int64_t from, int64_t to, bool experts)
{
    const struct params *p = q->run->params;
    const struct muon_most most = muon_most(p);
    const struct muon_ranks by = ranks_of(p, mesh);
    const struct work w = work_at(p->work, &most, p->dt, &by);
    const struct mesh_data data = mesh ? mesh_data_of(mesh, experts) : (struct mesh_data){.copies = 1};
    struct comm *comm = p->zero ? data.inside : data.all;
    const int64_t at_once = (int64_t)comm_ranks(comm) * by.slices;
    for (int64_t k = from; k < to; k += at_once)
        TRY(one_round(q, w,
                      &(struct round){.refs = p->muon_matrices + k,
                                      .count = to - k < at_once ? to - k : at_once,
                                      .ranks = comm_ranks(comm),
                                      .comm = comm}));
    return STATUS_OK;
}

status muon_step(const struct exec *r, const struct run_spec *spec, const struct mesh *mesh,
                 struct offload *o)
{
    SCOPE("optim.muon", -1);
    const struct step q = {r, spec, o};
    const int64_t others = r->params->muon_count - r->params->muon_expert_count;
    TRY(rounds(&q, mesh, 0, others, false));
    return rounds(&q, mesh, others, r->params->muon_count, true);
}
