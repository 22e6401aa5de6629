/* Declarations shared by the files of ops/cuda. C and C++: the .cu files include it through device.cuh. */
#ifndef INGOT_OPS_CUDA_SET_H
#define INGOT_OPS_CUDA_SET_H
#include "ops/cuda/ops_cuda.h"

struct gemm_choices;    /* gemm_cublaslt.c */
struct sdpa;            /* attn_cudnn.c: cuDNN's handle and plans */
struct attn_choices;    /* ops/cuda/attn.c: the backend of each shape */

/* The set's state on one stream: stream.ops. */
struct cuda_set {
    struct cuda_options options;
    int sm, multiprocessors;
    void *workspace;            /* shared by all ops of the stream, one at a time; 256-byte aligned */
    size_t workspace_bytes;
    void *tensor_map_encode;    /* the driver's cuTensorMapEncodeTiled (tile_sm90.cuh); NULL before CUDA 12.0 */
    struct gemm_choices *gemm;
    struct sdpa *sdpa;
    struct attn_choices *attn;
};
static inline struct cuda_set *cuda_set(dev_stream s) { return (struct cuda_set *)s->ops; }

/* Call it after a launch: returns the launch error or, with stream.sync, the execution error. `op` is a literal. */
status cuda_set_launched(dev_stream s, const char *op) WARN_UNUSED;
/* The first `bytes` of the workspace, for one op. The workspace has CUDA_WORKSPACE bytes plus 64 per token; asking
 * for more is a CHECK. */
enum { CUDA_WORKSPACE = 64 << 20 };
void *cuda_set_workspace(dev_stream s, size_t bytes, const char *op);
/* The libraries open with the stream. */
/* GEMMs with fused SwiGLU and RoPE epilogues (gemm_epilogue_sm90.cu). */
bool cuda_gemm_fused_supports(const struct gemm_args *a, dev_stream s);
status cuda_gemm_fused(const struct gemm_args *a, dev_stream s) WARN_UNUSED;
/* ops.quantize, for ops whose operands are not at 16 bytes (fp8.cu). */
status cuda_quantize(const struct quantize_args *a, dev_stream s) WARN_UNUSED;
/* out[0] = a[0] b[0], out[1] = beta: a GEMM's factors in device memory (blocks.cu). */
void cuda_block_factors(const float *a, const float *b, float beta, float *out, dev_stream s);
status cuda_gemm_open(struct cuda_set *set) WARN_UNUSED;
void cuda_gemm_close(struct cuda_set *set);
status cuda_sdpa_open(struct cuda_set *set, dev_stream s) WARN_UNUSED;
void cuda_sdpa_close(struct cuda_set *set);
void cuda_attn_close(struct cuda_set *set);
/* ops.attn_scratch of a GPU; sm 0: of any GPU. */
typedef size_t attn_scratch_fn(const struct attn_shape *shape, enum attn_pass pass);
attn_scratch_fn *cuda_attn_scratch(const struct cuda_options *options, int sm);

/* Each file fills its own slots. */
/* clang-format off */
#define CUDA_FILES(X) \
    X(gemm) X(norm) X(rope) X(act) X(embed) X(tokens) X(loss) X(optim) X(muon) X(fold) X(normal) \
    X(attn) X(mla) X(fp8) X(blocks) X(generate) \
    X(gdn) \
    X(moe)
/* clang-format on */
#define X(file) void cuda_##file##_slots(struct ops *o);
CUDA_FILES(X)
#undef X
#endif
