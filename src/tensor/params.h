/* The parameter table: every weight has a name, a role and a shape, never a position. Initialisation, weight decay, optimizer,
 * checkpoints, import and export ask the table.
 *
 * Storage is flat. Row r covers elements [offset, offset+count) of each of these arrays, offsets being multiples of PARAM_ALIGN:
 *   master  F32            what the optimizer updates (F64 in gradient checks)
 *   weight  dt             what the GEMMs read: == master when dt is F32 or F64; in bf16 the upper half of the master (ops/rounding.h)
 *   low     16 bits        in bf16 its lower half, and no `master`, unless that is the host's; none without moments (nothing is updated) and with `masterless`
 *   grad    dtype_acc(dt)  accumulated over the micro-batches of a step; see `stored`, and `overlaid`
 *   m, v    moment_dt      optimizer moments, F32, BF16 or 8 bits (U8, ops/quant.h); Lion has no v, and v no place for `ortho` rows
 *   scale   F32            of moments in 8 bits, [offset / PARAM_ALIGN] and on: one for each block of so many elements
 * Padding between rows is zero and stays zero. With `host_state` (optim/offload.h) moments, scales, and a master that is not weight are the host's.
 *
 * With `zero` (parallel/zero.h), `shards` ranks share out one copy: each unit is padded to whole parts of shards grid elements, and m,
 * v, and from stage 1 on master and low (in F32: from 3 on; before, it is weight), from 2 on grad, from 3 on weight hold this rank's part of each unit
 * alone, that of a unit from begin / shards on. What is not whole then comes and goes with params_enter and params_leave.
 *
 * Rows stand in units (units.h). Every rank declares the whole model; it stores the units that are `here` (pipeline), and of a row its own
 * slice (tensor parallelism: `split`). The optimizer's pieces of a unit lie on a grid of PARAMS_GRID elements that starts with the unit, so
 * that pieces, and sums over them, do not depend on what else a rank stores. In the unit of a table, whose rows move as a whole, the grid is
 * a little finer, and none of its lines cuts a row. */
#ifndef INGOT_TENSOR_PARAMS_H
#define INGOT_TENSOR_PARAMS_H
#include "base/arena.h"
#include "base/status.h"
#include "tensor/operand.h"
#include "tensor/param_row.h"
#include "tensor/units.h"

struct params {
    struct param_ref *ortho;    /* owned: the logical matrices of `ortho` rows that are here, in the order in which optim/muon.c takes them */
    int64_t ortho_count;
    struct param *rows;         /* owned: params_free */
    int count, capacity;
    struct param_unit *units;   /* owned */
    int unit_count;
    int slices, slice;          /* ranks that share `split` rows, and which of them this is; 0 slices: not shared. Set before rows are added */
    int zero, shards, shard;    /* the stage, ranks that share a copy out, and which part is this one's; 0 shards: 1 */
    int64_t total, own, total_v; /* elements of the flat arrays, padding included, of arrays of parts, and of v: params_lay */
    bool sparse;                /* gradients of tables are not in `grad`, but rows (parallel/sparse_grad.h): set before params_lay */
    int64_t summed;             /* elements of `grad` where it is whole: all units but those tables, which come last; params_lay */
    bool masterless;            /* bf16 weights are all there is (ops/rounding.h), but of role BALANCE, which has a derived F32 copy. Set before params_lay */
    bool overlaid;              /* `grad` lies where activations were: a backward finds those in it, not zeros. Set before params_lay */
    const struct unit_hooks *hooks;
    int64_t unique;             /* parameters of the whole model, BALANCE excluded: the number people quote */
    dtype dt; void *weight, *master, *grad; uint16_t *low; /* dt: of `weight` */
    struct param_copies { void *data; int64_t count; } derived[DERIVED_COUNT]; /* in bf16, and with `zero`: params_copies */
    dtype moment_dt; int moments; bool host_state; /* moments of a parameter; what the optimizer alone reads is the host's: params_lay */
    void *m, *v; float *m_scale, *v_scale; /* scales with moments in 8 bits */
    struct update_chunk *chunks; /* the table of pieces that the optimizer walks, beside the moments: optim/ */
    int64_t chunk_count, chunks_model; /* here; in all units */
    struct update_chunk *balance; /* likewise, the rows of role BALANCE, of which chunks has none */
    int64_t balance_count;
    void *work;                 /* memory of the optimizer's GEMMs, for the time of its step: optim/muon.h */
};

/* The rows that are added from here on form another unit, which is here. */
void params_unit(struct params *p);
void params_table(struct params *p, int of); /* likewise, the table of that block */
/* The block of a unit: its own, or that whose table it is. */
static inline int params_block(const struct params *p, int unit) { return p->units[unit].of ? p->units[unit].of : unit; }
/* Adds a row, of the whole shape; returns its index. Names are unique (CHECK). */
int params_add(struct params *p, enum role role, float init_value, int64_t out, int64_t in /* 0: vector */, const char *fmt, ...)
    PRINTF_LIKE(6, 7);
/* How ranks share the row that was just added; `parts` [part_count] or NULL. The shares must be whole (CHECK: the spec was checked). */
void params_split(struct params *p, int row, enum split split, const int64_t *parts, int part_count);
/* Its slices differ: others are the same on all ranks of a tensor-parallel group. */
static inline bool params_sliced(const struct param *row) { return row->split >= SPLIT_OUT; }
int64_t params_summed(const struct params *p, int row); /* the first element of which gradients are parts of a sum, as all behind it; or the end */
/* The logical matrices of a whole row, one behind the other: how many, and one of them, `begin` elements behind the row's first. */
struct param_matrix { int64_t begin, rows, cols; };
int64_t params_matrix_count(const struct param *row);
struct param_matrix params_matrix(const struct param *row, int64_t i);
int params_find(const struct params *p, const char *name);   /* -1 when absent */

/* Where a slice of a row lies in the whole: `rows` times `width` elements, of the slice from `local` on, `pitch` apart; of the whole from
 * `global` on, `stride` apart. Returns how many there are. */
struct param_block { int64_t local, pitch, global, stride, rows, width; };
int params_blocks(const struct params *p, int row, int slice, struct param_block blocks[PARAM_PARTS]);
/* Where element `at` of a slice lies in the whole, and how many lie one behind the other from there on, in both. */
struct param_line { int64_t global, count; };
struct param_line params_line(const struct params *p, int row, int slice, int64_t at);
/* Of this rank's slice of a row, the elements whose master weights and moments are here: [from, to), which lie in the arrays of moments from
 * `at` on (in v: less no_v), in `master` or `low` from `master` on, in `weight` from `weight` on. */
struct param_held { int64_t from, to, at, master, weight; };
struct param_held params_held(const struct params *p, int row);
/* The same for another of the ranks that share the copy out. */
struct param_held params_held_by(const struct params *p, int row, int shard);
void params_free(struct params *p);

/* Takes the arrays: counting or real. `moments`: 2 for AdamW, 1 for Lion, 0 for inference; `with_grad` likewise 0 without training. */
struct params_arenas { struct arena *param, *grad, *optim, *host /* NULL: no host_state */; };
struct params_lay_args {
    dtype dt, moment_dt;        /* moment_dt: F32, BF16 or U8 where there are moments */
    int with_grad, moments;
    struct params_arenas arenas;
};
void params_lay(struct params *p, const struct params_lay_args *a);
void params_lay_grad(struct params *p, void *grad); /* with `overlaid`: where; NULL: counting */

/* A unit of which `grad` has nothing. Elements that it has of the others: all, or this rank's parts. */
static inline bool params_sparse(const struct params *p, int unit) { return p->sparse && p->units[unit].of > 0; }
static inline int64_t params_grads(const struct params *p) { return p->zero < 2 ? p->summed : p->summed / p->shards; }
static inline bool params_host_master(const struct params *p) { return p->host_state && p->dt == DTYPE_BF16 && !p->masterless; }
static inline bool params_halves(const struct params *p) { return p->dt == DTYPE_BF16 && !params_host_master(p); } /* `low` may be lost */
static inline bool params_copies(const struct params *p) { return p->zero || p->dt == DTYPE_BF16; } /* else a derived F32 copy is the master */
static inline float *params_f32(const struct params *p, int row) { return (float *)p->derived[DERIVED_F32].data + p->rows[row].derived_at[DERIVED_F32]; }
static inline int64_t params_room(const struct param *row)
{
    const int64_t room = row->room > row->count ? row->room : row->count;
    return (room + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
}
static inline int64_t params_slices(const struct params *p) { return p->slices ? p->slices : 1; }
static inline status params_enter(const struct params *p, int64_t unit, enum unit_use use)
{
    return p->hooks ? p->hooks->enter(p->hooks->ctx, (int)unit, use) : STATUS_OK;
}
static inline status params_leave(const struct params *p, int64_t unit)
{
    return p->hooks ? p->hooks->leave(p->hooks->ctx, (int)unit) : STATUS_OK;
}

/* NULL for a row whose unit is elsewhere. */
static inline void *params_weight(const struct params *p, int row)
{
    const struct param *r = &p->rows[row];
    const struct param_unit *u = &p->units[r->unit];
    return u->weight ? (char *)u->weight + (size_t)(r->offset - u->begin) * dtype_bytes(p->dt) : NULL;
}
/* A weight [out, in] as the operand b of a linear's GEMMs: y = x W^T reads it transposed, dx = dy W as it is. */
static inline struct operand params_operand(const struct params *p, int row, enum gemm_pass pass)
{
    return operand_at(params_weight(p, row), p->dt, pass == GEMM_FWD);
}
static inline void *params_grad(const struct params *p, int row)
{
    const struct param *r = &p->rows[row];
    const struct param_unit *u = &p->units[r->unit];
    return u->grad ? (char *)u->grad + (size_t)(r->offset - u->begin) * dtype_bytes(dtype_acc(p->dt)) : NULL;
}
static inline void *params_master(const struct params *p, int row) /* without ZeRO; not of halves */
{
    const struct param *r = &p->rows[row];
    return p->master && p->units[r->unit].here ? (char *)p->master + (size_t)r->offset * dtype_bytes(dtype_acc(p->dt)) : NULL;
}
static inline void *params_exact(const struct params *p, int row)
{
    return params_copies(p) ? params_f32(p, row) : params_master(p, row);
}
#endif
