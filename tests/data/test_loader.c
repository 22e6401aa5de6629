/* The loader: which tokens a step gets is a pure function of (seed, step), whoever asks in whatever order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "data/loader.h"
#include "ops/ops.h"
#include "../temp.h"

_Static_assert((int)LOADER_IGNORE == (int)TARGET_IGNORE, "one mark for targets that do not count");

enum { EOT = 7, VOCAB = 50 };
static int32_t *stream; /* the reference of what the shards hold */
static int64_t stream_count;

/* Three shards of uneven sizes; every token is its own recognisable value but for ends of text. */
static int setup(void **state)
{
    static const int64_t sizes[3] = {1001, 1, 2510};
    if (temp_open(state) != 0) return -1;
    stream = malloc(4096 * 4);
    for (int i = 0; i < 3; i++) {
        struct shard_writer *w;
        char name[32];
        snprintf(name, sizeof name, "s_%d.bin", i);
        for (int64_t k = 0; k < sizes[i]; k++) {
            uint32_t r = rng_at(3, RNG_TEST, 9, (uint64_t)(stream_count + k)).u[0];
            stream[stream_count + k] = r % 11 == 0 ? EOT : (int32_t)(r >> 8) % VOCAB;
        }
        if (shard_create(&w, temp_path(name), SHARD_LLMC, i == 9 ? 4 : 2) != STATUS_OK) return -1;
        if (shard_append(w, stream + stream_count, sizes[i]) != STATUS_OK ||
            shard_commit(&w, NULL) != STATUS_OK)
            return -1;
        stream_count += sizes[i];
    }
    return 0;
}

static int teardown(void **state)
{
    free(stream);
    return temp_close(state);
}

static struct shard_set open_set(enum eod eod)
{
    struct shard_set s;
    assert_int_equal(shard_set_open(&s, temp_path("s_*.bin")), STATUS_OK);
    assert_int_equal(s.tokens, stream_count);
    s.eot = EOT, s.eod = eod, s.manifest = true; /* as a manifest would say */
    return s;
}

static void assert_same_step(const struct step_batch *a, const struct step_batch *b)
{
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->valid, b->valid);
    assert_int_equal(a->micro_count, b->micro_count);
    for (int m = 0; m < a->micro_count; m++) {
        const struct batch *p = &a->micro[m], *q = &b->micro[m];
        assert_int_equal(p->rows, q->rows);
        assert_int_equal(p->docs, q->docs);
        assert_memory_equal(p->tokens, q->tokens, (size_t)p->rows * 4);
        assert_memory_equal(p->targets, q->targets, (size_t)p->rows * 4);
        assert_memory_equal(p->positions, q->positions, (size_t)p->rows * 4);
        assert_memory_equal(p->cu_seqlens, q->cu_seqlens, (size_t)(p->docs + 1) * 4);
    }
}

static void every_epoch_is_a_permutation(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 4097};
    char *seen = malloc(4097);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t n = sizes[i];
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, 4097);
            for (int64_t k = 0; k < n; k++) {
                struct sample_place p = loader_place(42, epoch * n + k, n, 1);
                assert_int_equal(p.epoch, epoch);
                assert_true(p.window >= 0 && p.window < n);
                assert_int_equal(seen[p.window]++, 0);
            }
        }
    }
    free(seen);
    int64_t same_epoch = 0, same_seed = 0;
    for (int64_t k = 0; k < 4096; k++) {
        int64_t w = loader_place(42, k, 4096, 1).window;
        same_epoch += w == loader_place(42, k + 4096, 4096, 1).window;
        same_seed += w == loader_place(43, k, 4096, 1).window;
        assert_int_equal(loader_place(42, k, 4096, 0).window, k);
    }
    assert_true(same_epoch < 16 && same_seed < 16); /* 1 is expected of unrelated permutations */
    int64_t far = 3000000000000;                    /* more than 2^32 windows */
    assert_int_not_equal(loader_place(1, 5, far, 1).window, loader_place(1, 6, far, 1).window);
}

static void neighbours_are_spread_over_the_epoch(void **state)
{
    (void)state;
    /* Mean distance of successive samples: n/3 for a random order; its standard deviation: 0.24 sqrt(n). */
    enum { N = 3000 };
    double sum = 0;
    for (int64_t k = 1; k < N; k++) {
        int64_t d = loader_place(5, k, N, 1).window - loader_place(5, k - 1, N, 1).window;
        sum += (double)(d < 0 ? -d : d);
    }
    double mean = sum / (N - 1) / N;
    assert_true(mean > 0.333 - 6 * 0.24 / 54 && mean < 0.333 + 6 * 0.24 / 54);
}

static void a_fresh_loader_at_step_k_gives_what_one_from_the_start_gives(void **state)
{
    (void)state;
    struct shard_set set = open_set(EOD_AFTER);
    for (int kind = 0; kind < 4; kind++) {
        const struct loader_config c = {.seed = 9,
                                        .sequence_length = 37,
                                        .sequences = 3,
                                        .micro_count = 2,
                                        .vocab_size = VOCAB,
                                        .documents = kind % 2,
                                        .shuffle = 1,
                                        .windows_max = kind < 2 ? 0 : 20};
        struct loader *l, *fresh;
        assert_int_equal(loader_open(&l, &set, &c, 0), STATUS_OK);
        assert_int_equal(loader_windows(l), kind < 2 ? (stream_count - 1) / 37 : 20);
        for (int64_t step = 0; step < 60; step++) {
            const struct step_batch *a, *b;
            struct step_batch *direct;
            assert_int_equal(loader_next(l, &a), STATUS_OK);
            assert_int_equal(a->step, step);
            assert_int_equal(loader_step_at(&set, &c, step, &direct), STATUS_OK);
            assert_same_step(a, direct);
            step_batch_free(direct);
            if (step % 7 != 0) continue;
            assert_int_equal(loader_open(&fresh, &set, &c, step), STATUS_OK);
            assert_int_equal(loader_next(fresh, &b), STATUS_OK);
            assert_same_step(a, b);
            loader_close(fresh); /* while its thread reads ahead */
        }
        loader_close(l);
    }
    shard_set_close(&set);
}

static void no_window_comes_twice_in_an_epoch_and_each_is_the_stream(void **state)
{
    (void)state;
    struct shard_set set = open_set(EOD_NONE);
    const struct loader_config c = {.seed = 4,
                                    .sequence_length = 64,
                                    .sequences = 2,
                                    .micro_count = 1,
                                    .vocab_size = VOCAB,
                                    .shuffle = 1};
    struct loader *l;
    assert_int_equal(loader_open(&l, &set, &c, 0), STATUS_OK);
    int64_t windows = loader_windows(l), index = 0;
    char *seen = calloc((size_t)windows, 1);
    for (int64_t step = 0; step < windows / 2; step++) {
        const struct step_batch *s;
        assert_int_equal(loader_next(l, &s), STATUS_OK);
        assert_int_equal(s->valid, 128);
        assert_int_equal(s->micro->docs, 2);
        for (int q = 0; q < 2; q++, index++) {
            int64_t w = loader_place(4, index, windows, 1).window;
            assert_int_equal(seen[w]++, 0);
            assert_memory_equal(s->micro->tokens + q * 64, stream + w * 64, 64 * 4);
            assert_memory_equal(s->micro->targets + q * 64, stream + w * 64 + 1, 64 * 4);
            assert_int_equal(s->micro->cu_seqlens[q], q * 64);
            for (int t = 0; t < 64; t++) assert_int_equal(s->micro->positions[q * 64 + t], t);
        }
        assert_int_equal(s->micro->cu_seqlens[2], 128);
    }
    assert_true(loader_wait_s(l) >= 0);
    loader_close(l);
    free(seen);
    shard_set_close(&set);
}

/* Document of every token of the stream, by definition: the number of boundaries before it. */
static void number_documents(enum eod eod, int32_t *doc)
{
    for (int64_t i = 0; i < stream_count; i++) {
        doc[i] = i ? doc[i - 1] : 0;
        if (i > 0 && (eod == EOD_AFTER ? stream[i - 1] == EOT : stream[i] == EOT)) doc[i]++;
    }
}

static void documents_are_masked_as_defined(void **state)
{
    (void)state;
    enum { T = 50, B = 3 };
    int32_t *doc = malloc((size_t)stream_count * 4);
    for (enum eod eod = EOD_BEFORE; eod <= EOD_AFTER; eod++) {
        struct shard_set set = open_set(eod);
        number_documents(eod, doc);
        const struct loader_config c = {.seed = 1,
                                        .sequence_length = T,
                                        .sequences = B,
                                        .micro_count = 2,
                                        .vocab_size = VOCAB,
                                        .documents = LOADER_DOCUMENTS,
                                        .shuffle = 1};
        int64_t windows = loader_window_count(stream_count, T, 1);
        for (int64_t step = 0; step < 20; step++) {
            struct step_batch *s;
            assert_int_equal(loader_step_at(&set, &c, step, &s), STATUS_OK);
            int64_t valid = 0;
            for (int m = 0; m < 2; m++) {
                const struct batch *b = &s->micro[m];
                int64_t cu = 0;
                for (int64_t r = 0; r < B * T; r++) {
                    int64_t index = (step * 2 + m) * B + r / T, t = r % T;
                    int64_t at = loader_place(1, index, windows, 1).window * T + t;
                    bool first = t == 0 || doc[at] != doc[at - 1], crosses = doc[at] != doc[at + 1];
                    if (first) assert_int_equal(b->cu_seqlens[cu++], r);
                    assert_int_equal(b->tokens[r], stream[at]);
                    assert_int_equal(b->targets[r], crosses ? LOADER_IGNORE : stream[at + 1]);
                    assert_int_equal(b->positions[r], first ? 0 : b->positions[r - 1] + 1);
                    valid += !crosses;
                }
                assert_int_equal(b->docs, cu);
                assert_int_equal(b->cu_seqlens[cu], B * T);
            }
            assert_int_equal(s->valid, valid);
            step_batch_free(s);
        }
        shard_set_close(&set);
    }
    free(doc);
}

static void evaluation_sees_every_target_once_and_then_none(void **state)
{
    (void)state;
    struct shard_set set = open_set(EOD_NONE);
    const struct loader_config c = {
        .sequence_length = 100, .sequences = 4, .micro_count = 1, .vocab_size = VOCAB};
    int64_t windows = loader_window_count(stream_count, 100, 0), next = 0, valid = 0;
    assert_int_equal(windows, (stream_count - 1 + 99) / 100);
    for (int64_t step = 0; step <= (windows + 3) / 4; step++) {
        struct step_batch *s;
        assert_int_equal(loader_step_at(&set, &c, step, &s), STATUS_OK);
        for (int64_t r = 0; r < 400; r++) {
            if (s->micro->targets[r] == LOADER_IGNORE) continue;
            assert_int_equal(s->micro->tokens[r], stream[next]);
            assert_int_equal(s->micro->targets[r], stream[++next]);
        }
        valid += s->valid;
        if (step == (windows + 3) / 4) assert_int_equal(s->valid, 0);
        step_batch_free(s);
    }
    assert_int_equal(next, stream_count - 1);
    assert_int_equal(valid, stream_count - 1);
    shard_set_close(&set);
}

static void errors_of_the_thread_surface_at_their_step(void **state)
{
    (void)state;
    struct shard_set set = open_set(EOD_NONE);
    int64_t bad = 0;
    while (bad < stream_count && stream[bad] < VOCAB - 1) bad++;
    const struct loader_config c = {
        .sequence_length = 10, .sequences = 1, .micro_count = 1, .vocab_size = VOCAB - 1};
    struct loader *l;
    const struct step_batch *s;
    assert_int_equal(loader_open(&l, &set, &c, 0), STATUS_OK);
    int64_t first_bad = (bad - 1) / 10; /* a window holds its last target too */
    for (int64_t step = 0; step < first_bad; step++) assert_int_equal(loader_next(l, &s), STATUS_OK);
    assert_int_equal(loader_next(l, &s), STATUS_DATA);
    assert_non_null(strstr(status_message(), "id 49"));
    assert_non_null(strstr(status_message(), "s_0.bin"));
    assert_null(s);
    assert_int_equal(loader_next(l, &s), STATUS_DATA); /* and stays */
    loader_close(l);
    shard_set_close(&set);
}

static void what_cannot_be_loaded_is_refused(void **state)
{
    (void)state;
    struct shard_set set = open_set(EOD_NONE);
    struct loader *l;
    struct loader_config c = {
        .sequence_length = stream_count, .sequences = 1, .micro_count = 1, .shuffle = 1};
    assert_int_equal(loader_open(&l, &set, &c, 0), STATUS_DATA);
    c.sequence_length--;
    assert_int_equal(loader_open(&l, &set, &c, 0), STATUS_OK);
    loader_close(l);
    c.documents = LOADER_DOCUMENTS;
    assert_int_equal(loader_open(&l, &set, &c, 0), STATUS_DATA);
    assert_non_null(strstr(status_message(), "--eod none"));
    c.documents = LOADER_STREAM;
    c.sequences = INT64_MAX / 2;
    assert_int_equal(loader_open(&l, &set, &c, 0), STATUS_CONFIG);
    c.sequences = 1, c.micro_count = (int64_t)1 << 40;
    assert_int_equal(loader_open(&l, &set, &c, 0), STATUS_CONFIG);
    shard_set_close(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_epoch_is_a_permutation),
        cmocka_unit_test(neighbours_are_spread_over_the_epoch),
        cmocka_unit_test(a_fresh_loader_at_step_k_gives_what_one_from_the_start_gives),
        cmocka_unit_test(no_window_comes_twice_in_an_epoch_and_each_is_the_stream),
        cmocka_unit_test(documents_are_masked_as_defined),
        cmocka_unit_test(evaluation_sees_every_target_once_and_then_none),
        cmocka_unit_test(errors_of_the_thread_surface_at_their_step),
        cmocka_unit_test(what_cannot_be_loaded_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
