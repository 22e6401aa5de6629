/* The parameter table: every weight has a name, a role and a shape, never a position. Initialisation, weight decay,
 * optimizer, checkpoints, import and export use the table.
 *
 * Storage is flat. Row r is elements [offset, offset+count) of each of these arrays; offsets are multiples of
 * PARAM_ALIGN:
 *   master  F32            updated by the optimizer (F64 in gradient checks)
 *   weight  dt             read by GEMMs. F32 and F64: the same array as master. bf16: the upper part of the split
 *                          master weights (ops/rounding.h)
 *   residual 16 bits       bf16: the residual of split master weights, which replace `master` unless the host has it.
 *                          Absent without moments (no updates) and with `masterless`
 *   grad    dtype_acc(dt)  accumulated over the micro-batches of a step; see `gemm_overwrites_grad` and `overlaid`
 *   m, v    moment_dt      optimizer moments in F32, BF16 or 8 bits (U8, ops/quant.h). Lion has no v, and `muon` rows
 *                          have none
 *   scale   F32            of 8-bit moments: one per block of PARAM_ALIGN elements, at [offset / PARAM_ALIGN]
 * Padding between rows is zero and stays zero. With `host_state` (optim/offload.h), the host stores moments, scales,
 * and a master that is not `weight`.
 *
 * ZeRO (`zero`, parallel/zero.h): `shards` ranks shard one copy. Each unit is padded to a multiple of shards * grid
 * elements. A rank stores only its shard of each unit in these arrays; the shard begins at begin / shards:
 *   m, v       always
 *   master     from stage 1 on (in F32 from stage 3 on, because it is `weight`)
 *   residual   from stage 1 on
 *   grad       from stage 2 on
 *   weight     from stage 3 on
 * params_unshard and params_reshard make the full arrays of a unit available and release them.
 *
 * Rows are grouped in units (units.h). Every rank declares the whole model and stores the units that are `is_local`
 * (pipeline stages), with its own shard of each row (tensor parallelism: `split`). Optimizer chunks of a unit are
 * aligned to PARAMS_CHUNK_ALIGN elements from the start of the unit. Chunks, and sums over them, therefore do not
 * depend on what else a rank stores. A table's rows are updated whole: its unit has a slightly finer alignment, and no
 * chunk boundary cuts a row. */
#ifndef INGOT_TENSOR_PARAMS_H
#define INGOT_TENSOR_PARAMS_H
#include "base/arena.h"
#include "base/status.h"
#include "tensor/current_linears.h"
#include "tensor/fp8_linears.h"
#include "tensor/operand.h"
#include "tensor/param_place.h"
#include "tensor/param_row.h"
#include "tensor/units.h"

struct params {
    struct param_ref *muon_matrices; /* owned: the logical matrices of this rank's `muon` rows, in the order of
                                        optim/muon.c */
    int64_t muon_count, muon_expert_count; /* number of them; how many of the last ones belong to expert units */
    struct param *rows; uint32_t *name_hashes; /* [count] each; owned: params_free */
    int count, capacity;
    struct param_unit *units;   /* owned */
    int unit_count;
    int tp_size, tp_rank;       /* tensor parallelism: number of ranks that shard `split` rows, and this rank's index;
                                   0 slices: not sharded. Set before rows are added */
    int expert_ranks, expert_rank; /* expert parallelism: number of ranks, and this rank's index; 0 ranks means 1 */
    int zero, shards, shard;    /* ZeRO stage; number of ranks that shard a copy (0: 1), and this rank's index */
    int expert_shards, expert_shard; /* the same for units of experts, with expert_ranks > 1 */
    int64_t total, own, total_v; /* number of elements of the full flat arrays with padding, of the sharded arrays, and
                                    of v; params_layout sets them */
    bool sparse;                /* gradients of tables are sparse rows (parallel/sparse_grad.h), not in `grad`; set
                                   before params_layout */
    int64_t grad_count, grad_count_own; /* number of elements of the full `grad` (all units but sparse tables, which are
                                           last), and of this rank's shards of it; params_layout sets them */
    bool masterless;            /* bf16 weights without master weights (ops/rounding.h), except role BALANCE, which
                                   has a derived F32 copy. Set before params_layout */
    bool overlaid;              /* `grad` reuses the memory of activations: backward finds arbitrary values in it,
                                   not zeros. Set before params_layout */
    const struct unit_hooks *hooks;
    int64_t param_count;        /* number of parameters of the whole model, as published: without BALANCE */
    dtype dt; void *weight, *master, *grad; uint16_t *master_residual; /* dt: dtype of `weight` */
    enum recipe recipe;         /* how GEMMs read the weights of linears: params_operand. Set before params_layout */
    struct param_copies { void *data; int64_t bytes; } derived[DERIVED_COUNT]; /* in bf16, and with `zero`: see
                                                                                  params_copies */
    struct fp8_linears fp8;     /* linears whose GEMMs may read FP8 codes (parallel/fp8.h) */
    struct current_linears current; /* linears whose GEMMs read operands of current scaling */
    dtype moment_dt; int moments; bool host_state; /* moments per parameter; host_state: the host stores what only
                                                      the optimizer reads; params_layout sets them */
    void *m, *v; float *m_scale, *v_scale; /* scales of 8-bit moments */
    struct update_chunk *chunks; /* the optimizer's chunk table, stored with the moments: optim/ */
    struct update_run *runs; int64_t run_count; /* owned: chunks that share their factors (optim/rates.h); 0: all do */
    int64_t chunk_count, chunks_model; /* chunks of this rank; of all units */
    struct update_chunk *balance; /* the chunks of role BALANCE, which `chunks` does not contain */
    int64_t balance_count;
    void *work;                 /* memory for the optimizer's GEMMs, valid during its step: optim/muon.h */
};

/* Begins a new unit, stored on this rank, for the rows added from now on. */
void params_unit(struct params *p);
void params_table(struct params *p, int of); /* begins the unit of the n-gram table of block `of` */
void params_experts(struct params *p, int of); /* begins the unit of the experts of block `of`: expert parallelism */
/* The block of a unit: the unit itself, or the block that reads this table or has these experts. */
static inline int params_block(const struct params *p, int unit)
{
    return p->units[unit].block_unit ? p->units[unit].block_unit : unit;
}
/* Adds a row with its full shape; returns its index. Names are unique (CHECK). */
int params_add(struct params *p, enum role role, float init_value, int64_t out, int64_t in /* 0: vector */,
               const char *fmt, ...) PRINTF_LIKE(6, 7);
/* Sets how tensor-parallel ranks shard the row that was added last; `parts` [part_count] or NULL. Shards must be equal
 * (CHECK: the spec was checked before). */
void params_split(struct params *p, int row, enum split split, const int64_t *parts, int part_count);
/* Shards the experts of the row that was added last over the expert-parallel ranks. Call it after params_split. */
void params_shard_experts(struct params *p, int row);
/* True if tensor-parallel ranks hold different shards of the row. All other rows are equal on these ranks. */
static inline bool params_sliced(const struct param *row) { return row->split >= SPLIT_COLUMN_PARALLEL; }
int64_t params_summed(const struct params *p, int row); /* The element of the row from which on gradients are partial
                                                           sums over tensor-parallel ranks; the row's end: none. */
/* The logical matrices of a full row, consecutive: their number, and one of them, `begin` elements after the start of
 * the row. */
struct param_matrix { int64_t begin, rows, cols; };
int64_t params_matrix_count(const struct param *row);
struct param_matrix params_matrix(const struct param *row, int64_t i);
int params_find(const struct params *p, const char *name);   /* -1: not found */

/* This rank stores master weights and moments of the elements [from, to) of its slice of a row. They begin at `at` in
 * the moment arrays (in v: at - v_offset), at `master` in `master` or `master_residual`, at `weight` in `weight`. */
struct param_local_range { int64_t from, to, at, master, weight; };
struct param_local_range params_local_range(const struct params *p, int row);
/* The same for the rank with index `shard` among those that shard the copy. */
struct param_local_range params_local_range_of(const struct params *p, int row, int shard);
void params_free(struct params *p);

/* Allocates the arrays, from counting or real arenas. `moments`: 2 for AdamW, 1 for Lion, 0 for inference.
 * `with_grad`: 0 without training. */
struct params_arenas { struct arena *param, *grad, *optim, *host /* NULL: no host_state */; };
struct params_layout_args {
    dtype dt, moment_dt;        /* moment_dt: F32, BF16 or U8, if there are moments */
    int with_grad, moments;
    struct params_arenas arenas;
};
void params_layout(struct params *p, const struct params_layout_args *a);
void params_layout_grad(struct params *p, void *grad); /* sets the location of `grad` with `overlaid`; NULL: counting */

/* True for a unit with sparse gradients, which has no memory in `grad`. params_grads: number of elements of `grad` that
 * this rank stores: all, or its shard. */
static inline bool params_sparse(const struct params *p, int unit) { return p->sparse && p->units[unit].block_unit > 0 && !p->units[unit].experts; }
static inline int64_t params_grads(const struct params *p) { return p->zero < 2 ? p->grad_count : p->grad_count_own; }
static inline bool params_host_master(const struct params *p)
{
    return p->host_state && p->dt == DTYPE_BF16 && !p->masterless;
}
/* True with split master weights; `master_residual` may be NULL. */
static inline bool params_split_master(const struct params *p) { return p->dt == DTYPE_BF16 && !params_host_master(p); }
/* True if there are derived copies; else the master array itself is the F32 copy. */
static inline bool params_copies(const struct params *p) { return p->zero || p->dt == DTYPE_BF16; }
static inline float *params_f32(const struct params *p, int row)
{
    return (float *)p->derived[DERIVED_F32].data + p->rows[row].derived_at[DERIVED_F32] / (int64_t)sizeof(float);
}
static inline int64_t params_room(const struct param *row)
{
    const int64_t room = row->room > row->count ? row->room : row->count;
    return (room + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
}
static inline int64_t params_tp_size(const struct params *p) { return p->tp_size ? p->tp_size : 1; }
static inline status params_unshard(const struct params *p, int64_t unit, enum unit_use use)
{
    return p->hooks ? p->hooks->unshard(p->hooks->ctx, (int)unit, use) : STATUS_OK;
}
static inline status params_reshard(const struct params *p, int64_t unit)
{
    return p->hooks ? p->hooks->reshard(p->hooks->ctx, (int)unit) : STATUS_OK;
}

/* The row's weights in memory; NULL if this rank does not store the unit. */
static inline void *params_weight(const struct params *p, int row)
{
    const struct param *r = &p->rows[row];
    const struct param_unit *u = &p->units[r->unit];
    if (p->zero == 3 && r->derived[DERIVED_WHOLE] && u->is_local && p->derived[DERIVED_WHOLE].data)
        return (char *)p->derived[DERIVED_WHOLE].data + r->derived_at[DERIVED_WHOLE];
    return u->weight ? (char *)u->weight + (size_t)(r->offset - u->begin) * dtype_bytes(p->dt) : NULL;
}
static inline void *params_grad(const struct params *p, int row)
{
    const struct param *r = &p->rows[row];
    const struct param_unit *u = &p->units[r->unit];
    return u->grad ? (char *)u->grad + (size_t)(r->offset - u->begin) * dtype_bytes(dtype_acc(p->dt)) : NULL;
}
static inline void *params_master(const struct params *p, int row) /* without ZeRO, and not for split master weights */
{
    const struct param *r = &p->rows[row];
    return p->master && p->units[r->unit].is_local
               ? (char *)p->master + (size_t)r->offset * dtype_bytes(dtype_acc(p->dt))
               : NULL;
}
static inline void *params_exact(const struct params *p, int row)
{
    return params_copies(p) ? params_f32(p, row) : params_master(p, row);
}
#endif
