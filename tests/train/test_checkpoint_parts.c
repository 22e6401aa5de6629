/* Goal: a checkpoint that several ranks write together is read as if one had, or is not there. Method: three writers,
 * one after the other in this process, with tensors cut by rows, by columns and unevenly; every system call of a
 * writer and of rank 0 fails once, and once is the last one; what a rank tells is missing, of another save, or late;
 * pieces are forged. Oracle: the bytes of the whole tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/io.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "train/checkpoint_parts.h"
#include "train/ckpt_int.h"
#include "train/ckpt_pieces.h"
#include "../temp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, TENSORS = 6, DATA = 3 << 20, PARTS = 16 };

/* The whole tensors; their bytes are a pure function of the step. */
static const struct ckpt_item shapes[TENSORS] = {
    {.name = "step", .dt = DTYPE_I64, .rank = 0},                        /* of rank 0 */
    {.name = "m/rows", .dt = DTYPE_F32, .rank = 2, .shape = {96, 64}},   /* shards of 1000, 2000, 3144 */
    {.name = "columns", .dt = DTYPE_BF16, .rank = 2, .shape = {40, 30}}, /* ten columns each */
    {.name = "big", .dt = DTYPE_F32, .rank = 2, .shape = {600, 1024}},   /* 512, 256, 256 columns: chunks */
    {.name = "odd", .dt = DTYPE_U8, .rank = 3, .shape = {3, 5, 7}},  /* rank 2: both ends; rank 0: the rest */
    {.name = "v/stage", .dt = DTYPE_F32, .rank = 1, .shape = {500}}, /* of rank 1 */
};
static char whole[TENSORS][DATA], got[TENSORS][DATA];

static void fill(int64_t step)
{
    for (int i = 0; i < TENSORS; i++)
        for (int64_t b = 0; b < ckpt_manifest_item_bytes(&shapes[i]); b += 16) {
            const struct rng_block r = rng_at((uint64_t)step, RNG_TEST, (uint64_t)i, (uint64_t)b);
            memcpy(whole[i] + b, &r, 16);
        }
}

/* The parts of all ranks, as each of them lists them; those of `me` have data. */
struct parts {
    struct ckpt_item items[PARTS];
    void *data[PARTS];
    int count;
};

static void add(struct parts *p, int me, int rank, int tensor, const struct ckpt_run *stretches, int count)
{
    struct ckpt_run_list runs = {0};
    int64_t entries = 0;
    for (int i = 0; i < count; i++)
        for (int64_t k = 0; k < stretches[i].times; k++) {
            assert_int_equal(
                ckpt_runs_add(&runs, stretches[i].begin + k * stretches[i].stride, stretches[i].length),
                STATUS_OK);
            entries += stretches[i].length;
        }
    struct ckpt_piece *piece = calloc(1, sizeof *piece + (size_t)runs.count * sizeof piece->runs[0]);
    struct ckpt_item *item = &p->items[p->count];
    const int64_t bytes = (int64_t)dtype_bytes(shapes[tensor].dt);
    *item = shapes[tensor];
    snprintf(piece->of, sizeof piece->of, "%s", item->name);
    piece->rank = item->rank;
    memcpy(piece->shape, item->shape, sizeof item->shape);
    piece->run_count = runs.count;
    memcpy(piece->runs, runs.runs, (size_t)runs.count * sizeof piece->runs[0]);
    snprintf(item->name, sizeof item->name, "%s.rank%d", piece->of, rank);
    item->rank = 1;
    memset(item->shape, 0, sizeof item->shape);
    item->shape[0] = entries;
    item->piece = piece;
    item->writer = rank;
    if (rank == me) {
        char *to = p->data[p->count] = malloc((size_t)(entries * bytes));
        item->data = to;
        for (int i = 0; i < runs.count; i++)
            for (int64_t k = 0; k < runs.runs[i].times; k++, to += runs.runs[i].length * bytes)
                memcpy(to, whole[tensor] + (runs.runs[i].begin + k * runs.runs[i].stride) * bytes,
                       (size_t)(runs.runs[i].length * bytes));
    }
    p->count++;
    ckpt_runs_free(&runs);
}

static void add_whole(struct parts *p, int me, int rank, int tensor)
{
    struct ckpt_item *item = &p->items[p->count++];
    *item = shapes[tensor];
    item->writer = rank;
    item->data = rank == me ? whole[tensor] : NULL;
}

static void list_parts(struct parts *p, int me)
{
    static const int64_t rows[] = {0, 1000, 3000, 6144}, wide[] = {0, 512, 768, 1024};
    *p = (struct parts){0};
    add_whole(p, me, 0, 0);
    add_whole(p, me, 1, 5);
    for (int r = 0; r < RANKS; r++) {
        const struct ckpt_run shard = {rows[r], rows[r + 1] - rows[r], rows[r + 1] - rows[r], 1},
                              columns = {10 * r, 10, 30, 40},
                              big = {wide[r], wide[r + 1] - wide[r], 1024, 600};
        add(p, me, r, 1, &shard, 1);
        add(p, me, r, 2, &columns, 1);
        add(p, me, r, 3, &big, 1);
    }
    const struct ckpt_run ends[] = {{0, 10, 10, 1}, {90, 15, 15, 1}}, middle = {10, 80, 80, 1};
    add(p, me, 2, 4, ends, 2);
    add(p, me, 0, 4, &middle, 1);
}

static void free_parts(struct parts *p)
{
    for (int i = 0; i < p->count; i++) {
        free((void *)(uintptr_t)p->items[i].piece);
        free(p->data[i]);
    }
}

/* ---- the writers ---- */

static status open_parts(struct ckpt_parts **c, struct parts *p, const struct ckpt_begun *b, int me)
{
    list_parts(p, me);
    return checkpoint_parts_open(c, temp_dir, b, p->items, p->count, me);
}

static int polls; /* that others may still take */
static bool ended(void *ctx)
{
    (void)ctx;
    return polls-- <= 0;
}
static const char *who(void *ctx, int rank)
{
    static char name[32];
    (void)ctx;
    snprintf(name, sizeof name, "rank %d", rank);
    return name;
}
static ckpt_may_wait_fn *may_wait; /* NULL: a full disk is an error */
static struct ckpt_waiter waiter(double seconds)
{
    return (struct ckpt_waiter){{2, may_wait}, seconds, ended, who, NULL};
}

/* What a rank above 0 does. */
static status write_part(const struct ckpt_begun *b, int me)
{
    struct parts p;
    struct ckpt_parts *c = NULL;
    const struct ckpt_waiter w = waiter(60);
    status st = open_parts(&c, &p, b, me);
    if (st == STATUS_OK) st = checkpoint_parts_write(c, &w);
    if (st == STATUS_OK) st = checkpoint_parts_tell(c, 100 + me, &w);
    checkpoint_parts_close(c);
    free_parts(&p);
    return st;
}

/* What rank 0 does, after the others. */
static status commit_after(const struct ckpt_begun *b, double seconds)
{
    struct parts p;
    struct ckpt_parts *c = NULL;
    const struct ckpt_waiter w = waiter(seconds);
    int64_t lowest = 0;
    char message[1024] = "";
    json_t *meta = json_pack("{s:I}", "samples", (json_int_t)b->step * 8);
    status st = open_parts(&c, &p, b, 0);
    if (st == STATUS_OK) st = checkpoint_parts_write(c, &w);
    if (st == STATUS_OK) st = checkpoint_parts_wait(c, &w, &lowest);
    if (st == STATUS_OK) assert_int_equal(lowest, 101);
    if (st == STATUS_OK) st = checkpoint_parts_commit(c, meta, &w);
    if (st != STATUS_OK) snprintf(message, sizeof message, "%s", status_message());
    checkpoint_parts_close(c);
    free_parts(&p);
    json_decref(meta);
    return st == STATUS_OK ? st : FAIL(st, "%s", message);
}

static void begin(int64_t step, struct ckpt_begun *b)
{
    fill(step);
    assert_int_equal(checkpoint_parts_begin(temp_dir, step, (struct ckpt_full){2, may_wait}, b), STATUS_OK);
    assert_int_equal(checkpoint_parts_seen(temp_dir, b), STATUS_OK);
    polls = 0;
}

static void saved(int64_t step)
{
    struct ckpt_begun b;
    begin(step, &b);
    for (int r = RANKS - 1; r > 0; r--) assert_int_equal(write_part(&b, r), STATUS_OK);
    assert_false(checkpoint_parts_settled(temp_dir, &b));
    if (commit_after(&b, 60) != STATUS_OK) fail_msg("%s", status_message());
    assert_true(checkpoint_parts_settled(temp_dir, &b));
}

/* ---- the readers ---- */

/* Restores and compares; the step, -1: there is none, -2: an error. */
static int64_t restored(void)
{
    struct ckpt_item items[TENSORS];
    struct checkpoint *c;
    bool found;
    memset(got, 0x5a, sizeof got);
    for (int i = 0; i < TENSORS; i++) items[i] = shapes[i], items[i].data = got[i];
    if (checkpoint_restore(&c, temp_dir, items, TENSORS, NULL, &found) != STATUS_OK) return -2;
    if (!found) return -1;
    const int64_t step = checkpoint_step(c);
    fill(step);
    for (int i = 0; i < TENSORS; i++)
        assert_memory_equal(got[i], whole[i], (size_t)ckpt_manifest_item_bytes(&shapes[i]));
    assert_int_equal(json_integer_value(json_object_get(checkpoint_meta(c), "samples")), step * 8);
    checkpoint_close(c);
    return step;
}

static char *path_of(int64_t step, const char *file)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/ckpt/step-%08lld%s%s", temp_dir, (long long)step, file[0] ? "/" : "",
             file);
    return path;
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

static void pieces_are_read_as_whole_tensors(void **state)
{
    (void)state;
    struct checkpoint *c;
    bool found;
    saved(10);
    saved(20);
    assert_int_equal(restored(), 20);
    assert_int_equal(checkpoint_verify(path_of(10, "")), STATUS_OK);
    assert_int_equal(checkpoint_verify(path_of(20, "")), STATUS_OK);
    assert_names("run.id step-00000010 step-00000020");
    assert_int_equal(checkpoint_open(&c, temp_dir, &found), STATUS_OK);
    assert_int_equal(checkpoint_count(c), TENSORS);
    for (int i = 0; i < TENSORS; i++) {
        const int at = checkpoint_find(c, shapes[i].name);
        assert_true(at >= 0);
        assert_int_equal(checkpoint_item(c, at)->rank, shapes[i].rank);
        assert_memory_equal(checkpoint_item(c, at)->shape, shapes[i].shape, sizeof shapes[i].shape);
        assert_int_equal(checkpoint_item_hashed(c, at), i == 0 || i == 5);
    }
    assert_int_equal(checkpoint_find(c, "big.rank1"), -1);
    assert_int_equal(c->manifest.file_count, RANKS);
    checkpoint_close(c);
}

/* ckpt_take_fn: bytes of a column range of "big". */
struct columns {
    int64_t first, end;
    char *to; /* [600][end - first] floats */
};
static bool take_columns(void *ctx, const struct ckpt_item *item, const void *data, int64_t from, int64_t end)
{
    const struct columns *w = ctx;
    bool any = false;
    (void)item;
    for (int64_t at = from; at < end; at += 4) {
        const int64_t row = at / 4 / 1024, column = at / 4 % 1024;
        if (column < w->first || column >= w->end) continue;
        any = true;
        if (data)
            memcpy(w->to + 4 * (row * (w->end - w->first) + column - w->first),
                   (const char *)data + at - from, 4);
    }
    return any;
}

static void of_a_piece_the_chunks_that_are_needed_are_read(void **state)
{
    (void)state;
    static char part[600 * 100 * 4];
    struct columns w = {600, 700, part}; /* of rank 1's piece */
    struct ckpt_item item = shapes[3];
    struct checkpoint *c;
    bool found;
    item.take = take_columns, item.ctx = &w;
    saved(10);
    /* What others wrote may be damaged. */
    int fd;
    int64_t bytes;
    assert_int_equal(io_open_own(path_of(10, "state-00002.safetensors"), 1 /* O_WRONLY */, &fd, &bytes),
                     STATUS_OK);
    assert_int_equal(pwrite(fd, "damage", 6, bytes - 6), 6);
    io_close(&fd);
    assert_int_equal(checkpoint_open(&c, temp_dir, &found), STATUS_OK);
    assert_int_equal(checkpoint_read(c, &item, 1), STATUS_OK);
    for (int64_t row = 0; row < 600; row++)
        assert_memory_equal(part + row * 400, whole[3] + 4 * (row * 1024 + 600), 400);
    w = (struct columns){700, 800, part}; /* of rank 2's, too */
    checkpoint_close(c);
    assert_int_equal(checkpoint_verify(path_of(10, "")), STATUS_CKPT);
    assert_int_equal(restored(), -2);
}

static void a_rank_that_does_not_finish_is_named_and_nothing_is_committed(void **state)
{
    (void)state;
    struct ckpt_begun b;
    saved(10);
    begin(20, &b);
    assert_int_equal(write_part(&b, 1), STATUS_OK);
    polls = 2;
    assert_int_equal(commit_after(&b, 60), STATUS_COMM); /* the job ends */
    assert_string_equal(status_message(),
                        "rank 2 has not written its part of the checkpoint of step 20, which is not saved");
    assert_names("run.id step-00000010");
    begin(20, &b);
    assert_int_equal(write_part(&b, 2), STATUS_OK);
    polls = 1000;
    assert_int_equal(commit_after(&b, 0), STATUS_COMM); /* the time is over */
    assert_non_null(
        strstr(status_message(), "rank 1 has not written its part of the checkpoint of step 20 within 0 s"));
    /* Rank 1 is late: rank 0 has given up, whose error it is. */
    assert_int_equal(write_part(&b, 1), STATUS_OK);
    assert_int_equal(checkpoint_parts_seen(temp_dir, &b), STATUS_IO);
    assert_names("run.id step-00000010");
    assert_int_equal(restored(), 10);
}

static void what_is_told_of_another_save_is_refused(void **state)
{
    (void)state;
    struct ckpt_begun b, other;
    saved(10);
    begin(20, &b);
    other = b;
    other.nonce[0] = b.nonce[0] == '0' ? '1' : '0';
    assert_int_equal(write_part(&b, 1), STATUS_OK);
    assert_int_equal(write_part(&other, 2), STATUS_OK);
    assert_int_equal(commit_after(&b, 60), STATUS_CKPT);
    assert_non_null(strstr(status_message(), "part-00002.json"));
    assert_names("run.id step-00000010");
}

static void every_failing_call_of_a_rank_leaves_the_last_checkpoint(void **state)
{
    (void)state;
    struct ckpt_begun b;
    int64_t k;
    int told = 0;
    status st = STATUS_IO;
    saved(10);
    for (k = 1; st != STATUS_OK; k++) {
        begin(20, &b);
        assert_int_equal(write_part(&b, 2), STATUS_OK);
        io_fault_set(k, k % 2 ? ENOSPC : EIO);
        st = write_part(&b, 1);
        const bool all = io_fault_calls() < k;
        io_fault_set(0, 0);
        if (st != STATUS_OK) assert_int_equal(st, STATUS_IO);
        if (all) assert_int_equal(st, STATUS_OK);
        const status end = commit_after(&b, 60);
        /* The last calls sync a directory in which what it tells is already. */
        if (st != STATUS_OK && end == STATUS_OK)
            told++;
        else if (st != STATUS_OK)
            assert_int_equal(end, STATUS_COMM);
        assert_int_equal(restored(), end == STATUS_OK ? 20 : 10);
        assert_int_equal(io_remove_tree(path_of(20, "")), STATUS_OK);
    }
    assert_true(k > 10);
    assert_in_range(told, 0, 3); /* open, fsync, close */
}

static void every_failing_call_of_rank_0_leaves_the_old_or_the_new_checkpoint(void **state)
{
    (void)state;
    struct ckpt_begun b;
    bool all = false;
    int64_t k;
    saved(10);
    for (k = 1; !all; k++) {
        begin(20, &b);
        for (int r = 1; r < RANKS; r++) assert_int_equal(write_part(&b, r), STATUS_OK);
        io_fault_set(k, k % 2 ? ENOSPC : EIO);
        const status st = commit_after(&b, 60);
        all = io_fault_calls() < k;
        io_fault_set(0, 0);
        if (all) assert_int_equal(st, STATUS_OK);
        const int64_t step = restored();
        if (st == STATUS_OK) assert_int_equal(step, 20);
        assert_true(step == 10 || step == 20);
        assert_int_equal(io_remove_tree(path_of(20, "")), STATUS_OK);
    }
    assert_true(k > 20);
}

/* A child does it, and is killed at call k; returns whether it was. */
static bool killed_at(int64_t k, const struct ckpt_begun *b, int rank)
{
    const pid_t child = fork();
    if (child == 0) {
        io_fault_set(k, IO_FAULT_KILL);
        _exit((rank > 0 ? write_part(b, rank) : commit_after(b, 60)) == STATUS_OK ? 0 : 1);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    if (!WIFSIGNALED(how)) assert_int_equal(WEXITSTATUS(how), 0);
    return WIFSIGNALED(how);
}

static void a_kill_at_any_call_of_any_rank_leaves_the_old_or_the_new_checkpoint(void **state)
{
    (void)state;
    struct ckpt_begun b;
    for (int rank = 0; rank < 2; rank++) {
        bool killed = true;
        int64_t k;
        for (k = 1; killed; k++) {
            assert_int_equal(io_remove_tree(temp_path("ckpt")), STATUS_OK);
            saved(10);
            begin(20, &b);
            if (rank == 0) assert_int_equal(write_part(&b, 1), STATUS_OK);
            assert_int_equal(write_part(&b, 2), STATUS_OK);
            killed = killed_at(k, &b, rank);
            if (rank > 0 && !killed) assert_int_equal(commit_after(&b, 60), STATUS_OK);
            const int64_t step = restored();
            assert_true((killed && step == 10) || step == 20);
            saved(30); /* removes what is left */
            assert_names(step == 20 ? "run.id step-00000020 step-00000030"
                                    : "run.id step-00000010 step-00000030");
        }
        assert_true(k > 10);
    }
}

static bool wait_twice(void)
{
    return polls-- > 0;
}

/* A rank whose disk is full asks rank 0, which deletes what will be unnecessary. */
static void a_full_disk_of_one_rank_is_waited_for(void **state)
{
    (void)state;
    struct ckpt_begun b;
    char path[1100];
    saved(10);
    saved(20);
    begin(30, &b);
    may_wait = wait_twice;
    io_fault_set(12, ENOSPC);
    assert_int_equal(write_part(&b, 2), STATUS_IO); /* a signal ends the wait */
    io_fault_set(0, 0);
    assert_non_null(strstr(status_message(), "No space left"));
    bool there;
    snprintf(path, sizeof path, "%s/ckpt/.tmp-30-%d/full-00002", temp_dir, (int)b.pid);
    assert_int_equal(io_exists(path, &there), STATUS_OK);
    assert_true(there);
    assert_int_equal(write_part(&b, 2), STATUS_OK); /* as if it had waited; rank 0 still sees that it asked */
    polls = 100;
    io_fault_set(12, ENOSPC);
    assert_int_equal(write_part(&b, 1), STATUS_OK); /* waits, and tries again */
    io_fault_set(0, 0);
    polls = 100;
    assert_int_equal(commit_after(&b, 60), STATUS_OK);
    may_wait = NULL;
    assert_names("run.id step-00000020 step-00000030");
    assert_int_equal(restored(), 30);
    assert_int_equal(checkpoint_verify(path_of(30, "")), STATUS_OK);
}

/* Parses the manifest of step 10 with the first `from` behind `after` replaced. */
static status forged(const char *after, const char *from, const char *to)
{
    char *text, *sealed;
    size_t bytes, sealed_bytes;
    assert_int_equal(io_read_file(path_of(10, "manifest.json"), 1 << 24, &text, &bytes), STATUS_OK);
    char *place = strstr(text, after);
    assert_non_null(place);
    place = strstr(place, from);
    assert_non_null(place);
    char *body = malloc(bytes + 256), *end = strstr(text, "\"sha256\": \"");
    const int n = snprintf(body, bytes + 256, "%.*s%s%.*s", (int)(place - text), text, to,
                           (int)(end - place - (ptrdiff_t)strlen(from)), place + strlen(from));
    sealed = ckpt_manifest_seal(body, (size_t)n, &sealed_bytes);
    struct ckpt_manifest m;
    const status st = ckpt_manifest_parse(&m, sealed, sealed_bytes, "forged");
    if (st == STATUS_OK) ckpt_manifest_free(&m);
    free(sealed);
    free(body);
    free(text);
    return st;
}

static void pieces_that_do_not_make_the_tensor_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *after, *from, *to;
    } edits[] = {
        {"m/rows.rank1\"", "[1000, 2000, 2000, 1]", "[1001, 2000, 2000, 1]"}, /* a gap, and an overlap */
        {"m/rows.rank1\"", "[1000, 2000, 2000, 1]", "[0, 2000, 2000, 1]"},
        {"m/rows.rank1\"", "[1000, 2000, 2000, 1]", "[1000, 1999, 1999, 1]"},
        {"m/rows.rank1\"", "[1000, 2000, 2000, 1]", "[1000, 1000, 500, 2]"},
        {"m/rows.rank1\"", "[1000, 2000, 2000, 1]", "[1000, 1000, 1000, 1], [1500, 1000, 1000, 1]"},
        {"m/rows.rank1\"", "[1000, 2000, 2000, 1]", "[-1000, 2000, 2000, 1]"},
        {"m/rows.rank1\"", "[1000, 2000, 2000, 1]", "[1000, 2000, 9223372036854775807, 9223372036854775807]"},
        {"m/rows.rank1\"", "[[1000, 2000, 2000, 1]]", "[]"},
        {"m/rows.rank1\"", "[[1000, 2000, 2000, 1]]", "7"},
        {"columns.rank2\"", "[20, 10, 30, 40]", "[20, 10, 29, 40]"},
        {"columns.rank2\"", "[20, 10, 30, 40]", "[10, 10, 30, 40]"},
        {"columns.rank2\"", "\"of\": \"columns\"", "\"of\": \"column\""},
        {"columns.rank2\"", "\"of\": \"columns\"", "\"of\": \"../x\""},
        {"columns.rank2\"", "\"of\": \"columns\"", "\"of\": \"v/stage\""},
        {"columns.rank2\"", "\"shape\": [40, 30]", "\"shape\": [30, 40]"},
        {"columns.rank2\"", "\"shape\": [40, 30]", "\"shape\": [40, 30, 1]"},
        {"columns.rank2\"", "\"shape\": [40, 30]", "\"shape\": [4294967296, 4294967296]"},
        {"\"requires\"", "\"pieces\"", "\"pieces\", \"fragments\""},
        {"\"requires\"", "\"pieces\"", "1"},
        {"\"name\": \"v/stage\"", "v/stage", "columns"},
    };
    saved(10);
    assert_int_equal(forged("{", "\"writer\"", "\"painter\""), STATUS_OK); /* the forgery itself works */
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++)
        if (forged(edits[i].after, edits[i].from, edits[i].to) != STATUS_CKPT) fail_msg("%s", edits[i].to);
    /* To a reader that does not know pieces, they are tensors. */
    assert_int_equal(forged("\"requires\"", "\"pieces\"", ""), STATUS_OK);
}

int main(void)
{
    log_level_set(LOG_ERROR);
    parallel_threads_set(1); /* the k-th call is then the same one every time */
#define T(name) cmocka_unit_test_setup_teardown(name, temp_open, temp_close)
    const struct CMUnitTest tests[] = {
        T(pieces_are_read_as_whole_tensors),
        T(of_a_piece_the_chunks_that_are_needed_are_read),
        T(a_rank_that_does_not_finish_is_named_and_nothing_is_committed),
        T(what_is_told_of_another_save_is_refused),
        T(every_failing_call_of_a_rank_leaves_the_last_checkpoint),
        T(every_failing_call_of_rank_0_leaves_the_old_or_the_new_checkpoint),
        T(a_kill_at_any_call_of_any_rank_leaves_the_old_or_the_new_checkpoint),
        T(a_full_disk_of_one_rank_is_waited_for),
        T(pieces_that_do_not_make_the_tensor_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
