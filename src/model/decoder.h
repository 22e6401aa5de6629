/* The decoder: embedding, L pre-norm blocks, final norm, head. Built from a model spec; independent of the training
 * loop. With model.hrm_cycles the blocks run more than once (model/hrm.h).
 *
 * The residual stream. Each norm also does the pending residual add, so a block is
 *     s1 = x + b      (b: the previous block's feed-forward output)      y1 = norm1(s1)      a = mixer(y1)
 *     s2 = s1 + a                                                        y2 = norm2(s2)      b = ffn(y2)
 * and the final norm adds the last b. If the set's GEMMs support EPILOGUE_ADD, the last GEMM of a branch computes the
 * sum and the norm reads it. Backward goes through the same chain in reverse with one gradient G of the residual
 * stream:
 *     G <- G + norm2_bwd(ffn_bwd(G));   G <- G + norm1_bwd(mixer_bwd(G)).
 *
 * With tensor parallelism a rank holds a part of the residual stream's rows; mixer, ffn, embedding and head use all
 * rows (nn/sequence_parallel.h).
 *
 * Kept for backward, in elements per token and layer, by recompute policy (gqa and mlp; see nn/ for the other kinds):
 *     s1 D                                         none, selective, full
 *     s2 D, qkv (H+2K) hd, o H hd, up 2F           none, selective
 *     y1 D, y2 D                                   none
 * FP8: RMSNorm writes the codes of y1, y2 and G. Backward keeps the transposed codes of y1 and y2, a byte per element;
 * GEMMs in bf16 have their values recomputed. */
#ifndef INGOT_MODEL_DECODER_H
#define INGOT_MODEL_DECODER_H
#include "nn/embed.h"
#include "nn/engram.h"
#include "nn/ffn.h"
#include "nn/head.h"
#include "nn/mixer.h"
#include "nn/norm.h"
#include "nn/sequence_parallel.h"
#include "parallel/mesh.h"

struct block {
    bool has_engram; /* has an n-gram memory (engram), which runs first */
    struct engram engram;
    struct norm_block norm1, norm2;
    struct mixer_block mixer;
    struct ffn_block ffn;
};
struct block_saved {
    struct tensor s1, y1, s2, y2; /* [N, D]: this rank's rows of the residual stream */
    struct norm_saved norm1, norm2;
    struct mixer_saved mixer;
    struct ffn_saved ffn;
    struct engram_saved engram;
    struct sp seq_par;
    /* FP8 forms of y1 and y2, and of G as the feed-forward part and the mixer read it in backward */
    struct quantized y1_q, y2_q, ffn_dout_q, mixer_dout_q;
    size_t act_mixer, act_end;    /* offsets in the activation arena: where the mixer ends, and where the block ends */
};
/* Generation: the caches of a batch of sequences in a block. */
struct block_cache {
    struct mixer_cache mixer;
    struct engram_cache engram;
};

struct mtp; struct mtp_saved; /* model/mtp.h */
struct stages; /* model/stage.h */
struct hrm; struct hrm_saved; /* model/hrm.h */

enum { PIPELINE_PART_CHUNKS = 64 };
/* What a pipeline rank holds: one or several ranges of blocks, and the model's first and last parts. */
struct pipeline_part {
    int chunks;
    struct { int64_t begin, end; } layers[PIPELINE_PART_CHUNKS]; /* in model order */
    bool first, last;      /* first: the embedding; last: final norm, head, MTP modules */
};

struct decoder {
    struct model_spec spec;
    struct pipeline_part part;
    struct params params;
    struct embed embed;
    struct block *blocks; /* [layer_count], owned */
    struct mtp *mtp;      /* [mtp_depth], owned */
    struct hrm *hrm;      /* owned; NULL: layers run once */
    struct tensor token_map; /* [vocab] I32, with model.engram_fold: data/tokenizer/token_map.h; filled by the code
                                that initialises or loads weights */
    struct norm_block norm;
    struct head head;
    struct rope rope;
};
/* Memory for one micro-batch of `n` tokens. */
struct activations {
    struct layout layout;       /* as passed to activations_layout; do not use its arenas afterwards */
    struct block_saved *blocks; /* [layer_count], owned */
    struct tensor x, branch; /* [N, D]: embedding output; output of a branch, and gradient of a branch's input. With
                                activations_once x, y and grad share memory, and branch and dy share memory */
    struct tensor grad; /* [N, D]: G, the gradient of the residual stream */
    struct tensor s, y, dy; /* [N, D]: final sum, its norm, gradient of the norm's output */
    struct norm_saved norm;
    struct head_saved head;
    struct sp seq_par_embed_head; /* sequence parallelism of embedding and head */
    struct mtp_saved *mtp;   /* [mtp_depth], owned; training only */
    struct stages *stages;   /* owned, with layout.sets: replaces blocks */
    struct hrm_saved *hrm;   /* owned; NULL: no HRM */
    struct tensor workspace; /* the op set's workspace */
    size_t act_front;        /* offset in the activation arena where the tensors before the blocks end; these are live
                                until the last backward */
};

/* Declares all parameters of the model; those of other pipeline ranks are not stored (params.h: units). `mesh` NULL:
 * one rank. The spec and the mesh shape were checked before. decoder_fini frees. */
status decoder_init(struct decoder *d, const struct model_spec *spec, const struct mesh *mesh) WARN_UNUSED;
void decoder_fini(struct decoder *d);

/* Allocates weights (and gradients, moments) and the RoPE tables for `positions`, from counting or real arenas. */
struct decoder_layout_args {
    dtype dt, moment_dt;
    int with_grad, moments;
    int64_t positions;
    struct stream *stream; /* a stream of the arenas' device; NULL: the host */
    struct params_arenas arenas;
};
status decoder_layout_params(struct decoder *d, const struct decoder_layout_args *a) WARN_UNUSED;

/* True if each block runs once forward and once backward, and only norm and head follow the blocks. */
static inline bool activations_once(const struct model_spec *m) { return m->mtp_depth == 0 && m->hrm_cycles == 0; }
status activations_layout(struct activations *a, const struct decoder *d, const struct layout *l) WARN_UNUSED;
void activations_fini(struct activations *a);
bool activations_stream_codes(const struct decoder *d, const struct layout *l); /* FP8: norms write the codes of G */

/* Embedding and head, which use the rows of all ranks: from tokens to a->x; from a->grad to the table's gradient; from
 * args.y to the loss. This rank holds its own rows of args.y and args.dy. */
status decoder_embed_fwd(const struct decoder *d, struct activations *a, const struct batch *b,
                         const struct exec *r) WARN_UNUSED;
status decoder_embed_bwd(const struct decoder *d, struct activations *a, const struct batch *b,
                         const struct exec *r) WARN_UNUSED;
status decoder_head(const struct decoder *d, struct activations *a, const struct head_loss_args *args,
                    const struct exec *r) WARN_UNUSED;
/* Arguments of the main head's loss: sums go to exec.scalars; z_loss, accum and hits are still to be set. dy.data NULL:
 * loss only, and loss_sum includes the z-loss terms. */
struct head_loss_args decoder_loss_args(const struct activations *a, const int32_t *targets, struct tensor dy,
                                        const struct exec *r);

/* Forward of a micro-batch to the final norm's output a->y. b->rows may be less than the allocated n. */
status decoder_fwd(const struct decoder *d, struct activations *a, const struct batch *b,
                   const struct exec *r) WARN_UNUSED;
/* Loss only: exec.scalars->loss_sum and hits += over valid targets. */
status decoder_loss(const struct decoder *d, struct activations *a, const struct batch *b, double z_loss,
                    const struct exec *r) WARN_UNUSED;
/* Forward and backward. loss_sum += over all segments (model_segments), mtp_loss_sum += over the MTP modules.
 * Parameter gradients are those of loss_sum * exec.scalars->grad_scale + mtp_loss_sum * mtp_scale: GEMMs = or +=
 * (exec.accum), the rest += (params.h: `gemm_overwrites_grad`). */
status decoder_fwd_bwd(const struct decoder *d, struct activations *a, const struct batch *b,
                       double z_loss, const struct exec *r) WARN_UNUSED;

/* The residual stream x + branch (data NULL: x) before and after a block. After the block, x is `next` if the block
 * computes the residual add itself, else s2, and branch is `out`. LAYOUT_FORWARD: all layers share the memory of s2;
 * the next norm reads each row before it is overwritten. */
struct block_io {
    struct tensor x, branch;
    struct tensor out;  /* memory for the output of a branch */
    struct tensor next; /* where the next reader wants the residual stream after the block: the sum of its norm. Not
                           memory that the block reads; data NULL: none */
};
/* decoder_fwd with another function instead of block_fwd: generation, which caches keys and values. `index` counts
 * the block visits of a forward from 0; with model.hrm_cycles a block is visited more than once. */
struct visit {
    int64_t block, index;
    const struct layer_ctx *ctx;
    struct block_io *io;
};
struct visitor { status (*visit)(void *ctx, const struct visit *v); void *ctx; };
status decoder_walk(const struct decoder *d, struct activations *a, const struct batch *b, const struct visitor *by,
                    const struct exec *r) WARN_UNUSED;
int64_t decoder_visits(const struct model_spec *m); /* block visits in a forward */
/* Parts of decoder_fwd: decoder_begin sets the rows of all views and runs the embedding; decoder_pass runs one pass
 * over layers (spec.h: model_pass) with block_fwd. */
status decoder_begin(const struct decoder *d, struct activations *a, const struct batch *b,
                     const struct exec *r) WARN_UNUSED;
status decoder_pass(const struct decoder *d, struct activations *a, const struct batch *b, int64_t k,
                    const struct exec *r) WARN_UNUSED;
status block_fwd(const struct block *m, struct block_saved *s, const struct layer_ctx *c, struct block_io *io,
                 const struct exec *r) WARN_UNUSED;
/* block_io.next of layer i in a range of layers that ends at `end`; `last` is the sum of the norm after the range. */
struct tensor block_next(const struct decoder *d, const struct block_saved *blocks, int64_t i, int64_t end,
                         struct tensor last);
/* The remaining parts of a block, for the modules of model/mtp.h, and a norm of the residual stream. `layer_name`:
 * prefix of its parameters; `layer`: index in model.layers. */
void stream_norm_init(struct norm_block *m, struct params *p, const char *name, const struct model_spec *spec);
void block_init(struct block *m, struct params *p, const struct model_spec *spec, const char *layer_name,
                int64_t layer);
void block_layout(const struct block *m, struct block_saved *s, const struct layout *l);
void block_rows(const struct block *m, struct block_saved *s, int64_t rows);
/* Recomputes from s1 what the policy did not keep: the same ops on the same inputs give the same bits. */
status block_recompute(const struct block *m, struct block_saved *s, enum recompute policy, const struct layer_ctx *c,
                       struct tensor branch, const struct exec *r) WARN_UNUSED;
/* g: on input the gradient of (s2 + b), on output that of (x + b_previous). dy: memory for a branch's input
 * gradient. `next`: the FP8 form of g on output, for the linear that reads it next; NULL: none. */
status block_bwd(const struct block *m, struct block_saved *s, const struct layer_ctx *c, struct tensor g,
                 struct tensor dy, const struct quantized *next, const struct exec *r) WARN_UNUSED;
/* block_cache_layout counts or allocates; call block_cache_fill after block_fwd of a sequence's first rows
 * (nn/layer_ctx.h). */
void block_cache_layout(const struct block *m, struct block_cache *k, const struct cache_layout *l);
status block_cache_fill(const struct block *m, const struct block_saved *s, struct block_cache *k,
                        const struct cache_at *at, const struct exec *r) WARN_UNUSED;
/* One more token of every sequence in `cache`, instead of block_fwd. */
status block_step(const struct block *m, struct block_saved *s, struct block_cache *cache, const struct layer_ctx *c,
                  const struct cache_at *at, struct block_io *io, const struct exec *r) WARN_UNUSED;
#endif
