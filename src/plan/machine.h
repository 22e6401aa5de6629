/* Machines to plan for: what a device computes, holds and moves, and how ranks lie on nodes. The numbers are rows of spec/machine.def. */
#ifndef INGOT_PLAN_MACHINE_H
#define INGOT_PLAN_MACHINE_H
#include "base/status.h"
#include "dev/dev.h"
#include "spec/spec.h"

/* A rate that grows with length: share * T / (T + half) of the peak. */
struct machine_curve {
    double share, half;
};
enum { MACHINE_WIDTHS = 6, MACHINE_WIDTH_MIN = 256 }; /* 256, 512, ... 8192 */
struct machine {
    const char *name;               /* word of --machine; "none": a GPU without numbers */
    const char *words;              /* in the name that the driver gives; "": a host */
    enum dev_kind kind;
    int sm, multiprocessors;        /* 0: a host */
    int node;                       /* devices with fast links between all of them */
    bool overlap;                   /* collectives run beside GEMMs */
    double memory_bytes, memory_rate, stream_rate; /* of a device; bytes/s of the maker; bytes/s of a step's memory-bound ops */
    double peak_bf16, peak_fp8, peak_tf32, peak_fp32; /* FLOP/s, dense; 0: not known */
    double share_16[MACHINE_WIDTHS], share_32[MACHINE_WIDTHS]; /* of the peak, by the smallest side of a GEMM */
    /* Attention: heads up to 64, to 128, and above (those of latent attention, whose values are narrower). */
    struct machine_curve narrow_forward, narrow_backward, wide_forward, wide_backward, latent_forward, latent_backward;
    double linear_forward, linear_backward; /* of the peak: delta rule and state space */
    double link_rate, net_rate, host_rate;  /* bytes/s each way and device: inside a node, between nodes, to the host */
    double latency_base, latency_hop, latency_net; /* seconds: start, hop inside a node, hop between nodes */
    double gap;                     /* seconds between two kernels of a replayed graph */
};

/* A number of devices of one machine. */
struct cluster {
    const struct machine *machine;
    int devices, node;              /* of a node: devices with fast links */
};
/* "64xB200", "2x8xH100" (two nodes of eight), "h200": STATUS_CONFIG with the words that there are. Without a number of nodes they are full. */
status cluster_parse(const char *text, struct cluster *c) WARN_UNUSED;
/* "8 x h200 in 1 node". Returns buf. */
const char *cluster_text(char buf[64], const struct cluster *c);

/* The row of a GPU by the driver's name; NULL when there is none. */
const struct machine *machine_of_gpu(const char *card);
/* Bytes/s each way between a GPU and its host while both ways are busy; 0 for a row that is not there. */
double machine_host_both(const struct machine *m);
double machine_peak(const struct machine *m, enum precision precision);  /* FLOP/s; 0: not known */
/* FLOP/s of a GEMM whose smallest side is `width`; of attention over sequences of `tokens`. */
double machine_gemm_rate(const struct machine *m, enum precision precision, double width);
double machine_attention_rate(const struct machine *m, enum precision precision, int64_t head_dim, int64_t tokens,
                              bool backward);
double machine_linear_rate(const struct machine *m, enum precision precision, bool backward);
#endif
