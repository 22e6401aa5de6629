/* Inside of a tokenizer: what the object (tokenizer.c), its files (tokenizer_json.c, tiktoken.c), bpe_*.c and
 * encoder.c share. */
#ifndef INGOT_DATA_TOKENIZER_TOKENIZER_INT_H
#define INGOT_DATA_TOKENIZER_TOKENIZER_INT_H
#include "data/tokenizer/pretokenizer.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/vocab.h"

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

struct bpe_char {  /* a character as a unit of merging: bpe_chars.h */
    int32_t id;    /* -1: merging must begin with its bytes */
    uint32_t high; /* highest rank used on the way to it */
};

struct bpe_border {  /* lowest rank of a merge over it whose one side is a part of a character */
    uint32_t prefix; /* of the character behind */
    uint32_t suffix; /* of the character before */
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
    /* Where the results of merges never go down, their ids serve as ranks: one look-up less for each merge. Of
     * merges with the same result only one ever happens (bpe_derive.c), so that those need no order. */
    bool rank_is_id;
    uint64_t *pairs; /* open addressing: left, right, rank from the high bits down; PAIR_FREE */
    size_t pair_mask;
    uint32_t *byte_pairs;       /* [256 * 256] rank of the merge of two single bytes, or RANK_NONE */
    struct bpe_char *chars;     /* [0x10000] by code point; NULL: no token is one */
    struct bpe_border *borders; /* [256 * 256] by the bytes before and behind */
};
#define PAIR_FREE UINT64_MAX

/* Checks and derives the rest from pretokenizer, vocab, merges and added; the table of pairs unless it is there
 * already. STATUS_DATA for a byte that has no token. */
status tokenizer_finish(struct tokenizer *t) WARN_UNUSED;

/* The ids of bytes, and an empty table of pairs with room for `count`; STATUS_DATA for a byte without a token.
 * tokenizer_pair_add enters merges[index]. */
status tokenizer_pairs_begin(struct tokenizer *t, size_t count) WARN_UNUSED;
void tokenizer_pair_add(struct tokenizer *t, size_t index);

/* The token that the merge of this rank makes. */
static inline int32_t tokenizer_merged(const struct tokenizer *t, uint32_t rank)
{
    return t->rank_is_id ? (int32_t)rank : t->merges[rank].id;
}

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
