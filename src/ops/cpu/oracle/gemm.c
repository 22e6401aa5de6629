#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"

/* Tiles of c, and slices of k, are converted to doubles on the stack: each element is loaded once per tile,
 * not once per GEMM. */
enum { TILE = 32, SLICE = 128 };

struct tile {
    double a[TILE][SLICE], b[SLICE][TILE], c[TILE][TILE];
};

/* c += a b over k in [k0, k1), in ascending order. */
static void tile_add(const struct gemm_args *g, struct tile *t, struct span rows, struct span cols,
                     struct span ks)
{
    for (int64_t i = rows.begin; i < rows.end; i++)
        for (int64_t k = ks.begin; k < ks.end; k++)
            t->a[i - rows.begin][k - ks.begin] =
                get(g->a.data, g->a.trans ? k * g->m + i : i * g->k + k, g->a.dt);
    for (int64_t k = ks.begin; k < ks.end; k++)
        for (int64_t j = cols.begin; j < cols.end; j++)
            t->b[k - ks.begin][j - cols.begin] =
                get(g->b.data, g->b.trans ? j * g->k + k : k * g->n + j, g->b.dt);
    const int64_t n = cols.end - cols.begin;
    for (int64_t i = 0; i < rows.end - rows.begin; i++)
        for (int64_t k = 0; k < ks.end - ks.begin; k++) {
            const double *b = t->b[k],
                         a = t->a[i][k]; /* pointers: sanitizers check each index of an array of arrays */
            double *c = t->c[i];
            for (int64_t j = 0; j < n; j++) c[j] += a * b[j];
        }
}

static void tile_store(const struct gemm_args *g, const struct tile *t, struct span rows, struct span cols)
{
    const double scale = gemm_fp8(g) ? (double)*g->a.scale * (double)*g->b.scale : 1;
    for (int64_t i = rows.begin; i < rows.end; i++)
        for (int64_t j = cols.begin; j < cols.end; j++) {
            double v = t->c[i - rows.begin][j - cols.begin] * scale;
            if (gemm_bias(g)) v += get(gemm_bias(g), j, gemm_bias_dt(g));
            if (g->accum == ACCUM_ADD) v += get(g->c, i * g->n + j, g->cdt);
            if (gemm_addend(g)) v += get(gemm_addend(g), i * g->n + j, g->cdt);
            put(g->c, i * g->n + j, g->cdt, v);
        }
}

static bool supports(const struct gemm_args *g, dev_stream s)
{
    (void)s;
    switch (g->epilogue.kind) {
    case EPILOGUE_NONE:
    case EPILOGUE_BIAS:
    case EPILOGUE_ADD: return true;
    case EPILOGUE_SWIGLU_FWD:
    case EPILOGUE_SWIGLU_BWD:
    case EPILOGUE_ROPE: break;
    }
    return false;
}

static void check_types(const struct gemm_args *g)
{
    if (gemm_fp8(g)) {
        CHECK(g->a.scales == SCALES_TENSOR, "codes with scales of blocks: decode them first");
        CHECK(!g->a.trans && g->b.trans, "FP8 operands that are not contiguous along k");
        CHECK(g->cdt == DTYPE_BF16 || g->cdt == DTYPE_F32, "FP8 GEMM into %s", dtype_name(g->cdt));
        CHECK(g->accum == ACCUM_STORE || g->cdt == DTYPE_F32, "accumulates in %s", dtype_name(g->cdt));
        return;
    }
    check_dt(gemm_dt(g));
    CHECK(g->cdt == g->a.dt || g->cdt == dtype_acc(g->a.dt), "%s GEMM into %s", dtype_name(g->a.dt),
          dtype_name(g->cdt));
    CHECK(g->accum == ACCUM_STORE || g->cdt == dtype_acc(g->a.dt), "accumulates in %s", dtype_name(g->cdt));
}

static status gemm(const struct gemm_args *g, dev_stream s)
{
    (void)s;
    check_types(g);
    CHECK(supports(g, s), "the oracle fuses no such epilogue");
    CHECK(g->m >= 0 && g->n >= 0 && g->k >= 0, "m %lld n %lld k %lld", (long long)g->m, (long long)g->n,
          (long long)g->k);
    int64_t across = chunk_count(g->n, TILE);
    PARALLEL_CHUNKS(c, chunk_count(g->m, TILE) * across)
    {
        struct span rows = chunk_span(c / across, g->m, TILE), cols = chunk_span(c % across, g->n, TILE);
        struct tile t = {0};
        for (int64_t slice = 0; slice < chunk_count(g->k, SLICE); slice++)
            tile_add(g, &t, rows, cols, chunk_span(slice, g->k, SLICE));
        tile_store(g, &t, rows, cols);
    }
    return STATUS_OK;
}

static status bias_bwd(const struct bias_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    dtype acc = dtype_acc(a->dt);
    PARALLEL_CHUNKS(j, a->n)
    {
        double sum = 0;
        for (int64_t r = 0; r < a->rows; r++) sum += get(a->dy, r * a->n + j, a->dt);
        put(a->db, j, acc, get(a->db, j, acc) + sum);
    }
    return STATUS_OK;
}

void oracle_gemm(struct ops *o)
{
    o->gemm = gemm;
    o->gemm_supports = supports;
    o->bias_bwd = bias_bwd;
}
