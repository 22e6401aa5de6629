/* Any bytes as text, with a tokenizer for each pretokenizer: invalid UTF-8 is refused at its place; valid text
 * decodes to itself, normalized, its special tokens appear only when they are asked for, encoding in two calls
 * of one encoder gives what a fresh one gives, and ids are those of BPE as it is defined. */
#include "data/tokenizer/pretokenizer.h"
#include "data/tokenizer/tokenizer_int.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB_SIZE = 330, SPECIALS = 2, TOKENIZERS_MAX = 32, PLAIN_MAX = 400 };

/* Kept from one input to the next: the cache of an encoder must not change ids. */
static struct tokenizer *tokenizers[TOKENIZERS_MAX];
static struct encoder *encoders[TOKENIZERS_MAX];
static struct pretokenizer_room room;

static void open_all(void)
{
    static const char corpus[] =
        "the cat and the other cats sat there; they didn't. 123 123 1234\n\n  int x = 0;\n\tint y = 1; aaaa "
        "aaaaaaaa "
        "\xd0\xbc\xd0\xb8\xd1\x80 \xd0\xbc\xd0\xb8\xd1\x80\xd1\x83 "
        "\xe4\xbb\x8a\xe5\xa4\xa9\xe4\xbb\x8a\xe5\xa4\xa9 "
        "she said that this is what was left of those, and we'll see more of them when we've got there";
    static const char *const specials[] = {"<|endoftext|>", "<|e"};
    struct text doc = {corpus, sizeof corpus - 1};
    for (int s = 0; pretokenizer_word(s) != NULL; s++) {
        CHECK(s < TOKENIZERS_MAX, "room");
        const struct tokenizer_train_config config = {.pretokenizer = pretokenizer_word(s),
                                                      .vocab_size = VOCAB_SIZE,
                                                      .specials = specials,
                                                      .special_count = SPECIALS};
        CHECK(tokenizer_train(&tokenizers[s], &config, &doc, 1) == STATUS_OK, "%s", status_message());
        CHECK(encoder_open(&encoders[s], tokenizers[s]) == STATUS_OK, "memory");
    }
}

/* The lowest merge first, the leftmost first among equals, found by looking at all of them. */
static size_t plain_bpe(const struct tokenizer *t, const uint8_t *piece, size_t n, int32_t *ids)
{
    for (size_t i = 0; i < n; i++) ids[i] = t->byte_id[piece[i]];
    for (size_t rank = 0; rank < t->merge_count;) {
        const struct merge *m = &t->merges[rank];
        size_t at = 0;
        while (at + 1 < n && (ids[at] != m->left || ids[at + 1] != m->right)) at++;
        rank++;
        if (at + 1 >= n) continue;
        ids[at] = m->id;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
        rank = 0;
    }
    return n;
}

static void check_definition(int s, const char *text, size_t bytes, const int32_t *ids, int64_t count)
{
    static int32_t want[PLAIN_MAX];
    size_t at = 0, end, n = 0;
    struct pretokenizer_cursor c = pretokenizer_begin(text, bytes);
    for (; pretokenizer_scan(&tokenizers[s]->pretokenizer, &c, &end, 1) > 0; at = end)
        n += plain_bpe(tokenizers[s], (const uint8_t *)text + at, end - at, want + n);
    CHECK((int64_t)n == count && (n == 0 || memcmp(want, ids, n * sizeof *want) == 0),
          "other ids than by the definition");
}

static void check(int s, const char *text, size_t size, enum specials specials)
{
    const int32_t *ids, *fresh_ids;
    int64_t count, fresh_count;
    size_t valid = utf8_valid(text, size), back_bytes = 0;
    status st = encoder_encode(encoders[s], text, size, specials, &ids, &count);
    CHECK((st == STATUS_OK) == (valid == size), "status %d, valid up to %zu of %zu", st, valid, size);
    if (st != STATUS_OK) return;
    char *back = NULL;
    CHECK(tokenizer_decode(tokenizers[s], ids, count, &back, &back_bytes) == STATUS_OK, "%s",
          status_message());
    struct pretokenizer p;
    const char *normal;
    size_t normal_bytes;
    CHECK(pretokenizer_named(&p, pretokenizer_word(s)) == STATUS_OK, "%s", status_message());
    CHECK(pretokenizer_normalize(&p, text, size, &room, &normal, &normal_bytes) == STATUS_OK, "memory");
    CHECK(back_bytes == normal_bytes && memcmp(back, normal, normal_bytes) == 0,
          "the text does not come back");
    free(back);
    if (specials == SPECIALS_AS_TEXT && normal_bytes <= PLAIN_MAX)
        check_definition(s, normal, normal_bytes, ids, count);
    for (int64_t i = 0; i < count; i++)
        CHECK(specials == SPECIALS_PARSE || ids[i] < VOCAB_SIZE - SPECIALS,
              "special token %d from plain text", (int)ids[i]);
    struct encoder *fresh;
    CHECK(encoder_open(&fresh, tokenizers[s]) == STATUS_OK, "memory");
    CHECK(encoder_encode(fresh, text, size, specials, &fresh_ids, &fresh_count) == STATUS_OK, "%s",
          status_message());
    CHECK(fresh_count == count && (count == 0 || memcmp(fresh_ids, ids, (size_t)count * sizeof *ids) == 0),
          "the cache changed the ids");
    encoder_close(fresh);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (tokenizers[0] == NULL) open_all();
    for (int s = 0; tokenizers[s] != NULL; s++) {
        check(s, (const char *)data, size, SPECIALS_AS_TEXT);
        check(s, (const char *)data, size, SPECIALS_PARSE);
    }
    return 0;
}
