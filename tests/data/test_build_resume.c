/* Builds that are killed, stopped and gone on with: the bytes of one that nobody disturbed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "data/build/build.h"
#include "data/build/build_journal.h"
#include "data/tokenizer/tokenizer.h"
#include "../temp.h"
#include "tokenizer_fixture.h"

#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum { LINES = 6000, KILLS = 20, WORDS_MAX = 24 };
static char in_dir[600], tokenizer_dir[700], text_path[700], jsonl_path[700], prefix[700];
static char *want;
static size_t want_bytes;

static void write_inputs(void)
{
    FILE *text = fopen(text_path, "wb"), *jsonl = fopen(jsonl_path, "wb");
    assert_true(text && jsonl);
    for (int d = 0; d < LINES; d++) {
        char line[1024] = "";
        int words = 1 + (int)(rng_at(1, RNG_TEST, (uint64_t)d, 0).u[0] % 60);
        for (int w = 0; w < words; w++) {
            uint32_t r = rng_at(1, RNG_TEST, (uint64_t)d, (uint64_t)w + 1).u[0];
            size_t used = strlen(line);
            snprintf(line + used, sizeof line - used, "%s%.*s", w ? " " : "", 1 + (int)(r % 7),
                     &"abcdefghijklmnopqrs"[(r >> 8) % 12]);
        }
        fprintf(text, "%s\n", d % 10 == 9 ? "the same line again" : line);
        fprintf(jsonl, "{\"text\": \"json %s\"}\n", line);
    }
    fclose(text);
    fclose(jsonl);
}

static int setup(void **state)
{
    if (temp_open(state) != 0) return -1;
    snprintf(in_dir, sizeof in_dir, "%s-in", temp_dir);
    snprintf(tokenizer_dir, sizeof tokenizer_dir, "%s/tok", in_dir);
    snprintf(text_path, sizeof text_path, "%s/a.txt", in_dir);
    snprintf(jsonl_path, sizeof jsonl_path, "%s/b.jsonl", in_dir);
    snprintf(prefix, sizeof prefix, "%s/out/c", temp_dir);
    if (io_make_dirs(in_dir) != STATUS_OK) return -1;
    write_inputs();
    if (tokenizer_fixture_of_file(text_path, tokenizer_dir) != 0) return -1;
    return 0;
}

static int teardown(void **state)
{
    free(want);
    return io_remove_tree(in_dir) == STATUS_OK ? temp_close(state) : -1;
}

/* All files of the output, as one text. */
static char *contents(size_t *bytes)
{
    struct io_list list;
    char *all = NULL, path[1200];
    *bytes = 0;
    assert_int_equal(io_list(temp_path("out"), &list), STATUS_OK);
    for (int i = 0; i < list.count; i++) {
        char *data;
        size_t n;
        snprintf(path, sizeof path, "%s/%s", temp_path("out"), list.names[i]);
        assert_int_equal(io_read_file(path, 1 << 26, &data, &n), STATUS_OK);
        all = realloc(all, *bytes + n + 256);
        int head = snprintf(all + *bytes, 256, "%s:", list.names[i]);
        memcpy(all + *bytes + head, data, n);
        *bytes += (size_t)head + n;
        free(data);
    }
    io_list_free(&list);
    return all;
}

/* Starts `ingot data build` with a durable point after every batch of 8 KiB. */
static pid_t start(const char *fault, const char *const extra[])
{
    char batch[] = "--batch-bytes=8192";
    char *words[WORDS_MAX] = {TEST_BINARY,
                              "data",
                              "build",
                              text_path,
                              jsonl_path,
                              "-o",
                              prefix,
                              "--tokenizer",
                              tokenizer_dir,
                              "--separator=line",
                              "--val-fraction=0.1",
                              "--shard-tokens=50000",
                              "--dedup=exact",
                              "--dedup-report=near",
                              "--sync-seconds=0",
                              batch};
    int count = 16;
    for (; extra && *extra; extra++) words[count++] = (char *)*extra;
    char *environment[] = {"INGOT_LOG=error", "OMP_NUM_THREADS=2", (char *)fault, NULL};
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
    pid_t child;
    assert_int_equal(posix_spawn(&child, TEST_BINARY, &quiet, NULL, words, environment), 0);
    posix_spawn_file_actions_destroy(&quiet);
    return child;
}

/* The exit code, or minus the signal. */
static int end_of(pid_t child)
{
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    return WIFSIGNALED(how) ? -WTERMSIG(how) : WEXITSTATUS(how);
}

static void assert_the_undisturbed_bytes(const char *what, int64_t at)
{
    size_t bytes;
    char *got = contents(&bytes);
    if (bytes != want_bytes || memcmp(got, want, bytes) != 0)
        fail_msg("%s %lld: %zu bytes, want %zu, or others", what, (long long)at, bytes, want_bytes);
    free(got);
}

static void an_undisturbed_build_leaves_shards_indexes_and_a_manifest(void **state)
{
    (void)state;
    assert_int_equal(end_of(start(NULL, NULL)), 0);
    want = contents(&want_bytes);
    struct io_list list;
    assert_int_equal(io_list(temp_path("out"), &list), STATUS_OK);
    for (int i = 0; i < list.count; i++) assert_null(strstr(list.names[i], "_build"));
    assert_true(list.count > 6);
    io_list_free(&list);
    struct manifest m;
    assert_int_equal(manifest_read(&m, temp_path("out/c_manifest.json")), STATUS_OK);
    /* the line of every tenth one, and lines of one word */
    assert_in_range(m.duplicates.documents, LINES / 10 - 1, LINES / 10 + LINES / 15);
    assert_true(m.duplicates.removed);
    assert_int_equal(m.input_count, 2);
    manifest_free(&m);
}

static void a_kill_at_any_system_call_is_gone_on_from(void **state)
{
    (void)state;
    /* In steps that grow: each build runs a little further than the last durable point of the one before. */
    assert_int_equal(io_remove_tree(temp_path("out")), STATUS_OK);
    int kills = 0, code;
    char fault[64];
    for (int64_t k = 1;; k += 1 + k / 8) {
        snprintf(fault, sizeof fault, "INGOT_IO_FAULT=%lld:KILL", (long long)k);
        code = end_of(start(fault, NULL));
        if (code == 0) break;
        assert_int_equal(code, -SIGKILL);
        kills++;
    }
    assert_true(kills > 15);
    assert_the_undisturbed_bytes("kills", kills);
}

static void kills_of_builds_of_other_formats_are_gone_on_from(void **state)
{
    (void)state;
    static const char *const format[2][2] = {{"--format=megatron", NULL}, {"--format=npy", NULL}};
    char *llmc = want, fault[64];
    size_t llmc_bytes = want_bytes;
    for (int f = 0; f < 2; f++) {
        assert_int_equal(io_remove_tree(temp_path("out")), STATUS_OK);
        assert_int_equal(end_of(start(NULL, format[f])), 0);
        want = contents(&want_bytes);
        assert_int_equal(io_remove_tree(temp_path("out")), STATUS_OK);
        int kills = 0;
        for (int64_t k = 1; kills < 200; k += 1 + k / 8, kills++) {
            snprintf(fault, sizeof fault, "INGOT_IO_FAULT=%lld:KILL", (long long)k);
            int code = end_of(start(fault, format[f]));
            if (code == 0) break;
            assert_int_equal(code, -SIGKILL);
        }
        assert_the_undisturbed_bytes(format[f][0], kills);
        free(want);
    }
    want = llmc;
    want_bytes = llmc_bytes;
}

static bool is_done(void)
{
    return temp_there(temp_path("out/c_manifest.json")) && !temp_there(temp_path("out/c_build.journal"));
}

static void a_kill_near_the_end_is_gone_on_from(void **state)
{
    (void)state;
    /* Where the corpus becomes visible: the last calls of a build, whose number is found by halving. */
    int64_t low = 1, high = 1 << 20;
    char fault[64];
    while (low < high) {
        int64_t mid = (low + high) / 2;
        assert_int_equal(io_remove_tree(temp_path("out")), STATUS_OK);
        snprintf(fault, sizeof fault, "INGOT_IO_FAULT=%lld:KILL", (long long)mid);
        if (end_of(start(fault, NULL)) == 0)
            high = mid;
        else
            low = mid + 1;
    }
    int hit = 0;
    for (int64_t k = high - 90; k < high; k += 3) {
        assert_int_equal(io_remove_tree(temp_path("out")), STATUS_OK);
        snprintf(fault, sizeof fault, "INGOT_IO_FAULT=%lld:KILL", (long long)k);
        hit += end_of(start(fault, NULL)) != 0;
        if (is_done()) continue; /* but for its lock file */
        assert_int_equal(end_of(start(NULL, NULL)), 0);
        (void)remove(temp_path("out/c_build.lock"));
        assert_the_undisturbed_bytes("call", k);
    }
    assert_true(hit > 10);
}

static void kills_at_random_moments_are_gone_on_from(void **state)
{
    (void)state;
    for (int round = 0, kills = 0; kills < KILLS; round++) {
        assert_int_equal(io_remove_tree(temp_path("out")), STATUS_OK);
        int code = -1;
        for (int i = 0; code != 0; i++) {
            pid_t child = start(NULL, NULL);
            /* Between nothing and what a build takes; longer each time, so that it ends. */
            int64_t us = 2000 + rng_at(7, RNG_TEST, (uint64_t)round, (uint64_t)i).u[0] % (20000 + 5000 * i);
            nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
            kill(child, SIGKILL);
            code = end_of(child);
            assert_true(code == 0 || code == -SIGKILL);
            kills += code != 0;
            if (is_done()) code = 0; /* killed after its last step */
        }
        (void)remove(temp_path("out/c_build.lock"));
        assert_the_undisturbed_bytes("round", round);
    }
}

static void a_stop_saves_and_says_so(void **state)
{
    (void)state;
    assert_int_equal(io_remove_tree(temp_path("out")), STATUS_OK);
    pid_t child = start(NULL, NULL);
    while (!temp_there(temp_path("out/c_build.journal")))
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    kill(child, SIGTERM);
    int code = end_of(child);
    assert_true(code == STATUS_STOPPED || code == 0); /* 0: it was done before */
    assert_int_equal(end_of(start(NULL, NULL)), code == 0 ? STATUS_CONFIG : 0);
    assert_the_undisturbed_bytes("stop", 0);
}

static bool stop_at_once(void *ctx)
{
    return --*(int *)ctx < 0;
}

static struct build_config config_for(int *batches)
{
    static const char *inputs[1];
    inputs[0] = text_path;
    return (struct build_config){.inputs = inputs,
                                 .input_count = 1,
                                 .prefix = prefix,
                                 .tokenizer_dir = tokenizer_dir,
                                 .reader = {.separator = READER_LINE, .batch_bytes = 8192},
                                 .eod = EOD_AFTER,
                                 .shard_tokens = 20000,
                                 .stop = stop_at_once,
                                 .ctx = batches};
}

static void changed_inputs_and_settings_are_refused(void **state)
{
    (void)state;
    assert_int_equal(io_remove_tree(temp_path("out")), STATUS_OK);
    int batches = 4, all = 1 << 30;
    struct build_config c = config_for(&batches);
    struct build_report r;
    assert_int_equal(build_run(&c, &r), STATUS_STOPPED);
    assert_true(temp_there(temp_path("out/c_build.journal")));
    c.ctx = &all;
    c.eod = EOD_BEFORE;
    assert_int_equal(build_run(&c, &r), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "eod 2, now eod 1"));
    assert_non_null(strstr(status_message(), "--force"));
    c.eod = EOD_AFTER;
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, text_path, times, 0), 0);
    assert_int_equal(build_run(&c, &r), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "a.txt has changed"));
    c.force = true; /* starts anew */
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    assert_false(temp_there(temp_path("out/c_build.journal")));
    assert_int_equal(r.train.documents, LINES);
}

static void a_journal_whose_files_are_gone_is_refused(void **state)
{
    (void)state;
    static const char *const gone[] = {"out/c_train_000000.bin.part", "out/c_build.hashes"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(io_remove_tree(temp_path("out")), STATUS_OK);
        int batches = 12, all = 1 << 30;
        struct build_config c = config_for(&batches);
        struct build_report r;
        assert_int_equal(build_run(&c, &r), STATUS_STOPPED);
        assert_true(temp_there(temp_path(gone[i])));
        assert_int_equal(remove(temp_path(gone[i])), 0);
        c.ctx = &all;
        assert_int_equal(build_run(&c, &r), STATUS_CONFIG);
        assert_non_null(strstr(status_message(), "is not there"));
        c.force = true;
        assert_int_equal(build_run(&c, &r), STATUS_OK);
        assert_int_equal(r.train.documents, LINES);
    }
}

static void two_builds_of_one_prefix_do_not_meet(void **state)
{
    (void)state;
    int fd, batches = 1 << 30;
    struct build_config c = config_for(&batches);
    struct build_report r;
    c.force = true;
    assert_int_equal(build_journal_lock(prefix, &fd), STATUS_OK);
    assert_int_equal(build_run(&c, &r), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "another build"));
    build_journal_unlock(prefix, &fd);
    assert_int_equal(build_run(&c, &r), STATUS_OK);
}

static void a_damaged_journal_is_refused(void **state)
{
    (void)state;
    assert_int_equal(io_remove_tree(temp_path("out")), STATUS_OK);
    int batches = 4;
    struct build_config c = config_for(&batches);
    struct build_report r;
    assert_int_equal(build_run(&c, &r), STATUS_STOPPED);
    char *data;
    size_t bytes;
    struct build_journal j;
    assert_int_equal(io_read_file(temp_path("out/c_build.journal"), 1 << 20, &data, &bytes), STATUS_OK);
    assert_int_equal(build_journal_parse(&j, "j", data, bytes), STATUS_OK);
    assert_int_equal(j.mark.input, 0);
    assert_true(j.mark.at.at > 0 && j.hashes == j.mark.records);
    build_journal_free(&j);
    for (size_t i = 0; i < bytes; i += 7) {
        data[i] ^= 1;
        assert_int_equal(build_journal_parse(&j, "j", data, bytes), STATUS_DATA);
        data[i] ^= 1;
    }
    for (size_t i = 0; i < bytes; i += 11)
        assert_int_equal(build_journal_parse(&j, "j", data, i), STATUS_DATA);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_undisturbed_build_leaves_shards_indexes_and_a_manifest),
        cmocka_unit_test(a_kill_at_any_system_call_is_gone_on_from),
        cmocka_unit_test(kills_of_builds_of_other_formats_are_gone_on_from),
        cmocka_unit_test(a_kill_near_the_end_is_gone_on_from),
        cmocka_unit_test(kills_at_random_moments_are_gone_on_from),
        cmocka_unit_test(a_stop_saves_and_says_so),
        cmocka_unit_test(changed_inputs_and_settings_are_refused),
        cmocka_unit_test(a_journal_whose_files_are_gone_is_refused),
        cmocka_unit_test(two_builds_of_one_prefix_do_not_meet),
        cmocka_unit_test(a_damaged_journal_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
