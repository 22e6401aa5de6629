// Ops on token ids: a thread for each row, which finds its document by bisection.
#include "ops/cuda/device.cuh"

namespace {

enum { THREADS = 256 };

// The first row behind the document of row t. Empty documents at the end all begin at `rows`.
__device__ inline int64_t document_end(const int32_t *cu, int64_t docs, int64_t t)
{
    int64_t low = 0, high = docs; // the document is in [low, high)
    while (high - low > 1) {
        const int64_t mid = (low + high) / 2;
        if (cu[mid] <= t)
            low = mid;
        else
            high = mid;
    }
    return cu[low + 1];
}

__global__ void __launch_bounds__(THREADS) ahead_kernel(const ahead_args a)
{
    const int64_t t = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (t >= a.rows) return;
    a.out[t] = t + a.k < document_end(a.cu_seqlens, a.docs, t) ? a.in[t + a.k] : a.none;
}

status ahead(const struct ahead_args *a, dev_stream s)
{
    CHECK(a->k >= 0 && a->out != a->in, "%lld tokens ahead", (long long)a->k);
    if (a->rows == 0) return STATUS_OK;
    ahead_kernel<<<unsigned((a->rows + THREADS - 1) / THREADS), THREADS, 0, queue_of(s)>>>(*a);
    return cuda_set_launched(s, "ahead");
}

// Engram and heads that halt have no kernels for a GPU yet: plan_lay refuses such models before a device is touched, and these slots
// whoever calls the ops themselves.
#define REFUSED(part, op)                                                                                                    \
    status op(const struct op##_args *, dev_stream)                                                                    \
    {                                                                                                                  \
        return FAIL(STATUS_CONFIG, part " runs on the CPU alone (machine.device: cpu): there is no " #op " on a GPU"); \
    }
REFUSED("engram", ngram)
REFUSED("engram", ngram_gate_fwd)
REFUSED("engram", ngram_gate_bwd)
REFUSED("model.hrm_halt", halt_fwd)
REFUSED("model.hrm_halt", halt_stop)
REFUSED("model.hrm_halt", halt_bwd)

} // namespace

extern "C" void cuda_tokens_slots(struct ops *o)
{
    o->ahead = ahead;
    o->ngram = ngram;
    o->ngram_gate_fwd = ngram_gate_fwd;
    o->ngram_gate_bwd = ngram_gate_bwd;
    o->halt_fwd = halt_fwd;
    o->halt_stop = halt_stop;
    o->halt_bwd = halt_bwd;
}
