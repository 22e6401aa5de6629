#include "ops/choose.h"

#include <stddef.h>

#if INGOT_CUDA
#include "ops/cuda/ops_cuda.h"

static status open_cuda(struct ops *o, struct stream *s, const struct choose_ops *c)
{
    static const enum cuda_attention backends[] = {[CHOOSE_ATTENTION_AUTO] = CUDA_ATTENTION_AUTO,
                                                   [CHOOSE_ATTENTION_CUDNN] = CUDA_ATTENTION_CUDNN,
                                                   [CHOOSE_ATTENTION_OWN] = CUDA_ATTENTION_OWN,
                                                   [CHOOSE_ATTENTION_REFERENCE] = CUDA_ATTENTION_REFERENCE};
    return ops_cuda(o, s,
                    &(struct cuda_options){.math = c->tf32 ? CUDA_MATH_TF32 : CUDA_MATH_FP32,
                                           .attention = backends[c->attention],
                                           .attention_atomic = c->attention_atomic,
                                           .sm = c->sm,
                                           .gemm_cache = c->gemm_cache});
}

void choose_close(struct stream *s)
{
    if (s && s->ops) ops_cuda_close(s);
}

void choose_workspace(struct stream *s, void *workspace, size_t bytes)
{
    if (s) ops_cuda_workspace(s, workspace, bytes);
}

char *choose_algorithms(struct stream *s)
{
    return s ? cuda_gemm_choices_text(s) : NULL;
}

status choose_algorithms_set(struct stream *s, const char *text)
{
    return s ? cuda_gemm_choices_load(s, text) : STATUS_OK;
}
#else
static status open_cuda(struct ops *o, struct stream *s, const struct choose_ops *c)
{
    (void)o, (void)s, (void)c;
    return FAIL(STATUS_DEVICE,
                "this ingot was built without CUDA; build it where nvcc is on PATH (cmake --preset cuda)");
}

void choose_close(struct stream *s)
{
    CHECK(s == NULL, "a stream in a build without devices");
}

void choose_workspace(struct stream *s, void *workspace, size_t bytes)
{
    (void)workspace, (void)bytes;
    CHECK(s == NULL, "a stream in a build without devices");
}

char *choose_algorithms(struct stream *s)
{
    CHECK(s == NULL, "a stream in a build without devices");
    return NULL;
}

status choose_algorithms_set(struct stream *s, const char *text)
{
    (void)text;
    CHECK(s == NULL, "a stream in a build without devices");
    return STATUS_OK;
}
#endif

status choose_open(struct ops *o, enum dev_kind kind, struct stream *s, const struct choose_ops *c)
{
    if (kind == DEV_CUDA) {
        if (c->isa)
            return FAIL(STATUS_CONFIG, "--isa is for the CPU; the device is a GPU (--machine.device=cpu)");
        TRY(open_cuda(o, s, c));
        return ops_check(o);
    }
    if (c->tf32)
        return FAIL(STATUS_CONFIG,
                    "train.precision=tf32 needs a GPU; the CPU computes fp32 in full: use fp32");
    if (c->attention != CHOOSE_ATTENTION_AUTO)
        return FAIL(STATUS_CONFIG,
                    "attention.backend chooses among a GPU's kernels; on the CPU leave it at auto");
    TRY(ops_cpu(o, c->isa));
    return ops_check(o);
}
