/* factors: optim.lr_scale and optim.decay_scale, lists of WHICH:FACTOR, such as "embedding:0.1,layers.0.*:0.5". WHICH is
 * the word of a group (FACTOR_GROUPS) or a pattern of a shell for names of weights. A weight has the factor of the last
 * entry that names it. */
#ifndef INGOT_SPEC_FACTORS_H
#define INGOT_SPEC_FACTORS_H
#include "spec/spec.h"

/* Word, and what belongs to it. optim/rates.c decides it by a row's role and name. */
#define FACTOR_GROUPS(X)                                                                                               \
    X(EMBEDDING, "embedding", "the embedding table, with learned positions")                                           \
    X(HEAD,      "head",      "the output head, if it is no embedding")                                                \
    X(MATRICES,  "matrices",  "all matrices inside of blocks")                                                         \
    X(MIXERS,    "mixers",    "of them, those of the mixers")                                                          \
    X(FFN,       "ffn",       "of them, those of mlp, moe and shared experts")                                         \
    X(NORMS,     "norms",     "weights and biases of norms")                                                           \
    X(BIASES,    "biases",    "biases of matrices; step sizes and decay rates of mixers, which are no matrices")       \
    X(TABLES,    "tables",    "n-gram tables (on top of optim.table_rate)")
enum factor_group {
#define X(name, word, text) FACTOR_##name,
    FACTOR_GROUPS(X)
#undef X
    FACTOR_PATTERN
};
enum { FACTORS_MAX = 64, FACTOR_NAME = 112 };
struct factors {
    int count;
    struct factor {
        enum factor_group group;
        char pattern[FACTOR_NAME]; /* as written */
        double value;
    } entry[FACTORS_MAX];
};
/* `key`: its name in errors. A factor is in (0, 1000], with `zero` in [0, 1000]. STATUS_CONFIG when the text is no such list. */
status factors_read(struct factors *f, const char *key, const char *text, bool zero) WARN_UNUSED;
/* Both lists of a spec. */
status factors_check(const struct run_spec *r) WARN_UNUSED;
#endif
