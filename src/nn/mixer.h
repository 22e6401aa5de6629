/* mixer: what mixes tokens in a layer, one row per kind of model.layers. A new mixer is a file here with the functions below, its ops, a
 * row of MIXER_TYPES, and a section in docs/ARCHITECTURE.md.
 *
 *   X_init         declares its parameters under NAME
 *   X_lay          takes what forward and backward need from the arenas (parallel/exec.h)
 *   X_rows         sets the rows of its views: a batch may be shorter than what was laid out
 *   X_fwd          y [N, D] -> out [N, D], by linear_last of its `out`
 *   X_bwd          dout -> dy = (may be dout's memory), parameter gradients = or += (run.accum)
 *                  of y and dout rows may be on their way: they are read, and out and dy formed, by nn/linear.h alone (nn/sequence_parallel.h)
 *   X_cache_lay    generation: what one sequence keeps from token to token, from an arena
 *   X_cache_fill   after X_fwd of `rows` rows of one document that are tokens [at, at + rows) of the sequence
 *   X_step         one more row: as X_fwd, reading and extending the cache of `at` tokens */
#ifndef INGOT_NN_MIXER_H
#define INGOT_NN_MIXER_H
#include "nn/attn.h"
#include "nn/gdn.h"
#include "nn/mla.h"
#include "nn/mamba.h"

/*  value  its file */
#define MIXER_TYPES(X) \
    X(GQA, attn) \
    X(SWA, attn) \
    X(GDN, gdn) \
    X(MLA, mla) \
    X(MAMBA2, mamba)

struct mixer_block {
    enum mixer kind;
    union {
        struct attn attn;
        struct gdn gdn;
        struct mla mla;
        struct mamba mamba;
    };
};
struct mixer_saved {
    union {
        struct attn_saved attn;
        struct gdn_saved gdn;
        struct mla_saved mla;
        struct mamba_saved mamba;
    };
};
struct mixer_cache {
    union {
        struct attn_cache attn;
        struct gdn_cache gdn;
        struct mla_cache mla;
        struct mamba_cache mamba;
    };
};

void mixer_init(struct mixer_block *m, struct params *p, const char *layer_name, const struct model_spec *spec, int64_t layer);
void mixer_lay(const struct mixer_block *m, struct mixer_saved *s, const struct lay *l);
void mixer_rows(const struct mixer_block *m, struct mixer_saved *s, int64_t rows);
status mixer_fwd(const struct mixer_block *m, struct mixer_saved *s, const struct mix *c, struct tensor y, struct sink out,
                 const struct exec *r) WARN_UNUSED;
/* Its sink may have a sum. */
bool mixer_adds(const struct mixer_block *m, const struct exec *r);
status mixer_bwd(const struct mixer_block *m, struct mixer_saved *s, const struct mix *c, struct tensor y, struct tensor dout, struct tensor dy,
                 const struct exec *r) WARN_UNUSED;
void mixer_cache_lay(const struct mixer_block *m, struct mixer_cache *k, const struct cache_lay *l);
status mixer_cache_fill(const struct mixer_block *m, const struct mixer_saved *s, struct mixer_cache *k, const struct cache_at *at,
                        const struct exec *r) WARN_UNUSED;
status mixer_step(const struct mixer_block *m, struct mixer_saved *s, struct mixer_cache *k, const struct mix *c, const struct cache_at *at,
                  struct tensor y, struct tensor out, const struct exec *r) WARN_UNUSED;
#endif
