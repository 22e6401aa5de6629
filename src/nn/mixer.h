/* mixer: the part of a layer that mixes tokens: attention, linear attention, state spaces. A new mixer is a file here
 * with the functions below, its ops, a word in spec/words.def, and a row in each of the two lists below. See
 * docs/howto/mixer.md.
 *
 *   X_init         declares its parameters under NAME
 *   X_in           the linear that is the only reader of the values of y
 *   X_layout          allocates memory for forward and backward from the arenas (parallel/exec.h)
 *   X_rows         sets the rows of its views: a batch may be shorter than the allocation
 *   X_fwd          y [N, D] -> out [N, D], with linear_last of its `out`
 *   X_bwd          dout -> dy = (may be dout's memory), parameter gradients = or += (exec.accum)
 *                  With overlapped sequence parallelism, rows of y and dout may still be arriving: only nn/linear.h may
 *                  read them and write out and dy (nn/sequence_parallel.h)
 *   X_cache_layout    generation: allocates the caches of a batch of sequences from an arena
 *   X_cache_fill   call it after X_fwd of one document, the first tokens of a sequence (nn/layer_ctx.h)
 *   X_step         one more row of every sequence: as X_fwd; reads and extends the caches. Its launches do not depend
 *                  on the position: a GPU captures them once (infer/generate.h)
 *   X_traits       checks, widths, GEMMs and FLOPs from the spec alone, for meshes and plans (spec/layer_traits.h) */
#ifndef INGOT_NN_MIXER_H
#define INGOT_NN_MIXER_H
#include "nn/attn.h"
#include "nn/gdn.h"
#include "nn/mla.h"
#include "nn/mamba.h"
#include "spec/layer_traits.h"

/*  word of model.layers (spec/words.def)  its file */
#define MIXER_TYPES(X) \
    X(GQA, attn) \
    X(SWA, attn) \
    X(GDN, gdn) \
    X(MLA, mla) \
    X(MAMBA2, mamba)
/*  every file once */
#define MIXER_FILES(X) X(attn) X(gdn) X(mla) X(mamba)

struct mixer_block {
    enum mixer kind;
    union {
#define X(type) struct type type;
        MIXER_FILES(X)
#undef X
    };
};
struct mixer_saved {
    union {
#define X(type) struct type##_saved type;
        MIXER_FILES(X)
#undef X
    };
};
struct mixer_cache {
    union {
#define X(type) struct type##_cache type;
        MIXER_FILES(X)
#undef X
    };
};

/* Dimensions that the mixers of the model rotate: the widths of the RoPE tables (nn/rope.h). */
struct rope_dims mixer_rope_dims(const struct model_spec *m);
void mixer_init(struct mixer_block *m, struct params *p, const char *layer_name, const struct model_spec *spec,
                int64_t layer);
void mixer_layout(const struct mixer_block *m, struct mixer_saved *s, const struct layout *l);
void mixer_rows(const struct mixer_block *m, struct mixer_saved *s, int64_t rows);
status mixer_fwd(const struct mixer_block *m, struct mixer_saved *s, const struct layer_ctx *c, struct tensor y,
                 struct branch_dst out, const struct exec *r) WARN_UNUSED;
/* The linears that read y, and dout. */
const struct linear *mixer_in(const struct mixer_block *m);
const struct linear *mixer_out(const struct mixer_block *m);
/* True if mixer_fwd supports a sink with a sum. */
bool mixer_adds(const struct mixer_block *m, const struct exec *r);
status mixer_bwd(const struct mixer_block *m, struct mixer_saved *s, const struct layer_ctx *c, struct tensor y,
                 struct tensor dout, struct tensor dy, const struct exec *r) WARN_UNUSED;
void mixer_cache_layout(const struct mixer_block *m, struct mixer_cache *k, const struct cache_layout *l);
status mixer_cache_fill(const struct mixer_block *m, const struct mixer_saved *s, struct mixer_cache *k,
                        const struct cache_at *at, const struct exec *r) WARN_UNUSED;
status mixer_step(const struct mixer_block *m, struct mixer_saved *s, struct mixer_cache *k, const struct layer_ctx *c,
                  const struct cache_at *at, struct tensor y, struct tensor out, const struct exec *r) WARN_UNUSED;
#endif
