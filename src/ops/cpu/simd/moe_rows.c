/* The ops around the expert GEMMs: the activation with the slot's weight, and sums over a token's slots. Sorted rows
 * are independent; a token's rows are added in the order of its choices. */
#include "base/parallel.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"

enum { GRAIN = 16384 }; /* elements of a chunk */

static void check_dt(dtype dt)
{
    CHECK(dt == DTYPE_F32 || dt == DTYPE_BF16, "dtype %s", dtype_name(dt));
}

static int64_t row_grain(int64_t width)
{
    return width < GRAIN ? GRAIN / (width > 0 ? width : 1) : 1;
}

static void clear(void *rows, int64_t at, int64_t count, dtype dt)
{
    memset((char *)rows + (size_t)at * dtype_bytes(dt), 0, (size_t)count * dtype_bytes(dt));
}

/* w silu(gate) up: both passes compute it here, so they have the same bits. */
VEC_INLINE vf weighted(vf silu, vf up, vf w)
{
    return vec_rounded(silu * up) * w;
}

VEC_INLINE void act_row(const struct expert_act_fwd_args *a, int64_t r, vf w, dtype dt)
{
    const int64_t gates = 2 * r * a->f, ups = gates + a->f;
    for (int64_t j = 0; j < a->f; j += VEC) {
        const int n = vec_n(a->f - j);
        const vf gate = vec_load(a->up, gates + j, n, dt),
                 silu = vec_rounded(gate * vec_sigmoid(vec_clamp(gate, -SIGMOID_END, SIGMOID_END)).yes);
        vec_store(a->m, r * a->f + j, n, dt, weighted(silu, vec_load(a->up, ups + j, n, dt), w));
    }
}

static status expert_act_fwd(const struct expert_act_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const int64_t grain = row_grain(a->f), rows_all = a->offsets[a->experts];
    PARALLEL_CHUNKS(c, chunk_count(rows_all, grain))
    {
        const struct span rows = chunk_span(c, rows_all, grain);
        for (int64_t r = rows.begin; r < rows.end; r++) {
            const int32_t slot = a->source[r];
            if (slot < 0)
                clear(a->m, r * a->f, a->f, a->dt);
            else if (a->dt == DTYPE_F32)
                act_row(a, r, vec_set(((const float *)a->weight)[slot]), DTYPE_F32);
            else
                act_row(a, r, vec_set(((const float *)a->weight)[slot]), DTYPE_BF16);
        }
    }
    return cpu_expert_act_fwd_codes(a);
}

/* Returns the gradient of the weight. */
VEC_INLINE float act_bwd_row(const struct expert_act_bwd_args *a, int64_t r, vf w, dtype dt)
{
    const int64_t gates = 2 * r * a->f, ups = gates + a->f;
    vf dw = {0};
    for (int64_t j = 0; j < a->f; j += VEC) {
        const int n = vec_n(a->f - j);
        const vf gate = vec_load(a->up, gates + j, n, dt), up = vec_load(a->up, ups + j, n, dt),
                 dm = vec_load(a->dm, r * a->f + j, n, dt);
        const struct vec_sigmoid sg = vec_sigmoid(vec_clamp(gate, -SIGMOID_END, SIGMOID_END));
        const vf silu = vec_rounded(gate * sg.yes), slope = sg.yes + silu * sg.no;
        dw += dm * silu * up; /* past the end of a row dm is 0 */
        vec_store(a->dup, gates + j, n, dt, w * dm * up * slope);
        vec_store(a->dup, ups + j, n, dt, w * dm * silu);
        vec_store(a->m, r * a->f + j, n, dt, weighted(silu, up, w));
    }
    return vec_sum(dw);
}

static status expert_act_bwd(const struct expert_act_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const int64_t grain = row_grain(a->f), rows_all = a->offsets[a->experts];
    PARALLEL_CHUNKS(c, chunk_count(rows_all, grain))
    {
        const struct span rows = chunk_span(c, rows_all, grain);
        for (int64_t r = rows.begin; r < rows.end; r++) {
            const int32_t slot = a->source[r];
            if (slot < 0) {
                clear(a->dup, 2 * r * a->f, 2 * a->f, a->dt);
                clear(a->m, r * a->f, a->f, a->dt);
                continue;
            }
            const vf w = vec_set(((const float *)a->weight)[slot]);
            ((float *)a->dweight)[slot] =
                a->dt == DTYPE_F32 ? act_bwd_row(a, r, w, DTYPE_F32) : act_bwd_row(a, r, w, DTYPE_BF16);
        }
    }
    return cpu_expert_act_bwd_codes(a);
}

VEC_INLINE float gate_of(const void *gate, int64_t t)
{
    const vf z = vec_set(((const float *)gate)[t]);
    return vec_top(vec_sigmoid(vec_clamp(z, -SIGMOID_END, SIGMOID_END)).yes);
}

VEC_INLINE void combine_row(const struct combine_args *a, int64_t t, float gate, dtype dt, dtype base_dt)
{
    const int32_t *place = a->place + t * a->top_k;
    for (int64_t i = 0; i < a->d; i += VEC) {
        const int n = vec_n(a->d - i);
        vf sum = {0};
        if (a->base) sum = vec_rounded(vec_load(a->base, t * a->d + i, n, base_dt) * gate);
        for (int64_t j = 0; j < a->top_k; j++)
            if (place[j] >= 0) sum += vec_load(a->x, place[j] * a->d + i, n, dt);
        vec_store(a->y, t * a->d + i, n, dt, sum);
    }
}

static status combine(const struct combine_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->base_dt == a->dt || a->base_dt == DTYPE_F32, "%s with a base of %s", dtype_name(a->dt),
          dtype_name(a->base_dt));
    const int64_t grain = row_grain(a->d * (a->top_k + 1)), count = a->count ? *a->count : a->rows;
    PARALLEL_CHUNKS(c, chunk_count(count, grain))
    {
        const struct span rows = chunk_span(c, count, grain);
        for (int64_t t = rows.begin; t < rows.end; t++) {
            const float gate = a->gate ? gate_of(a->gate, t) : 1;
            if (a->dt == DTYPE_F32)
                combine_row(a, t, gate, DTYPE_F32, DTYPE_F32);
            else if (a->base_dt == DTYPE_F32)
                combine_row(a, t, gate, DTYPE_BF16, DTYPE_F32);
            else
                combine_row(a, t, gate, DTYPE_BF16, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

VEC_INLINE float combine_gate_bwd_row(const struct combine_gate_bwd_args *a, int64_t t, float gate, dtype dt)
{
    vf along = {0};
    for (int64_t i = 0; i < a->d; i += VEC) {
        const int n = vec_n(a->d - i);
        const vf dy = vec_load(a->dy, t * a->d + i, n, dt);
        along += dy * vec_load(a->base, t * a->d + i, n, dt);
        vec_store(a->dbase, t * a->d + i, n, dt, gate * dy);
    }
    return vec_sum(along);
}

static status combine_gate_bwd(const struct combine_gate_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const int64_t grain = row_grain(a->d);
    PARALLEL_CHUNKS(c, chunk_count(a->rows, grain))
    {
        const struct span rows = chunk_span(c, a->rows, grain);
        for (int64_t t = rows.begin; t < rows.end; t++) {
            const float gate = gate_of(a->gate, t),
                        along = a->dt == DTYPE_F32 ? combine_gate_bwd_row(a, t, gate, DTYPE_F32)
                                                   : combine_gate_bwd_row(a, t, gate, DTYPE_BF16);
            const float dgate = along * gate * (1 - gate);
            if (a->dt == DTYPE_F32)
                ((float *)a->dgate)[t] = dgate;
            else
                ((bf16 *)a->dgate)[t] = bf16_from_f32(dgate);
        }
    }
    return STATUS_OK;
}

void SIMD(simd_moe_rows)(struct ops *o)
{
    o->expert_act_fwd = expert_act_fwd;
    o->expert_act_bwd = expert_act_bwd;
    o->combine = combine;
    o->combine_gate_bwd = combine_gate_bwd;
}
