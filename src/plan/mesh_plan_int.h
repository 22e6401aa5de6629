/* State of a search over meshes, for mesh_plan.c, mesh_search.c and mesh_print.c. */
#ifndef INGOT_PLAN_MESH_PLAN_INT_H
#define INGOT_PLAN_MESH_PLAN_INT_H
#include "parallel/pipeline_order.h"
#include "plan/assume.h"
#include "plan/rank_share.h"

/* The last simulated pipeline. Variants that differ only in ZeRO are consecutive, and many have equal times. */
struct mesh_walk {
    struct pipeline_schedule schedule; /* of the last shape; ranks 0: none */
    struct pipeline_order few, more;   /* of it; of the same with more micro-batches, where not all are simulated */
    int micros;                        /* number of micro-batches that was asked for */
    int more_micros;                   /* number of micro-batches of `more`; 0: none */
    struct pipeline_stage_time *times;    /* [p v], owned: stage times of the last simulation; NULL: none */
    double message, with, without; /* makespans with message times, and without */
};
void mesh_walk_forget(struct mesh_walk *w);
/* A model's rank shares are computed once per tp, recompute policy and micro-batch. */
enum { MESH_SHARES_MAX = 1024 };
struct mesh_plan {
    struct spec spec;
    struct cluster cluster;     /* its machine is the next field */
    struct machine machine;     /* its rates are multiplied by `assume` */
    struct assume assume;
    struct plan_command command;
    struct ops ops;
    bool own_layout;            /* false: a build without CUDA plans a GPU's memory with the CPU's layout */
    double peak, bytes;         /* FLOP/s; bytes that a device offers a run */
    struct mesh_walk walk;
    int share_count;
    struct rank_share *shares[MESH_SHARES_MAX]; /* owned */
};
/* Simulates the pipeline of r with these stage times, of which it takes ownership: the stages' slots and stores, pp and
 * bubble of *r (bubble: with compute), and the seconds of all micro-batches. */
status mesh_walk_pipeline(struct mesh_plan *p, struct mesh_result *r, const struct rank_share *s,
                          struct pipeline_stage_time *times, double message, double *makespan) WARN_UNUSED;
/* Distributes layers over the stages of v's pipeline (one chunk per rank) such that the slowest stage is fastest.
 * STATUS_CONFIG as in mesh_plan_one. */
status mesh_plan_balance(struct mesh_plan *p, struct mesh_variant *v) WARN_UNUSED;
/* True if the run sets its mesh, by any key of parallel.*. */
bool mesh_plan_is_given(const struct run_spec *r);
/* mesh_host_bytes: host memory that a rank of the fullest stage needs. mesh_host_max: what it may use. */
double mesh_host_bytes(const struct mesh_plan *p, const struct mesh_result *r);
double mesh_host_max(const struct mesh_plan *p);
double mesh_checkpoint_bytes(const struct mesh_plan *p); /* of one checkpoint; call it after a mesh was planned */
double mesh_copies_bytes(const struct mesh_plan *p);     /* of ckpt.memory_every, per device, in host memory */
/* Memory of the fullest host for copies of the state while a checkpoint is written beside training (ckpt.async); 0:
 * there are none. */
status mesh_save_copies(const struct mesh_plan *p, const struct mesh_result *r, double *bytes) WARN_UNUSED;
/* Bytes of them that the host has too few; 0: it holds them, or its memory is not known. */
double mesh_save_misses(const struct mesh_plan *p, const struct mesh_result *r, double copies);
struct plan_devices mesh_devices(const struct mesh_plan *p);
/* Why no command starts this mesh on p's machine (duration_lacks); NULL: one does. */
const char *mesh_lacks(char buf[PLAN_WHY], const struct mesh_plan *p, const struct mesh_shape *m);
bool mesh_fits(const struct mesh_plan *p, const struct mesh_result *r); /* the devices and their host hold it */

/* Layers of a stage (chunk c of rank r: stage c pp + r). */
struct mesh_range { int64_t begin, end; };
static inline struct mesh_range mesh_stage_range(const struct mesh_shape *m, int64_t layers, int stage)
{
    struct mesh_range r = {0};
    for (int i = 0; i <= stage; i++) r = (struct mesh_range){r.end, r.end + mesh_stage_layers(m, layers, i)};
    return r;
}
/* Number of ZeRO shards of an expert-parallel rank's experts; 1 without ZeRO. */
static inline int mesh_expert_shards(const struct mesh_shape *m)
{
    return m->zero > 0 && m->shard >= mesh_ep(m) ? m->shard / mesh_ep(m) : 1;
}
/* Exposed seconds of a transfer of which `hidden` seconds overlap with compute. Overlapped GEMMs slow down by a part of
 * the copies' time (two H200s: 7 ms of a step for 13.5 hidden by DDP, 12 for 26 by ZeRO 3). */
static inline double mesh_paid(double transfer, double hidden)
{
    const double slower = 0.4;
    return transfer - (1 - slower) * (transfer < hidden ? transfer : hidden);
}
/* What data parallelism costs a rank whose passes of a micro-batch, and whose optimizer, take these seconds: per pass
 * of a micro-batch, and once per step (mesh_dp.c). */
struct mesh_pass { double forward, backward, optim; };
struct mesh_dp_cost {
    double forward, backward, once;
    struct mesh_traffic sum;
};
struct mesh_dp_cost mesh_dp_cost(const struct mesh_plan *p, const struct mesh_result *r, int rank,
                                 const struct rank_share *s, const struct mesh_pass *t);
#endif
