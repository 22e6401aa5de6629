/* The benchmarks of `ingot bench`: each function measures one family on this machine and prints a table to stdout. */
#ifndef INGOT_BENCH_BENCH_H
#define INGOT_BENCH_BENCH_H
#include "base/flags.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stdint.h>
#define VERB(name, function, form, arguments, text) status function(struct args *a) WARN_UNUSED;
#define NOTE(text)
#define OPTION(name, letter, type, value, text)
#include "bench/bench.def"
#undef VERB
#undef NOTE
#undef OPTION

/* bench gemm on a GPU. A NULL selector means all. STATUS_DEVICE in a build without CUDA. */
struct gemm_bench {
    int64_t tokens, runs;           /* rows of the activations; number of repetitions */
    int64_t seconds;                /* seconds of sustained work after the runs (lasting.h); 0: none */
    const char *preset;             /* preset of the model whose layer is measured */
    const char *layer, *form, *dt;  /* qkv, out, up, down, head; fwd, dgrad, wgrad; bf16 (NULL), fp8, tf32, f32 */
    bool json;
};
status cuda_bench_gemm(const struct gemm_bench *b) WARN_UNUSED;
struct ops;
void gemm_onednn(struct ops *o); /* the reference on CPUs: replaces the GEMMs of the op table */
bool gemm_onednn_has(dtype dt);  /* false: built without oneDNN, or BF16 without AVX-512 */

/* bench ops on a GPU. A NULL selector means all. STATUS_DEVICE in a build without CUDA. */
struct ops_bench {
    const char *op;     /* prefix of op names: "rmsnorm", "swiglu_bwd" */
    const char *dt;     /* f32, bf16 */
    bool json;
};
status cuda_bench_ops(const struct ops_bench *b) WARN_UNUSED;

enum { BENCH_RANKS_MAX = 64 };
/* bench attention on a GPU. STATUS_DEVICE in a build without CUDA. */
struct attention_bench {
    const char *backend;    /* cudnn, own, reference (for tiny shapes); NULL: cudnn and own */
    int64_t shape, runs;    /* index of the shape, below 0: all; number of repetitions */
    int64_t seconds;        /* seconds of sustained work after the runs (lasting.h); 0: none */
    int64_t ranks;          /* above 0: long sequences whole and in the parts of so many context-parallel ranks */
    bool json;
};
status cuda_bench_attention(const struct attention_bench *b) WARN_UNUSED;

/* bench moe on a GPU. STATUS_DEVICE in a build without CUDA. */
struct moe_bench {
    int64_t tokens, experts, top_k, hidden, size, runs;
    int64_t ranks;          /* above 0: also what expert parallelism over so many adds */
    bool fp8;               /* also the expert GEMMs in FP8, and the whole layer with them */
    bool json;
};
status cuda_bench_moe(const struct moe_bench *b) WARN_UNUSED;

/* bench delta on a GPU. STATUS_DEVICE in a build without CUDA. */
enum { DELTA_BENCH_RUNS = 99 };
struct delta_bench {
    int64_t docs, length, heads_k, heads, dim, runs;
    bool json;
};
status cuda_bench_delta(const struct delta_bench *b) WARN_UNUSED;

/* bench collectives on GPUs, one rank each. STATUS_DEVICE in a build without CUDA. */
struct collectives_bench {
    int64_t bytes_min, bytes_max, runs;
    const char *op, *path;  /* op: all_reduce, ...; path: comm, plain, symmetric, engines, peer; NULL: all */
    bool json;
};
status cuda_bench_collectives(const struct collectives_bench *b) WARN_UNUSED;

/* bench p2p on GPUs. STATUS_DEVICE in a build without CUDA. */
enum { P2P_RUNS_MAX = 101 };  /* also the limit for bench collectives */
struct p2p_bench {
    int64_t mib, runs, blocks;
    const char *section;    /* host, pairs, rings, collectives; NULL: all */
    const char *json;       /* file; NULL: none */
};
status cuda_bench_p2p(const struct p2p_bench *b) WARN_UNUSED;

/* bench overlap on a GPU. STATUS_DEVICE in a build without CUDA. */
enum { OVERLAP_WAYS_MAX = 16, OVERLAP_RUNS_MAX = 99 };
struct overlap_bench {
    const char *preset;
    int64_t layers;         /* 0: the preset's */
    int64_t tokens, ranks, runs, seconds;
    int64_t gbs;            /* bus bandwidth of the links; 0: no limit */
    int64_t sms[OVERLAP_WAYS_MAX];
    int count;              /* of sms */
    bool json;
};
status cuda_bench_overlap(const struct overlap_bench *b) WARN_UNUSED;
#endif
