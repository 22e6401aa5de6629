/* Checksums of blocks: a changed byte is found where it is read, and nowhere else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/shard/manifest.h"
#include "data/shard/shard.h"
#include "../temp.h"

enum { COUNT = 1200000, PER_BLOCK = SHARD_BLOCK_BYTES / 2, BLOCKS = 3, HEADER = 1024 };

static int32_t ids[COUNT];

static void write_shard(const char *name, struct shard_sums *sums)
{
    struct shard_writer *w;
    for (int i = 0; i < COUNT; i++) ids[i] = (int32_t)((unsigned)i * 7919 % 50000);
    assert_int_equal(shard_create(&w, temp_path(name), SHARD_LLMC, 2), STATUS_OK);
    for (int at = 0, n; at < COUNT; at += n) {
        n = COUNT - at < 333333 ? COUNT - at : 333333;
        assert_int_equal(shard_append(w, ids + at, n), STATUS_OK);
    }
    assert_int_equal(shard_commit(&w, sums), STATUS_OK);
}

/* Two shards and their manifest. */
static void write_corpus(void)
{
    struct manifest m = {
        .tokenizer_dir = "../tok", .vocab_size = 50000, .eot = 9, .eod = EOD_AFTER, .width = 2};
    memset(m.tokenizer_hash, 'a', 64);
    static const char *const names[] = {"c_train_000000.bin", "c_train_000001.bin"};
    for (int i = 0; i < 2; i++) {
        struct shard_sums sums;
        struct manifest_shard *row = manifest_add(&m, names[i], "train");
        write_shard(names[i], &sums);
        row->tokens = COUNT, row->xxh64 = sums.xxh64, row->blocks = sums.blocks;
    }
    assert_int_equal(manifest_write(&m, temp_path("c_manifest.json")), STATUS_OK);
    manifest_free(&m);
}

static void flip(const char *name, int64_t token)
{
    FILE *f = fopen(temp_path(name), "r+b");
    assert_non_null(f);
    fseek(f, HEADER + 2 * token, SEEK_SET);
    const int byte = fgetc(f);
    fseek(f, HEADER + 2 * token, SEEK_SET);
    fputc(byte ^ 1, f);
    assert_int_equal(fclose(f), 0);
}

static void open_verified(struct shard_set *s)
{
    assert_int_equal(shard_set_open(s, temp_path("c_train_*.bin")), STATUS_OK);
    for (int i = 0; i < s->count; i++) assert_int_equal(shard_verify_reads(&s->shards[i]), STATUS_OK);
}

static void a_manifest_keeps_the_checksums_of_all_blocks(void **state)
{
    (void)state;
    struct manifest m;
    write_corpus();
    assert_int_equal(manifest_read(&m, temp_path("c_manifest.json")), STATUS_OK);
    assert_int_equal(m.shards[1].blocks.count, BLOCKS);
    assert_int_equal(m.shards[1].blocks.bytes, SHARD_BLOCK_BYTES);
    assert_memory_equal(m.shards[0].blocks.xxh3, m.shards[1].blocks.xxh3, BLOCKS * sizeof(uint64_t));
    assert_true(m.shards[0].blocks.xxh3[0] != m.shards[0].blocks.xxh3[1]);
    manifest_free(&m);
}

static void a_changed_byte_is_found_in_its_block_alone(void **state)
{
    (void)state;
    struct shard_set s;
    static int32_t out[COUNT];
    write_corpus();
    open_verified(&s);
    assert_int_equal(shard_set_read(&s, 0, COUNT, 0, out), STATUS_OK);
    assert_memory_equal(out, ids, sizeof ids);
    assert_int_equal(shard_set_read(&s, COUNT - 5, 10, 0, out), STATUS_OK);
    assert_int_equal(shard_set_verify_now(&s, 0, 1), STATUS_OK);
    shard_set_close(&s);
    flip("c_train_000001.bin", PER_BLOCK + 77);
    open_verified(&s);
    assert_int_equal(shard_set_read(&s, COUNT, PER_BLOCK, 0, out), STATUS_OK);
    assert_int_equal(shard_set_read(&s, COUNT + 2 * PER_BLOCK, 1, 0, out), STATUS_OK);
    for (int again = 0; again < 2; again++) { /* a block that has failed fails again */
        assert_int_equal(shard_set_read(&s, COUNT + PER_BLOCK - 1, 2, 0, out), STATUS_DATA);
        assert_non_null(
            strstr(status_message(), "c_train_000001.bin: block 1 (tokens from 524288 on) is not"));
    }
    /* Of three ranks one has the block. */
    int bad = 0;
    for (int part = 0; part < 3; part++) bad += shard_set_verify_now(&s, part, 3) == STATUS_DATA;
    assert_int_equal(bad, 1);
    shard_set_close(&s);
    assert_int_equal(shard_set_open(&s, temp_path("c_train_*.bin")), STATUS_OK); /* nobody asked to verify */
    assert_int_equal(shard_set_read(&s, COUNT + PER_BLOCK, 100, 0, out), STATUS_OK);
    shard_set_close(&s);
}

static void a_writer_that_goes_on_hashes_what_is_there(void **state)
{
    (void)state;
    struct shard_sums whole, resumed;
    struct shard_writer *w;
    write_shard("whole.bin", &whole);
    char path[1024], temp[1024];
    snprintf(path, sizeof path, "%s", temp_path("w.bin"));
    snprintf(temp, sizeof temp, "%s", temp_path("w.open"));
    struct shard_resume_config c = {.path = path, .temp = temp, .format = SHARD_LLMC, .width = 2};
    for (int at = 0; at < COUNT; at += 400000) {
        c.tokens = at;
        assert_int_equal(shard_resume(&w, &c), STATUS_OK);
        assert_int_equal(shard_append(w, ids + at, 400000), STATUS_OK);
        assert_int_equal(shard_sync(w), STATUS_OK);
        if (at + 400000 < COUNT) shard_leave(&w);
    }
    assert_int_equal(shard_commit(&w, &resumed), STATUS_OK);
    assert_true(resumed.xxh64 == whole.xxh64);
    assert_int_equal(resumed.blocks.count, BLOCKS);
    assert_memory_equal(resumed.blocks.xxh3, whole.blocks.xxh3, BLOCKS * sizeof(uint64_t));
    shard_blocks_free(&whole.blocks);
    shard_blocks_free(&resumed.blocks);
}

static void a_manifest_whose_checksums_cannot_be_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"\"block_xxh3\": \"", "\"block_xxh3\": \"0", "16 hexadecimal digits for each of 3 blocks"},
        {"\"block_xxh3\": \"", "\"block_xxh3\": \"x", "16 hexadecimal digits for each of 3 blocks"},
        {"\"block_bytes\": 1048576", "\"block_bytes\": 1048575", "a power of two"},
        {"\"block_bytes\": 1048576", "\"block_bytes\": 512", "expected 4096 to"},
        {"\"block_bytes\": 1048576", "\"block_bytes\": 2097152", "for each of 2 blocks"},
    };
    char *text;
    size_t bytes;
    write_corpus();
    assert_int_equal(io_read_file(temp_path("c_manifest.json"), 1 << 20, &text, &bytes), STATUS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct manifest m;
        char *at = strstr(text, cases[i].from), changed[1 << 14];
        assert_non_null(at);
        const int n = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, cases[i].to,
                               at + strlen(cases[i].from));
        assert_int_equal(manifest_parse(&m, "m", changed, (size_t)n), STATUS_DATA);
        assert_non_null(strstr(status_message(), cases[i].message));
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_manifest_keeps_the_checksums_of_all_blocks),
        cmocka_unit_test(a_changed_byte_is_found_in_its_block_alone),
        cmocka_unit_test(a_writer_that_goes_on_hashes_what_is_there),
        cmocka_unit_test(a_manifest_whose_checksums_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
