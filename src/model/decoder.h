/* The decoder: embedding, L pre-norm blocks, final norm, head. Built from a model spec; knows no training loop. With model.hrm_cycles the
 * blocks are gone through more than once (model/hrm.h).
 *
 * The residual stream. Each norm also performs the pending residual add, so a block is
 *     s1 = x + b      (b: the previous block's feed-forward output)      y1 = norm1(s1)      a = mixer(y1)
 *     s2 = s1 + a                                                        y2 = norm2(s2)      b = ffn(y2)
 * and the final norm adds the last b. Where the set's GEMMs add (EPILOGUE_ADD), a branch's last one forms the sum, and the norm reads it.
 * Backward walks the same chain with one gradient G of the stream:
 *     G <- G + norm2_bwd(ffn_bwd(G));   G <- G + norm1_bwd(mixer_bwd(G)).
 *
 * With tensor parallelism a rank holds some rows of the stream; mixer, ffn, embedding and head see all of them (nn/sequence_parallel.h).
 *
 * Kept for backward, per token and layer (recompute: none | selective | full), in elements:
 *     s1 D always;  s2 D, qkv (H+2K) hd, o H hd, up 2F   none, selective;  y1 D, y2 D   none. (gqa and mlp; the others say it in nn/.) */
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
    bool remembers; /* has a memory of n-grams, which comes first */
    struct engram engram;
    struct norm_block norm1, norm2;
    struct mixer_block mixer;
    struct ffn_block ffn;
};
struct block_saved {
    struct tensor s1, y1, s2, y2; /* [N, D]: of the stream's rows that are here */
    struct norm_saved norm1, norm2;
    struct mixer_saved mixer;
    struct ffn_saved ffn;
    struct engram_saved engram;
    struct sp whole;
    size_t act_mixer, act_end;    /* in the arena of activations: those of memory and mixer, and its own, end there */
};
/* Generation: what one sequence keeps in a block. */
struct block_cache {
    struct mixer_cache mixer;
    struct engram_cache engram;
};

struct mtp; /* model/mtp.h */
struct mtp_saved;
struct stages; /* model/stage.h */
struct hrm; /* model/hrm.h */
struct hrm_saved;

enum { PART_CHUNKS = 64 };
/* What a rank of a pipeline holds: one or several runs of blocks, and what stands before the first and behind the last. */
struct part {
    int chunks;
    struct {
        int64_t begin, end;
    } layers[PART_CHUNKS]; /* in the order of the model */
    bool first, last;      /* the embedding; the final norm, the head, the extra predictions */
};

struct decoder {
    struct model_spec spec;
    struct part part;
    struct params params;
    struct embed embed;
    struct block *blocks; /* [layer_count], owned */
    struct mtp *mtp;      /* [mtp_depth], owned */
    struct hrm *hrm;      /* owned; NULL: layers come once */
    struct tensor token_map; /* [vocab] I32, with model.engram_fold: data/tokenizer/token_map.h; whoever makes the weights fills it */
    struct norm_block norm;
    struct head head;
    struct rope rope;
};
/* The memory of one micro-batch of `n` tokens. */
struct activations {
    struct lay lay;             /* as laid; its arenas are not used afterwards */
    struct block_saved *blocks; /* [layer_count], owned */
    struct tensor x,
        branch;         /* [N, D]: embedding output; output of a branch, and gradient of a branch's input. With activations_once x, y and
                           grad are one place, branch and dy another */
    struct tensor grad; /* [N, D]: G, gradient of the residual stream */
    struct tensor s, y, dy; /* [N, D]: final sum, norm, gradient */
    struct norm_saved norm;
    struct head_saved head;
    struct sp ends;       /* of embedding and head */
    struct mtp_saved *mtp;   /* [mtp_depth], owned; training alone */
    struct stages *stages;   /* owned, with lay.sets: instead of blocks */
    struct hrm_saved *hrm;   /* owned; NULL without */
    struct tensor workspace; /* the op set's */
    size_t act_front;        /* in the arena of activations: what stands before the blocks, and is needed until the last backward, ends there */
};

/* Declares all parameters of the model; those of other parts are not stored (params.h: units). `mesh` NULL: one rank. The spec and the
 * mesh's shape were checked. decoder_fini frees. */
status decoder_init(struct decoder *d, const struct model_spec *spec, const struct mesh *mesh) WARN_UNUSED;
void decoder_fini(struct decoder *d);

/* Takes weights (and gradients, moments) and the rope tables for `positions`; counting or real. */
struct decoder_lay_args {
    dtype dt, moment_dt;
    int with_grad, moments;
    int64_t positions;
    struct stream *stream; /* of the arenas' device; NULL: the host */
    struct params_arenas arenas;
};
status decoder_lay_params(struct decoder *d, const struct decoder_lay_args *a) WARN_UNUSED;

/* Each block is gone through once forward, then once backward, and nothing else follows the blocks than norm and head. */
static inline bool activations_once(const struct model_spec *m) { return m->mtp_depth == 0 && m->hrm_cycles == 0; }
status activations_lay(struct activations *a, const struct decoder *d, const struct lay *l) WARN_UNUSED;
void activations_fini(struct activations *a);

/* Embedding and head, which see the rows of all ranks: from tokens to a->x, from a->grad to the table's gradient, and the loss of args.y,
 * of which, as of args.dy, this rank has its rows. */
status decoder_embed_fwd(const struct decoder *d, struct activations *a, const struct batch *b,
                         const struct exec *r) WARN_UNUSED;
status decoder_embed_bwd(const struct decoder *d, struct activations *a, const struct batch *b,
                         const struct exec *r) WARN_UNUSED;
status decoder_head(const struct decoder *d, struct activations *a, const struct head_loss_args *args,
                    const struct exec *r) WARN_UNUSED;

/* Forward of a micro-batch to the final norm's output a->y. b->rows may be below the laid n. */
status decoder_fwd(const struct decoder *d, struct activations *a, const struct batch *b,
                   const struct exec *r) WARN_UNUSED;
/* Loss alone: run.scalars->loss_sum += over valid targets, hits += likewise. */
status decoder_loss(const struct decoder *d, struct activations *a, const struct batch *b, double z_loss,
                    const struct exec *r) WARN_UNUSED;
/* Forward and backward: loss_sum likewise, of all segments (model_segments), and mtp_loss_sum of the extra predictions; parameter gradients of loss_sum *
 * run.scalars->grad_scale + mtp_loss_sum * mtp_scale: GEMMs = or += (run.accum), the rest += (params.h: `stored`). */
status decoder_fwd_bwd(const struct decoder *d, struct activations *a, const struct batch *b,
                       double z_loss, const struct exec *r) WARN_UNUSED;

/* The stream x + branch (data NULL: x), before a block and behind it. Behind it x is `next`, where the block adds the stream itself, and
 * else s2, and branch is `out`. LAY_FORWARD: all layers share the place of s2; the next norm reads it before it is overwritten, row by row. */
struct block_io {
    struct tensor x, branch;
    struct tensor out;  /* memory for a branch's output */
    struct tensor next; /* where the stream behind the block is wanted, not what it reads: the sum of the norm there; data NULL: nowhere */
};
/* decoder_fwd with something else in the place of block_fwd: generation, which keeps keys and values. `index` counts the visits of
 * blocks in a forward from 0; model.hrm_cycles visits them more than once. */
struct visit {
    int64_t block, index;
    const struct mix *mix;
    struct block_io *io;
};
struct visitor {
    status (*visit)(void *ctx, const struct visit *v);
    void *ctx;
};
status decoder_walk(const struct decoder *d, struct activations *a, const struct batch *b, const struct visitor *by,
                    const struct exec *r) WARN_UNUSED;
/* Visits of blocks in a forward. */
int64_t decoder_visits(const struct model_spec *m);
/* The parts of it: rows of all views, and the embedding; then one pass over layers (spec.h: model_pass), by block_fwd. */
status decoder_begin(const struct decoder *d, struct activations *a, const struct batch *b,
                     const struct exec *r) WARN_UNUSED;
status decoder_pass(const struct decoder *d, struct activations *a, const struct batch *b, int64_t k,
                    const struct exec *r) WARN_UNUSED;
status block_fwd(const struct block *m, struct block_saved *s, const struct mix *c, struct block_io *io,
                 const struct exec *r) WARN_UNUSED;
/* block_io.next of layer i of those before `end`, behind which the norm's sum is `last`. */
struct tensor block_next(const struct decoder *d, const struct block_saved *blocks, int64_t i, int64_t end,
                         struct tensor last);
/* The rest of a block, for the modules of model/mtp.h; a norm of the residual stream. `layer_name` is the prefix of its parameters,
 * `layer` its place in model.layers. */
void stream_norm_init(struct norm_block *m, struct params *p, const char *name, const struct model_spec *spec);
void block_init(struct block *m, struct params *p, const struct model_spec *spec, const char *layer_name,
                int64_t layer);
void block_lay(const struct block *m, struct block_saved *s, const struct lay *l);
void block_rows(const struct block *m, struct block_saved *s, int64_t rows);
/* What the policy did not keep, computed again from s1: the same ops on the same inputs give the same bits. */
status block_recompute(const struct block *m, struct block_saved *s, enum recompute policy, const struct mix *c,
                       struct tensor branch, const struct exec *r) WARN_UNUSED;
/* g: gradient of (s2 + b) in, of (x + b_previous) out. dy: memory for a branch's input gradient. */
status block_bwd(const struct block *m, struct block_saved *s, const struct mix *c, struct tensor g, struct tensor dy,
                 const struct exec *r) WARN_UNUSED;
/* Counting and real; and after block_fwd of rows of one document. */
void block_cache_lay(const struct block *m, struct block_cache *k, const struct cache_lay *l);
status block_cache_fill(const struct block *m, const struct block_saved *s, struct block_cache *k,
                        const struct cache_at *at, const struct exec *r) WARN_UNUSED;
/* One more token of the sequence in `cache`, in the place of block_fwd. */
status block_step(const struct block *m, struct block_saved *s, struct block_cache *cache, const struct mix *c,
                  const struct cache_at *at, struct block_io *io, const struct exec *r) WARN_UNUSED;
#endif
