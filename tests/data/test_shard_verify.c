/* Verification and tallies: what is whole passes, every single damage is found and named with its place, and the
 * result does not depend on how the work is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "data/shard/corpus_index.h"
#include "data/shard/manifest.h"
#include "data/shard/shard_tally.h"
#include "data/shard/shard_verify.h"
#include "../temp.h"

enum { SHARDS = 3, VOCAB = 1000, EOT = 999 };
static int32_t *streams[SHARDS];
static int64_t counts[SHARDS] = {70000, 40001, 16384};
static uint32_t lengths_of[VOCAB];

static uint32_t draw(int i, int64_t t)
{
    return rng_at(5, RNG_TEST, (uint64_t)i, (uint64_t)t).u[0];
}

static int setup(void **state)
{
    for (int i = 0; i < VOCAB; i++) lengths_of[i] = i == EOT ? 0 : 1 + (uint32_t)i % 7;
    for (int i = 0; i < SHARDS; i++) {
        streams[i] = malloc((size_t)counts[i] * 4);
        for (int64_t t = 0; t < counts[i]; t++) {
            uint32_t r = draw(i, t);
            streams[i][t] = r % 300 == 0 || (i == 0 && t == counts[0] - 1) ? EOT : (int32_t)(r / 300 % EOT);
        }
    }
    return temp_open(state);
}

static int teardown(void **state)
{
    for (int i = 0; i < SHARDS; i++) free(streams[i]);
    return temp_close(state);
}

static const char *shard_name(int i, bool index)
{
    static char names[8][40];
    static int next;
    char *out = names[next++ % 8];
    snprintf(out, sizeof names[0], "c_train_%06d.%s", i, index ? "idx" : "bin");
    return temp_path(out);
}

/* Writes the streams as a corpus; *m gets what its manifest would say. */
static void write_corpus(struct manifest *m, enum shard_format format, enum eod eod)
{
    *m = (struct manifest){.vocab_size = VOCAB, .eot = EOT, .eod = eod, .width = 2};
    int32_t previous = EOT;
    for (int i = 0; i < SHARDS; i++) {
        struct manifest_shard *row = manifest_add(m, shard_name(i, false), "train");
        struct shard_writer *w;
        struct corpus_index_writer *x = NULL;
        bool own = format == SHARD_LLMC;
        assert_int_equal(shard_create(&w, shard_name(i, false), format, 2), STATUS_OK);
        if (own)
            assert_int_equal(corpus_index_create(&x, shard_name(i, true), temp_path("open"), 0), STATUS_OK);
        for (int64_t t = 0; t < counts[i]; t++) {
            int32_t id = streams[i][t];
            bool begins = eod == EOD_BEFORE ? id == EOT : previous == EOT;
            if (begins) assert_int_equal(shard_document_end(w), STATUS_OK);
            if (own && begins) assert_int_equal(corpus_index_add(x, (uint32_t)t), STATUS_OK);
            row->documents += begins || (!own && t == 0);
            row->text_bytes += lengths_of[id];
            assert_int_equal(shard_append(w, &id, 1), STATUS_OK);
            previous = id;
        }
        row->tokens = counts[i];
        row->indexed = own;
        struct shard_sums sums;
        assert_int_equal(shard_commit(&w, &sums), STATUS_OK);
        row->xxh64 = sums.xxh64, row->blocks = sums.blocks;
        if (own) assert_int_equal(corpus_index_commit(&x, counts[i], &row->index_xxh64), STATUS_OK);
    }
}

static void prepare(struct shard_check checks[SHARDS], const struct manifest *m, bool promised)
{
    for (int i = 0; i < SHARDS; i++)
        checks[i] = (struct shard_check){
            .path = m->shards[i].file, .promise = promised ? &m->shards[i] : NULL, .first = i == 0};
}

static void every_shard_of_a_whole_corpus_passes(void **state)
{
    (void)state;
    static const enum shard_format formats[] = {SHARD_LLMC, SHARD_MEGATRON};
    for (int f = 0; f < 2; f++)
        for (int eod = EOD_BEFORE; eod <= EOD_AFTER; eod++)
            for (int promised = 0; promised < 2; promised++) {
                struct manifest m;
                struct shard_check checks[SHARDS];
                write_corpus(&m, formats[f], (enum eod)eod);
                prepare(checks, &m, promised);
                struct shard_verify_config c = {.hints = {.eot = EOT, .eod = eod},
                                                .width = promised ? 2 : 0,
                                                .vocab_size = VOCAB,
                                                .token_bytes = promised ? lengths_of : NULL};
                assert_int_equal(shard_verify(checks, SHARDS, &c), STATUS_OK);
                for (int i = 0; i < SHARDS; i++) {
                    if (checks[i].st != STATUS_OK) fail_msg("%s", checks[i].message);
                    assert_int_equal(checks[i].documents, m.shards[i].documents);
                    assert_int_equal(checks[i].tokens, counts[i]);
                }
                manifest_free(&m);
                temp_clear();
            }
}

static void flip(const char *path, int64_t at, int bit)
{
    uint8_t b;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &b, 1, at), 1);
    b ^= (uint8_t)(1 << bit);
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    close(fd);
}

/* A document's first token, far enough from the ends. */
static int64_t some_begin(int i, enum eod eod)
{
    int64_t t = counts[i] / 2;
    while (streams[i][t] != EOT) t++;
    return t + (eod == EOD_AFTER);
}

static void every_damage_is_found_and_named(void **state)
{
    (void)state;
    struct manifest m;
    struct shard_check checks[SHARDS];
    struct shard_verify_config c = {.hints = {.eot = EOT}, .width = 2, .vocab_size = VOCAB};
    for (int eod = EOD_BEFORE; eod <= EOD_AFTER; eod++) {
        c.hints.eod = eod;
        write_corpus(&m, SHARD_LLMC, (enum eod)eod);
        for (int damage = 0; damage < 10; damage++) {
            struct manifest_shard before = m.shards[1];
            const char *what = NULL, *bin = shard_name(1, false), *idx = shard_name(1, true);
            int64_t at = 1024 + 2 * 12345;
            c.token_bytes = NULL;
            switch (damage) {
            case 0: flip(bin, at, 0), what = "checksum"; break;
            case 1: flip(bin, at + 1, 7), what = "checksum"; break; /* also beyond the vocabulary */
            case 2: flip(bin, 4, 0), what = "version"; break;
            case 3: flip(idx, 64 + 4 * 20, 3), what = "damaged"; break;
            case 4: m.shards[1].documents--, what = "belongs to another build"; break;
            case 5: m.shards[1].tokens++, what = "its manifest says 40002"; break;
            case 6: m.shards[1].index_xxh64++, what = "belongs to another build"; break;
            case 7: m.shards[1].text_bytes++, c.token_bytes = lengths_of, what = "bytes of text"; break;
            case 8:
                m.shards[1].indexed = false, m.shards[1].documents++, what = "documents begin here";
                break;
            case 9: flip(bin, 489, 4), what = "byte 489 of its header"; break; /* it means nothing */
            }
            prepare(checks, &m, true);
            assert_int_equal(shard_verify(checks, SHARDS, &c), STATUS_OK);
            assert_int_equal(checks[0].st, STATUS_OK);
            assert_int_equal(checks[2].st, STATUS_OK);
            assert_int_equal(checks[1].st, STATUS_DATA);
            if (!strstr(checks[1].message, what))
                fail_msg("'%s' does not contain '%s'", checks[1].message, what);
            assert_non_null(strstr(checks[1].message, "c_train_000001"));
            if (damage == 0) flip(bin, at, 0);
            if (damage == 1) flip(bin, at + 1, 7);
            if (damage == 2) flip(bin, 4, 0);
            if (damage == 3) flip(idx, 64 + 4 * 20, 3);
            if (damage == 9) flip(bin, 489, 4);
            m.shards[1] = before;
        }
        manifest_free(&m);
        temp_clear();
    }
}

static void an_index_that_disagrees_with_the_tokens_is_named_with_its_place(void **state)
{
    (void)state;
    struct manifest m;
    struct shard_check checks[SHARDS];
    char place[64];
    for (int eod = EOD_BEFORE; eod <= EOD_AFTER; eod++)
        for (int more = 0; more < 2; more++) {
            write_corpus(&m, SHARD_MEGATRON, (enum eod)eod);
            /* One end-of-text token fewer, or one more, in the second file. */
            int64_t token = some_begin(1, (enum eod)eod) + (more ? 1 : 0);
            uint16_t id = more ? EOT : 5;
            int fd = open(shard_name(1, false), O_WRONLY);
            assert_int_equal(pwrite(fd, &id, 2, 2 * (token - (eod == EOD_AFTER))), 2);
            close(fd);
            prepare(checks, &m, false);
            struct shard_verify_config c = {.hints = {.eot = EOT, .eod = eod}};
            assert_int_equal(shard_verify(checks, SHARDS, &c), STATUS_OK);
            assert_int_equal(checks[0].st, STATUS_OK);
            assert_int_equal(checks[1].st, STATUS_DATA);
            snprintf(place, sizeof place, "begins at token %lld,", (long long)token);
            if (!strstr(checks[1].message, place))
                fail_msg("'%s' does not contain '%s'", checks[1].message, place);
            manifest_free(&m);
            temp_clear();
        }
}

static void a_large_foreign_file_is_checked_in_pieces(void **state)
{
    (void)state;
    /* Two pieces and a bit; the bad id and the last document are in the last one. */
    enum { TOKENS = (1 << 25) + 100000 };
    uint16_t *ids = calloc(TOKENS, 2);
    for (int64_t t = 0; t < TOKENS; t += 5000) ids[t] = EOT;
    struct shard_check check = {.path = temp_path("raw.bin"), .first = true};
    struct shard_verify_config c = {.hints = {.type = SHARD_TYPE_U16, .eot = EOT, .eod = EOD_AFTER},
                                    .vocab_size = VOCAB};
    temp_write(check.path, ids, TOKENS * 2ll);
    assert_int_equal(shard_verify(&check, 1, &c), STATUS_OK);
    assert_int_equal(check.st, STATUS_OK);
    assert_int_equal(check.documents, (TOKENS + 4999) / 5000 + 1);
    ids[TOKENS - 5] = VOCAB;
    ids[TOKENS - 3] = VOCAB;
    temp_write(check.path, ids, TOKENS * 2ll);
    assert_int_equal(shard_verify(&check, 1, &c), STATUS_OK);
    assert_int_equal(check.st, STATUS_DATA);
    char place[64];
    snprintf(place, sizeof place, "token %d is id 1000", TOKENS - 5);
    assert_non_null(strstr(check.message, place));
    struct shard_set s;
    struct shard_tally t;
    assert_int_equal(shard_set_open_as(&s, check.path, &c.hints), STATUS_OK);
    assert_int_equal(shard_tally_set(&t, &s, VOCAB), STATUS_DATA);
    assert_non_null(strstr(status_message(), place));
    assert_int_equal(shard_tally_set(&t, &s, 0), STATUS_OK);
    assert_int_equal(t.id_max, VOCAB);
    assert_int_equal(t.counts[VOCAB], 2);
    assert_int_equal(t.counts[EOT], (TOKENS + 4999) / 5000);
    assert_int_equal(t.counts[0] + t.counts[EOT] + 2, TOKENS);
    assert_int_equal(t.beyond, 0);
    shard_tally_close(&t);
    shard_set_close(&s);
    free(ids);
    temp_clear();
}

static void an_index_is_followed_across_pieces(void **state)
{
    (void)state;
    /* Documents end at the last token of a piece, at the first one of the next, and between them. */
    enum { PIECE = 1 << 24, TOKENS = 2 * PIECE + 1000 };
    int32_t *ids = calloc(TOKENS, 4);
    for (int64_t t = 4999; t < TOKENS; t += 5000) ids[t] = EOT;
    ids[PIECE - 1] = ids[PIECE] = ids[2 * PIECE - 1] = EOT;
    for (int eod = EOD_BEFORE; eod <= EOD_AFTER; eod++) {
        struct shard_writer *w;
        int64_t from = 0, documents = 0;
        const char *path = temp_path("m.bin");
        assert_int_equal(shard_create(&w, path, SHARD_MEGATRON, 2), STATUS_OK);
        for (int64_t t = 0; t < TOKENS; t++) {
            int64_t end = eod == EOD_AFTER ? t + 1 : t;
            if (ids[t] != EOT || end == from) continue;
            assert_int_equal(shard_append(w, ids + from, end - from), STATUS_OK);
            assert_int_equal(shard_document_end(w), STATUS_OK);
            from = end;
            documents++;
        }
        assert_int_equal(shard_append(w, ids + from, TOKENS - from), STATUS_OK);
        assert_int_equal(shard_commit(&w, NULL), STATUS_OK);
        struct shard_check check = {.path = path, .first = true};
        struct shard_verify_config c = {.hints = {.eot = EOT, .eod = eod}, .vocab_size = VOCAB};
        assert_int_equal(shard_verify(&check, 1, &c), STATUS_OK);
        if (check.st != STATUS_OK) fail_msg("%s", check.message);
        assert_int_equal(check.documents, documents + 1);
        /* One end fewer, or more, at and around the cuts. */
        static const int64_t places[] = {PIECE - 1,     PIECE,     PIECE + 1,
                                         2 * PIECE - 1, 2 * PIECE, 2 * PIECE + 10};
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            uint16_t was = (uint16_t)ids[places[i]], now = was == EOT ? 1 : EOT;
            char place[64];
            int fd = open(path, O_WRONLY);
            assert_int_equal(pwrite(fd, &now, 2, 2 * places[i]), 2);
            assert_int_equal(shard_verify(&check, 1, &c), STATUS_OK);
            assert_int_equal(check.st, STATUS_DATA);
            snprintf(place, sizeof place, "begins at token %lld,", (long long)places[i] + (eod == EOD_AFTER));
            if (!strstr(check.message, place)) fail_msg("'%s' does not contain '%s'", check.message, place);
            assert_int_equal(pwrite(fd, &was, 2, 2 * places[i]), 2);
            close(fd);
        }
        temp_clear();
    }
    free(ids);
}

static void huge_ids_without_a_vocabulary_are_counted_as_beyond(void **state)
{
    (void)state;
    int32_t ids[6001];
    for (int i = 0; i < 6001; i++) ids[i] = i % 3 == 0 ? INT32_MAX - i : i;
    temp_write(temp_path("big.bin"), ids, sizeof ids);
    struct shard_hints h = {SHARD_TYPE_U32, EOT_AUTO, EOD_AUTO};
    struct shard_set s;
    struct shard_tally t;
    assert_int_equal(shard_set_open_as(&s, temp_path("big.bin"), &h), STATUS_OK);
    assert_int_equal(shard_tally_set(&t, &s, 0), STATUS_OK);
    assert_int_equal(t.id_max, INT32_MAX);
    assert_int_equal(t.beyond, 2001);
    for (int i = 0; i < 6001; i++) assert_int_equal(t.counts[i], i % 3 != 0);
    shard_tally_close(&t);
    shard_set_close(&s);
    temp_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shard_of_a_whole_corpus_passes),
        cmocka_unit_test(every_damage_is_found_and_named),
        cmocka_unit_test(an_index_that_disagrees_with_the_tokens_is_named_with_its_place),
        cmocka_unit_test(a_large_foreign_file_is_checked_in_pieces),
        cmocka_unit_test(an_index_is_followed_across_pieces),
        cmocka_unit_test(huge_ids_without_a_vocabulary_are_counted_as_beyond),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
