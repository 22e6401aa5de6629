/* rank_share: what one tensor-parallel rank stores and computes for each layer: bytes from the run's layout code,
 * seconds from layer_time.h. */
#ifndef INGOT_PLAN_RANK_SHARE_H
#define INGOT_PLAN_RANK_SHARE_H
#include "optim/muon.h"
#include "plan/exchange.h"
#include "plan/mesh_plan.h"

/* The codes of a layer's weights. */
struct rank_share_codes {
    double bytes, seconds;      /* of codes and transposes of whole weights; per step to make them */
    bool moves, experts_move;   /* ZeRO 3: its unit is all-gathered as codes; its unit of experts */
    double beside;              /* ZeRO 3: bytes of rows that every rank has whole beside codes: zero_codes.h */
    double largest;             /* bytes of codes and transpose of its largest weight */
};
struct rank_share_layer {
    double count, partial_grads; /* parameters with padding; those with partial gradients, all-reduced over tp
                                    (parallel/tp_grad.h) */
    double table;               /* parameters with padding of its n-gram table, which is a separate unit */
    double rows, row_bytes;     /* for sparse gradients (parallel/sparse_grad.h): elements of table rows that a step
                                   may read, and bytes kept for them; else 0 */
    double kept;                /* parameters of rows whose gradients no schedule defers: zero.h */
    double count_mixer, act_mixer; /* the part of `count` and `act` before norm2 */
    double dropped;             /* bytes of `act` that an assumption recomputes instead of keeping */
    double act, scratch, store; /* bytes of a micro-batch; store: operands of its deferred GEMMs */
    struct layer_times times;   /* of a micro-batch */
    double overlap;             /* fraction of its tp communication that overlaps GEMMs, if the machine supports it */
    struct layer_fp8 fp8;       /* its linears that read codes */
    struct rank_share_codes codes;
    double experts;             /* parameters of experts that ranks shard, which are a separate unit; else 0 */
    struct exchange context, dispatch; /* between context-parallel ranks; between expert-parallel ranks */
    double muon, matrices;      /* seconds per step of Muon's GEMMs; elements of this rank's Muon matrices; else 0 */
    double expert_matrices;     /* the same of `experts` */
};
struct rank_share {
    int tp, cp, ep;
    enum context_kind context_kind;
    bool sparse;                /* tables have sparse gradients */
    bool staged, fp8;           /* staged: in a pipeline, which differs with train.precision=fp8 */
    enum recompute recompute;
    int64_t micro_batch;
    bool overlap;
    double overlap_tp, overlap_dp; /* fraction of the communication that can, and does: 0 without overlap */
    int64_t layers;
    struct rank_share_layer *layer; /* [layers], owned */
    struct rank_share *full;    /* the same with full recompute, of which the first `full_layers` of each chunk are
                                   taken (assume recompute_layers); NULL: none. Owned */
    int64_t full_layers;
    double count_first, count_last, count_tied; /* parameters: embedding; norm and head; the table shared with the
                                                   head */
    double count;               /* parameters of the whole model's layout */
    int64_t modules;
    double count_module, experts_module; /* of each MTP module; of its experts that ranks shard */
    struct exchange dispatch_modules;    /* of all MTP modules */
    struct layer_fp8 fp8_module;
    struct rank_share_codes codes_module; /* as of a layer */
    double partial_grads_last, partial_grads_module; /* parameters with partial gradients: after the layers, and of each
                                                        MTP module */
    bool embedding_resident;    /* embedding and head are unsharded at the same time: zero.embedding_resident */
    double act_fixed, act_last, scratch_head, scratch_last; /* bytes: of every rank; of the MTP modules; of the head;
                                                               of the head and the modules */
    double once;                /* extra bytes of the residual stream's tensors in a pipeline: model/decoder.c */
    double act_front;           /* part of act_fixed before the layers */
    double stream_codes;        /* part of act_fixed without a pipeline: FP8 codes of the stream's gradient */
    double operands;            /* scratch of operands that are rounded for each GEMM (parallel/fp8.h) */
    double sum_bytes;           /* of the final sum */
    double param_other, grad_other; /* bytes: RoPE and other tables, ends of arenas */
    double pieces;              /* optimizer chunks of the whole model, whose sums of squares form the gradient norm */
    struct mesh_moments moments; /* of the optimizer, per parameter */
    struct muon_most muon;      /* largest sizes for Muon's matrices; else 0 */
    struct feed_shape feed;     /* of one micro-batch's data */
    enum dev_kind kind;
    struct layer_times embed, head;
    double weight_bytes;        /* per element that GEMMs read */
    double stream_bytes;        /* of [N, D] */
    double gather_s;            /* seconds to gather [N, D] over tp */
};
struct rank_share_args {
    const struct spec *spec;
    const struct cluster *cluster;
    const struct ops *ops;
};
/* STATUS_CONFIG, in one line, if the model cannot be divided this way. */
status rank_share_open(struct rank_share **out, const struct mesh_variant *v,
                       const struct rank_share_args *a) WARN_UNUSED;
void rank_share_close(struct rank_share *s);
/* Layer i of a chunk that begins with layer `first`. */
static inline const struct rank_share_layer *rank_share_at(const struct rank_share *s, int64_t first, int64_t i)
{
    return s->full && i - first < s->full_layers ? &s->full->layer[i] : &s->layer[i];
}
/* Bytes of the tables of the gradient's norm on a rank of the mesh that has `part` of the parameters
 * (optim/grad_norm.h). */
double rank_share_norm(const struct rank_share *s, const struct mesh_shape *m, double part);
bool rank_share_is(const struct rank_share *s, const struct mesh_variant *v);
#endif
