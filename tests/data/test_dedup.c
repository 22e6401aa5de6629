/* Duplicates: exact ones are found, also after a pause; estimates of similarity are near the truth. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "data/build/dedup.h"
#include "../temp.h"

#include <math.h>

enum { DOCUMENTS = 200000 };

static struct dedup_hash hash_of(uint64_t n)
{
    return dedup_hash(&n, sizeof n);
}

static void exact_duplicates_are_found_also_after_a_pause(void **state)
{
    (void)state;
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path("h"));
    struct dedup *d;
    bool seen;
    assert_int_equal(dedup_open(&d, path, 0), STATUS_OK);
    for (uint64_t i = 0; i < DOCUMENTS; i++) {
        if (i == DOCUMENTS / 2 + 1) { /* what was added after the sync is forgotten */
            assert_int_equal(dedup_sync(d), STATUS_OK);
            for (uint64_t k = 0; k < 5000; k++)
                assert_int_equal(dedup_add(d, hash_of(DOCUMENTS + k), &seen), STATUS_OK);
            dedup_close(&d, true);
            assert_int_equal(dedup_open(&d, path, (int64_t)i), STATUS_OK);
        }
        assert_int_equal(dedup_add(d, hash_of(i % 3 == 2 ? i / 2 : i), &seen), STATUS_OK);
        /* i / 2 itself was added under its own number, unless it was replaced by one further back */
        bool want = i % 3 == 2 && (i / 2) % 3 != 2;
        if (i % 3 != 2 || want) assert_int_equal(seen, want);
    }
    assert_int_equal(dedup_count(d), DOCUMENTS);
    dedup_close(&d, false);
    assert_false(temp_there(path));
}

static void the_table_takes_the_memory_that_is_said(void **state)
{
    (void)state;
    struct dedup *d;
    bool seen;
    assert_int_equal(dedup_open(&d, temp_path("m"), 0), STATUS_OK);
    for (uint64_t i = 0; i < DOCUMENTS; i++) {
        assert_int_equal(dedup_add(d, hash_of(i), &seen), STATUS_OK);
        assert_false(seen);
        if (i < 50000 || i % 1000 != 0) continue;
        double each = (double)dedup_bytes(d) / (double)(i + 1);
        assert_true(each > 19.9 && each < 25.5);
    }
    dedup_close(&d, false);
}

/* Text i of a family: `words` words, of which those below `shared` are the same in all. */
static void make_text(char *out, size_t size, int family, int i, int words, int shared)
{
    size_t used = 0;
    for (int w = 0; w < words; w++) {
        uint32_t r =
            rng_at(3, RNG_TEST, (uint64_t)(w < shared ? family : 1000 * family + i + 1), (uint64_t)w).u[0];
        used += (size_t)snprintf(out + used, size - used, "%sw%x", w ? " " : "", r % 100000);
    }
}

static void estimates_of_similarity_are_unbiased(void **state)
{
    (void)state;
    struct dedup_sketcher *s;
    static char a[20000], b[20000];
    uint32_t sa[DEDUP_PERMUTATIONS], sb[DEDUP_PERMUTATIONS];
    assert_int_equal(dedup_sketcher_open(&s), STATUS_OK);
    enum { WORDS = 300, PAIRS = 200 };
    for (int shared = 60; shared <= 300; shared += 60) {
        /* Shingles: `shared` - 4 are in both, 2 * (WORDS - shared) more are in one. Chance hits are rare. */
        double same = shared - 4, truth = same / (same + 2 * (WORDS - shared)), sum = 0;
        for (int i = 0; i < PAIRS; i++) {
            make_text(a, sizeof a, i + 1, 1, WORDS, shared);
            make_text(b, sizeof b, i + 1, 2, WORDS, shared);
            dedup_sketch(s, a, strlen(a), sa);
            dedup_sketch(s, b, strlen(b), sb);
            sum += dedup_similarity(sa, sb);
        }
        double error = sqrt(truth * (1 - truth) / DEDUP_PERMUTATIONS / PAIRS);
        if (fabs(sum / PAIRS - truth) > 5 * error + 1e-3)
            fail_msg("%d shared words: estimate %.4f, truth %.4f +- %.4f", shared, sum / PAIRS, truth, error);
    }
    dedup_sketcher_close(s);
}

static void words_are_what_the_header_says(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        bool same;
    } pairs[] = {
        {"One two, three. Four five six", "one TWO three four\nfive -- six!", true},
        {"one two three four five six", "one two three four five seven", false},
        {"one two", "two one", false}, /* the order counts */
        {"one two", "One  two.", true},
        {"\xe4\xbd\xa0\xe5\xa5\xbd\xe4\xb8\x96\xe7\x95\x8c\xe4\xba\xba", /* five characters are five words */
         "\xe4\xbd\xa0 \xe5\xa5\xbd \xe4\xb8\x96 \xe7\x95\x8c \xe4\xba\xba", true},
        {"caf\xc3\xa9 au lait tout de suite", "caf au lait tout de suite", false},
        {"one\xe2\x80\x94two three four five", "one two three four five", true},
    };
    struct dedup_sketcher *s;
    uint32_t a[DEDUP_PERMUTATIONS], b[DEDUP_PERMUTATIONS];
    assert_int_equal(dedup_sketcher_open(&s), STATUS_OK);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        dedup_sketch(s, pairs[i].a, strlen(pairs[i].a), a);
        dedup_sketch(s, pairs[i].b, strlen(pairs[i].b), b);
        if ((dedup_similarity(a, b) == 1) != pairs[i].same)
            fail_msg("pair %zu: %.2f", i, dedup_similarity(a, b));
    }
    dedup_sketch(s, " .,\xe2\x80\x94\n", 7, a);
    for (int i = 0; i < DEDUP_PERMUTATIONS; i++) assert_int_equal(a[i], UINT32_MAX);
    dedup_sketcher_close(s);
}

static void the_report_finds_similar_documents_and_no_others(void **state)
{
    (void)state;
    enum { FAMILIES = 300, WORDS = 200 };
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path("n"));
    struct dedup_near *d;
    struct dedup_sketcher *s;
    static char text[20000];
    uint32_t sketch[DEDUP_PERMUTATIONS];
    assert_int_equal(dedup_near_open(&d, path, 0, DEDUP_NEAR_REPORT), STATUS_OK);
    assert_int_equal(dedup_sketcher_open(&s), STATUS_OK);
    for (int i = 0; i < 2 * FAMILIES; i++) {
        /* Of families 0 to 99 the second text is nearly the first (Jaccard 0.97), of the others a half is (0.3). */
        int family = i % FAMILIES, shared = family < 100 ? 197 : 98;
        if (i == FAMILIES + 7) {
            assert_int_equal(dedup_near_sync(d), STATUS_OK);
            dedup_near_close(&d, true);
            assert_int_equal(dedup_near_open(&d, path, i, DEDUP_NEAR_REPORT), STATUS_OK);
        }
        make_text(text, sizeof text, family, i / FAMILIES, WORDS, shared);
        dedup_sketch(s, text, strlen(text), sketch);
        assert_int_equal(dedup_near_add(d, 10 * i, sketch), STATUS_OK);
    }
    dedup_sketch(s, "!", 1, sketch); /* without words: compared with nothing */
    assert_int_equal(dedup_near_add(d, 1, sketch), STATUS_OK);
    assert_int_equal(dedup_near_add(d, 2, sketch), STATUS_OK);
    assert_int_equal(dedup_near_count(d), 2 * FAMILIES + 2);
    struct dedup_near_report r;
    assert_int_equal(dedup_near_report(d, &r), STATUS_OK);
    assert_int_equal(r.documents, 2 * FAMILIES);
    assert_int_equal(r.near, 100);
    assert_int_equal(r.example_count, DEDUP_EXAMPLES);
    for (int i = 0; i < DEDUP_EXAMPLES; i++) {
        assert_int_equal(r.examples[i].b, 10 * (FAMILIES + i));
        assert_int_equal(r.examples[i].a, 10 * i);
        assert_true(r.examples[i].similarity > 0.85);
    }
    dedup_sketcher_close(s);
    dedup_near_close(&d, false);
    assert_false(temp_there(path));
}

/* The first of each family stays; what is found does not depend on a pause. */
static void a_look_up_finds_similar_documents_and_no_others(void **state)
{
    (void)state;
    enum { FAMILIES = 1500, WORDS = 200 };
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path("f"));
    struct dedup_near *d;
    struct dedup_sketcher *s;
    static char text[20000];
    uint32_t sketch[DEDUP_PERMUTATIONS];
    bool like;
    assert_int_equal(dedup_near_open(&d, path, 0, DEDUP_NEAR_FIND), STATUS_OK);
    assert_int_equal(dedup_sketcher_open(&s), STATUS_OK);
    for (int i = 0; i < 3 * FAMILIES; i++) {
        const int family = i % FAMILIES, shared = family < 500 ? 197 : 98;
        if (i == FAMILIES + 7 || i == 2 * FAMILIES) { /* on disk, and half in the buffer */
            const int64_t count = dedup_near_count(d);
            assert_int_equal(dedup_near_sync(d), STATUS_OK);
            dedup_near_close(&d, true);
            assert_int_equal(dedup_near_open(&d, path, count, DEDUP_NEAR_FIND), STATUS_OK);
        }
        make_text(text, sizeof text, family, i / FAMILIES, WORDS, shared);
        dedup_sketch(s, text, strlen(text), sketch);
        assert_int_equal(dedup_near_find(d, sketch, &like), STATUS_OK);
        if (like != (i >= FAMILIES && family < 500)) fail_msg("document %d: %d", i, like);
        if (!like) assert_int_equal(dedup_near_add(d, i, sketch), STATUS_OK);
    }
    dedup_sketch(s, "!", 1, sketch);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(dedup_near_find(d, sketch, &like), STATUS_OK);
        assert_false(like);
        assert_int_equal(dedup_near_add(d, 1, sketch), STATUS_OK);
    }
    dedup_sketcher_close(s);
    dedup_near_close(&d, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_duplicates_are_found_also_after_a_pause),
        cmocka_unit_test(the_table_takes_the_memory_that_is_said),
        cmocka_unit_test(estimates_of_similarity_are_unbiased),
        cmocka_unit_test(words_are_what_the_header_says),
        cmocka_unit_test(a_look_up_finds_similar_documents_and_no_others),
        cmocka_unit_test(the_report_finds_similar_documents_and_no_others),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
