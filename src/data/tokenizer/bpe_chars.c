/* When is it certain that a character is merged first? Let M be the highest rank used when the bytes of a
 * character are merged alone and become one token. Consider the first merge in a piece that crosses a
 * border of the character before the character is complete. All merges inside were the same as for the
 * character alone, so the next merge inside is possible and has rank M at most; the crossing merge has a
 * lower rank, or it would wait. Its side in the character is a proper prefix of it, joined with something
 * that ends before, or a proper suffix, joined with something that begins after. Therefore, if all merges
 * of such sides have ranks above M, the character is completed first, whatever its neighbours are. Merging
 * may begin with the complete character if nothing else happens to it before rank M: all merges with the
 * complete character must have higher ranks, too.
 *
 * borders[last byte before][first byte after] holds the lowest ranks of merges across a border between
 * those bytes. Bytes instead of characters are a conservative approximation. */
#include "data/tokenizer/bpe_chars.h"
#include "data/text/array.h"
#include <string.h>

enum { CHARS = 0x10000 }; /* four-byte characters start from bytes */

/* Bytes of the character that begins with c; 0: no lead byte. */
static size_t char_bytes(uint8_t c)
{
    return c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
}

/* True: the first bytes of a character, but not all. */
static bool is_prefix(struct text text)
{
    const uint8_t *p = (const uint8_t *)text.data;
    if (text.bytes >= char_bytes(p[0])) return false;
    for (size_t i = 1; i < text.bytes; i++)
        if ((p[i] & 0xc0) != 0x80) return false;
    return true;
}

/* True: the last bytes of a character, but not all. */
static bool is_suffix(struct text text)
{
    for (size_t i = 0; i < text.bytes; i++)
        if ((text.data[i] & 0xc0) != 0x80) return false;
    return text.bytes < 4;
}

/* Enters token `id`, one character of 2 or 3 bytes, if merges of its bytes produce it. */
static void add_char(struct tokenizer *t, int32_t id, const uint8_t *p, size_t bytes)
{
    const uint32_t *pairs = t->byte_pairs;
    uint32_t first = pairs[p[0] * 256 + p[1]], last = RANK_NONE, high = first;
    if (bytes == 3) {
        uint32_t second = pairs[p[1] * 256 + p[2]];
        high = first <= second ? first : second;
        if (high == RANK_NONE) return;
        last = first <= second ? tokenizer_rank(t, tokenizer_merged(t, first), t->byte_id[p[2]])
                               : tokenizer_rank(t, t->byte_id[p[0]], tokenizer_merged(t, second));
    } else {
        last = first;
    }
    if (last == RANK_NONE || tokenizer_merged(t, last) != id) return;
    t->chars[utf8_read(p).code] = (struct bpe_char){id, last > high ? last : high};
}

/* The character of a token that was entered; else NULL. */
static struct bpe_char *char_of(const struct tokenizer *t, int32_t id)
{
    struct text text = vocab_bytes(&t->vocab, id);
    const uint8_t *p = (const uint8_t *)text.data;
    if ((text.bytes != 2 && text.bytes != 3) || char_bytes(p[0]) != text.bytes) return NULL;
    struct bpe_char *c = &t->chars[utf8_read(p).code];
    return c->id == id ? c : NULL;
}

/* Removes the sides of a merge that would happen before they are complete. */
static void check_sides(struct tokenizer *t, const struct merge *m)
{
    struct bpe_char *left = char_of(t, m->left), *right = char_of(t, m->right);
    if (left == NULL && right == NULL) return;
    uint32_t rank = tokenizer_rank(t, m->left, m->right);
    if (left != NULL && rank < left->high) left->id = -1;
    if (right != NULL && rank < right->high) right->id = -1;
}

static void add_border(struct tokenizer *t, const struct merge *m)
{
    struct text left = vocab_bytes(&t->vocab, m->left), right = vocab_bytes(&t->vocab, m->right);
    uint8_t before = (uint8_t)left.data[left.bytes - 1], behind = (uint8_t)right.data[0];
    if ((behind & 0xc0) == 0x80 || (before < 0x80 && behind < 0x80)) return; /* inside a character */
    bool prefix = is_prefix(right), suffix = is_suffix(left);
    if (!prefix && !suffix) return;
    struct bpe_border *b = &t->borders[before * 256 + behind];
    uint32_t rank = tokenizer_rank(t, m->left, m->right);
    if (prefix && rank < b->prefix) b->prefix = rank;
    if (suffix && rank < b->suffix) b->suffix = rank;
}

/* True: the token is one character of 2 or 3 bytes. */
static bool is_char(const struct tokenizer *t, size_t id)
{
    struct text text = vocab_bytes(&t->vocab, (int32_t)id);
    if (t->vocab.tokens[id].kind != TOKEN_MODEL || (text.bytes != 2 && text.bytes != 3)) return false;
    return char_bytes((uint8_t)text.data[0]) == text.bytes && utf8_valid(text.data, text.bytes) == text.bytes;
}

status bpe_chars_init(struct tokenizer *t)
{
    size_t id = 0, count = t->vocab.count;
    while (id < count && !is_char(t, id)) id++;
    if (id == count) return STATUS_OK; /* the tables, a MiB, would stay empty */
    TRY(array_new_table(&t->chars, CHARS, sizeof *t->chars, 0xff));
    TRY(array_new_table(&t->borders, 256 * 256, sizeof *t->borders, 0xff));
    for (; id < count; id++) {
        if (!is_char(t, id)) continue;
        struct text text = vocab_bytes(&t->vocab, (int32_t)id);
        add_char(t, (int32_t)id, (const uint8_t *)text.data, text.bytes);
    }
    for (size_t i = 0; i < t->merge_count; i++) {
        check_sides(t, &t->merges[i]);
        add_border(t, &t->merges[i]);
    }
    return STATUS_OK;
}

static const struct bpe_border *border_at(const struct tokenizer *t, const uint8_t *piece, size_t at)
{
    return &t->borders[piece[at - 1] * 256 + piece[at]];
}

size_t bpe_chars_split(const struct tokenizer *t, const uint8_t *piece, size_t bytes, int32_t *ids,
                       uint32_t *ranks)
{
    size_t count = 0, unit = 0; /* unit: bytes of the last one */
    for (size_t at = 0, n; at < bytes; at += n) {
        uint8_t c = piece[at];
        int32_t id = t->byte_id[c];
        n = 1;
        if (c >= 0xc0 && c < 0xf0 && t->chars != NULL) {
            struct utf8_char u = utf8_read(piece + at);
            struct bpe_char whole = t->chars[u.code];
            size_t end = at + u.bytes;
            if (whole.id >= 0 && (at == 0 || border_at(t, piece, at)->prefix > whole.high) &&
                (end == bytes || border_at(t, piece, end)->suffix > whole.high)) {
                id = whole.id;
                n = u.bytes;
            }
        }
        if (count > 0)
            ranks[count - 1] = n == 1 && unit == 1 ? t->byte_pairs[piece[at - 1] * 256 + c]
                                                   : tokenizer_rank(t, ids[count - 1], id);
        ids[count++] = id;
        unit = n;
    }
    ranks[count - 1] = RANK_NONE;
    return count;
}
