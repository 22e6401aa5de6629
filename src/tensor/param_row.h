/* One row of the parameter table (params.h): a weight's name, role, shape, place, and how ranks shard it. */
#ifndef INGOT_TENSOR_PARAM_ROW_H
#define INGOT_TENSOR_PARAM_ROW_H
#include <stdbool.h>
#include <stdint.h>

/* Weight decay follows the role: matrices, embeddings and the head decay, the rest never does (optim/). */
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
    X(BIAS,       "bias of a matrix")                                                                                   \
    X(BALANCE,    "bias of a router, moved by the loads of its experts, which its gradient counts; not a parameter of the model: `unique`")
enum role {
#define X(name, text) ROLE_##name,
    ROLE_LIST(X)
#undef X
    ROLE_COUNT
};

/* What the ranks of a tensor-parallel group hold of a row. */
enum split {
    SPLIT_NONE,                 /* all of it, and each forms the whole gradient, from the same data */
    SPLIT_SUM,                  /* all of it, and each forms a part of the gradient, from its own tokens or heads: they are added up */
    SPLIT_OUT,                  /* rows: of each of its parts an equal share, each time that they come */
    SPLIT_FIRST,                /* rows: of its first part an equal share; of the others all, whose gradients are added up as of SUM */
    SPLIT_IN,                   /* columns: an equal share of each row, or of each `columns` of it */
};
/* Copies of master weights that follow the master after each step (zero.c gathers them, offload.c and optim.c update them). */
enum derived {
    DERIVED_F32,                /* whole rows in fp32: decay rates, step sizes, biases of routers (params_exact) */
    DERIVED_COUNT
};
enum { PARAM_PARTS = 8, PARAMS_GRID = 16384 };
enum { PARAM_ALIGN = 256 }; /* a block of moments in 8 bits belongs to one row */
struct param {
    char name[112];             /* "layers.3.attn.qkv.weight" */
    enum role role;
    int rank;
    int64_t shape[2];           /* of this rank's slice; matrices are [out, in] as HF's nn.Linear */
    int64_t global[2];          /* of the whole */
    int64_t count, offset;      /* elements of this rank's slice; offset: params_lay */
    int64_t room;               /* that it takes in the arrays, with zeros behind it: at least count, if that is more (0) */
    int unit;
    enum split split;
    int part_count;             /* logical matrices that are stacked in it: q, k, v; gate, up; 0: it is one */
    int64_t parts[PARAM_PARTS]; /* rows of each, of the whole; all of them come again until the rows end: of each expert */
    int64_t columns;            /* of SPLIT_IN: so many at a time, which come again, are shared out; 0: all of them at once */
    bool rowwise;               /* a matrix of which each row is a direction of its own: routers, gates */
    bool ortho;                 /* moved by its logical matrices, from a first moment alone (optim/muon.h): set before params_lay */
    int64_t no_v;               /* elements of `ortho` rows before it that are here: what is here of its v begins so much further in front */
    bool stored;                /* a GEMM forms the whole gradient and stores it in a step's first micro-batch; of the rest the
                                   optimizer leaves zeros behind */
    bool linear;                /* the weight of an nn/linear */
    int64_t experts;            /* matrices of so many experts are stacked in it, of which a token passes some; 0: none */
    bool derived[DERIVED_COUNT];        /* copies of it in other forms that blocks read, beside `weight` */
    int64_t derived_at[DERIVED_COUNT];  /* where each begins in params.derived, in elements: params_lay */
    bool zero;                  /* begins at 0, whatever its role */
    float init_value;           /* constant initialisation: norms 1 or 0, biases 0; matrices are normal */
};

struct param_ref { int row; int64_t matrix; };   /* the matrix-th logical matrix of a row */
#endif
