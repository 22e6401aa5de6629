/* What a rank of a tensor-parallel group holds and computes of each layer: bytes from the run's layout code, seconds from layer_time.h. */
#ifndef INGOT_PLAN_RANK_SHARE_H
#define INGOT_PLAN_RANK_SHARE_H
#include "optim/muon.h"
#include "plan/mesh_plan.h"

struct rank_share_layer {
    double count, summed;       /* parameters, padding included; those whose gradients the tp ranks form in part (parallel/tp_grad.h) */
    double table;               /* likewise, of its n-grams, which is a unit of its own */
    double rows, row_bytes;     /* where gradients of tables are rows (parallel/sparse_grad.h): elements of those that a step may read, and bytes
                                   of all that is kept of them; else 0 */
    double kept;                /* of rows whose gradients no schedule puts off: zero.h */
    double count_mixer, act_mixer; /* what comes before norm2, of `count` and of `act` */
    double act, scratch, store; /* bytes of a micro-batch; store: of its GEMMs, put off */
    struct layer_times times;   /* of a micro-batch */
    double overlap;             /* part of its exchanges over tp that go on beside GEMMs, where the machine does both at once */
    double ortho, matrices;     /* seconds of Muon's GEMMs per step; elements of what the rank has of its matrices; else 0 */
};
struct rank_share {
    int tp;
    enum recompute recompute;
    int64_t micro_batch;
    bool overlap;
    int64_t layers;
    struct rank_share_layer *layer; /* [layers], owned */
    double count_first, count_last, count_tied; /* embedding; norm, head; the table that the head shares */
    int64_t modules;
    double count_module;        /* of each extra prediction */
    double summed_last, summed_module; /* behind the layers, and of each extra prediction */
    bool stays;                 /* embedding and end of the model are at work together: zero.h */
    double act_fixed, act_last, scratch_head;   /* bytes: of every rank; of the extra predictions; of the head */
    double once;                /* bytes that the stream's tensors take more in a pipeline: model/decoder.c */
    double act_front;           /* bytes of act_fixed that stand before the layers */
    double sum_bytes;           /* of the final sum */
    double param_other, grad_other; /* bytes: rope and other tables, ends of arenas */
    struct mesh_moments moments; /* of the optimizer, per parameter */
    struct muon_most ortho;     /* of Muon's matrices; else 0 */
    struct feed_shape feed;     /* of one micro-batch's data */
    enum dev_kind kind;
    struct layer_times embed, head;
    double weight_bytes;        /* of an element that GEMMs read */
    double stream_bytes;        /* [N, D] */
    double gather_s;            /* seconds to gather it over tp */
};
struct rank_share_args {
    const struct spec *spec;
    const struct cluster *cluster;
    const struct ops *ops;
};
/* STATUS_CONFIG in one line when the model cannot be divided so. */
status rank_share_open(struct rank_share **out, const struct mesh_variant *v,
                       const struct rank_share_args *a) WARN_UNUSED;
void rank_share_close(struct rank_share *s);
bool rank_share_is(const struct rank_share *s, const struct mesh_variant *v);
#endif
