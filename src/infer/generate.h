/* Generation with one cache per layer: a batch of sequences, one token each at a time after prompts of any length.
 *
 * The mixer defines the contents of its caches (nn/mixer.h). A prompt runs through the training forward, sequence after
 * sequence; each further token through mixer_step, a row for each sequence.
 *
 * On a GPU the first of these steps runs op by op (algorithms are chosen), the second is captured as a CUDA graph and
 * replayed from then on: upload of the tokens, forward, logits, download. What changes from token to token is read from
 * device memory: ids, positions, lengths. */
#ifndef INGOT_INFER_GENERATE_H
#define INGOT_INFER_GENERATE_H
#include "model/decoder.h"
#include "model/feed.h"

struct generate_layout {
    int64_t sequences; /* at most acts->layout.n, and acts->layout.docs_max */
    int64_t capacity;  /* of each: tokens of the prompt and generated ones */
    bool eager;        /* GPU: every step op by op */
    bool blind;        /* g->logits is not filled: for measurements of the forward alone */
};
enum { GENERATE_IDLE = -1 };
enum generate_mode { GENERATE_FIRST, GENERATE_CAPTURE, GENERATE_REPLAY, GENERATE_EAGER };
struct generator {
    const struct decoder *decoder;
    const struct exec *run;
    struct activations *acts; /* laid out for at least the prompt's tokens (PLAN_FORWARD or PLAN_TRAIN) */
    struct generate_layout layout;
    struct arena memory;      /* memory of the fields below; owned; in the device memory of the op set */
    struct feed feed;         /* of the prompt */
    void *block;              /* memory of the feed */
    struct block_cache *caches; /* one per visit of a block in a forward (decoder_visits), owned */
    /* I32 [4, sequences + 1], input of a step: tokens, positions, lengths including the new token, cu_seqlens */
    struct tensor inputs;
    int32_t *staged;          /* the same on the host: pinned, owned; on the CPU inputs.data */
    /* [sequences, head.width] f32: logits of the last tokens, in the op set's memory; the first V belong to ids */
    struct tensor last;
    struct tensor logits;     /* the same in host memory; on a GPU a pinned copy, owned */
    struct graph graph;       /* of a step */
    enum generate_mode mode;  /* of the next step */
    int64_t length;           /* tokens in the caches, of the longest sequence */
    int64_t *lengths;         /* [sequences], owned: of each; GENERATE_IDLE: it takes no more */
};

/* Maximum sequence length of the model: prompt and continuation together. */
int64_t generate_limit(const struct decoder *d);
/* STATUS_CONFIG when the capacity exceeds the rows of the rope tables or of the learned positions. */
status generate_open(struct generator *g, const struct decoder *d, struct activations *acts,
                     const struct generate_layout *layout, const struct exec *run) WARN_UNUSED;
void generate_close(struct generator *g);
/* Appends `count` tokens to every sequence, tokens [sequences, count]; g->logits are then those after the last ones.
 * Empty caches accept up to acts->layout.n tokens at once; after that, one at a time. */
status generate_append(struct generator *g, const int32_t *tokens, int64_t count) WARN_UNUSED;
/* The same for empty caches and prompts of different lengths, of at most acts->layout.n tokens each. */
status generate_prompts(struct generator *g, const int32_t *const *prompts, const int64_t *counts) WARN_UNUSED;
/* The sequence takes no more tokens: what generate_append is given for it is not read, its logits mean nothing. */
void generate_idle(struct generator *g, int64_t sequence);
/* Bytes of the caches of all sequences, of `length` tokens each. */
double generate_cache_bytes(const struct generator *g, int64_t length);

struct sampling {
    double temperature; /* 0: the most likely token */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    uint64_t seed;
};
/* Samples a token from logits[0, vocab): a pure function of (logits, sampling, index). The smaller id wins ties
 * (sampling.c). */
int32_t generate_sample(const float *logits, int64_t vocab, const struct sampling *s, uint64_t index);
#endif
