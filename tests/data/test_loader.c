/* The loader: which tokens a step gets is a pure function of (seed, step), whoever asks in whatever order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "data/load/loader.h"
#include "data/load/shuffle.h"
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
    s.bounded = eod != EOD_NONE;
    return s;
}

static struct samples *open_samples(const struct shard_set *set, const struct samples_config *c)
{
    struct samples *s;
    assert_int_equal(samples_open(&s, &(struct samples_source){.set = set}, 1, c), STATUS_OK);
    return s;
}

static void assert_same_step(const struct step_batch *a, const struct step_batch *b)
{
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->valid, b->valid);
    assert_int_equal(a->padding, b->padding);
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
                int64_t w = shuffle_at(42, epoch, n, k);
                assert_true(w >= 0 && w < n);
                assert_int_equal(seen[w]++, 0);
            }
        }
    }
    free(seen);
    int64_t same_epoch = 0, same_seed = 0;
    for (int64_t k = 0; k < 4096; k++) {
        int64_t w = shuffle_at(42, 0, 4096, k);
        same_epoch += w == shuffle_at(42, 1, 4096, k);
        same_seed += w == shuffle_at(43, 0, 4096, k);
    }
    assert_true(same_epoch < 16 && same_seed < 16); /* 1 is expected of unrelated permutations */
    int64_t far = 3000000000000;                    /* more than 2^32 windows */
    assert_int_not_equal(shuffle_at(1, 0, far, 5), shuffle_at(1, 0, far, 6));
}

/* Runs that began before mixtures and packing were there go on with the same samples. */
static void the_order_of_a_single_source_is_what_it_always_was(void **state)
{
    (void)state;
    static const int64_t want[] = {902, 482, 764, 564, 419, 200, 447, 719};
    for (int64_t k = 0; k < 8; k++) assert_int_equal(shuffle_at(42, 3, 1000, k), want[k]);
}

static void neighbours_are_spread_over_the_epoch(void **state)
{
    (void)state;
    /* Mean distance of successive samples: n/3 for a random order; its standard deviation: 0.24 sqrt(n). */
    enum { N = 3000 };
    double sum = 0;
    for (int64_t k = 1; k < N; k++) {
        int64_t d = shuffle_at(5, 0, N, k) - shuffle_at(5, 0, N, k - 1);
        sum += (double)(d < 0 ? -d : d);
    }
    double mean = sum / (N - 1) / N;
    assert_true(mean > 0.333 - 6 * 0.24 / 54 && mean < 0.333 + 6 * 0.24 / 54);
}

/* Threads and the place where a run resumes change nothing, in any packing. */
static void a_fresh_loader_at_step_k_gives_what_one_from_the_start_gives(void **state)
{
    (void)state;
    struct shard_set set = open_set(EOD_AFTER);
    for (int packing = LOADER_STREAM; packing <= LOADER_PAD; packing++)
        for (int threads = 1; threads <= 5; threads += 2) {
            struct samples *samples =
                open_samples(&set, &(struct samples_config){.seed = 9,
                                                            .sequence_length = 37,
                                                            .packing = packing,
                                                            .shuffle = 1,
                                                            .rows_max = threads == 1 ? 20 : 0});
            const struct loader_config c = {
                .sequences = 3, .micro_count = 1 + packing, .vocab_size = VOCAB, .threads = threads};
            struct loader *l, *fresh;
            assert_int_equal(loader_open(&l, samples, &c, 0), STATUS_OK);
            if (threads == 1) assert_int_equal(samples_rows(samples, 0), 20);
            for (int64_t step = 0; step < 60; step++) {
                const struct step_batch *a, *b;
                struct step_batch *direct;
                assert_int_equal(loader_next(l, &a), STATUS_OK);
                assert_int_equal(a->step, step);
                assert_int_equal(loader_step_at(samples, &c, step, &direct), STATUS_OK);
                assert_same_step(a, direct);
                step_batch_free(direct);
                if (step % 7 != 0) continue;
                assert_int_equal(loader_open(&fresh, samples, &c, step), STATUS_OK);
                assert_int_equal(loader_next(fresh, &b), STATUS_OK);
                assert_same_step(a, b);
                loader_close(fresh); /* while its threads read ahead */
            }
            assert_true(loader_wait_s(l) >= 0);
            loader_close(l);
            samples_close(samples);
        }
    shard_set_close(&set);
}

/* The documents of the stream, by definition. */
static int64_t list_documents(enum eod eod, int64_t *starts)
{
    int64_t n = 0;
    for (int64_t i = 0; i < stream_count; i++)
        if (i == 0 || (eod == EOD_AFTER ? stream[i - 1] == EOT : stream[i] == EOT)) starts[n++] = i;
    starts[n] = stream_count;
    return n;
}

static int64_t document_of(const int64_t *starts, int64_t count, int64_t at)
{
    int64_t d = 0;
    while (d + 1 < count && starts[d + 1] <= at) d++;
    return d;
}

/* One sequence of a batch compared with the stream: row r is stream token at[r], -1 for padding. */
struct sequence_check {
    const struct batch *b;
    int64_t first, t_count;
    const int64_t *at;
    const int64_t *starts;
    int64_t documents;
    int packing;
};

static int64_t check_sequence(const struct sequence_check *k, int64_t *cu)
{
    int64_t valid = 0;
    for (int64_t t = 0; t < k->t_count; t++) {
        const int64_t r = k->first + t, at = k->at[t];
        const bool stream_mode = k->packing == LOADER_STREAM;
        /* A row begins a document of the batch where the stream jumps or, unless documents may mix, a document begins. */
        bool first = t == 0 || (at < 0) != (k->at[t - 1] < 0) || (at >= 0 && at != k->at[t - 1] + 1);
        if (at >= 0 && !stream_mode)
            first = first || k->starts[document_of(k->starts, k->documents, at)] == at;
        if (first) assert_int_equal(k->b->cu_seqlens[(*cu)++], r);
        assert_int_equal(k->b->positions[r], first ? 0 : k->b->positions[r - 1] + 1);
        if (at < 0) {
            assert_int_equal(k->b->tokens[r], 0);
            assert_int_equal(k->b->targets[r], LOADER_IGNORE);
            continue;
        }
        bool crosses = !stream_mode && document_of(k->starts, k->documents, at) !=
                                           document_of(k->starts, k->documents, at + 1);
        assert_int_equal(k->b->tokens[r], stream[at]);
        assert_int_equal(k->b->targets[r], crosses ? LOADER_IGNORE : stream[at + 1]);
        valid += !crosses;
    }
    return valid;
}

/* Every row, target, position and boundary of two epochs compared with a plain computation; every pair of a
 * document (or target of a window) once per epoch. The packing gives the origin of a row's tokens, which
 * test_pack.c checks. */
static void batches_are_as_defined(void **state)
{
    (void)state;
    enum { T = 50, B = 3, M = 2 };
    int64_t *starts = malloc((size_t)(stream_count + 1) * 8), at[T];
    int *seen = malloc((size_t)stream_count * sizeof *seen);
    for (enum eod eod = EOD_BEFORE; eod <= EOD_AFTER; eod++)
        for (int packing = LOADER_STREAM; packing <= LOADER_PAD; packing++) {
            struct shard_set set = open_set(eod);
            int64_t documents = list_documents(eod, starts), steps = 0, padding = 0, padded = 0;
            struct samples *samples = open_samples(
                &set,
                &(struct samples_config){.seed = 1, .sequence_length = T, .packing = packing, .shuffle = 1});
            const struct loader_config c = {.sequences = B, .micro_count = M, .vocab_size = VOCAB};
            const int64_t rows = samples_rows(samples, 0);
            memset(seen, 0, (size_t)stream_count * sizeof *seen);
            for (; steps * B * M < 2 * rows; steps++) {
                struct step_batch *s;
                int64_t valid = 0;
                assert_int_equal(loader_step_at(samples, &c, steps, &s), STATUS_OK);
                for (int m = 0; m < M; m++) {
                    int64_t cu = 0;
                    for (int q = 0; q < B; q++) {
                        struct mixture_cursor cursor = {0};
                        struct sample_place place;
                        struct pack_piece pieces[T];
                        int64_t index = loader_sample(&c, steps, m, q), n = 0;
                        assert_int_equal(index, (steps * M + m) * B + q);
                        assert_int_equal(samples_place(samples, &cursor, index, &place), STATUS_OK);
                        int64_t count = samples_pieces(samples, &place, pieces);
                        for (int64_t i = 0; i < count; i++)
                            for (int64_t k = 0; k < pieces[i].count; k++) at[n++] = pieces[i].at + k;
                        for (; n < T; n++) at[n] = -1, padding++;
                        valid += check_sequence(
                            &(struct sequence_check){&s->micro[m], q * T, T, at, starts, documents, packing},
                            &cu);
                        if (index < 2 * rows)
                            for (int64_t k = 0; k < T; k++) seen[at[k] >= 0 ? at[k] : 0] += at[k] >= 0;
                    }
                    assert_int_equal(s->micro[m].docs, cu);
                    assert_int_equal(s->micro[m].cu_seqlens[cu], B * T);
                }
                assert_int_equal(s->valid, valid);
                padded += s->padding;
                step_batch_free(s);
            }
            assert_int_equal(padded, padding);
            for (int64_t i = 0; i < stream_count; i++) {
                bool last = starts[document_of(starts, documents, i) + 1] == i + 1;
                int want = packing <= LOADER_DOCUMENTS ? i < rows * T : !last;
                assert_int_equal(seen[i], 2 * want);
            }
            samples_close(samples);
            shard_set_close(&set);
        }
    free(seen);
    free(starts);
}

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, 40 * sizeof(int32_t));
}

/* The sequences of steps 3..5, sorted: what ranks consume together. */
static int32_t *sequences_of(const struct samples *samples, int ranks, int64_t *count)
{
    enum { T = 40, B = 2, ALL = 12 };
    int32_t *out = malloc(3 * ALL * B * T * sizeof *out);
    *count = 0;
    for (int64_t step = 3; step < 6; step++)
        for (int rank = 0; rank < ranks; rank++) {
            const struct loader_config c = {
                .sequences = B, .micro_count = ALL / ranks, .rank = rank, .ranks = ranks};
            struct step_batch *s;
            assert_int_equal(loader_step_at(samples, &c, step, &s), STATUS_OK);
            for (int m = 0; m < s->micro_count; m++)
                for (int q = 0; q < B; q++)
                    memcpy(out + (*count)++ * T, s->micro[m].tokens + q * T, T * sizeof *out);
            step_batch_free(s);
        }
    qsort(out, (size_t)*count, T * sizeof *out, compare);
    return out;
}

static void a_step_is_the_same_set_for_any_number_of_ranks(void **state)
{
    (void)state;
    struct shard_set set = open_set(EOD_BEFORE);
    for (int packing = LOADER_STREAM; packing <= LOADER_PAD; packing++) {
        struct samples *samples = open_samples(
            &set,
            &(struct samples_config){.seed = 4, .sequence_length = 40, .packing = packing, .shuffle = 1});
        int64_t count, more;
        int32_t *one = sequences_of(samples, 1, &count);
        for (int ranks = 2; ranks <= 6; ranks++) {
            if (12 % ranks != 0) continue;
            int32_t *many = sequences_of(samples, ranks, &more);
            assert_int_equal(more, count);
            assert_memory_equal(one, many, (size_t)count * 40 * sizeof *one);
            free(many);
        }
        free(one);
        samples_close(samples);
    }
    shard_set_close(&set);
}

/* Two sources of different tokens: shares, and every row of each source once per epoch. */
static void a_mixture_reads_each_source_in_its_own_order(void **state)
{
    (void)state;
    struct shard_set a = open_set(EOD_BEFORE), b;
    enum { T = 32, STEPS = 640, B = 4 };
    int32_t other[T * 25 + 1];
    struct shard_writer *w;
    for (int i = 0; i <= T * 25; i++) other[i] = VOCAB + i % T;
    assert_int_equal(shard_create(&w, temp_path("other.bin"), SHARD_LLMC, 2), STATUS_OK);
    assert_int_equal(shard_append(w, other, T * 25 + 1), STATUS_OK);
    assert_int_equal(shard_commit(&w, NULL), STATUS_OK);
    assert_int_equal(shard_set_open(&b, temp_path("other.bin")), STATUS_OK);
    const struct mixture_point weights[] = {{0, 3}, {0, 1}};
    const struct samples_source sources[] = {{.set = &a, .points = &weights[0], .point_count = 1},
                                             {.set = &b, .points = &weights[1], .point_count = 1}};
    const struct samples_config order = {
        .seed = 6, .sequence_length = T, .shuffle = 1, .samples_total = STEPS * B};
    struct samples *samples;
    assert_int_equal(samples_open(&samples, sources, 2, &order), STATUS_OK);
    assert_int_equal(samples_rows(samples, 1), 25);
    const struct loader_config c = {.sequences = B, .micro_count = 1, .threads = 2};
    struct loader *l;
    assert_int_equal(loader_open(&l, samples, &c, 0), STATUS_OK);
    int64_t from_b = 0, index = 0, rows = samples_rows(samples, 0);
    char *seen = calloc((size_t)(2 * STEPS * B + rows + 25), 1); /* by source, epoch and row */
    struct mixture_cursor cursor = {0};
    for (int64_t step = 0; step < STEPS; step++) {
        const struct step_batch *s;
        assert_int_equal(loader_next(l, &s), STATUS_OK);
        for (int q = 0; q < B; q++, index++) {
            struct sample_place place;
            assert_int_equal(samples_place(samples, &cursor, index, &place), STATUS_OK);
            const int32_t *tokens = s->micro->tokens + q * T;
            assert_int_equal(place.source, tokens[0] >= VOCAB);
            assert_memory_equal(tokens, (place.source ? other : stream) + place.row * T, T * 4);
            int64_t ordinal = place.epoch * (place.source ? 25 : rows) + place.row;
            assert_int_equal(seen[place.source * (STEPS * B + rows) + ordinal]++, 0);
            from_b += place.source;
        }
    }
    for (int k = 0; k < 25 * 20; k++) assert_int_equal(seen[STEPS * B + rows + k], 1);
    assert_in_range(from_b, STEPS * B / 4 - 512, STEPS * B / 4 + 512);
    double epochs[MIXTURE_SOURCES];
    samples_epochs(samples, &cursor, 2048, epochs); /* two blocks: exact shares */
    assert_true(epochs[1] > 511 / 25.0 && epochs[1] < 513 / 25.0);
    free(seen);
    loader_close(l);
    samples_close(samples);
    shard_set_close(&a);
    shard_set_close(&b);
}

static void evaluation_sees_every_target_once_and_then_none(void **state)
{
    (void)state;
    struct shard_set set = open_set(EOD_NONE);
    const struct loader_config c = {.sequences = 4, .micro_count = 1, .vocab_size = VOCAB};
    struct samples *samples = open_samples(&set, &(struct samples_config){.sequence_length = 100});
    int64_t windows = samples_rows(samples, 0), next = 0, valid = 0;
    assert_int_equal(windows, (stream_count - 1 + 99) / 100);
    for (int64_t step = 0; step <= (windows + 3) / 4; step++) {
        struct step_batch *s;
        assert_int_equal(loader_step_at(samples, &c, step, &s), STATUS_OK);
        assert_int_equal(s->micro->docs, 4); /* of equal lengths: what stream packing promises to the ops */
        for (int64_t r = 0; r < 400; r++) {
            assert_int_equal(s->micro->positions[r], r % 100);
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
    samples_close(samples);
    shard_set_close(&set);
}

static void evaluation_of_packed_documents_sees_every_pair_once(void **state)
{
    (void)state;
    struct shard_set set = open_set(EOD_AFTER);
    int64_t *starts = malloc((size_t)(stream_count + 1) * 8), documents = list_documents(EOD_AFTER, starts);
    for (int packing = LOADER_DOCUMENTS; packing <= LOADER_PAD; packing++) {
        const struct loader_config c = {.sequences = 7, .micro_count = 1, .vocab_size = VOCAB};
        struct samples *samples =
            open_samples(&set, &(struct samples_config){.sequence_length = 64, .packing = packing});
        int64_t valid = 0, steps = (samples_rows(samples, 0) + 6) / 7;
        for (int64_t step = 0; step <= steps; step++) {
            struct step_batch *s;
            assert_int_equal(loader_step_at(samples, &c, step, &s), STATUS_OK);
            valid += s->valid;
            if (step == steps) assert_int_equal(s->valid, 0);
            step_batch_free(s);
        }
        assert_int_equal(valid, stream_count - documents);
        samples_close(samples);
    }
    free(starts);
    shard_set_close(&set);
}

/* Documents that an index lists, not a token: Megatron's. The batches are those of a set with end-of-text tokens that say the
 * same. */
static void documents_of_an_index_are_masked_like_those_of_a_token(void **state)
{
    (void)state;
    struct shard_set token = open_set(EOD_AFTER), index;
    int64_t *starts = malloc((size_t)(stream_count + 1) * 8), documents = list_documents(EOD_AFTER, starts);
    struct shard_writer *w;
    assert_int_equal(shard_create(&w, temp_path("meg.bin"), SHARD_MEGATRON, 2), STATUS_OK);
    for (int64_t d = 0; d < documents; d++) {
        assert_int_equal(shard_append(w, stream + starts[d], starts[d + 1] - starts[d]), STATUS_OK);
        assert_int_equal(shard_document_end(w), STATUS_OK);
    }
    assert_int_equal(shard_commit(&w, NULL), STATUS_OK);
    assert_int_equal(shard_set_open(&index, temp_path("meg.bin")), STATUS_OK);
    assert_true(index.bounded && index.eod == EOD_NONE);
    for (int packing = LOADER_DOCUMENTS; packing <= LOADER_PAD; packing++) {
        const struct samples_config order = {
            .seed = 2, .sequence_length = 45, .packing = packing, .shuffle = 1};
        const struct loader_config c = {.sequences = 5, .micro_count = 2, .vocab_size = VOCAB};
        struct samples *a = open_samples(&token, &order), *b = open_samples(&index, &order);
        assert_int_equal(samples_rows(a, 0), samples_rows(b, 0));
        for (int64_t step = 0; step < 12; step++) {
            struct step_batch *p, *q;
            assert_int_equal(loader_step_at(a, &c, step, &p), STATUS_OK);
            assert_int_equal(loader_step_at(b, &c, step, &q), STATUS_OK);
            assert_same_step(p, q);
            step_batch_free(p);
            step_batch_free(q);
        }
        samples_close(a);
        samples_close(b);
    }
    free(starts);
    shard_set_close(&token);
    shard_set_close(&index);
}

/* Targets that a shard's mask leaves out (LLMQ, version 2) do not count; inputs stay. */
static void masked_targets_are_ignored(void **state)
{
    (void)state;
    enum { N = 500, T = 24 };
    struct {
        char magic[8];
        int32_t version, width, count, vocab, masked;
        char rest[996];
        int32_t tokens[N];
        uint8_t mask[(N + 7) / 8];
    } file = {.magic = "BIN.TOK\n", .version = 2, .width = 4, .count = N, .vocab = VOCAB, .masked = 1};
    for (int i = 0; i < N; i++) {
        file.tokens[i] = stream[i];
        file.mask[i / 8] |= (uint8_t)((rng_at(8, RNG_TEST, 1, (uint64_t)i).u[0] % 3 > 0) << i % 8);
    }
    temp_write(temp_path("m.bin"), &file, offsetof(__typeof__(file), mask) + sizeof file.mask);
    struct shard_set set;
    assert_int_equal(shard_set_open(&set, temp_path("m.bin")), STATUS_OK);
    assert_true(set.masked);
    set.eot = EOT, set.eod = EOD_AFTER, set.bounded = true;
    for (int packing = LOADER_STREAM; packing <= LOADER_PAD; packing++) {
        struct samples *samples = open_samples(
            &set,
            &(struct samples_config){.seed = 1, .sequence_length = T, .packing = packing, .shuffle = 1});
        const struct loader_config c = {.sequences = 4, .micro_count = 1, .vocab_size = VOCAB};
        for (int64_t step = 0; step < 6; step++) {
            struct step_batch *s;
            int64_t valid = 0;
            assert_int_equal(loader_step_at(samples, &c, step, &s), STATUS_OK);
            for (int q = 0; q < 4; q++) {
                struct mixture_cursor cursor = {0};
                struct sample_place place;
                struct pack_piece pieces[T];
                assert_int_equal(samples_place(samples, &cursor, step * 4 + q, &place), STATUS_OK);
                int64_t count = samples_pieces(samples, &place, pieces), r = q * T;
                for (int64_t i = 0; i < count; i++)
                    for (int64_t k = 0; k < pieces[i].count; k++, r++) {
                        int64_t at = pieces[i].at + k + 1; /* of the target */
                        bool out = !(file.mask[at / 8] >> at % 8 & 1),
                             crosses = packing == LOADER_DOCUMENTS && stream[at - 1] == EOT;
                        assert_int_equal(s->micro->tokens[r], stream[at - 1]);
                        assert_int_equal(s->micro->targets[r], out || crosses ? LOADER_IGNORE : stream[at]);
                        valid += !out && !crosses;
                    }
            }
            assert_int_equal(s->valid, valid);
            step_batch_free(s);
        }
        samples_close(samples);
    }
    shard_set_close(&set);
}

static void errors_of_the_threads_surface_at_their_step(void **state)
{
    (void)state;
    struct shard_set set = open_set(EOD_NONE);
    int64_t bad = 0;
    while (bad < stream_count && stream[bad] < VOCAB - 1) bad++;
    for (int threads = 1; threads <= 4; threads++) {
        struct samples *samples = open_samples(&set, &(struct samples_config){.sequence_length = 10});
        const struct loader_config c = {
            .sequences = 1, .micro_count = threads % 2 ? 1 : 3, .vocab_size = VOCAB - 1, .threads = threads};
        struct loader *l;
        const struct step_batch *s;
        assert_int_equal(loader_open(&l, samples, &c, 0), STATUS_OK);
        int64_t first_bad = (bad - 1) / 10 / c.micro_count; /* a window holds its last target too */
        for (int64_t step = 0; step < first_bad; step++) assert_int_equal(loader_next(l, &s), STATUS_OK);
        assert_int_equal(loader_next(l, &s), STATUS_DATA);
        assert_non_null(strstr(status_message(), "id 49"));
        assert_non_null(strstr(status_message(), "s_0.bin"));
        assert_null(s);
        assert_int_equal(loader_next(l, &s), STATUS_DATA); /* and stays */
        loader_close(l);
        samples_close(samples);
    }
    shard_set_close(&set);
}

struct lent {
    int open;
    size_t bytes;
};
static status lend(void *ctx, size_t bytes, void **out)
{
    struct lent *l = ctx;
    if (l->open == 2) return FAIL(STATUS_OUT_OF_MEMORY, "nothing left to lend");
    *out = aligned_alloc(LOADER_ALIGN, bytes);
    l->open++;
    l->bytes = bytes;
    return STATUS_OK;
}
static void take_back(void *ctx, void *memory)
{
    struct lent *l = ctx;
    l->open--;
    free(memory);
}

static void batches_lie_in_the_memory_that_is_lent(void **state)
{
    (void)state;
    struct shard_set set = open_set(EOD_AFTER);
    struct samples *samples = open_samples(
        &set, &(struct samples_config){.sequence_length = 33, .packing = LOADER_DOCUMENTS, .shuffle = 1});
    struct lent lent = {0};
    struct loader_config c = {.sequences = 3, .micro_count = 2, .memory = {&lent, lend, take_back}};
    struct step_batch *s;
    assert_int_equal(loader_step_at(samples, &c, 0, &s), STATUS_OK);
    assert_int_equal(lent.open, 1);
    for (int m = 0; m < 2; m++) { /* one allocation, as struct batch requires */
        const struct batch *b = &s->micro[m];
        assert_true(b->block);
        const int64_t column = (b->rows * 4 + LOADER_ALIGN - 1) / LOADER_ALIGN * LOADER_ALIGN;
        assert_int_equal((uintptr_t)b->tokens % LOADER_ALIGN, 0);
        assert_ptr_equal((const char *)b->tokens + column, b->targets);
        assert_ptr_equal((const char *)b->targets + column, b->positions);
        assert_ptr_equal((const char *)b->positions + column, b->cu_seqlens);
        for (int64_t k = b->docs; k <= b->rows; k++) assert_int_equal(b->cu_seqlens[k], b->rows);
    }
    step_batch_free(s);
    assert_int_equal(lent.open, 0);
    struct loader *l; /* three slots, but two are lent */
    assert_int_equal(loader_open(&l, samples, &c, 0), STATUS_OUT_OF_MEMORY);
    assert_null(l);
    assert_int_equal(lent.open, 0);
    samples_close(samples);
    shard_set_close(&set);
}

static void what_cannot_be_loaded_is_refused(void **state)
{
    (void)state;
    struct shard_set set = open_set(EOD_NONE);
    const struct samples_source source = {.set = &set};
    struct samples *samples;
    struct loader *l;
    struct samples_config c = {.sequence_length = stream_count, .shuffle = 1};
    assert_int_equal(samples_open(&samples, &source, 1, &c), STATUS_DATA);
    assert_null(samples);
    c.sequence_length--;
    assert_int_equal(samples_open(&samples, &source, 1, &c), STATUS_OK);
    samples_close(samples);
    c.sequence_length = 10;
    for (c.packing = LOADER_DOCUMENTS; c.packing <= LOADER_PAD; c.packing++) {
        assert_int_equal(samples_open(&samples, &source, 1, &c), STATUS_DATA);
        assert_non_null(strstr(status_message(), "--eod before or after"));
    }
    c.packing = LOADER_STREAM;
    c.samples_total = 1000;
    assert_int_equal(samples_open(&samples, &(struct samples_source){.set = &set, .epochs_max = 2}, 1, &c),
                     STATUS_CONFIG);
    assert_int_equal(samples_open(&samples, &source, 1, &c), STATUS_OK);
    struct loader_config too_large = {.sequences = INT64_MAX / 2, .micro_count = 1};
    assert_int_equal(loader_open(&l, samples, &too_large, 0), STATUS_CONFIG);
    too_large = (struct loader_config){.sequences = 1, .micro_count = (int64_t)1 << 40};
    assert_int_equal(loader_open(&l, samples, &too_large, 0), STATUS_CONFIG);
    samples_close(samples);
    shard_set_close(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_epoch_is_a_permutation),
        cmocka_unit_test(the_order_of_a_single_source_is_what_it_always_was),
        cmocka_unit_test(neighbours_are_spread_over_the_epoch),
        cmocka_unit_test(a_fresh_loader_at_step_k_gives_what_one_from_the_start_gives),
        cmocka_unit_test(batches_are_as_defined),
        cmocka_unit_test(a_step_is_the_same_set_for_any_number_of_ranks),
        cmocka_unit_test(a_mixture_reads_each_source_in_its_own_order),
        cmocka_unit_test(evaluation_sees_every_target_once_and_then_none),
        cmocka_unit_test(evaluation_of_packed_documents_sees_every_pair_once),
        cmocka_unit_test(documents_of_an_index_are_masked_like_those_of_a_token),
        cmocka_unit_test(masked_targets_are_ignored),
        cmocka_unit_test(errors_of_the_threads_surface_at_their_step),
        cmocka_unit_test(batches_lie_in_the_memory_that_is_lent),
        cmocka_unit_test(what_cannot_be_loaded_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
