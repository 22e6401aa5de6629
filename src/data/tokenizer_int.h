/* Inside of a tokenizer: what the object (tokenizer.c), its files (tokenizer_json.c, tiktoken.c), bpe_*.c and
 * encoder.c share. */
#ifndef INGOT_DATA_TOKENIZER_INT_H
#define INGOT_DATA_TOKENIZER_INT_H
#include "data/pretokenizer.h"
#include "data/tokenizer.h"
#include "data/vocab.h"

/* Ids and ranks are limited so that two ids and a rank fit in 64 bits. */
enum {
    TOKEN_BITS = 21,
    TOKEN_MAX = 1 << TOKEN_BITS,
    RANK_BITS = 64 - 2 * TOKEN_BITS,
    RANK_MAX = 1 << RANK_BITS
};
#define RANK_NONE UINT32_MAX

struct merge {
    int32_t left, right, id;
};

struct added {
    int32_t id;          /* its text is the token's bytes */
    bool special;        /* is plain text unless SPECIALS_PARSE */
    bool normalized;     /* the HF flag: these are looked for only where the others did not match */
    bool lstrip, rstrip; /* takes the white space before or behind it, too */
};

struct tokenizer {
    struct pretokenizer pretokenizer;
    bool ignore_merges; /* a piece that is a token as a whole is emitted at once, whatever the merges say */
    struct vocab vocab;
    struct merge *merges; /* in order of priority: the position is the rank */
    size_t merge_count, merge_cap;
    struct added *added;
    size_t added_count, added_cap;

    /* Derived by tokenizer_finish, which also sorts `added`: normalized last, then by text. */
    size_t added_raw;     /* how many are not normalized */
    bool first_byte[256]; /* some added token begins with it */
    int32_t byte_id[256];
    uint64_t *pairs; /* open addressing: left, right, rank from the high bits down; PAIR_FREE */
    size_t pair_mask;
    uint32_t *byte_pairs; /* [256 * 256] rank of the merge of two single bytes, or RANK_NONE */
};
#define PAIR_FREE UINT64_MAX

/* Checks and derives the rest from pretokenizer, vocab, merges and added; the table of pairs unless it is there
 * already. STATUS_DATA for a byte that has no token. */
status tokenizer_finish(struct tokenizer *t) WARN_UNUSED;

/* The ids of bytes, and an empty table of pairs with room for `count`; STATUS_DATA for a byte without a token.
 * tokenizer_pair_add enters merges[rank]. */
status tokenizer_pairs_begin(struct tokenizer *t, size_t count) WARN_UNUSED;
void tokenizer_pair_add(struct tokenizer *t, size_t rank);

static inline size_t pair_hash(uint64_t key)
{
    return (size_t)((key * 0x9e3779b97f4a7c15u) >> 32);
}

/* Rank of the merge (left, right), or RANK_NONE. */
static inline uint32_t tokenizer_rank(const struct tokenizer *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)left << TOKEN_BITS | (uint64_t)right;
    for (size_t i = pair_hash(key) & t->pair_mask;; i = (i + 1) & t->pair_mask) {
        if (t->pairs[i] >> RANK_BITS == key) return (uint32_t)(t->pairs[i] & (RANK_MAX - 1));
        if (t->pairs[i] == PAIR_FREE) return RANK_NONE;
    }
}
#endif
