/* Rank files: the merges that are derived from them give what tiktoken's rule gives, written down plainly here,
 * also for vocabularies that no training makes: tokens out of reach, tokens that need others of higher id. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "data/tokenizer/tiktoken.h"
#include "data/tokenizer/tokenizer.h"
#include "random_text.h"
#include "../temp.h"

enum { TOKENS_MAX = 600, TEXT_BYTES = 40 };

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static size_t write_line(char *out, const char *bytes, size_t count, int id)
{
    size_t n = 0;
    for (size_t at = 0; at < count; at += 3) {
        uint32_t group = 0;
        for (size_t i = 0; i < 3; i++) group = group << 8 | (at + i < count ? (uint8_t)bytes[at + i] : 0u);
        for (size_t i = 0; i < 4; i++) out[n++] = at + i > count ? '=' : digits[group >> (18 - 6 * i) & 63];
    }
    return n + (size_t)snprintf(out + n, 16, " %d\n", id);
}

struct ranks { /* a vocabulary: 256 bytes and random strings of a few letters, ids in random order */
    char tokens[TOKENS_MAX][TEXT_BYTES];
    size_t bytes[TOKENS_MAX];
    int count;
};

static int find(const struct ranks *r, const char *bytes, size_t count)
{
    for (int id = 0; id < r->count; id++)
        if (r->bytes[id] == count && memcmp(r->tokens[id], bytes, count) == 0) return id;
    return -1;
}

/* Random text of a few letters: ASCII, or (odd seeds) also of two and three bytes with bytes in common. */
static size_t draw_text(uint64_t seed, uint64_t index, size_t bytes_min, char *text)
{
    static const char *const letters[] = {"a",
                                          "b",
                                          "\xce\xb1",
                                          "\xce\xb2",
                                          "\xcf\xb1",
                                          "\xe4\xb8\xad",
                                          "\xe4\xb8\xae",
                                          "\xe5\xb8\xad",
                                          "\xe4\xb9\xad",
                                          "c",
                                          "d"};
    size_t n = 0;
    for (uint64_t k = 0; n < bytes_min; k++) {
        uint32_t u = rng_at(seed, RNG_TEST, index, 1 + k).u[0];
        const char *letter = seed % 2 ? letters[u % 9] : letters[u % 4 < 2 ? u % 2 : 9 + u % 2];
        size_t bytes = strlen(letter);
        memcpy(text + n, letter, bytes);
        n += bytes;
    }
    return n;
}

static void draw(struct ranks *r, uint64_t seed)
{
    uint32_t wanted = 256 + random_below(seed, 1, 300);
    r->count = 0;
    for (uint32_t i = 0; i < wanted; i++) {
        struct rng_block b = rng_at(seed, RNG_TEST, 100 + i, 0);
        char text[TEXT_BYTES] = {(char)i};
        size_t n = 1;
        if (i >= 256) { /* any part, also of characters */
            size_t from = b.u[2] % 3;
            n = 2 + b.u[0] % 6;
            draw_text(seed, 100 + i, from + n, text);
            memmove(text, text + from, n);
        }
        if (find(r, text, n) >= 0) continue;
        /* Among those that are there already, so that ids do not follow lengths. */
        int id = (int)(b.u[1] % (uint32_t)(r->count + 1));
        memmove(r->tokens[id + 1], r->tokens[id], (size_t)(r->count - id) * TEXT_BYTES);
        memmove(r->bytes + id + 1, r->bytes + id, (size_t)(r->count - id) * sizeof *r->bytes);
        memcpy(r->tokens[id], text, TEXT_BYTES);
        r->bytes[id] = n;
        r->count++;
    }
}

/* tiktoken's rule for one piece. */
static size_t plain_encode(const struct ranks *r, const char *text, size_t bytes, int32_t *ids)
{
    size_t ends[TEXT_BYTES * 8 + 1], n = bytes;
    ids[0] = find(r, text, bytes);
    if (ids[0] >= 0) return 1;
    for (size_t i = 0; i <= n; i++) ends[i] = i;
    for (;;) {
        int low = r->count;
        size_t best = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            int id = find(r, text + ends[i], ends[i + 2] - ends[i]);
            if (id < 0 || id >= low) continue;
            low = id;
            best = i;
        }
        if (low == r->count) break;
        memmove(ends + best + 1, ends + best + 2, (n - best - 1) * sizeof *ends);
        n--;
    }
    for (size_t i = 0; i < n; i++) ids[i] = find(r, text + ends[i], ends[i + 1] - ends[i]);
    return n;
}

static char *file_of(const struct ranks *r, size_t *bytes)
{
    char *file = malloc(TOKENS_MAX * 80);
    assert_non_null(file);
    *bytes = 0;
    for (int id = 0; id < r->count; id++)
        *bytes += write_line(file + *bytes, r->tokens[id], r->bytes[id], id);
    return file;
}

static struct tokenizer *loaded(const struct ranks *r, const char *path)
{
    size_t bytes;
    char *file = file_of(r, &bytes);
    struct tokenizer *t;
    temp_write(path, file, bytes);
    assert_int_equal(tokenizer_load(&t, path), STATUS_DATA);
    assert_non_null(strstr(status_message(), "--pattern"));
    status st = tokenizer_import(&t, path, "gpt2");
    if (st != STATUS_OK) print_message("%s\n", status_message());
    assert_int_equal(st, STATUS_OK);
    free(file);
    return t;
}

static void check(struct encoder *e, const struct ranks *r, uint64_t seed, uint64_t index)
{
    char text[TEXT_BYTES * 8];
    int32_t want[TEXT_BYTES * 8];
    const int32_t *ids;
    int64_t count;
    /* Long ones go through the heap. */
    size_t least = 1 + random_below(seed, index, index % 10 == 0 ? 8 * TEXT_BYTES - 8 : TEXT_BYTES);
    size_t bytes = draw_text(seed, index, least, text);
    size_t want_count = plain_encode(r, text, bytes, want);
    assert_int_equal(encoder_encode(e, text, bytes, SPECIALS_AS_TEXT, &ids, &count), STATUS_OK);
    if (count != (int64_t)want_count || memcmp(ids, want, want_count * sizeof *want) != 0) {
        print_message("seed %d:", (int)seed);
        for (size_t i = 0; i < bytes; i++) print_message(" %02x", (uint8_t)text[i]);
        print_message("\nwant:");
        for (size_t i = 0; i < want_count; i++) print_message(" %d", (int)want[i]);
        print_message("\ngot:");
        for (int64_t i = 0; i < count; i++) print_message(" %d", (int)ids[i]);
        for (int i = 0; i < r->count; i++) {
            if (r->bytes[i] == 1) continue;
            print_message("\n%d:", i);
            for (size_t k = 0; k < r->bytes[i]; k++) print_message(" %02x", (uint8_t)r->tokens[i][k]);
        }
        print_message("\n");
    }
    assert_int_equal(count, want_count);
    assert_memory_equal(ids, want, want_count * sizeof *want);
}

static void derived_merges_follow_the_rule_of_tiktoken(void **state)
{
    (void)state;
    static struct ranks r;
    size_t unreachable = 0, upward = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        draw(&r, 1000 + seed);
        struct tokenizer *t = loaded(&r, temp_path("ranks"));
        unreachable += t->vocab.model_count - 256 - t->merge_count;
        for (size_t i = 0; i < t->merge_count; i++)
            upward += t->merges[i].left > t->merges[i].id || t->merges[i].right > t->merges[i].id;
        assert_int_equal(tokenizer_save(t, temp_path("saved")), STATUS_OK);
        struct tokenizer *again;
        assert_int_equal(tokenizer_load(&again, temp_path("saved")), STATUS_OK);
        char hash[2][65];
        tokenizer_hash(t, hash[0]);
        tokenizer_hash(again, hash[1]);
        assert_string_equal(hash[0], hash[1]);
        struct encoder *e;
        assert_int_equal(encoder_open(&e, again), STATUS_OK);
        for (uint64_t i = 0; i < 100; i++) check(e, &r, 1000 + seed, 10000 + i);
        encoder_close(e);
        tokenizer_free(again);
        tokenizer_free(t);
    }
    assert_true(unreachable > 100 && upward > 100); /* the hard cases came */
}

static void bad_lines_are_refused_by_number(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"YQ== 0\nYg=\n", "line 2: base64, a space and a rank"},
        {"YQ== 0\nYg== \n", "line 2: base64"},
        {"YQ== 0\nYg== 1x\n", "line 2: base64"},
        {"YQ== 0\nYg== -1\n", "line 2: base64"},
        {"YQ== 0\nY*== 1\n", "line 2: base64"},
        {"YQ== 0\nYh== 1\n", "line 2: base64"},
        {"YQ== 0\n====  1\n", "line 2: base64"},
        {"YQ== 0\nYg== 0\n", "line 2: two tokens have the same id 0"},
        {"YQ== 0\nYQ== 1\n", "line 2: tokens 0 and 1 are the same"},
        {"YQ== 0\nYg== 99999999\n", "line 2: ranks end at"},
        {"YQ== 0\nYg== 99999999999\n", "line 2: base64"},
        {"YQ== 0\n\nYg== 1", "no token for byte 0x00"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t;
        temp_write(temp_path("bad"), cases[i].text, strlen(cases[i].text));
        assert_int_equal(tokenizer_import(&t, temp_path("bad"), "gpt2"), STATUS_DATA);
        if (strstr(status_message(), cases[i].message) == NULL) print_message("%s\n", status_message());
        assert_non_null(strstr(status_message(), cases[i].message));
        assert_null(t);
    }
}

static void files_of_other_kinds_are_named(void **state)
{
    (void)state;
    struct tokenizer *t;
    temp_write(temp_path("sp.model"), "\x0a\x0e\x0a\x05<unk>", 9);
    assert_int_equal(tokenizer_load(&t, temp_path("sp.model")), STATUS_DATA);
    assert_non_null(strstr(status_message(), "SentencePiece"));
    assert_int_equal(tokenizer_import(&t, TEST_SOURCE_DIR "/tests/fixtures/tokenizer/gpt2.json", "llama3"),
                     STATUS_CONFIG);
    assert_int_equal(tokenizer_import(&t, TEST_SOURCE_DIR "/tests/fixtures/tokenizer/nothing", NULL),
                     STATUS_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derived_merges_follow_the_rule_of_tiktoken),
        cmocka_unit_test(bad_lines_are_refused_by_number),
        cmocka_unit_test(files_of_other_kinds_are_named),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
