/* How long a rank computes: seconds of a layer's forward and backward pass, by what bounds them.
 *
 * GEMMs run at the rate that the machine attains at their smallest side; attention and the delta rule at theirs; norms, activations,
 * rotations and the loss move bytes. What a layer multiplies is a list, so that nothing here knows a rank from a whole model: the spec given
 * is the rank's own (heads and widths divided by tp). */
#ifndef INGOT_PLAN_LAYER_TIME_H
#define INGOT_PLAN_LAYER_TIME_H
#include "plan/machine.h"
#include "spec/layer_traits.h"

#define LAYER_PARTS(X) X(products, "GEMMs") X(mixing, "attention, states") X(memory, "memory-bound ops")
struct layer_time {
#define X(name, text) double name;
    LAYER_PARTS(X)
#undef X
};
double layer_time_sum(const struct layer_time *t);
void layer_time_add(struct layer_time *t, const struct layer_time *more, double times);

/* Forward; backward; the part of backward's GEMMs that forms gradients of weights; what the recompute policy repeats before backward. */
struct layer_times {
    struct layer_time forward, backward, again;
    double wgrad;
    struct layer_edge { double forward, dgrad, wgrad; } enter, leave; /* GEMMs that read the stream, and that write it; a branch's mean */
};
struct layer_shape {
    const struct model_spec *model; /* the rank's */
    const struct machine *machine;
    enum precision precision;
    enum recompute recompute;
    int64_t tokens, sequence;       /* of a micro-batch; keys at most */
    int64_t stream;                 /* tokens of the residual stream on this rank: tokens / tp with sequence parallel */
};
struct layer_times layer_times_of(const struct layer_shape *s, int64_t layer);
/* head and loss, all in backward: 1 + the extra predictions */
struct layer_times layer_times_head(const struct layer_shape *s, int heads);
struct layer_times layer_times_embed(const struct layer_shape *s);

/* Seconds of Muon's GEMMs for the matrices of a layer: 5 (4 n^2 k + 2 n^3) FLOPs each, n the shorter side (optim/muon.h). */
double layer_times_ortho(const struct layer_shape *s, int64_t layer);

/* The GEMMs of a layer's mixer, then those of its feed-forward part. */
int layer_gemms(const struct model_spec *m, int64_t layer, struct layer_gemm out[LAYER_GEMMS_MAX]);
#endif
