#include "data/tokenizer/token_map.h"
#include "data/text/array.h"
#include "data/text/unicode.h"

#include <stdlib.h>
#include <string.h>

/* A token's key: bytes [at, at + bytes) of one buffer. The first byte tells normalized texts from tokens
 * without one. */
struct token_key {
    size_t at, bytes;
    int32_t id;
    const char *text;
};
struct keys {
    char *text;
    size_t bytes, cap;
};

static status put_bytes(struct keys *k, const char *text, size_t bytes)
{
    TRY(array_grow(&k->text, &k->cap, k->bytes + bytes, 1));
    memcpy(k->text + k->bytes, text, bytes);
    k->bytes += bytes;
    return STATUS_OK;
}

static status put_char(struct keys *k, uint32_t code)
{
    char utf8[4];
    const int bytes = utf8_write(code, utf8);
    return put_bytes(k, utf8, (size_t)bytes);
}

/* A Hangul syllable is two or three letters (Unicode Standard, 3.12). */
static status put_hangul(struct keys *k, uint32_t syllable)
{
    enum { VOWELS = 21, TAILS = 28 };
    const uint32_t tail = syllable % TAILS;
    TRY(put_char(k, 0x1100 + syllable / (VOWELS * TAILS)));
    TRY(put_char(k, 0x1161 + syllable / TAILS % VOWELS));
    return tail ? put_char(k, 0x11A7 + tail) : STATUS_OK;
}

static int by_code(const void *key, const void *row)
{
    const uint32_t code = *(const uint32_t *)key, at = ((const struct unicode_fold *)row)->code;
    return (code > at) - (code < at);
}

static status put_folded(struct keys *k, uint32_t code)
{
    if (code >= 0xAC00 && code < 0xD7A4) return put_hangul(k, code - 0xAC00);
    const struct unicode_fold *f =
        bsearch(&code, unicode_folds, (size_t)unicode_fold_count, sizeof *unicode_folds, by_code);
    if (f == NULL) return put_char(k, code);
    for (int i = 0; i < f->count; i++) TRY(put_char(k, unicode_fold_pool[f->at + i]));
    return STATUS_OK;
}

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Collapses each run of blanks from `from` on to one, in place. */
static void merge_blanks(struct keys *k, size_t from)
{
    size_t to = from;
    for (size_t i = from; i < k->bytes; i++)
        if (!blank(k->text[i]))
            k->text[to++] = k->text[i];
        else if (i == from || !blank(k->text[i - 1]))
            k->text[to++] = ' ';
    k->bytes = to;
}

static bool space(const char *p, size_t *bytes)
{
    const struct utf8_char c = utf8_read((const uint8_t *)p);
    *bytes = c.bytes;
    return unicode_class_of(c.code) == UNICODE_SPACE;
}

/* Strips white space from the ends of [from, end), unless that is one blank. */
static void strip(struct keys *k, size_t from)
{
    size_t begin = from, bytes;
    if (k->bytes == from + 1 && k->text[from] == ' ') return;
    while (begin < k->bytes && space(k->text + begin, &bytes)) begin += bytes;
    while (k->bytes > begin) {
        size_t last = k->bytes - 1;
        while (((unsigned char)k->text[last] & 0xC0) == 0x80) last--;
        if (!space(k->text + last, &bytes)) break;
        k->bytes = last;
    }
    memmove(k->text + from, k->text + begin, k->bytes - begin);
    k->bytes -= begin - from;
}

static status key_of(struct keys *k, struct text token, struct token_key *key)
{
    enum { RAW = 0, TEXT = 1 };
    key->at = k->bytes;
    TRY(put_bytes(k, (const char[]){TEXT}, 1));
    const bool valid = utf8_valid(token.data, token.bytes) == token.bytes;
    for (size_t i = 0; valid && i < token.bytes;) {
        const struct utf8_char c = utf8_read((const uint8_t *)token.data + i);
        TRY(put_folded(k, c.code));
        i += c.bytes;
    }
    merge_blanks(k, key->at + 1);
    strip(k, key->at + 1);
    if (!valid) k->text[key->at] = RAW;
    if (!valid || k->bytes == key->at + 1) TRY(put_bytes(k, token.data, token.bytes));
    key->bytes = k->bytes - key->at;
    return STATUS_OK;
}

static int by_text(const void *a, const void *b)
{
    const struct token_key *x = a, *y = b;
    const size_t bytes = x->bytes < y->bytes ? x->bytes : y->bytes;
    const int order = memcmp(x->text, y->text, bytes);
    if (order) return order;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* From each id's first equal id to numbers in order of first appearance. */
static int32_t number(int32_t *map, int32_t vocab)
{
    int32_t count = 0;
    for (int32_t id = 0; id < vocab; id++) map[id] = map[id] == id ? count++ : map[map[id]];
    return count;
}

/* map[id] = the first id of an equal key. */
static void equal_keys(struct token_key *keys, int32_t count, const char *text, int32_t *map)
{
    for (int32_t i = 0; i < count; i++) keys[i].text = text + keys[i].at;
    qsort(keys, (size_t)count, sizeof *keys, by_text);
    for (int32_t i = 1, first = 0; i < count; i++) {
        const struct token_key *a = &keys[first], *b = &keys[i];
        if (a->bytes == b->bytes && memcmp(a->text, b->text, a->bytes) == 0)
            map[b->id] = a->id;
        else
            first = i;
    }
}

status token_map_build(const struct text *tokens, int32_t count, int32_t vocab, int32_t *map,
                       int32_t *distinct)
{
    struct keys k = {0};
    struct token_key *keys = NULL;
    CHECK(vocab >= count, "a map of %d ids for %d tokens", vocab, count);
    status st = array_new(&keys, (size_t)count + 1, sizeof *keys);
    int32_t used = 0;
    for (int32_t id = 0; st == STATUS_OK && id < count; id++) {
        if (tokens[id].bytes == 0) continue;
        keys[used].id = id;
        st = key_of(&k, tokens[id], &keys[used++]);
    }
    for (int32_t id = 0; id < vocab; id++) map[id] = id;
    if (st == STATUS_OK && used > 0) equal_keys(keys, used, k.text, map);
    *distinct = number(map, vocab);
    free(keys);
    free(k.text);
    return st;
}

status token_map_of(const struct tokenizer *t, int32_t vocab, int32_t *map, int32_t *distinct)
{
    const int32_t count = tokenizer_vocab_size(t);
    struct text *tokens = NULL;
    if (count > vocab)
        return FAIL(STATUS_CONFIG,
                    "the tokenizer has %d ids, model.vocab_size is %d: set it to at least that", count,
                    vocab);
    TRY(array_new(&tokens, (size_t)count + 1, sizeof *tokens));
    for (int32_t id = 0; id < count; id++) tokens[id] = tokenizer_bytes(t, id);
    const status st = token_map_build(tokens, count, vocab, map, distinct);
    free(tokens);
    return st;
}
