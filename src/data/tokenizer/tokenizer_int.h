/* Internals of a tokenizer, shared by the object (tokenizer.c), its files (tokenizer_json.c, tiktoken.c), bpe_*.c and
 * encoder.c. */
#ifndef INGOT_DATA_TOKENIZER_TOKENIZER_INT_H
#define INGOT_DATA_TOKENIZER_TOKENIZER_INT_H
#include "data/text/array.h"
#include "data/tokenizer/pretokenizer.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/vocab.h"
#include <string.h>

/* Ids and ranks are limited: two ids and a rank must fit in 64 bits. */
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
    bool special;        /* treated as plain text unless SPECIALS_PARSE */
    bool normalized;     /* the HF flag: matched only where the others did not match */
    bool lstrip, rstrip; /* also removes the white space before or after it */
};

struct bpe_char {  /* a character as a unit of merging: bpe_chars.h */
    int32_t id;    /* -1: merging must begin with its bytes */
    uint32_t high; /* highest rank of the merges that form it */
};

struct bpe_border {  /* lowest rank of a merge across a border with a partial character on one side */
    uint32_t prefix; /* prefix of the character after the border */
    uint32_t suffix; /* suffix of the character before the border */
};

struct tokenizer {
    struct pretokenizer pretokenizer;
    bool ignore_merges; /* a piece that is a complete token is emitted at once, regardless of the merges */
    struct vocab vocab;
    struct merge *merges; /* in order of priority: the index is the rank */
    size_t merge_count, merge_cap;
    struct added *added;
    size_t added_count, added_cap;

    /* Derived by tokenizer_finish, which also sorts `added`: normalized last, then by text. */
    size_t added_raw;     /* number of added tokens that are not normalized */
    bool first_byte[256]; /* an added token begins with this byte */
    int32_t byte_id[256];
    /* true when the results of merges never decrease: their ids then serve as ranks, which saves one look-up per
     * merge. Of merges with the same result only one ever happens (bpe_derive.c); those need no order. */
    bool rank_is_id;
    uint64_t *pairs; /* open addressing: left, right, rank from the high bits down; PAIR_FREE */
    size_t pair_mask;
    uint32_t *byte_pairs;       /* [256 * 256] rank of the merge of two single bytes, or RANK_NONE */
    struct bpe_char *chars;     /* [0x10000] by code point; NULL: no token is one */
    struct bpe_border *borders; /* [256 * 256] by the bytes before and behind */
};
#define PAIR_FREE UINT64_MAX

/* Places a special token, which no text has unless it is parsed for them. */
static inline WARN_UNUSED status tokenizer_add_special(struct tokenizer *t, int32_t id, const char *text)
{
    TRY(vocab_place(&t->vocab, id, text, strlen(text), TOKEN_ADDED));
    TRY(array_grow(&t->added, &t->added_cap, t->added_count + 1, sizeof *t->added));
    t->added[t->added_count++] = (struct added){.id = id, .special = true};
    return STATUS_OK;
}

/* Checks the tokenizer and derives the other fields from pretokenizer, vocab, merges and added; builds the table of
 * pairs unless it exists. STATUS_DATA for a byte without a token. */
status tokenizer_finish(struct tokenizer *t) WARN_UNUSED;

/* Sets the ids of bytes, and makes an empty table of pairs with capacity `count`; STATUS_DATA for a byte without a
 * token. tokenizer_pair_add inserts merges[index]. */
status tokenizer_pairs_begin(struct tokenizer *t, size_t count) WARN_UNUSED;
void tokenizer_pair_add(struct tokenizer *t, size_t index);

/* The token made by the merge of this rank. */
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
