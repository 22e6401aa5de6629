/* Training, encoding, decoding, saving. Merges are checked against a second, plain implementation of BPE in
 * this file. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/parallel.h"
#include "data/tokenizer/bpe_merge.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_int.h"
#include "random_text.h"
#include "../temp.h"

static const char corpus[] = "In the beginning God created the heaven and the earth. And the earth was "
                             "without form, and void; and darkness was upon the face of the "
                             "deep. And the Spirit of God moved upon the face of the waters.\nAnd God said, "
                             "Let there be light: and there was light. It's 1234567 "
                             "years, isn't it?\n\n\tfor (int i = 0; i < 10; i++) { sum += i; }\n"
                             "\xd0\x92 \xd0\xbd\xd0\xb0\xd1\x87\xd0\xb0\xd0\xbb\xd0\xb5 "
                             "\xd1\x81\xd0\xbe\xd1\x82\xd0\xb2\xd0\xbe\xd1\x80\xd0\xb8\xd0\xbb "
                             "\xe8\xb5\xb7\xe5\x88\x9d\xef\xbc\x8c\xe7\xa5\x9e\xe5\x88\x9b\xe9\x80\xa0\xe5"
                             "\xa4\xa9\xe5\x9c\xb0\xe3\x80\x82 aaaa aaaaaaa abababab\n";

enum { ASCII_BYTES = 320 }; /* the corpus begins with so many ASCII characters at least */

static const char *const two_specials[] = {"<|endoftext|>", "<|end|>"};

static struct tokenizer *trained(const char *pretokenizer, int32_t vocab_size)
{
    struct tokenizer *t;
    struct text doc = {corpus, sizeof corpus - 1};
    const struct tokenizer_train_config config = {
        .pretokenizer = pretokenizer, .vocab_size = vocab_size, .specials = two_specials, .special_count = 2};
    assert_int_equal(tokenizer_train(&t, &config, &doc, 1), STATUS_OK);
    assert_int_equal(tokenizer_vocab_size(t), vocab_size);
    return t;
}

/* Lowest rank first, leftmost among equals, over the whole list of merges: the definition. */
static size_t plain_bpe(const struct tokenizer *t, const uint8_t *piece, size_t bytes, int32_t *ids)
{
    size_t n = bytes;
    for (size_t i = 0; i < n; i++) ids[i] = t->byte_id[piece[i]];
    for (size_t rank = 0; rank < t->merge_count;) {
        const struct merge *m = &t->merges[rank];
        size_t at = 0;
        while (at + 1 < n && (ids[at] != m->left || ids[at + 1] != m->right)) at++;
        if (at + 1 >= n) {
            rank++;
            continue;
        }
        ids[at] = m->id;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
        rank = 0; /* two merges may make the same token, so an earlier one may become possible */
    }
    return n;
}

static size_t plain_encode(const struct tokenizer *t, const char *text, size_t bytes, int32_t *ids)
{
    size_t at = 0, count = 0, end;
    struct pretokenizer_cursor c = pretokenizer_begin(text, bytes);
    for (; pretokenizer_scan(&t->pretokenizer, &c, &end, 1) > 0; at = end)
        count += plain_bpe(t, (const uint8_t *)text + at, end - at, ids + count);
    return count;
}

static void assert_round_trip(const struct tokenizer *t, const char *text, size_t bytes, const int32_t *ids,
                              int64_t count)
{
    char *back = NULL;
    size_t back_bytes = 0;
    assert_int_equal(tokenizer_decode(t, ids, count, &back, &back_bytes), STATUS_OK);
    assert_int_equal(back_bytes, bytes);
    assert_memory_equal(back, text, bytes);
    free(back);
}

static void ids_are_those_of_the_definition_and_decode_to_the_text(void **state)
{
    (void)state;
    enum { BYTES = 600 };
    static char text[BYTES + 4];
    static int32_t want[3 * BYTES + 4];
    struct pretokenizer_room room = {0};
    for (int i = 0; pretokenizer_word(i) != NULL; i++) {
        struct tokenizer *t = trained(pretokenizer_word(i), 420);
        struct encoder *e;
        assert_int_equal(encoder_open(&e, t), STATUS_OK);
        for (uint64_t seed = 0; seed < 200; seed++) {
            size_t bytes;
            if (seed % 2)
                bytes = random_text(seed, BYTES, NULL, text);
            else { /* parts of the corpus in random order, cut between ASCII characters */
                for (bytes = 0; bytes < BYTES; bytes += 20)
                    memcpy(text + bytes, corpus + random_below(seed, bytes, ASCII_BYTES - 20), 20);
            }
            const int32_t *ids;
            const char *normal;
            size_t normal_bytes;
            int64_t count;
            assert_int_equal(encoder_encode(e, text, bytes, SPECIALS_AS_TEXT, &ids, &count), STATUS_OK);
            assert_int_equal(
                pretokenizer_normalize(&t->pretokenizer, text, bytes, &room, &normal, &normal_bytes),
                STATUS_OK);
            assert_int_equal(count, plain_encode(t, normal, normal_bytes, want));
            assert_memory_equal(ids, want, (size_t)count * sizeof *ids);
            assert_round_trip(t, normal, normal_bytes, ids, count);
        }
        encoder_close(e);
        tokenizer_free(t);
    }
    free(room.data);
}

static void long_pieces_are_merged_as_short_ones(void **state)
{
    (void)state;
    struct tokenizer *t = trained("gpt2", 420);
    struct bpe_scratch scratch = {0};
    for (uint64_t seed = 0; seed < 500; seed++) {
        uint8_t piece[BPE_MERGE_SHORT];
        int32_t a[BPE_MERGE_SHORT + 8], b[BPE_MERGE_SHORT + 8];
        size_t bytes = 1 + random_below(seed, 0, BPE_MERGE_SHORT), count;
        for (size_t i = 0; i < bytes; i++)
            piece[i] = seed % 2 ? (uint8_t) "abethn d"[random_below(seed, i + 1, seed % 3 ? 8 : 2)]
                                : (uint8_t)corpus[(seed + i) % ASCII_BYTES];
        size_t fast_count;
        assert_int_equal(bpe_merge_heap(t, &scratch, piece, bytes, a, &count), STATUS_OK);
        assert_int_equal(bpe_merge(t, &scratch, piece, bytes, b, &fast_count), STATUS_OK);
        assert_int_equal(fast_count, count);
        assert_memory_equal(a, b, count * sizeof *a);
    }
    bpe_scratch_fini(&scratch);
    tokenizer_free(t);
}

static void a_megabyte_without_a_place_to_split_is_encoded(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    struct tokenizer *t = trained("llama3", 420);
    struct encoder *e;
    assert_int_equal(encoder_open(&e, t), STATUS_OK);
    char *text = malloc(BYTES);
    static const char *const unit[] = {"a", " ", "ab", "\xe5\x88\x9b", "=", "\n"};
    for (int u = 0; u < 6; u++) {
        size_t bytes = 0, n = strlen(unit[u]);
        for (; bytes + n <= BYTES; bytes += n) memcpy(text + bytes, unit[u], n);
        const int32_t *ids;
        int64_t count;
        assert_int_equal(encoder_encode(e, text, bytes, SPECIALS_AS_TEXT, &ids, &count), STATUS_OK);
        assert_round_trip(t, text, bytes, ids, count);
    }
    free(text);
    encoder_close(e);
    tokenizer_free(t);
}

static void a_megabyte_without_a_place_to_split_is_trained_on(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES);
    for (int kind = 0; kind < 4; kind++) { /* one letter, spaces, one character, different characters */
        size_t bytes = 0;
        for (uint64_t i = 0; bytes + 3 <= BYTES; i++) {
            uint32_t code = kind == 0   ? 'a'
                            : kind == 1 ? ' '
                            : kind == 2 ? 0x4e2d
                                        : 0x4e00 + random_below(5, i, 5000);
            bytes += (size_t)utf8_write(code, text + bytes);
        }
        struct text doc = {text, bytes};
        struct tokenizer *t;
        const struct tokenizer_train_config config = {.pretokenizer = "llama3",
                                                      .vocab_size = kind < 3 ? 262 : 2000};
        assert_int_equal(tokenizer_train(&t, &config, &doc, 1), STATUS_OK);
        assert_int_equal(tokenizer_vocab_size(t), config.vocab_size);
        tokenizer_free(t);
    }
    free(text);
}

static void training_gives_the_same_for_any_number_of_threads(void **state)
{
    (void)state;
    enum { DOCS = 40 };
    static char text[DOCS][4004];
    struct text docs[DOCS];
    for (int d = 0; d < DOCS; d++) {
        size_t bytes = 0;
        while (bytes < 3500) {
            uint32_t at = random_below((uint64_t)d, bytes, ASCII_BYTES - 50),
                     n = 3 + random_below((uint64_t)d + 99, bytes, 40);
            memcpy(text[d] + bytes, corpus + at, n);
            bytes += n;
        }
        docs[d] = (struct text){text[d], bytes};
    }
    char want[65], got[65];
    int threads_before = parallel_threads();
    for (int threads = 1; threads <= 3; threads++) {
        parallel_threads_set(threads);
        struct tokenizer *t;
        const struct tokenizer_train_config config = {.pretokenizer = "llama3", .vocab_size = 900};
        assert_int_equal(tokenizer_train(&t, &config, docs, DOCS), STATUS_OK);
        tokenizer_hash(t, threads == 1 ? want : got);
        if (threads > 1) assert_string_equal(got, want);
        tokenizer_free(t);
    }
    parallel_threads_set(threads_before);
}

static void equal_counts_are_merged_in_the_order_of_the_ids(void **state)
{
    (void)state;
    static const char text[] = "ba ba cb cb dd dd";
    struct text doc = {text, sizeof text - 1};
    struct tokenizer *t;
    const struct tokenizer_train_config config = {.pretokenizer = "gpt2", .vocab_size = 259};
    assert_int_equal(tokenizer_train(&t, &config, &doc, 1), STATUS_OK);
    static const char *const want[] = {"ba", "cb",
                                       "dd"}; /* twice each; so are " c" and " d", whose left id is larger */
    for (int i = 0; i < 3; i++) {
        struct text got = tokenizer_bytes(t, 256 + i);
        assert_int_equal(got.bytes, 2);
        assert_memory_equal(got.data, want[i], 2);
    }
    assert_int_equal(tokenizer_bytes(t, 259).bytes, 0);
    assert_int_equal(tokenizer_bytes(t, -1).bytes, 0);
    tokenizer_free(t);
}

static void a_saved_tokenizer_loads_as_the_same(void **state)
{
    (void)state;
    for (int i = 0; pretokenizer_word(i) != NULL; i++) {
        struct tokenizer *t = trained(pretokenizer_word(i), 420), *back;
        char hash[65], hash_back[65];
        const char *dir = temp_path(pretokenizer_word(i));
        assert_int_equal(tokenizer_save(t, dir), STATUS_OK);
        assert_int_equal(tokenizer_load(&back, dir), STATUS_OK);
        tokenizer_hash(t, hash);
        tokenizer_hash(back, hash_back);
        assert_string_equal(hash, hash_back);
        assert_int_equal(tokenizer_vocab_size(back), 420);
        assert_int_equal(tokenizer_eot(back), 418);
        assert_int_equal(tokenizer_special(back, "<|end|>"), 419);
        assert_int_equal(tokenizer_special(back, "<|start|>"), -1);
        tokenizer_free(t);
        tokenizer_free(back);
    }
}

static void specials_are_text_unless_asked_for(void **state)
{
    (void)state;
    struct tokenizer *t = trained("llama3", 420);
    struct encoder *e;
    assert_int_equal(encoder_open(&e, t), STATUS_OK);
    static const char text[] = "<|end|><|endoftext|>a<|endof<|end|>";
    const int32_t *ids;
    int64_t count;
    assert_int_equal(encoder_encode(e, text, sizeof text - 1, SPECIALS_AS_TEXT, &ids, &count), STATUS_OK);
    for (int64_t i = 0; i < count; i++) assert_true(ids[i] < 418);
    assert_round_trip(t, text, sizeof text - 1, ids, count);
    assert_int_equal(encoder_encode(e, text, sizeof text - 1, SPECIALS_PARSE, &ids, &count), STATUS_OK);
    assert_int_equal(ids[0], 419);
    assert_int_equal(ids[1], 418);
    assert_int_equal(ids[count - 1], 419);
    for (int64_t i = 2; i < count - 1; i++) assert_true(ids[i] < 418);
    assert_round_trip(t, text, sizeof text - 1, ids, count);
    encoder_close(e);
    tokenizer_free(t);
}

static void invalid_text_is_refused_with_its_place(void **state)
{
    (void)state;
    struct tokenizer *t = trained("gpt2", 300), *none;
    struct encoder *e;
    const int32_t *ids;
    int64_t count;
    assert_int_equal(encoder_open(&e, t), STATUS_OK);
    assert_int_equal(encoder_encode(e, "abc\xff", 4, SPECIALS_AS_TEXT, &ids, &count), STATUS_DATA);
    assert_non_null(strstr(status_message(), "offset 3"));
    assert_int_equal(encoder_encode(e, "", 0, SPECIALS_AS_TEXT, &ids, &count), STATUS_OK);
    assert_int_equal(count, 0);
    struct text docs[] = {{"fine", 4}, {"not \xc3 fine", 10}, {"\xff", 1}};
    const struct tokenizer_train_config config = {.pretokenizer = "gpt2", .vocab_size = 257};
    assert_int_equal(tokenizer_train(&none, &config, docs, 3), STATUS_DATA);
    assert_non_null(strstr(status_message(), "document 1: invalid UTF-8 at byte offset 4"));
    assert_null(none);
    char *text = NULL;
    size_t bytes = 0;
    assert_int_equal(tokenizer_decode(t, (const int32_t[]){1, 300}, 2, &text, &bytes), STATUS_DATA);
    assert_int_equal(tokenizer_decode(t, (const int32_t[]){-1}, 1, &text, &bytes), STATUS_DATA);
    assert_null(text);
    encoder_close(e);
    tokenizer_free(t);
}

static void a_text_too_small_for_the_vocabulary_is_refused(void **state)
{
    (void)state;
    struct tokenizer *t;
    struct text doc = {"abcd", 4};
    struct tokenizer_train_config config = {.pretokenizer = "gpt2", .vocab_size = 260};
    assert_int_equal(tokenizer_train(&t, &config, &doc, 1), STATUS_DATA);
    assert_non_null(strstr(status_message(), "259"));
    config.vocab_size = 259;
    assert_int_equal(tokenizer_train(&t, &config, &doc, 1), STATUS_OK);
    tokenizer_free(t);
    config.vocab_size = 255;
    assert_int_equal(tokenizer_train(&t, &config, &doc, 1), STATUS_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_definition_and_decode_to_the_text),
        cmocka_unit_test(long_pieces_are_merged_as_short_ones),
        cmocka_unit_test(a_megabyte_without_a_place_to_split_is_encoded),
        cmocka_unit_test(a_megabyte_without_a_place_to_split_is_trained_on),
        cmocka_unit_test(training_gives_the_same_for_any_number_of_threads),
        cmocka_unit_test(equal_counts_are_merged_in_the_order_of_the_ids),
        cmocka_unit_test(a_saved_tokenizer_loads_as_the_same),
        cmocka_unit_test(specials_are_text_unless_asked_for),
        cmocka_unit_test(invalid_text_is_refused_with_its_place),
        cmocka_unit_test(a_text_too_small_for_the_vocabulary_is_refused),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
