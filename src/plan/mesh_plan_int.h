/* What a search over meshes holds; for mesh_plan.c, mesh_search.c and mesh_print.c. */
#ifndef INGOT_PLAN_MESH_PLAN_INT_H
#define INGOT_PLAN_MESH_PLAN_INT_H
#include "plan/rank_share.h"

/* The last walk of a pipeline: variants that differ in ZeRO alone come one after the other, and many have equal times. */
struct mesh_walk {
    struct pipeline_schedule schedule; /* of the last shape; ranks 0: none */
    int depth;                  /* of its mailboxes */
    struct pipeline_stage_time *times;    /* [p v], owned: of the last walk; NULL: none */
    double message, with, without; /* makespans, with messages that take their time and that do not */
};
/* Shares of a model are laid out once per tp, recompute policy and micro-batch. */
enum { MESH_SHARES_MAX = 1024 };
struct mesh_plan {
    struct spec spec;
    struct cluster cluster;
    struct ops ops;
    bool own_layout;            /* false: a GPU's memory, planned with the CPU's layout by a build without CUDA */
    double peak, bytes;         /* FLOP/s; what a device offers a run */
    struct mesh_walk walk;
    int share_count;
    struct rank_share *shares[MESH_SHARES_MAX]; /* owned */
};
/* Layers for each stage of v's pipeline (one chunk per rank), such that the slowest is as fast as can be. STATUS_CONFIG as mesh_plan_one. */
status mesh_plan_balance(struct mesh_plan *p, struct mesh_variant *v) WARN_UNUSED;
#endif
