/* Machines to plan for: a device's compute, memory and links, and how devices are grouped in nodes. The numbers are
 * rows of spec/machine.def. */
#ifndef INGOT_PLAN_MACHINE_H
#define INGOT_PLAN_MACHINE_H
#include "base/status.h"
#include "dev/dev.h"
#include "tensor/block_format.h"
#include "spec/spec.h"

/* A rate that grows with length T: share * T / (T + half) of the peak. */
struct machine_curve {
    double share, half;
};
enum { MACHINE_WIDTHS = 6, MACHINE_WIDTH_MIN = 256 }; /* 256, 512, ... 8192 */
struct machine {
    const char *name;               /* name for --machine; "none": a GPU without numbers */
    const char *words;              /* substring of the driver's device name; "": a host */
    enum dev_kind kind;
    int sm, multiprocessors;        /* 0: a host */
    int node;                       /* number of devices that fast links connect */
    int host;                       /* devices of one host, where fast links connect several hosts; 0: node */
    bool overlap;                   /* collectives overlap GEMMs */
    double memory_bytes, memory_rate, stream_rate; /* per device; bytes/s from the data sheet; bytes/s of a step's
                                                      memory-bound ops */
    double peak_bf16, peak_fp8, peak_tf32, peak_fp32; /* FLOP/s, dense; 0: unknown */
    double share_16[MACHINE_WIDTHS], share_32[MACHINE_WIDTHS]; /* fraction of the peak, by the smallest side of a
                                                                  GEMM */
    double share_8[MACHINE_WIDTHS], full_8; /* the same for FP8 GEMMs, of peak_fp8, with fast accumulation; full_8: what
                                               is left of it with sums in fp32. 0: no FP8 */
    bool measured_8;                /* share_8 was measured on this architecture, and not scaled from another's */
    /* GEMMs of codes with scales of blocks: their rate over that of FP8 codes, for wide GEMMs: 1 x 128 elements, MXFP8,
     * NVFP4. 0: the machine has none, and reads decoded codes as bf16. */
    double block_8, mx_8, nv_4;
    double round_rate;              /* elements/s that are rounded to such codes; 0: as fast as memory moves */
    /* Attention: heads up to 64, up to 128, and wider (latent attention, with narrower values). */
    struct machine_curve narrow_forward, narrow_backward, wide_forward, wide_backward, latent_forward, latent_backward;
    double linear_forward, linear_backward; /* fraction of the peak: delta rule and state space */
    double link_rate, net_rate, host_rate;  /* bytes/s per direction and device: in a node, between nodes, to the
                                               host */
    double host_bytes, host_memory_rate;    /* of the host's memory, a device's share: bytes; bytes/s, read and
                                               written; 0: no limit is known */
    int pod;                        /* devices behind one spine switch layer; 0: the network has one */
    bool rails;                     /* a NIC only reaches those of its own place in other nodes: what goes to another
                                       place crosses the node's links first */
    double spine;                   /* bandwidth out of a pod over that of its devices' NICs; 0: 1 */
    double latency_base, latency_hop, latency_net; /* seconds: start, hop in a node, hop between nodes */
    double gap;                     /* seconds between two kernels of a replayed CUDA graph */
};

struct assume; /* plan/assume.h */
enum { MACHINE_PATH = 256 };
/* Devices of one machine type, grouped in nodes. */
struct cluster {
    const struct machine *machine;
    int devices, node;              /* node: devices per node, with fast links */
    const struct assume *assume;    /* NULL: no assumptions */
    struct machine own;             /* a machine read from a file: `machine` points here, its name to own_name */
    char own_name[MACHINE_PATH];
};
/* Parses "64xB200", "2x8xH100" (two nodes of eight), "h200", or a file instead of the name ("64xmy.machine", with a dot
 * or a slash: plan/machine_file.h). The cluster must stay where it is. STATUS_CONFIG lists the valid names. Without a
 * number of nodes, nodes are full. */
status cluster_parse(const char *text, struct cluster *c) WARN_UNUSED;
/* "8 x h200 in 1 node". Returns buf. */
const char *cluster_text(char buf[64], const struct cluster *c);
/* Devices of one host: at most a node's. */
int cluster_host(const struct cluster *c);

/* The row of a GPU by the driver's device name; NULL: unknown. */
const struct machine *machine_of_gpu(const char *gpu);
/* Bytes/s per direction between a GPU and its host while both directions are busy: the smaller of the link's rate and
 * half of the host memory's; 0: no such row. */
double machine_host_both(const struct machine *m);
/* FLOP/s; 0: unknown. For FP8 it is bf16's (plan/mfu.h). */
double machine_peak(const struct machine *m, enum precision precision);
/* FLOP/s of a GEMM with smallest side `width`; of attention over sequences of `tokens`. */
double machine_gemm_rate(const struct machine *m, enum precision precision, double width);
/* The same for a GEMM that reads FP8 codes. A host decodes them in front of its bf16 kernels. */
double machine_fp8_rate(const struct machine *m, double width, bool fast);
bool machine_has_fp8(const struct machine *m);
/* machine_has_blocks: true if GEMMs read codes of the format (ops.reads_blocks). machine_blocks_rate: FLOP/s of such a
 * GEMM; narrow GEMMs of 4 bits lose as large a share of the rate as narrow FP8 GEMMs. */
bool machine_has_blocks(const struct machine *m, enum block_format format);
double machine_blocks_rate(const struct machine *m, enum block_format format, double width, bool fast);
double machine_attention_rate(const struct machine *m, enum precision precision, int64_t head_dim, int64_t tokens,
                              bool backward);
double machine_linear_rate(const struct machine *m, enum precision precision, bool backward);
#endif
