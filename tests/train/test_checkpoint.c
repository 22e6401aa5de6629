/* Goal: a checkpoint is found complete and bitwise right, or not at all, whatever happens to the process,
 * the disk or the files. Method: two saves with different contents; every system call of the second fails or
 * is the last one; every damage that we can think of is done to the files. Oracle: the bytes that were
 * saved. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/io.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "model/safetensors.h"
#include "train/ckpt_int.h"
#include "../temp.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ITEMS = 6, CHUNK = 4096, DATA_MAX = 21000 };

struct state_sample {
    struct ckpt_item items[ITEMS];
    char data[ITEMS][DATA_MAX];
};
static struct state_sample sample;
static int64_t file_bytes = CKPT_FILE_BYTES; /* of a save */

static const char *part(int64_t step, const char *file)
{
    static char path[4][1024];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/ckpt/step-%08lld%s%s", temp_dir, (long long)step,
             file[0] ? "/" : "", file);
    return path[next];
}
#define DATA     "state-00000.safetensors"
#define MANIFEST "manifest.json"

/* The state of a run at a step: a pure function of it. */
static void make_sample(struct state_sample *s, int64_t step)
{
    static const struct ckpt_item shapes[ITEMS] = {
        {.name = "step", .dt = DTYPE_I64, .rank = 0},
        {.name = "m/layers.0.attn.qkv.weight", .dt = DTYPE_F32, .rank = 2, .shape = {50, 100}},
        {.name = "layers.0.attn.qkv.weight", .dt = DTYPE_BF16, .rank = 2, .shape = {50, 100}},
        {.name = "v/norm.weight", .dt = DTYPE_F32, .rank = 1, .shape = {1024}},
        {.name = "empty", .dt = DTYPE_F32, .rank = 3, .shape = {4, 0, 7}},
        {.name = "odd", .dt = DTYPE_U8, .rank = 4, .shape = {1, 3, 5, 1}},
    };
    for (int i = 0; i < ITEMS; i++) {
        s->items[i] = shapes[i];
        s->items[i].data = s->data[i];
        for (int64_t b = 0; b < ckpt_manifest_item_bytes(&shapes[i]); b++)
            s->data[i][b] = (char)rng_at((uint64_t)step, RNG_TEST, (uint64_t)i, (uint64_t)b).u[0];
    }
}

static status save(int64_t step, int keep)
{
    make_sample(&sample, step);
    json_t *meta = json_pack("{s:I,s:f}", "samples", (json_int_t)step * 8, "loss", 1.0 / 3.0);
    status st =
        ckpt_save_cut(temp_dir, step, sample.items, ITEMS, meta, keep, (struct ckpt_cut){CHUNK, file_bytes});
    json_decref(meta);
    return st;
}

static void assert_saved(int64_t step, int keep)
{
    assert_int_equal(save(step, keep), STATUS_OK);
}

/* Restores from `path` and returns the step, having compared all bytes; -1: nothing there; -2: an error. */
static int64_t restored(const char *path)
{
    static struct state_sample got, want;
    struct checkpoint *c;
    bool found;
    make_sample(&got, 999);
    status st = checkpoint_restore(&c, path, got.items, ITEMS, NULL, &found);
    if (st != STATUS_OK) assert_null(c);
    if (st != STATUS_OK) return -2;
    if (!found) return -1;
    int64_t step = checkpoint_step(c);
    make_sample(&want, step);
    assert_memory_equal(got.data, want.data, sizeof got.data);
    assert_int_equal(json_integer_value(json_object_get(checkpoint_meta(c), "samples")), step * 8);
    assert_true(json_real_value(json_object_get(checkpoint_meta(c), "loss")) == 1.0 / 3.0);
    checkpoint_close(c);
    return step;
}

static void assert_names(const char *want)
{
    struct io_list list;
    char names[1000] = "";
    size_t n = 0;
    assert_int_equal(io_list(temp_path("ckpt"), &list), STATUS_OK);
    for (int i = 0; i < list.count; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? " " : "", list.names[i]);
    io_list_free(&list);
    assert_string_equal(names, want);
}

static int open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(dir)) count++;
    closedir(dir);
    return count;
}

static void read_whole(const char *path, char **data, size_t *bytes)
{
    assert_int_equal(io_read_file(path, 1 << 24, data, bytes), STATUS_OK);
}

static void write_whole(const char *path, const char *data, size_t bytes)
{
    assert_int_equal(io_write_file(path, data, bytes), STATUS_OK);
}

/* ---- what must work ---- */

static void what_is_saved_comes_back_bit_for_bit(void **state)
{
    (void)state;
    assert_int_equal(restored(temp_dir), -1);
    assert_int_equal(restored(temp_path("nowhere")), -1);
    assert_saved(10, 2);
    assert_int_equal(restored(temp_dir), 10);
    assert_saved(20, 2);
    assert_int_equal(restored(temp_dir), 20);
    assert_int_equal(restored(part(10, "")), 10);
    assert_int_equal(checkpoint_verify(part(10, "")), STATUS_OK);
    assert_int_equal(checkpoint_verify(part(20, "")), STATUS_OK);
    struct checkpoint *c;
    bool found;
    assert_int_equal(checkpoint_open(&c, temp_dir, &found), STATUS_OK);
    assert_int_equal(checkpoint_count(c), ITEMS);
    int odd = checkpoint_find(c, "odd");
    assert_true(odd >= 0);
    assert_int_equal(checkpoint_item(c, odd)->shape[2], 5);
    assert_int_equal(checkpoint_find(c, "even"), -1);
    checkpoint_close(c);
}

static void the_data_file_is_a_plain_safetensors_file(void **state)
{
    (void)state;
    assert_saved(10, 1);
    struct safetensors *s;
    assert_int_equal(safetensors_open(&s, part(10, DATA)), STATUS_OK);
    assert_int_equal(safetensors_count(s), ITEMS);
    const struct safetensor *t = safetensors_find(s, "layers.0.attn.qkv.weight");
    assert_non_null(t);
    assert_memory_equal(t->data, sample.data[2], 10000);
    assert_int_equal((uintptr_t)safetensors_find(s, "step")->data % 4096, 0);
    safetensors_close(s);
}

static void threads_and_time_do_not_change_a_byte(void **state)
{
    (void)state;
    char *one, *two;
    size_t one_bytes, two_bytes;
    assert_saved(10, 1);
    read_whole(part(10, MANIFEST), &one, &one_bytes);
    parallel_threads_set(2);
    assert_saved(10, 1);
    assert_int_equal(restored(temp_dir), 10);
    assert_int_equal(checkpoint_verify(part(10, "")), STATUS_OK);
    parallel_threads_set(1);
    read_whole(part(10, MANIFEST), &two, &two_bytes);
    assert_int_equal(one_bytes, two_bytes);
    assert_memory_equal(one, two, one_bytes);
    free(one);
    free(two);
}

static void equal_tensors_have_equal_hashes_whatever_the_step_and_the_chunks(void **state)
{
    (void)state;
    struct checkpoint *a, *b;
    bool found;
    assert_saved(10, 5);
    make_sample(&sample, 10);
    sample.data[3][100] ^= 1;
    assert_int_equal(
        ckpt_save_cut(temp_dir, 11, sample.items, ITEMS, NULL, 5, (struct ckpt_cut){8192, CKPT_FILE_BYTES}),
        STATUS_OK);
    assert_int_equal(checkpoint_open(&a, part(10, ""), &found), STATUS_OK);
    assert_int_equal(checkpoint_open(&b, part(11, ""), &found), STATUS_OK);
    for (int i = 0; i < ITEMS; i++) {
        int ia = checkpoint_find(a, sample.items[i].name), ib = checkpoint_find(b, sample.items[i].name);
        if (i == 3)
            assert_true(checkpoint_item_hash(a, ia) != checkpoint_item_hash(b, ib));
        else
            assert_true(checkpoint_item_hash(a, ia) == checkpoint_item_hash(b, ib));
    }
    checkpoint_close(a);
    checkpoint_close(b);
}

static void the_newest_are_kept_and_unsound_ones_do_not_count(void **state)
{
    (void)state;
    for (int64_t step = 1; step <= 6; step++) assert_saved(step, 3);
    assert_names("run.id step-00000004 step-00000005 step-00000006");
    write_whole(part(6, MANIFEST), "{}", 2);
    assert_int_equal(restored(temp_dir), 5);
    /* Resumed from 5, the run saves 5 again, then 6: the damaged one is replaced, and until then it does not
     * count. */
    assert_saved(5, 2);
    assert_names("run.id step-00000004 step-00000005 step-00000006");
    assert_saved(6, 2);
    assert_names("run.id step-00000005 step-00000006");
    assert_int_equal(restored(temp_dir), 6);
    write_whole(part(6, MANIFEST), "{}", 2);
    assert_saved(7, 2);
    assert_names("run.id step-00000005 step-00000006 step-00000007");
    assert_saved(100000000, 1);
    assert_names("run.id step-100000000");
    assert_int_equal(restored(temp_dir), 100000000);
}

static void leftovers_of_dead_processes_go_at_the_next_save(void **state)
{
    (void)state;
    assert_saved(1, 1);
    assert_int_equal(io_make_dirs(temp_path("ckpt/.tmp-2-2147483646/x")), STATUS_OK);
    assert_int_equal(io_make_dirs(temp_path("ckpt/.trash-1-2147483646")), STATUS_OK);
    assert_int_equal(io_make_dirs(temp_path("ckpt/.tmp-3-1")), STATUS_OK); /* process 1 runs */
    assert_int_equal(io_make_dirs(temp_path("ckpt/notes")), STATUS_OK);
    write_whole(temp_path("ckpt/run.id.tmp-2147483646-0123abcd"), "", 0);
    assert_saved(2, 1);
    assert_names(".tmp-3-1 notes run.id step-00000002");
}

static void a_checkpoint_that_is_a_link_is_removed_and_what_it_names_stays(void **state)
{
    char *data;
    size_t bytes;
    (void)state;
    assert_int_equal(io_make_dirs(temp_path("elsewhere")), STATUS_OK);
    write_whole(temp_path("elsewhere/mine"), "mine", 4);
    assert_saved(2, 1);
    assert_int_equal(symlink(temp_path("elsewhere"), part(1, "")), 0);
    assert_saved(3, 1);
    assert_names("run.id step-00000003");
    read_whole(temp_path("elsewhere/mine"), &data, &bytes);
    assert_int_equal(bytes, 4);
    free(data);
}

/* ---- the k-th system call ---- */

static void every_failing_call_of_a_save_gives_a_clean_status_and_keeps_the_last_checkpoint(void **state)
{
    (void)state;
    static const int errors[] = {ENOSPC, EIO,   EMFILE,        EROFS,
                                 EINVAL, EINTR, IO_FAULT_SHORT}; /* EINVAL: no atomic swap */
    for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++)
        for (int same = 0; same < 2; same++) /* 1: the checkpoint of this step exists and is replaced */
            for (int64_t k = 1;; k++) {
                int64_t step = same ? 10 : 20;
                assert_int_equal(io_remove_tree(temp_path("ckpt")), STATUS_OK);
                assert_saved(10, 1);
                int before = open_files();
                io_fault_set(k, errors[e]);
                status st = save(step, 1);
                bool past_end = io_fault_calls() < k;
                io_fault_set(0, 0);
                assert_int_equal(open_files(), before);
                assert_true(st == STATUS_OK || st == STATUS_IO);
                if (errors[e] == EINTR || errors[e] == IO_FAULT_SHORT) assert_int_equal(st, STATUS_OK);
                int64_t got = restored(temp_dir);
                if (st == STATUS_OK)
                    assert_int_equal(got, step);
                else {
                    assert_true(got == 10 || got == 20);
                    assert_null(strchr(status_message(), '\n'));
                    struct io_list list;
                    assert_int_equal(io_list(temp_path("ckpt"), &list), STATUS_OK);
                    for (int i = 0; i < list.count; i++) assert_true(list.names[i][0] != '.');
                    io_list_free(&list);
                }
                assert_saved(30, 1);
                assert_names("run.id step-00000030");
                if (!past_end) continue;
                assert_int_equal(st, STATUS_OK);
                assert_true(k > 20);
                break;
            }
}

static void a_save_killed_at_any_call_leaves_the_old_or_the_new_checkpoint(void **state)
{
    (void)state;
    for (int same = 0; same < 2; same++) {
        bool killed = true;
        for (int64_t k = 1; killed; k++) {
            int64_t step = same ? 10 : 20;
            assert_int_equal(io_remove_tree(temp_path("ckpt")), STATUS_OK);
            assert_saved(10, 1);
            pid_t child = fork();
            if (child == 0) {
                io_fault_set(k, IO_FAULT_KILL);
                _exit(save(step, 1) == STATUS_OK ? 0 : 1);
            }
            int how;
            assert_int_equal(waitpid(child, &how, 0), child);
            killed = WIFSIGNALED(how);
            if (killed)
                assert_int_equal(WTERMSIG(how), SIGKILL);
            else
                assert_int_equal(WEXITSTATUS(how), 0);
            int64_t got = restored(temp_dir);
            assert_true((killed && got == 10) || got == step);
            assert_saved(30, 1);
            assert_names("run.id step-00000030");
            assert_int_equal(checkpoint_verify(part(30, "")), STATUS_OK);
        }
    }
}

static void several_files_hold_the_same_and_fail_as_cleanly(void **state)
{
    struct checkpoint *one, *several;
    struct io_list list;
    bool found;
    assert_saved(10, 5);
    file_bytes = 8192;
    make_sample(&sample, 10);
    const struct ckpt_cut cut = {CHUNK, file_bytes};
    assert_int_equal(ckpt_save_cut(temp_dir, 11, sample.items, ITEMS, NULL, 5, cut), STATUS_OK);
    assert_int_equal(io_list(part(11, ""), &list), STATUS_OK);
    assert_int_equal(list.count, 6); /* step; m; empty, v; layers; odd; manifest */
    io_list_free(&list);
    assert_int_equal(checkpoint_verify(part(11, "")), STATUS_OK);
    assert_int_equal(checkpoint_open(&one, part(10, ""), &found), STATUS_OK);
    assert_int_equal(checkpoint_open(&several, part(11, ""), &found), STATUS_OK);
    for (int i = 0; i < ITEMS; i++)
        assert_true(checkpoint_item_hash(one, checkpoint_find(one, sample.items[i].name)) ==
                    checkpoint_item_hash(several, checkpoint_find(several, sample.items[i].name)));
    checkpoint_close(one);
    checkpoint_close(several);
    every_failing_call_of_a_save_gives_a_clean_status_and_keeps_the_last_checkpoint(state);
    a_save_killed_at_any_call_leaves_the_old_or_the_new_checkpoint(state);
    file_bytes = CKPT_FILE_BYTES;
}

static void a_failing_call_of_a_restore_never_leads_to_an_older_checkpoint(void **state)
{
    (void)state;
    static const int errors[] = {EIO, EMFILE, EINTR, EACCES, IO_FAULT_SHORT};
    assert_saved(10, 2);
    assert_saved(20, 2);
    for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++)
        for (int64_t k = 1;; k++) {
            int before = open_files();
            io_fault_set(k, errors[e]);
            int64_t got = restored(temp_dir);
            bool past_end = io_fault_calls() < k;
            io_fault_set(0, 0);
            assert_true(got == 20 || (got == -2 && errors[e] != EINTR && errors[e] != IO_FAULT_SHORT));
            assert_int_equal(open_files(), before);
            if (past_end) break;
        }
}

/* ---- damage ---- */

static void every_flipped_bit_of_the_manifest_is_noticed(void **state)
{
    (void)state;
    assert_saved(10, 1);
    char *text;
    size_t bytes;
    read_whole(part(10, MANIFEST), &text, &bytes);
    struct ckpt_manifest m;
    assert_int_equal(ckpt_manifest_parse(&m, text, bytes, "m"), STATUS_OK);
    ckpt_manifest_free(&m);
    for (size_t i = 0; i < bytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            text[i] ^= (char)(1 << bit);
            if (ckpt_manifest_parse(&m, text, bytes, "m") != STATUS_CKPT) fail_msg("byte %zu bit %d", i, bit);
            text[i] ^= (char)(1 << bit);
        }
    for (size_t n = 0; n < bytes; n++) assert_int_equal(ckpt_manifest_parse(&m, text, n, "m"), STATUS_CKPT);
    free(text);
}

static void every_flipped_bit_of_the_data_is_noticed(void **state)
{
    (void)state;
    assert_saved(10, 1);
    assert_saved(20, 2);
    char *data, flipped;
    size_t bytes;
    read_whole(part(20, DATA), &data, &bytes);
    int fd = open(part(20, DATA), O_WRONLY);
    for (int i = 0; i < 2000; i++) {
        struct rng_block r = rng_at(7, RNG_TEST, 0, (uint64_t)i);
        size_t at = r.u[0] % bytes;
        flipped = (char)(data[at] ^ (1 << r.u[1] % 8));
        assert_int_equal(pwrite(fd, &flipped, 1, (off_t)at), 1);
        if (checkpoint_verify(part(20, "")) != STATUS_CKPT) fail_msg("byte %zu", at);
        if (i % 20 == 0) assert_int_equal(restored(temp_dir), 10);
        assert_int_equal(pwrite(fd, &data[at], 1, (off_t)at), 1);
    }
    close(fd);
    assert_int_equal(restored(temp_dir), 20);
    free(data);
}

static void every_truncation_and_growth_is_noticed(void **state)
{
    (void)state;
    static const char *const files[] = {DATA, MANIFEST};
    assert_saved(10, 1);
    for (int f = 0; f < 2; f++) {
        char *data;
        size_t bytes;
        read_whole(part(10, files[f]), &data, &bytes);
        for (size_t n = 0; n <= bytes + 512; n += 512) {
            size_t length = n == bytes ? n + 1 : n;
            assert_int_equal(truncate(part(10, files[f]), (off_t)length), 0);
            assert_int_equal(checkpoint_verify(part(10, "")), STATUS_CKPT);
            assert_int_equal(restored(temp_dir), -2);
            write_whole(part(10, files[f]), data, bytes);
        }
        free(data);
    }
    assert_int_equal(restored(temp_dir), 10);
}

/* A part of a tensor: bytes [from, to). */
struct wanted {
    int64_t from, to;
    char got[DATA_MAX];
};

static bool take(void *ctx, const struct ckpt_item *item, const void *data, int64_t begin, int64_t end)
{
    struct wanted *w = ctx;
    (void)item;
    const int64_t from = begin > w->from ? begin : w->from, to = end < w->to ? end : w->to;
    if (data && from < to) memcpy(w->got + from, (const char *)data + from - begin, (size_t)(to - from));
    return from < to;
}

static void of_a_part_the_chunks_that_hold_it_are_read_and_their_damage_alone_is_noticed(void **state)
{
    (void)state;
    static const int64_t parts[][2] = {{0, 1},        {4095, 4097},   {4096, 8192},
                                       {5000, 13000}, {19999, 20000}, {7, 7}};
    struct checkpoint *c;
    bool found;
    char *data;
    size_t bytes;
    assert_saved(10, 2);
    assert_int_equal(checkpoint_open(&c, temp_dir, &found), STATUS_OK);
    const char *name = sample.items[1].name;
    const int64_t offset = c->manifest.tensors[checkpoint_find(c, name)].offset;
    read_whole(part(10, DATA), &data, &bytes);
    for (int64_t chunk = -1; chunk < 5; chunk++) { /* -1: all are intact */
        if (chunk >= 0) data[offset + chunk * CHUNK + 99] ^= 1;
        write_whole(part(10, DATA), data, bytes);
        if (chunk >= 0) data[offset + chunk * CHUNK + 99] ^= 1;
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            static struct wanted w;
            w = (struct wanted){.from = parts[i][0], .to = parts[i][1]};
            struct ckpt_item item = sample.items[1];
            item.data = NULL, item.take = take, item.ctx = &w;
            const bool touched =
                chunk >= 0 && w.from < w.to && w.from < (chunk + 1) * CHUNK && w.to > chunk * CHUNK;
            assert_int_equal(checkpoint_read(c, &item, 1), touched ? STATUS_CKPT : STATUS_OK);
            if (touched) continue;
            for (int64_t b = 0; b < DATA_MAX; b++)
                assert_int_equal(w.got[b], b >= w.from && b < w.to ? sample.data[1][b] : 0);
        }
    }
    static struct wanted w = {.from = 3, .to = 9};
    memset(w.got, 7, sizeof w.got);
    struct ckpt_item none = {
        .name = "none", .dt = DTYPE_U8, .rank = 1, .shape = {20}, .take = take, .ctx = &w};
    assert_int_equal(checkpoint_read(c, &none, 1), STATUS_CKPT);
    none.optional = true;
    assert_int_equal(checkpoint_read(c, &none, 1), STATUS_OK);
    for (int b = 0; b < 20; b++) assert_int_equal(w.got[b], b >= 3 && b < 9 ? 0 : 7);
    checkpoint_close(c);
    free(data);
}

static void intact_chunks_in_wrong_places_are_noticed(void **state)
{
    (void)state;
    char *ten, *twenty, *data;
    size_t bytes, other;
    assert_saved(10, 2);
    assert_saved(20, 2);
    read_whole(part(10, DATA), &ten, &bytes);
    read_whole(part(20, DATA), &twenty, &other);
    assert_int_equal(bytes, other);
    write_whole(part(20, DATA), ten, bytes); /* stale */
    assert_int_equal(checkpoint_verify(part(20, "")), STATUS_CKPT);
    assert_int_equal(restored(temp_dir), 10);
    write_whole(part(10, DATA), twenty, bytes); /* swapped */
    assert_int_equal(restored(temp_dir), -2);
    write_whole(part(10, DATA), ten, bytes);
    data = malloc(bytes);
    for (size_t at = 4096; at + 2 * CHUNK <= bytes; at += CHUNK) {
        memcpy(data, twenty, bytes);
        memcpy(data + at, twenty + at + CHUNK, CHUNK); /* one twice */
        write_whole(part(20, DATA), data, bytes);
        assert_int_equal(checkpoint_verify(part(20, "")), STATUS_CKPT);
        memset(data + at, 0, CHUNK); /* lost */
        write_whole(part(20, DATA), data, bytes);
        assert_int_equal(restored(temp_dir), 10);
    }
    free(ten);
    free(twenty);
    free(data);
}

static void a_chunk_of_another_run_does_not_pass_even_with_the_same_bytes(void **state)
{
    (void)state;
    char *theirs, *ours;
    size_t bytes, ours_bytes;
    assert_saved(10, 1);
    read_whole(part(10, MANIFEST), &theirs, &bytes);
    assert_int_equal(io_remove_tree(temp_path("ckpt")), STATUS_OK);
    assert_saved(10, 1); /* the same state in a run of another identity */
    read_whole(part(10, MANIFEST), &ours, &ours_bytes);
    assert_int_equal(bytes, ours_bytes);
    /* Their checksums under our identity: as if our file were theirs. */
    const char *id = "\"run_id\": \"";
    size_t at = (size_t)(strstr(ours, id) - ours) + strlen(id), sealed_bytes;
    memcpy(theirs + at, ours + at, 32);
    char *forged = ckpt_manifest_seal(theirs, bytes - strlen(strstr(theirs, "\"sha256\"")), &sealed_bytes);
    write_whole(part(10, MANIFEST), forged, sealed_bytes);
    assert_int_equal(restored(temp_dir), -2);
    write_whole(part(10, MANIFEST), ours, ours_bytes);
    assert_int_equal(restored(temp_dir), 10);
    free(forged);
    free(theirs);
    free(ours);
}

static void missing_foreign_renamed_and_linked_files_are_noticed(void **state)
{
    (void)state;
    assert_saved(10, 5);
    assert_saved(20, 5);
    write_whole(part(20, "notes.txt"), "", 0);
    assert_int_equal(checkpoint_verify(part(20, "")), STATUS_CKPT);
    assert_int_equal(restored(temp_dir), 20); /* a note does not make it unusable */
    assert_int_equal(unlink(part(20, "notes.txt")), 0);

    assert_int_equal(rename(part(20, ""), part(30, "")), 0);
    assert_int_equal(checkpoint_verify(part(30, "")), STATUS_CKPT);
    assert_int_equal(restored(temp_dir), 10);
    assert_int_equal(rename(part(30, ""), part(20, "")), 0);

    static const char *const files[] = {DATA, MANIFEST};
    for (int f = 0; f < 2; f++) {
        assert_int_equal(rename(part(20, files[f]), temp_path("aside")), 0);
        assert_int_equal(checkpoint_verify(part(20, "")), STATUS_CKPT);
        assert_int_equal(restored(temp_dir), 10);
        assert_int_equal(symlink(temp_path("aside"), part(20, files[f])), 0);
        assert_int_equal(checkpoint_verify(part(20, "")), STATUS_CKPT);
        assert_int_equal(restored(temp_dir), 10);
        assert_int_equal(unlink(part(20, files[f])), 0);
        assert_int_equal(rename(temp_path("aside"), part(20, files[f])), 0);
    }
    assert_int_equal(symlink("step-00000010", part(40, "")), 0);
    assert_int_equal(restored(temp_dir), 20);
    assert_int_equal(io_remove_tree(part(40, "")), STATUS_OK);
    assert_int_equal(io_remove_tree(part(20, "")), STATUS_OK);
    assert_int_equal(unlink(part(10, MANIFEST)), 0);
    assert_int_equal(restored(temp_dir), -2);
    assert_int_equal(restored(part(10, "")), -2);
}

static void tensors_that_do_not_match_are_named_with_both_shapes(void **state)
{
    (void)state;
    assert_saved(10, 1);
    struct checkpoint *c;
    bool found;
    assert_int_equal(checkpoint_open(&c, temp_dir, &found), STATUS_OK);
    struct ckpt_item item = sample.items[3];
    assert_int_equal(checkpoint_read(c, &item, 1), STATUS_OK);
    item.shape[0] = 1023;
    assert_int_equal(checkpoint_read(c, &item, 1), STATUS_CKPT);
    assert_non_null(strstr(status_message(), "F32 [1024]"));
    assert_non_null(strstr(status_message(), "F32 [1023]"));
    item = sample.items[3];
    item.dt = DTYPE_BF16;
    assert_int_equal(checkpoint_read(c, &item, 1), STATUS_CKPT);
    item = sample.items[3];
    item.rank = 2;
    item.shape[1] = 1;
    assert_int_equal(checkpoint_read(c, &item, 1), STATUS_CKPT);
    item = sample.items[3];
    snprintf(item.name, sizeof item.name, "v/norm.bias");
    assert_int_equal(checkpoint_read(c, &item, 1), STATUS_CKPT);
    assert_non_null(strstr(status_message(), "v/norm.bias"));
    checkpoint_close(c);
    assert_int_equal(checkpoint_restore(&c, temp_dir, &item, 1, NULL, &found), STATUS_CKPT);
}

/* `text` with the first `from` replaced, sealed anew: a manifest made by someone who knows how. */
static status parse_forged(const char *text, size_t bytes, const char *from, const char *to)
{
    size_t body_bytes = bytes - strlen(strstr(text, "\"sha256\""));
    const char *at = strstr(text, from);
    if (!at) fail_msg("no %s in the manifest", from);
    char *body = malloc(body_bytes + strlen(to) + 1);
    size_t front = (size_t)(at - text), rest = body_bytes - front - strlen(from), sealed_bytes;
    memcpy(body, text, front);
    memcpy(body + front, to, strlen(to));
    memcpy(body + front + strlen(to), at + strlen(from), rest);
    char *sealed = ckpt_manifest_seal(body, front + strlen(to) + rest, &sealed_bytes);
    struct ckpt_manifest m;
    status st = ckpt_manifest_parse(&m, sealed, sealed_bytes, "forged");
    if (st == STATUS_OK) ckpt_manifest_free(&m);
    free(body);
    free(sealed);
    return st;
}

static void forged_manifests_are_refused(void **state)
{
    (void)state;
    static const char *const edits[][2] = {
        {"\"version\": 1", "\"version\": 2"},
        {"\"version\": 1", "\"version\": \"1\""},
        {"\"requires\": []", "\"requires\": [\"compression\"]"},
        {"\"requires\": []", "\"requires\": 0"},
        {"\"format\": \"ingot-checkpoint\"", "\"format\": \"other\""},
        {"\"format\": \"ingot-checkpoint\"",
         "\"format\": \"ingot-checkpoint\", \"format\": \"ingot-checkpoint\""},
        {"\"step\": 10", "\"step\": -10"},
        {"\"step\": 10", "\"step\": 1e1"},
        {"\"step\": 10", "\"step\": 99999999999999999999"},
        {"\"chunk_bytes\": 4096", "\"chunk_bytes\": 0"},
        {"\"chunk_bytes\": 4096", "\"chunk_bytes\": 4097"},
        {"\"chunk_bytes\": 4096", "\"chunk_bytes\": 33554432"},
        {"\"chunk_bytes\": 4096", "\"chunk_bytes\": 8192"},
        {"\"name\": \"state-00000.safetensors\"", "\"name\": \"../../secret\""},
        {"\"name\": \"state-00000.safetensors\"", "\"name\": \"/etc/passwd\""},
        {"\"name\": \"odd\"", "\"name\": \"../odd\""},
        {"\"name\": \"odd\"", "\"name\": \"/odd\""},
        {"\"name\": \"odd\"", "\"name\": \"\""},
        {"\"name\": \"odd\"", "\"name\": \"o dd\""},
        {"\"name\": \"odd\"", "\"name\": \"empty\""},
        {"\"name\": \"odd\"", "\"name\": 3"},
        {"\"shape\": [1, 3, 5, 1]", "\"shape\": [1, 3, 5, 2]"},
        {"\"shape\": [1, 3, 5, 1]", "\"shape\": [1, 3, 5, 1, 1]"},
        {"\"shape\": [1, 3, 5, 1]", "\"shape\": [-1, -3, 5, 1]"},
        {"\"shape\": [1, 3, 5, 1]", "\"shape\": [4294967296, 4294967296, 15, 1]"},
        {"\"shape\": [1, 3, 5, 1]", "\"shape\": 15"},
        {"\"dtype\": \"U8\"", "\"dtype\": \"U9\""},
        {"\"dtype\": \"U8\"", "\"dtype\": \"BF16\""},
        {"\"file\": 0, \"offset\": 4096", "\"file\": 0, \"offset\": 4097"},
        {"\"file\": 0, \"offset\": 4096", "\"file\": 1, \"offset\": 4096"},
        {"\"file\": 0, \"offset\": 4096", "\"file\": -1, \"offset\": 4096"},
        {"\"data_start\": 4096", "\"data_start\": 4104"},
        {"\"data_start\": 4096", "\"data_start\": 9007199254740993"},
        {"\"hash\": \"", "\"hash\": \"0"},
        {"\"crc32c\": [\"", "\"crc32c\": [\"00000000\", \""},
        {"\"crc32c\": [\"", "\"crc32c\": [\"X"},
        {"\"tensors\": [", "\"tensors\": [[], "},
        {"\"meta\": {", "\"beta\": {"},
    };
    assert_saved(10, 1);
    char *text;
    size_t bytes;
    read_whole(part(10, MANIFEST), &text, &bytes);
    assert_int_equal(parse_forged(text, bytes, "\"writer\"", "\"painter\""),
                     STATUS_OK); /* the forgery itself works */
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++)
        if (parse_forged(text, bytes, edits[i][0], edits[i][1]) != STATUS_CKPT) fail_msg("%s", edits[i][1]);
    assert_int_equal(parse_forged(text, bytes, "\"version\": 1", "\"version\": 2"), STATUS_CKPT);
    assert_non_null(strstr(status_message(), "version 2"));
    free(text);
}

int main(void)
{
    log_level_set(LOG_ERROR); /* skipped checkpoints are warnings, thousands of them here */
    parallel_threads_set(1);  /* the k-th call is then the same one every time, and children may fork */
#define T(name) cmocka_unit_test_setup_teardown(name, temp_open, temp_close)
    const struct CMUnitTest tests[] = {
        T(what_is_saved_comes_back_bit_for_bit),
        T(the_data_file_is_a_plain_safetensors_file),
        T(equal_tensors_have_equal_hashes_whatever_the_step_and_the_chunks),
        T(the_newest_are_kept_and_unsound_ones_do_not_count),
        T(leftovers_of_dead_processes_go_at_the_next_save),
        T(a_checkpoint_that_is_a_link_is_removed_and_what_it_names_stays),
        T(every_failing_call_of_a_save_gives_a_clean_status_and_keeps_the_last_checkpoint),
        T(a_save_killed_at_any_call_leaves_the_old_or_the_new_checkpoint),
        T(several_files_hold_the_same_and_fail_as_cleanly),
        T(a_failing_call_of_a_restore_never_leads_to_an_older_checkpoint),
        T(every_flipped_bit_of_the_manifest_is_noticed),
        T(every_flipped_bit_of_the_data_is_noticed),
        T(every_truncation_and_growth_is_noticed),
        T(of_a_part_the_chunks_that_hold_it_are_read_and_their_damage_alone_is_noticed),
        T(intact_chunks_in_wrong_places_are_noticed),
        T(a_chunk_of_another_run_does_not_pass_even_with_the_same_bytes),
        T(missing_foreign_renamed_and_linked_files_are_noticed),
        T(tensors_that_do_not_match_are_named_with_both_shapes),
        T(forged_manifests_are_refused),
        T(threads_and_time_do_not_change_a_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
