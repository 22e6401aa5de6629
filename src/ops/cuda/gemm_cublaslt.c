/* GEMMs through cuBLASLt, each with an algorithm that was timed once.
 *
 * Row-major c [m, n] is column-major c^T [n, m], so cuBLASLt computes c^T = op(b)^T op(a)^T: its A is our b, its B
 * our a, its m our n. A forward GEMM (trans_b) is its TN, dgrad its NN, wgrad (trans_a) its NT. A bias [n] runs along
 * the rows of c^T, as the BIAS epilogue requires. FP8 GEMMs are all TN: the only form of the library on Hopper.
 *
 *   key      shape, transpositions, types, accumulation, and alignment classes of the pointers (256, 16, less)
 *   table    key -> descriptors and algorithm, created at the key's first GEMM; later calls are a lookup and cublasLtMatmul
 *   choice   from the checkpoint's record, else the cache file, else gemm_cublaslt_search.c; never during graph capture
 *
 * An algorithm determines the order of the sums, and so the last bits: runs are bit-identical if they use the same
 * choices. Timing may choose differently the next time, or on another rank. Three mechanisms fix the choice: the
 * cache file, where the first of several ranks that time a GEMM decides for all before any rank uses it; the record
 * in checkpoints; and cuda_options.gemm_candidates = 1 (the library's first proposal, untimed). No rank waits for
 * another's timing, because work queued on that GPU may itself wait for this rank. Algorithms whose reductions round
 * partial sums to the type of c are excluded.
 *
 * GEMMs that the library does not support use the kernel of gemm_plain.cu: also FP8 on GPUs without FP8 tensor cores,
 * and FP8 shapes that are no multiples of 16. On an H200 dgrad (NN) alone reaches 696
 * TFLOP/s and forward (TN) 788 on the same sizes, but at the power limit both have 640 to 680: a transposed copy of
 * the weights would gain nothing. */
#include "dev/cuda/cuda_int.h"
#include "ops/cuda/gemm_cublaslt_int.h"
#include "ops/cuda/gemm_plain.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ keys and descriptors */

/* The largest power of two that divides the address, in classes: arena alignment, vector access and TMA, the
 * rest. */
static uint16_t alignment(const void *p)
{
    uintptr_t at = (uintptr_t)p, low = at & -at;
    if (low == 0 || low >= 256) return 256;
    return low >= 16 ? 16 : (uint16_t)low;
}

/* The library's epilogue adds a bias of c's type (FP8: BF16) with vector alignment; any other is added by a kernel. */
static bool bias_in_epilogue(const struct gemm_args *g)
{
    return gemm_bias(g) && (gemm_fp8(g) || g->cdt == g->a.dt) && alignment(gemm_bias(g)) >= 16;
}

/* The library's name for the scales of an operand. */
static uint8_t scale_mode(const struct operand *o)
{
    if (o->scales != SCALES_BLOCKS) return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    if (o->format == BLOCKS_MX) return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    if (o->format == BLOCKS_NV) return CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    CHECK(o->format == BLOCKS_B128, "scales of blocks in format %d", (int)o->format);
    return o->square ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
}

static struct gemm_key key_of(const struct gemm_args *g, enum cuda_math math)
{
    return (struct gemm_key){.m = g->m,
                             .n = g->n,
                             .k = g->k,
                             .trans_a = g->a.trans,
                             .trans_b = g->b.trans,
                             .dt = (uint8_t)g->a.dt,
                             .cdt = (uint8_t)g->cdt,
                             .add = gemm_addend(g) ? 2 : g->accum == ACCUM_ADD,
                             .tf32 = g->a.dt == DTYPE_F32 && math == CUDA_MATH_TF32,
                             .bias = gemm_bias(g) ? alignment(gemm_bias(g)) : 0,
                             .align = {alignment(g->a.data), alignment(g->b.data), alignment(g->c),
                                       gemm_addend(g) ? alignment(gemm_addend(g)) : 0},
                             .dt_b = (uint8_t)g->b.dt,
                             .fast = gemm_fp8(g) && g->a.scales == SCALES_TENSOR && g->fast_accum,
                             .scales = (uint8_t)(8 * scale_mode(&g->a) + scale_mode(&g->b))};
}

static cudaDataType_t lt_type(uint8_t dt)
{
    switch ((dtype)dt) {
    case DTYPE_BF16: return CUDA_R_16BF;
    case DTYPE_F32: return CUDA_R_32F;
    case DTYPE_F8_E4M3: return CUDA_R_8F_E4M3;
    case DTYPE_F8_E5M2: return CUDA_R_8F_E5M2;
    case DTYPE_U8: return CUDA_R_4F_E2M1; /* two codes */
    case DTYPE_F64:
    case DTYPE_F16:
    case DTYPE_I64:
    case DTYPE_I32:
    case DTYPE_U16:
    case DTYPE_COUNT: break;
    }
    CHECK(false, "cuBLASLt is not used for %s", dtype_name((dtype)dt));
    return CUDA_R_32F;
}

static void close_descriptors(struct gemm_entry *e)
{
    if (e->op) (void)cublasLtMatmulDescDestroy(e->op);
    if (e->la) (void)cublasLtMatrixLayoutDestroy(e->la);
    if (e->lb) (void)cublasLtMatrixLayoutDestroy(e->lb);
    if (e->lc) (void)cublasLtMatrixLayoutDestroy(e->lc);
    e->op = NULL;
    e->la = e->lb = e->lc = NULL;
}

static status open_layouts(struct gemm_entry *e)
{
    const struct gemm_key *k = &e->choice.key;
    const uint64_t m = (uint64_t)k->m, n = (uint64_t)k->n, depth = (uint64_t)k->k;
    const cudaDataType_t in = lt_type(k->dt), in_b = lt_type(k->dt_b), out = lt_type(k->cdt);
    if (k->trans_b)
        TRY_LT(cublasLtMatrixLayoutCreate(&e->la, in_b, depth, n, k->k));
    else
        TRY_LT(cublasLtMatrixLayoutCreate(&e->la, in_b, n, depth, k->n));
    if (k->trans_a)
        TRY_LT(cublasLtMatrixLayoutCreate(&e->lb, in, m, depth, k->m));
    else
        TRY_LT(cublasLtMatrixLayoutCreate(&e->lb, in, depth, m, k->k));
    TRY_LT(cublasLtMatrixLayoutCreate(&e->lc, out, n, m, k->n));
    return STATUS_OK;
}

/* Scales in device memory: one value per operand, or those of its blocks. */
static cublasStatus_t set_scales(const struct gemm_entry *e, const void *a, const void *b)
{
    const cublasStatus_t st =
        cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b, sizeof b);
    if (st != CUBLAS_STATUS_SUCCESS) return st;
    return cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a, sizeof a);
}

static status open_fp8(const struct gemm_entry *e)
{
    const int8_t fast = (int8_t)e->choice.key.fast;
    const void *any = (const void *)(uintptr_t)256; /* until a call sets its own pointers */
    const int32_t mode_a = e->choice.key.scales / 8, mode_b = e->choice.key.scales % 8;
    TRY_LT(cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
    if (e->choice.key.scales) {
        TRY_LT(
            cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode_b, sizeof mode_b));
        TRY_LT(
            cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode_a, sizeof mode_a));
    }
    if (e->choice.key.dt == DTYPE_U8) { /* alpha is the product of both tensors' scales */
        const int32_t device = CUBLASLT_POINTER_MODE_DEVICE;
        TRY_LT(
            cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_POINTER_MODE, &device, sizeof device));
    }
    TRY_LT(set_scales(e, any, any));
    return STATUS_OK;
}

static status open_operation(struct gemm_entry *e)
{
    const struct gemm_key *k = &e->choice.key;
    const cublasOperation_t ta = k->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                            tb = k->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    TRY_LT(cublasLtMatmulDescCreate(&e->op, k->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                    CUDA_R_32F));
    TRY_LT(cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta));
    TRY_LT(cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb));
    if (gemm_key_fp8(k)) TRY(open_fp8(e));
    if (k->bias) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        const int32_t type = gemm_key_fp8(k) ? CUDA_R_16BF : lt_type(k->dt);
        /* Until a call sets its own pointer. Heuristics and checks read only its alignment. */
        const void *aligned = (const void *)(uintptr_t)k->bias;
        TRY_LT(
            cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
        TRY_LT(
            cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
        TRY_LT(cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned,
                                              sizeof aligned));
    }
    return STATUS_OK;
}

/* ------------------------------------------------------------------ the table */

static uint64_t hash_of(const struct gemm_key *key)
{
    uint64_t words[sizeof *key / sizeof(uint64_t)], h = 0;
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return h;
}

/* The slot of the key, or the empty slot for it. */
static struct gemm_entry *slot_of(const struct gemm_choices *t, const struct gemm_key *key)
{
    const uint64_t mask = (uint64_t)t->capacity - 1;
    uint64_t at = hash_of(key) & mask;
    while (t->table[at].taken && memcmp(&t->table[at].choice.key, key, sizeof *key) != 0)
        at = (at + 1) & mask;
    return &t->table[at];
}

static status make_room(struct gemm_choices *t)
{
    if (2 * (t->count + 1) <= t->capacity) return STATUS_OK;
    struct gemm_choices larger = *t;
    larger.capacity = t->capacity ? 2 * t->capacity : 64;
    larger.table = calloc((size_t)larger.capacity, sizeof *larger.table);
    if (larger.table == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d GEMMs", larger.capacity);
    for (int i = 0; i < t->capacity; i++)
        if (t->table[i].taken) *slot_of(&larger, &t->table[i].choice.key) = t->table[i];
    free(t->table);
    *t = larger;
    return STATUS_OK;
}

/* ------------------------------------------------------------------ finding a choice */

/* Adopts a choice from a file if the library still accepts it. */
static bool take_known(const struct gemm_choices *t, struct gemm_entry *e, const struct gemm_choice *known)
{
    if (known == NULL) return false;
    e->choice = *known;
    if (known->way == GEMM_UNFUSED) return gemm_key_unfuses(&e->choice.key);
    if (known->way == GEMM_PLAIN) return true;
    _Static_assert(sizeof e->algo == GEMM_ALGO_BYTES, "cublasLtMatmulAlgo_t is 64 bytes");
    cublasLtMatmulHeuristicResult_t result;
    memcpy(&e->algo, known->algo, sizeof e->algo);
    return cublasLtMatmulAlgoCheck(t->lt, e->op, e->la, e->lb, e->lc, e->lc, &e->algo, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= GEMM_WORKSPACE;
}

static status refuse_in_capture(const struct gemm_key *k, dev_stream s)
{
    enum cudaStreamCaptureStatus capturing;
    TRY_CUDA(cudaStreamIsCapturing(cuda_queue(s), &capturing));
    if (capturing == cudaStreamCaptureStatusNone) return STATUS_OK;
    return FAIL(STATUS_INTERNAL,
                "the GEMM %lld x %lld x %lld (%s) has no algorithm yet, and a graph is being captured: "
                "run the same step once before capturing it",
                (long long)k->m, (long long)k->n, (long long)k->k, dtype_name((dtype)k->dt));
}

bool cuda_gemm_inherit(const struct gemm_choices *t, struct gemm_entry *e)
{
    struct gemm_key stored = e->choice.key;
    stored.add = 0;
    const struct gemm_entry *other = slot_of(t, &stored);
    struct gemm_choice same = other->choice;
    if (!other->taken || same.way != GEMM_LIBRARY) return false;
    same.key = e->choice.key;
    return take_known(t, e, &same);
}

/* With one candidate nothing is timed: there is nothing to save, and another process may have saved another
 * algorithm. */
static const char *cache_file(const struct cuda_set *set)
{
    return set->options.gemm_candidates == 1 ? NULL : set->options.gemm_cache;
}

/* Saves what was found, or adopts what another process has saved meanwhile. */
static void settle(struct gemm_choices *t, struct gemm_entry *e, const char *file)
{
    const struct gemm_entry found = *e;
    const struct gemm_choice *old = gemm_choice_find(&t->cached, &e->choice.key);
    struct gemm_choice choice = e->choice;
    if (gemm_choice_file_settle(&choice, old, &t->here, file) != STATUS_OK) {
        log_warn("algorithms of GEMMs that are chosen from here on are not kept: %s", status_message());
        t->unkept = true; /* waits only once for a lock that is held for long */
    } else if (!take_known(t, e, &choice)) {
        *e = found;
    }
}

static status choose(struct gemm_choices *t, struct gemm_entry *e, const struct gemm_args *g, dev_stream s)
{
    const struct gemm_key key = e->choice.key;
    TRY(open_layouts(e));
    TRY(open_operation(e));
    const int32_t sms = cuda_set(s)->options.gemm_sms;
    if (sms > 0)
        TRY_LT(cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sms, sizeof sms));
    const struct gemm_choice *recorded = gemm_choice_find(&t->recorded, &key);
    if (take_known(t, e, recorded)) return STATUS_OK;
    if (recorded)
        log_warn("cuBLASLt refuses the recorded algorithm of the GEMM %lld x %lld x %lld: results may "
                 "differ in their last bits",
                 (long long)key.m, (long long)key.n, (long long)key.k);
    if (take_known(t, e, gemm_choice_find(&t->cached, &key))) return STATUS_OK;
    TRY(refuse_in_capture(&key, s));
    e->choice = (struct gemm_choice){.key = key};
    TRY(cuda_gemm_search(t, e, g, s));
    if (cache_file(cuda_set(s)) && !t->unkept) settle(t, e, cache_file(cuda_set(s)));
    return STATUS_OK;
}

/* The GEMM's entry, created on the first call; valid until the next call. */
static status entry_of(const struct gemm_args *g, dev_stream s, const struct gemm_entry **out)
{
    struct gemm_choices *t = cuda_set(s)->gemm;
    const struct gemm_key key = key_of(g, cuda_set(s)->options.math);
    struct gemm_entry *slot = slot_of(t, &key);
    if (!slot->taken) {
        struct gemm_entry fresh = {.taken = true, .choice = {.key = key}};
        status st = choose(t, &fresh, g, s);
        if (st == STATUS_OK) st = make_room(t);
        if (st != STATUS_OK) {
            close_descriptors(&fresh);
            return st;
        }
        slot = slot_of(t, &key);
        *slot = fresh;
        t->count++;
    }
    *out = slot;
    return STATUS_OK;
}

/* ------------------------------------------------------------------ the op */

static const void *scales_of(const struct operand *o)
{
    return o->scales == SCALES_BLOCKS ? o->blocks : o->scale;
}

cublasStatus_t cuda_gemm_launch(const struct gemm_choices *t, const struct gemm_entry *e,
                                const cublasLtMatmulAlgo_t *algo, const struct gemm_args *g, void *c,
                                dev_stream s)
{
    const float one = 1, beta = gemm_addend(g) || g->accum == ACCUM_ADD ? 1 : 0;
    const float *factors[2] = {&one, &beta};
    const void *addend = gemm_addend(g) ? gemm_addend(g) : g->c;
    const void *bias = gemm_bias(g);
    if (gemm_fp8(g)) {
        cublasStatus_t st = set_scales(e, scales_of(&g->a), scales_of(&g->b));
        if (st != CUBLAS_STATUS_SUCCESS) return st;
    }
    if (e->choice.key.dt == DTYPE_U8) {
        float *to = (float *)((char *)cuda_set_workspace(s, CUDA_WORKSPACE, "gemm") + CUDA_WORKSPACE) - 2;
        cuda_block_factors(g->a.scale, g->b.scale, beta, to, s); /* a failure shows at the GEMM's launch */
        factors[0] = to, factors[1] = to + 1;
    }
    if (bias) {
        cublasStatus_t st =
            cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
        if (st != CUBLAS_STATUS_SUCCESS) return st;
    }
    return cublasLtMatmul(t->lt, e->op, factors[0], g->b.data, e->la, g->a.data, e->lb, factors[1], addend,
                          e->lc, c, e->lc, algo, cuda_set_workspace(s, GEMM_WORKSPACE, "gemm"),
                          GEMM_WORKSPACE, cuda_queue(s));
}

/* What a GEMM rounds its result to, unless to F32. */
static dtype checked_dt(const struct gemm_args *g)
{
    if (!gemm_fp8(g)) {
        CHECK(gemm_dt(g) == DTYPE_F32 || g->a.dt == DTYPE_BF16, "dtype %s", dtype_name(g->a.dt));
        return g->a.dt;
    }
    CHECK(!g->a.trans && g->b.trans, "FP8 operands that are not contiguous along k");
    CHECK(g->a.scales != SCALES_BLOCKS || g->a.format == g->b.format, "codes of two block formats");
    CHECK((g->a.dt == DTYPE_U8 && g->b.dt == DTYPE_U8 && g->a.scales == SCALES_BLOCKS) ||
              (g->a.dt == DTYPE_F8_E4M3 && g->b.dt == DTYPE_F8_E4M3) ||
              (g->a.dt == DTYPE_F8_E5M2 && g->b.dt == DTYPE_F8_E4M3) ||
              (g->a.dt == DTYPE_F8_E4M3 && g->b.dt == DTYPE_F8_E5M2),
          "FP8 GEMM of %s and %s", dtype_name(g->a.dt), dtype_name(g->b.dt));
    return DTYPE_BF16;
}

static void check_args(const struct gemm_args *g)
{
    const dtype dt = checked_dt(g);
    CHECK(g->m >= 0 && g->n >= 0 && g->k >= 0, "m %lld n %lld k %lld", (long long)g->m, (long long)g->n,
          (long long)g->k);
    CHECK(g->cdt == dt || g->cdt == DTYPE_F32, "%s GEMM into %s", dtype_name(g->a.dt), dtype_name(g->cdt));
    CHECK(g->accum == ACCUM_STORE || g->cdt == DTYPE_F32, "accumulates in %s", dtype_name(g->cdt));
    CHECK(!gemm_addend(g) || g->accum == ACCUM_STORE, "the residual add reads another array than c");
}

/* Epilogues of the library, and those of custom kernels. */
static bool by_library(enum epilogue_kind kind)
{
    switch (kind) {
    case EPILOGUE_NONE:
    case EPILOGUE_BIAS:
    case EPILOGUE_ADD: return true;
    case EPILOGUE_SWIGLU_FWD:
    case EPILOGUE_SWIGLU_BWD:
    case EPILOGUE_ROPE: break;
    }
    return false;
}

static bool gemm_supports(const struct gemm_args *g, dev_stream s)
{
    return by_library(g->epilogue.kind) || cuda_gemm_fused_supports(g, s);
}

/* The library refuses scales that are not at multiples of 16 bytes. */
static bool scales_fit(const struct gemm_args *g)
{
    return ((uintptr_t)scales_of(&g->a) | (uintptr_t)scales_of(&g->b)) % 16 == 0;
}

/* c = bias, addend or zeros; with ACCUM_ADD c += bias. What follows adds to c. */
static status begin_apart(const struct gemm_args *g, dev_stream s)
{
    if (gemm_addend(g) == NULL) return gemm_plain_bias(g, s);
    return dev_copy(s, g->c, gemm_addend(g), (size_t)(g->m * g->n) * dtype_bytes(g->cdt));
}

static status gemm(const struct gemm_args *g, dev_stream s)
{
    if (!by_library(g->epilogue.kind)) return cuda_gemm_fused(g, s);
    struct gemm_args p = *g;
    const struct gemm_entry *e = NULL;
    check_args(g);
    if (g->m == 0 || g->n == 0) return STATUS_OK;
    if (g->k == 0) return begin_apart(g, s); /* the empty sum */
    if (gemm_fp8(g) && !scales_fit(g)) {
        CHECK(g->a.scales == SCALES_TENSOR, "scales of blocks that are not at 16 bytes");
        return gemm_plain(g, s);
    }
    if (gemm_bias(g) == NULL || bias_in_epilogue(g)) TRY(entry_of(&p, s, &e));
    if (e == NULL || e->choice.way == GEMM_UNFUSED) {
        TRY(begin_apart(g, s));
        p.epilogue = (struct epilogue){.kind = EPILOGUE_NONE};
        p.accum = ACCUM_ADD;
        TRY(entry_of(&p, s, &e));
    }
    if (e->choice.way == GEMM_PLAIN && g->a.scales == SCALES_BLOCKS)
        return FAIL(STATUS_DEVICE,
                    "cuBLASLt has no GEMM %lld x %lld x %lld of codes with scales of blocks on %s: use "
                    "train.precision "
                    "fp8 with fp8.recipe bound",
                    (long long)g->m, (long long)g->n, (long long)g->k, s->dev->name);
    if (e->choice.way == GEMM_PLAIN) return gemm_plain(&p, s);
    const struct gemm_choices *t = cuda_set(s)->gemm;
    cublasStatus_t st = cuda_gemm_launch(t, e, &e->algo, &p, p.c, s);
    if (st != CUBLAS_STATUS_SUCCESS)
        return FAIL(STATUS_DEVICE, "the GEMM %lld x %lld x %lld on %s: %s (%s); %s", (long long)g->m,
                    (long long)g->n, (long long)g->k, s->dev->name, cublasLtGetStatusString(st),
                    cublasLtGetStatusName(st), cudaGetErrorString(cudaGetLastError()));
    return cuda_set_launched(s, "gemm");
}

/* The library's forms: 1 x 128 and 128 x 128 on Hopper alone; MX and NV from Blackwell on, which no one has tried here. */
static bool reads_blocks(enum block_format f, int64_t m, int64_t n, int64_t k, dev_stream s)
{
    const int sm = cuda_set(s)->sm;
    switch (f) {
    case BLOCKS_E4M3:
    case BLOCKS_E5M2: return sm >= 89 && m % 16 == 0 && n % 16 == 0 && k % 16 == 0;
    case BLOCKS_B128: return sm == 90 && m % 128 == 0 && n % 128 == 0 && k % 128 == 0;
    case BLOCKS_MX:
    case BLOCKS_NV: return sm >= 100 && m % 128 == 0 && n % 128 == 0 && k % 128 == 0;
    case BLOCK_FORMATS: break;
    }
    return false;
}

void cuda_gemm_slots(struct ops *o)
{
    o->reads_blocks = reads_blocks;
    o->gemm = gemm;
    o->gemm_supports = gemm_supports;
}

/* ------------------------------------------------------------------ the op set's part */

status cuda_gemm_open(struct cuda_set *set)
{
    int device;
    struct cudaDeviceProp prop;
    TRY(cuda_libs_open());
    TRY_CUDA(cudaGetDevice(&device));
    TRY_CUDA(cudaGetDeviceProperties(&prop, device));
    struct gemm_choices *t = set->gemm = calloc(1, sizeof *t);
    if (t == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the choices of GEMMs");
    TRY(make_room(t));
    TRY_LT(cublasLtCreate(&t->lt));
    gemm_choice_place(&t->here, prop.name, prop.multiProcessorCount, (int64_t)cublasLtGetVersion());
    if (cache_file(set) && gemm_choice_file_read(&t->cached, &t->here, cache_file(set)) != STATUS_OK)
        log_warn("algorithms of GEMMs are chosen anew: %s", status_message());
    return STATUS_OK;
}

void cuda_gemm_close(struct cuda_set *set)
{
    struct gemm_choices *t = set->gemm;
    if (t == NULL) return;
    for (int i = 0; i < t->capacity; i++) close_descriptors(&t->table[i]);
    if (t->begin.mark) (void)cudaEventDestroy((cudaEvent_t)t->begin.mark);
    if (t->end.mark) (void)cudaEventDestroy((cudaEvent_t)t->end.mark);
    if (t->lt) (void)cublasLtDestroy(t->lt);
    gemm_choice_free(&t->cached);
    gemm_choice_free(&t->recorded);
    free(t->table);
    free(t);
    set->gemm = NULL;
}

char *cuda_gemm_choices_text(dev_stream s)
{
    const struct gemm_choices *t = cuda_set(s)->gemm;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) return NULL;
    for (int i = 0; i < t->capacity; i++)
        if (t->table[i].taken) gemm_choice_print(out, &t->here, &t->table[i].choice);
    for (int i = 0; i < t->recorded.count;
         i++) /* for example an evaluation's, which this run has not reached yet */
        if (!slot_of(t, &t->recorded.items[i].key)->taken)
            gemm_choice_print(out, &t->here, &t->recorded.items[i]);
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}

status cuda_gemm_choices_load(dev_stream s, const char *text)
{
    struct gemm_choices *t = cuda_set(s)->gemm;
    struct gemm_choice_counts counts;
    TRY(gemm_choice_list_read(&t->recorded, &t->here, text, strlen(text), &counts));
    if (counts.damaged) return FAIL(STATUS_CKPT, "the record of GEMMs has %d damaged lines", counts.damaged);
    if (counts.used == 0 && counts.foreign > 0)
        log_warn("the algorithms of GEMMs were recorded on another GPU or with another cuBLASLt "
                 "than %s, %lld: they are chosen anew, and results may differ in their last bits",
                 t->here.gpu, (long long)t->here.library);
    return STATUS_OK;
}

/* "128x256" of c^T, for the tiles of large GEMMs; NULL: another. */
static const char *tile_name(uint32_t id)
{
#define TILE(size) [CUBLASLT_MATMUL_TILE_##size] = #size
    static const char *const names[] = {
        TILE(64x64),  TILE(128x32), TILE(64x128),  TILE(128x64),  TILE(64x256),  TILE(128x128),
        TILE(256x64), TILE(64x512), TILE(128x256), TILE(256x128), TILE(512x64),  TILE(64x96),
        TILE(96x64),  TILE(96x128), TILE(128x160), TILE(160x128), TILE(192x128), TILE(128x192),
        TILE(128x96), TILE(32x256), TILE(256x32)};
#undef TILE
    return id < sizeof names / sizeof names[0] ? names[id] : NULL;
}

const char *cuda_gemm_text(dev_stream s, const struct gemm_args *g, char *text, size_t size)
{
    static const cublasLtMatmulAlgoConfigAttributes_t wide[] = {
        CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID,
        CUBLASLT_ALGO_CONFIG_SPLITK_NUM};
    const struct gemm_key key = key_of(g, cuda_set(s)->options.math);
    const struct gemm_entry *e = slot_of(cuda_set(s)->gemm, &key);
    uint32_t value[4] = {0};
    uint16_t cluster = 0;
    size_t got;
    snprintf(text, size, "%s",
             !e->taken                     ? "none"
             : e->choice.way == GEMM_PLAIN ? "own kernel"
             : gemm_addend(g)              ? "addend apart"
                                           : "bias apart");
    if (!e->taken || e->choice.way != GEMM_LIBRARY) return text;
    for (int i = 0; i < 4; i++)
        (void)cublasLtMatmulAlgoConfigGetAttribute(&e->algo, wide[i], &value[i], sizeof value[i], &got);
    (void)cublasLtMatmulAlgoConfigGetAttribute(&e->algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster,
                                               sizeof cluster, &got);
    snprintf(text, size, "id %u tile %u stages %u split %u cluster %u", value[0], value[1], value[2],
             value[3], cluster);
    return text;
}
