/* One row of the parameter table (params.h): a weight's name, role, shape, location and sharding. */
#ifndef INGOT_TENSOR_PARAM_ROW_H
#define INGOT_TENSOR_PARAM_ROW_H
#include <stdbool.h>
#include <stdint.h>

/* The role determines weight decay: matrices, embeddings and the head decay, the other roles do not (optim/). */
#define ROLE_LIST(X)                                                                                                   \
    X(EMBED,      "embedding table, [V, D]")                                                                           \
    X(POSITION,   "learned positions, [T, D]")                                                                         \
    X(HEAD,       "output head, [V, D]")                                                                               \
    X(MATRIX,     "hidden matrix [out, in]")                                                                           \
    X(RESIDUAL,   "hidden matrix that writes to the residual stream [out, in]: smaller initialisation")                \
    X(TABLE,      "rows that few tokens read, [rows, width]: updated row by row")                                      \
    X(CONV,       "depthwise convolution, [channels, width]")                                                          \
    X(RATE,       "logarithm of decay rates, one per head")                                                            \
    X(STEP,       "bias of step sizes in front of softplus, one per head")                                             \
    X(NORM,       "norm weight or bias")                                                                               \
    X(BIAS,       "bias of a matrix")                                                                                  \
    X(BALANCE,    "router bias for loss-free balancing; its gradient counts tokens per expert; not in `param_count`")
enum role {
#define X(name, text) ROLE_##name,
    ROLE_LIST(X)
#undef X
    ROLE_COUNT
};

/* How the ranks of a tensor-parallel group shard a row. */
enum split {
    SPLIT_NONE,                 /* replicated; every rank computes the full gradient from the same data */
    SPLIT_PARTIAL_GRAD,         /* replicated; every rank computes a partial gradient from its own tokens or heads, and
                                   the partial gradients are all-reduced */
    SPLIT_COLUMN_PARALLEL,      /* column-parallel: each rank has an equal share of the rows of each part */
    SPLIT_FIRST,                /* each rank has an equal share of the rows of the first part; the other parts are
                                   replicated, and their partial gradients are all-reduced, as for PARTIAL_GRAD */
    SPLIT_ROW_PARALLEL,         /* row-parallel: each rank has an equal share of the columns, or of every `columns`
                                   columns */
};
/* Copies of master weights in other forms, which are remade whenever weights change (parallel/derived.h). */
#define DERIVED_LIST(X)                                                                                                \
    X(F32, "weights in fp32")   /* full rows: decay rates, step sizes, router biases (params_exact) */                     \
    X(WHOLE, "whole weights beside fp8 codes")  /* ZeRO 3 with FP8: full rows, norms and such (params_weight) */            \
    X(F8, "weights in fp8")     /* codes [out, in], which forward reads, of linears with param.fp8 */                       \
    X(F8_T, "weights in fp8, transposed")   /* [in, out], which dgrad reads */
enum derived {
#define X(name, text) DERIVED_##name,
    DERIVED_LIST(X)
#undef X
    DERIVED_COUNT
};
enum { PARAM_PARTS = 8, PARAMS_CHUNK_ALIGN = 16384 };
enum { PARAM_ALIGN = 256 }; /* a block of 8-bit moments belongs to one row */
struct param_norm { int w, b; float shift; };   /* rows of a norm's weight and bias (-1: none); it uses w + shift */
struct param {
    char name[112];             /* "layers.3.attn.qkv.weight" */
    enum role role;
    int rank;
    int64_t shape[2];           /* shape of this rank's slice; matrices are [out, in] as in HF's nn.Linear */
    int64_t global[2];          /* shape of the full parameter */
    int64_t count, offset;      /* number of elements of this rank's slice; params_layout sets offset, where they
                                   begin */
    int64_t room;               /* number of allocated elements, zeros from `count` on; less than `count` means count */
    int unit;
    enum split split;
    int part_count;             /* number of logical matrices stacked in the row (q, k, v; gate, up); 0: one */
    int64_t parts[PARAM_PARTS]; /* number of rows of each part in the full parameter; the list repeats to the end of
                                   the rows, for example once per expert */
    int64_t columns;            /* SPLIT_ROW_PARALLEL: every `columns` columns are sharded separately; 0: all columns
                                   together */
    bool rowwise;               /* the rows of the matrix are independent directions: routers, gates */
    bool muon;                  /* Muon updates its logical matrices, with a first moment only (optim/muon.h); set
                                   before params_layout */
    int64_t v_offset;           /* number of elements of this rank's `muon` rows before this row; the row's v begins
                                   this much earlier than its m */
    bool gemm_overwrites_grad;  /* a GEMM overwrites its gradient in the first micro-batch of a step; for all other
                                   rows the optimizer sets gradients to 0 after the step */
    bool linear;                /* the weight of an nn/linear */
    bool all_rows;              /* this linear runs on rows gathered from every context-parallel rank */
    struct param_norm norm;     /* the norm whose output is the linear's input; w = -1: its input is another tensor */
    int fp8;                    /* the linear's number in params.fp8; -1: its GEMMs read plain operands */
    bool current;               /* the linear's GEMMs read operands of current scaling (params.current) */
    int64_t experts;            /* number of experts stacked in the row, of which a token uses some; 0: no experts */
    bool experts_sharded;       /* expert parallelism: each rank stores an equal share of consecutive experts */
    bool derived[DERIVED_COUNT];        /* which copies in other forms the blocks read, in addition to `weight` */
    int64_t derived_at[DERIVED_COUNT];  /* offset of each copy in params.derived, in bytes; params_layout sets it */
    double lr_scale, decay;     /* factors on optim.lr and optim.weight_decay, set by optim/rates.c; decay 0: none */
    bool zero;                  /* initialised to 0, whatever the role */
    float init_value;           /* constant initial value: norms 1 or 0, biases 0; matrices are drawn */
};

struct param_ref { int row; int64_t matrix; };   /* the logical matrix with number `matrix` of a row */
#endif
