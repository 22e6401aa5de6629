/* What calibrate.c and calibrate_measure.c share. */
#ifndef INGOT_BENCH_CALIBRATE_INT_H
#define INGOT_BENCH_CALIBRATE_INT_H
#include "bench/calibrate.h"
#include "ops/choose.h"
#include "plan/machine.h"

/*   name, function, its number, CPU and GPU */
#define WIDTHS(X, name, function, kinds)                                                                     \
    X(name##_256, function, 256, kinds)                                                                      \
    X(name##_512, function, 512, kinds)                                                                      \
    X(name##_1024, function, 1024, kinds)                                                                    \
    X(name##_2048, function, 2048, kinds)                                                                    \
    X(name##_4096, function, 4096, kinds) X(name##_8192, function, 8192, kinds)
#define HEADS(X, name, head_dim)                                                                             \
    X(name##_forward_short, attention_forward, head_dim, BOTH)                                               \
    X(name##_backward_short, attention_backward, head_dim, BOTH)                                             \
    X(name##_forward_long, attention_forward, -(head_dim), BOTH)                                             \
    X(name##_backward_long, attention_backward, -(head_dim), BOTH)
#define ITEMS(X)                                                                                             \
    X(peak_bf16, peak, DTYPE_BF16, HOST)                                                                     \
    X(peak_fp32, peak, DTYPE_F32, HOST)                                                                      \
    WIDTHS(X, gemm_bf16, gemm_bf16, BOTH)                                                                    \
    WIDTHS(X, gemm_fp32, gemm_f32, BOTH)                                                                     \
    WIDTHS(X, gemm_fp8, gemm_f8, GPU)                                                                        \
    X(gemm_fp8_exact_4096, gemm_f8_exact, 4096, GPU)                                                         \
    HEADS(X, narrow, 64)                                                                                     \
    HEADS(X, wide, 128)                                                                                      \
    HEADS(X, latent, 192)                                                                                    \
    X(stream_bf16, stream, DTYPE_BF16, BOTH)                                                                 \
    X(stream_fp32, stream, DTYPE_F32, BOTH)                                                                  \
    X(round, rounding, 0, HOST) X(copy, copy, 0, BOTH) X(host, from_host, 0, GPU) X(link, links, 0, BOTH)
enum item {
#define X(name, function, number, kinds) ITEM_##name,
    ITEMS(X)
#undef X
        ITEM_COUNT
};
enum kinds { HOST = 1, GPU = 2, BOTH = 3 };
enum { CALIBRATE_TEXT_MAX = 1 << 16, CALIBRATE_NAME = 400 };

struct calibration {
    struct dev dev;
    struct stream stream, *s; /* s: NULL on the host */
    struct ops ops;
    struct cluster like; /* its machine is the row that the file starts from; its devices measure the links */
    struct arena memory;
    struct event begin, end;
    char who[CALIBRATE_NAME];
    double value[ITEM_COUNT]; /* NaN: not measured yet; 0: this machine cannot */
    double link_latency;      /* seconds of the all-gather of 1 KiB, with `link`; 0: unknown */
    int link_ranks;
};

static inline bool calibrate_on_gpu(const struct calibration *b)
{
    return b->dev.kind == DEV_CUDA;
}
/* Keys of the two lengths of attention. */
int64_t calibrate_length(const struct calibration *b, bool is_long);
struct calibrate_row {
    const char *name;
    status (*measure)(struct calibration *b, int number, double *value);
    int number;
    enum kinds kinds;
};
extern const struct calibrate_row calibrate_rows[ITEM_COUNT];
#endif
