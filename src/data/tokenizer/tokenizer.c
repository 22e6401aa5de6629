/* The tokenizer object: the parts independent of its origin (bpe_train.c, tokenizer_json.c). */
#include "base/hash.h"
#include "base/io.h"
#include "data/text/array.h"
#include "data/tokenizer/bpe_chars.h"
#include "data/tokenizer/bpe_train.h"
#include "data/tokenizer/tokenizer_file.h"
#include "data/tokenizer/tokenizer_int.h"
#include <stdlib.h>
#include <string.h>

void tokenizer_free(struct tokenizer *t)
{
    if (t == NULL) return;
    vocab_free(&t->vocab);
    free(t->merges);
    free(t->added);
    free(t->pairs);
    free(t->byte_pairs);
    free(t->chars);
    free(t->borders);
    free(t);
}

static status new_tokenizer(struct tokenizer **t)
{
    *t = NULL;
    return array_new(t, 1, sizeof **t);
}

status tokenizer_train(struct tokenizer **out, const struct tokenizer_train_config *config,
                       const struct text *docs, int64_t count)
{
    struct tokenizer *t = NULL;
    *out = NULL;
    status st = new_tokenizer(&t);
    if (st == STATUS_OK) st = bpe_train(t, config, docs, count);
    if (st == STATUS_OK) st = tokenizer_finish(t);
    if (st == STATUS_OK)
        *out = t;
    else
        tokenizer_free(t);
    return st;
}

status tokenizer_load(struct tokenizer **out, const char *path)
{
    return tokenizer_import(out, path, NULL);
}

status tokenizer_import(struct tokenizer **out, const char *path, const char *pretokenizer)
{
    struct tokenizer *t = NULL;
    *out = NULL;
    status st = new_tokenizer(&t);
    if (st == STATUS_OK) st = tokenizer_file_read(t, path, pretokenizer);
    if (st == STATUS_OK) st = tokenizer_finish(t);
    if (st == STATUS_OK)
        *out = t;
    else {
        tokenizer_free(t);
        st = status_wrap(st, "%s", path);
    }
    return st;
}

status tokenizer_save(const struct tokenizer *t, const char *dir)
{
    TRY(io_make_dirs(dir));
    return tokenizer_file_write(t, dir);
}

static int compare_bytes(struct text a, struct text b)
{
    int order = memcmp(a.data, b.data, a.bytes < b.bytes ? a.bytes : b.bytes);
    return order != 0 ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static int compare_added(const void *a, const void *b, void *vocab)
{
    const struct added *x = a, *y = b;
    if (x->normalized != y->normalized) return x->normalized ? 1 : -1;
    return compare_bytes(vocab_bytes(vocab, x->id), vocab_bytes(vocab, y->id));
}

/* HF looks for the normal form of such a token in the normalized text. */
static status check_normal(const struct tokenizer *t, struct text text)
{
    struct pretokenizer_room room = {0};
    const char *normal;
    size_t bytes;
    status st = pretokenizer_normalize(&t->pretokenizer, text.data, text.bytes, &room, &normal, &bytes);
    if (st == STATUS_OK && compare_bytes((struct text){normal, bytes}, text) != 0)
        st = FAIL(
            STATUS_DATA,
            "added token \"%.*s\": normalized=true for a text that is not in normal form is not supported",
            (int)text.bytes, text.data);
    free(room.data);
    return st;
}

static status finish_added(struct tokenizer *t)
{
    if (t->added_count != 0) qsort_r(t->added, t->added_count, sizeof *t->added, compare_added, &t->vocab);
    t->added_raw = 0;
    for (size_t i = 0; i < t->added_count; i++) {
        struct text text = vocab_bytes(&t->vocab, t->added[i].id);
        t->first_byte[(uint8_t)text.data[0]] = true;
        t->added_raw += !t->added[i].normalized;
        if (t->added[i].normalized) TRY(check_normal(t, text));
        if (i > 0 && compare_added(&t->added[i - 1], &t->added[i], &t->vocab) == 0)
            return FAIL(STATUS_DATA, "added token \"%.*s\" occurs twice", (int)text.bytes, text.data);
    }
    return STATUS_OK;
}

status tokenizer_pairs_begin(struct tokenizer *t, size_t count)
{
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        t->byte_id[byte] = vocab_find(&t->vocab, &c, 1);
        if (t->byte_id[byte] < 0)
            return FAIL(STATUS_DATA,
                        "the vocabulary has no token for byte 0x%02x; byte-level BPE needs all 256", byte);
    }
    size_t slots = 16;
    while (slots < 2 * count + 1) slots *= 2;
    free(t->pairs);
    free(t->byte_pairs);
    t->pairs = NULL;
    t->byte_pairs = NULL;
    TRY(array_new_table(&t->pairs, slots, sizeof *t->pairs, 0xff));
    TRY(array_new_table(&t->byte_pairs, 256 * 256, sizeof *t->byte_pairs, 0xff));
    t->pair_mask = slots - 1;
    return STATUS_OK;
}

void tokenizer_pair_add(struct tokenizer *t, size_t index)
{
    const struct merge *m = &t->merges[index];
    size_t rank = t->rank_is_id ? (size_t)m->id : index;
    uint64_t key = (uint64_t)m->left << TOKEN_BITS | (uint64_t)m->right;
    size_t i = pair_hash(key) & t->pair_mask;
    /* A pair that is listed twice has the later rank, as in HF. */
    while (t->pairs[i] != PAIR_FREE && t->pairs[i] >> RANK_BITS != key) i = (i + 1) & t->pair_mask;
    t->pairs[i] = key << RANK_BITS | rank;
    struct text left = vocab_bytes(&t->vocab, m->left), right = vocab_bytes(&t->vocab, m->right);
    if (left.bytes == 1 && right.bytes == 1)
        t->byte_pairs[(uint8_t)left.data[0] * 256 + (uint8_t)right.data[0]] = (uint32_t)rank;
}

status tokenizer_finish(struct tokenizer *t)
{
    CHECK(t->vocab.count < TOKEN_MAX, "%zu tokens", t->vocab.count);
    CHECK(t->merge_count < RANK_MAX, "%zu merges", t->merge_count);
    if (t->pairs == NULL) {
        t->rank_is_id = true;
        for (size_t i = 1; i < t->merge_count; i++) t->rank_is_id &= t->merges[i - 1].id <= t->merges[i].id;
        TRY(tokenizer_pairs_begin(t, t->merge_count));
        for (size_t i = 0; i < t->merge_count; i++) tokenizer_pair_add(t, i);
    }
    TRY(bpe_chars_init(t));
    return finish_added(t);
}

int32_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return (int32_t)t->vocab.count;
}

int32_t tokenizer_special(const struct tokenizer *t, const char *text)
{
    struct text want = {text, strlen(text)};
    for (size_t i = 0; i < t->added_count; i++)
        if (t->added[i].special && compare_bytes(vocab_bytes(&t->vocab, t->added[i].id), want) == 0)
            return t->added[i].id;
    return -1;
}

int32_t tokenizer_eot(const struct tokenizer *t)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    int32_t id = -1;
    for (size_t i = 0; id < 0 && i < sizeof names / sizeof *names; i++) id = tokenizer_special(t, names[i]);
    return id;
}

struct text tokenizer_bytes(const struct tokenizer *t, int32_t id)
{
    if (id < 0 || (size_t)id >= t->vocab.count) return (struct text){"", 0};
    return vocab_bytes(&t->vocab, id);
}

bool tokenizer_added(const struct tokenizer *t, int32_t id)
{
    if (id < 0 || (size_t)id >= t->vocab.count) return false;
    enum token_kind kind = t->vocab.tokens[id].kind;
    return kind == TOKEN_ADDED || kind == TOKEN_RAW;
}

const char *tokenizer_pattern(const struct tokenizer *t)
{
    return pretokenizer_name(&t->pretokenizer);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    for (size_t i = 0; i < t->added_count; i++)
        if (t->added[i].id == id) return t->added[i].special;
    return false;
}

bool tokenizer_merge(const struct tokenizer *t, int64_t i, int32_t *left, int32_t *right)
{
    if (i < 0 || (size_t)i >= t->merge_count) return false;
    *left = t->merges[i].left;
    *right = t->merges[i].right;
    return true;
}

static void hash_u32(struct sha256 *s, uint32_t value)
{
    uint8_t le[4] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16), (uint8_t)(value >> 24)};
    sha256_add(s, le, sizeof le);
}

static uint32_t added_flags(const struct added *a)
{
    return (uint32_t)(a->special | a->normalized << 1 | a->lstrip << 2 | a->rstrip << 3);
}

/* Order: pattern, flags, tokens by id, merges by rank, added tokens in their sorted order. Every length is
 * hashed before its data. */
void tokenizer_hash(const struct tokenizer *t, char out[65])
{
    struct sha256 s;
    sha256_init(&s);
    char pattern[PRETOKENIZER_TEXT_BYTES];
    size_t pattern_bytes = pretokenizer_text(&t->pretokenizer, pattern, sizeof pattern);
    CHECK(pattern_bytes < sizeof pattern, "%zu bytes", pattern_bytes);
    hash_u32(&s, (uint32_t)pattern_bytes);
    sha256_add(&s, pattern, pattern_bytes);
    hash_u32(&s, t->ignore_merges);
    hash_u32(&s, (uint32_t)t->vocab.count);
    for (size_t id = 0; id < t->vocab.count; id++) {
        struct text text = vocab_bytes(&t->vocab, (int32_t)id);
        hash_u32(&s, (uint32_t)text.bytes);
        hash_u32(&s, t->vocab.tokens[id].kind == TOKEN_MODEL);
        sha256_add(&s, text.data, text.bytes);
    }
    hash_u32(&s, (uint32_t)t->merge_count);
    for (size_t i = 0; i < t->merge_count; i++) {
        hash_u32(&s, (uint32_t)t->merges[i].left);
        hash_u32(&s, (uint32_t)t->merges[i].right);
    }
    for (size_t i = 0; i < t->added_count; i++) {
        hash_u32(&s, (uint32_t)t->added[i].id);
        hash_u32(&s, added_flags(&t->added[i]));
    }
    sha256_hex(&s, out);
}

status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t count, char **out,
                        size_t *bytes)
{
    size_t add = 0, begin = *out != NULL ? *bytes : 0;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= t->vocab.count || t->vocab.tokens[ids[i]].kind == TOKEN_HOLE)
            return FAIL(STATUS_DATA, "id %d at position %lld is not in the vocabulary of %zu", (int)ids[i],
                        (long long)i, t->vocab.count);
        add += t->vocab.tokens[ids[i]].bytes;
    }
    char *data = realloc(*out, begin + add + 1);
    if (data == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %zu bytes of text", begin + add);
    char *at = data + begin;
    for (int64_t i = 0; i < count; i++) {
        struct text text = vocab_bytes(&t->vocab, ids[i]);
        memcpy(at, text.data, text.bytes);
        at += text.bytes;
    }
    *at = 0;
    *out = data;
    *bytes = begin + add;
    return STATUS_OK;
}
