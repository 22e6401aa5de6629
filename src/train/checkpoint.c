/* Saving. The order of the steps is the whole point (see checkpoint.h): a crash after any one of them leaves
 * the old or the new checkpoint, complete. Names in RUN/ckpt:
 *
 *   run.id               32 hex digits, drawn at the first save: bound into every checksum
 *   step-NNNNNNNN        complete
 *   .tmp-STEP-PID, .trash-STEP-PID   being written, being deleted by PID (ckpt_leftovers.h)
 */
#include "base/clock.h"
#include "base/hash.h"
#include "base/io.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/text.h"
#include "train/ckpt_int.h"
#include "train/ckpt_leftovers.h"
#include "train/health.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void ckpt_draw_id(const char *dir, int digits, char *id)
{
    char text[96], hex[65];
    struct sha256 sum;
    const int n =
        snprintf(text, sizeof text, "%lld %.6f %d", (long long)clock_ns(), clock_wall_s(), (int)getpid());
    sha256_init(&sum);
    sha256_add(&sum, text, (size_t)n);
    sha256_add(&sum, dir, strlen(dir));
    sha256_hex(&sum, hex);
    snprintf(id, (size_t)digits + 1, "%s", hex);
}

status ckpt_run_id(const char *dir, char id[33])
{
    char path[CKPT_PATH_MAX + 16], text[40];
    enum io_kind kind;
    snprintf(path, sizeof path, "%s/run.id", dir);
    TRY(io_kind(path, &kind));
    if (kind == IO_NONE) {
        ckpt_draw_id(dir, 32, id);
        snprintf(text, sizeof text, "%s\n", id);
        return io_write_file(path, text, 33);
    }
    char *data;
    size_t bytes;
    TRY(io_read_file(path, 4096, &data, &bytes));
    bool good = bytes == 33 && strspn(data, "0123456789abcdef") == 32 && data[32] == '\n';
    if (good) snprintf(id, 33, "%.32s", data);
    free(data);
    return good ? STATUS_OK
                : FAIL(STATUS_CKPT, "'%s' is damaged; remove it, and a new identity is drawn", path);
}

/* ---- writing ---- */

static status open_files(const struct ckpt_plan *p, const char *tmp, struct io_file *files,
                         struct ckpt_span span)
{
    char path[CKPT_PATH_MAX + 64];
    for (int i = span.first; i < span.end; i++) {
        snprintf(path, sizeof path, "%s/%s", tmp, p->m.files[i].name);
        TRY(io_create(&files[i], path));
        TRY(io_pwrite(&files[i], p->headers[i], (size_t)p->m.files[i].data_start, 0));
    }
    return STATUS_OK;
}

status ckpt_write_files(struct ckpt_plan *p, const char *tmp, int writer)
{
    const int count = p->m.file_count;
    const struct ckpt_span span = ckpt_plan_files(p, writer);
    struct io_file *files = calloc((size_t)count, sizeof *files);
    if (files == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d files", count);
    for (int i = 0; i < count; i++) files[i].fd = -1;
    status st = open_files(p, tmp, files, span);
    if (st == STATUS_OK) st = ckpt_chunk_write(&p->m, files, ckpt_plan_tensors(p, writer));
    for (int i = span.first; i < span.end; i++)
        if (st == STATUS_OK)
            st = io_commit(&files[i]);
        else
            io_abandon(&files[i]);
    free(files);
    return st;
}

status ckpt_write_manifest(const struct ckpt_plan *p, const char *tmp)
{
    char path[CKPT_PATH_MAX + 64], *text;
    size_t bytes;
    TRY(ckpt_manifest_format(&p->m, &text, &bytes));
    snprintf(path, sizeof path, "%s/manifest.json", tmp);
    status st = io_write_file(path, text, bytes); /* its commit also syncs the directory */
    free(text);
    return st;
}

static status write_all(struct ckpt_plan *p, const char *tmp)
{
    TRY(io_make_dir(tmp));
    TRY(ckpt_write_files(p, tmp, 0));
    return ckpt_write_manifest(p, tmp);
}

/* Removes a directory, its files side by side: to free the pages of a file takes a third of the time to write it. */
static status remove_files(const char *path)
{
    struct io_list list;
    enum io_kind kind;
    TRY(io_kind(path, &kind));
    if (kind != IO_DIR) return io_remove_tree(path); /* a link is removed, not followed */
    TRY(io_list(path, &list));
    PARALLEL_CHUNKS(i, list.count)
    {
        char file[CKPT_PATH_MAX + 400];
        snprintf(file, sizeof file, "%s/%s", path, list.names[i]);
        (void)!io_remove_tree(file); /* the call below meets the failure again, and returns it */
    }
    io_list_free(&list);
    return io_remove_tree(path);
}

/* Renames `path` to trash and removes it. */
static status discard(const char *dir, const char *path, int64_t step)
{
    char trash[CKPT_PATH_MAX + 64];
    snprintf(trash, sizeof trash, "%s/.trash-%lld-%d", dir, (long long)step, (int)getpid());
    TRY(io_rename_dir(path, trash));
    return remove_files(trash);
}

/* Moves the finished directory to its final name. If a run that was resumed below this step left a checkpoint
 * there, the two are swapped, so one exists at every moment. */
status ckpt_place(const char *dir, const char *tmp, int64_t step)
{
    char path[CKPT_PATH_MAX];
    enum io_kind kind;
    ckpt_step_path(path, dir, step);
    TRY(io_kind(path, &kind));
    if (kind == IO_NONE) return io_rename_dir(tmp, path);
    bool swapped;
    TRY(io_swap_dir(tmp, path, &swapped));
    if (swapped) {
        TRY(io_sync_dir(dir));
        if (remove_files(tmp) != STATUS_OK) log_warn("%s; left for the next save", status_message());
        return STATUS_OK;
    }
    TRY(discard(dir, path, step)); /* this file system cannot swap names: older checkpoints cover the gap */
    return io_rename_dir(tmp, path);
}

static void remove_after_failure(const char *tmp, status st)
{
    char message[1024];
    snprintf(message, sizeof message, "%s", status_message());
    if (io_remove_tree(tmp) != STATUS_OK) log_warn("%s; the next save will try again", status_message());
    (void)FAIL(st, "%s", message);
}

/* ---- retention ---- */

/* Deletes checkpoints older than the newest `keep` that open, up to `step`. The newest one of a run that learned stays,
 * too; `meta` (NULL: read it) is that of `step`. Later steps are from an abandoned continuation. *deleted (NULL: not
 * asked) is how many. */
static status retain(const char *dir, int64_t step, const json_t *meta, int keep, int *deleted)
{
    int64_t *steps;
    int count, whole = 0;
    const char *why;
    bool learned = false; /* one is among those that stay */
    TRY(ckpt_steps(dir, &steps, &count));
    status st = STATUS_OK;
    for (int i = 0; i < count && st == STATUS_OK; i++) {
        char path[CKPT_PATH_MAX];
        if (steps[i] > step) continue;
        ckpt_step_path(path, dir, steps[i]);
        struct checkpoint *c = NULL;
        const bool ours = meta && steps[i] == step, looks = !ours && (whole < keep || !learned);
        if (looks) st = ckpt_open_dir(&c, path);
        if (st != STATUS_OK && st != STATUS_CKPT) break; /* it may be sound: nothing is deleted now */
        const bool opens = ours || (looks && st == STATUS_OK),
                   good = opens && !learned && health_of_meta(ours ? meta : checkpoint_meta(c), &why);
        checkpoint_close(c);
        st = STATUS_OK;
        if (whole >= keep && !good) {
            st = discard(dir, path, steps[i]);
            if (deleted) ++*deleted;
        }
        whole += opens;
        learned = learned || good;
    }
    free(steps);
    return st;
}

/* ---- going back ---- */

status checkpoint_go_back(const char *run_dir, int64_t step)
{
    char path[CKPT_PATH_MAX], text[32];
    const int n = snprintf(text, sizeof text, "%lld\n", (long long)step);
    snprintf(path, sizeof path, "%.*s/ckpt/back", CKPT_PATH_MAX - 64, run_dir);
    return io_write_file(path, text, (size_t)n);
}

status checkpoint_drop_later(const char *run_dir)
{
    char dir[CKPT_PATH_MAX], path[CKPT_PATH_MAX];
    int64_t *steps, back;
    int count;
    snprintf(dir, sizeof dir, "%.*s/ckpt", CKPT_PATH_MAX - 64, run_dir);
    TRY(ckpt_back(dir, &back));
    if (back == CKPT_NOT_BACK) return STATUS_OK;
    TRY(ckpt_steps(dir, &steps, &count));
    status st = STATUS_OK;
    for (int i = 0; i < count && steps[i] > back && st == STATUS_OK; i++) {
        ckpt_step_path(path, dir, steps[i]);
        st = discard(dir, path, steps[i]);
        if (st == STATUS_OK)
            log_info("removed   %s: the run has gone back to step %lld", path, (long long)back);
    }
    free(steps);
    snprintf(path, sizeof path, "%.*s/ckpt/back", CKPT_PATH_MAX - 64, run_dir);
    if (st == STATUS_OK) st = io_remove_tree(path);
    return st == STATUS_OK ? io_sync_dir(dir) : st;
}

/* ---- save ---- */

int64_t ckpt_bytes_needed(const struct ckpt_manifest *m, struct ckpt_span files)
{
    int64_t bytes = 0;
    for (int i = files.first; i < files.end; i++) bytes += m->files[i].bytes;
    return bytes + bytes / 10;
}

static int64_t bytes_needed(const struct ckpt_manifest *m)
{
    return ckpt_bytes_needed(m, (struct ckpt_span){0, m->file_count});
}

static status check_space(const char *dir, int64_t need)
{
    const int64_t free_bytes = io_free_bytes(dir);
    char a[32], b[32];
    if (free_bytes >= 0 && free_bytes < need)
        return FAIL(
            STATUS_IO, "a checkpoint needs %s in '%s', where %s are free (%s); free space, or keep fewer",
            text_bytes(a, (double)need), dir, text_bytes(b, (double)free_bytes), strerrordesc_np(ENOSPC));
    return STATUS_OK;
}

status ckpt_check_space(const struct ckpt_room *r)
{
    return check_space(r->dir, r->need);
}

static status save_planned(struct ckpt_plan *p, const char *dir)
{
    const struct ckpt_manifest *m = &p->m;
    char tmp[CKPT_PATH_MAX + 64];
    TRY(check_space(dir, bytes_needed(m)));
    snprintf(tmp, sizeof tmp, "%s/.tmp-%lld-%d", dir, (long long)m->step, (int)getpid());
    status st = write_all(p, tmp);
    if (st == STATUS_OK) st = ckpt_place(dir, tmp, m->step);
    if (st != STATUS_OK) remove_after_failure(tmp, st);
    return st;
}

/* ---- a full disk ---- */

enum { POLL_NS = 200 * 1000 * 1000, TRY_S = 5, SAY_S = 600 };

/* The reason is in the message alone, which may come from another thread. */
static bool says_full(void)
{
    return strstr(status_message(), strerrordesc_np(ENOSPC)) ||
           strstr(status_message(), strerrordesc_np(EDQUOT));
}

/* Waits for space, or for TRY_S: a quota is not seen. False: it may not wait any longer. */
static bool wait_for_space(const struct ckpt_room *r)
{
    const struct timespec poll = {.tv_nsec = POLL_NS};
    const double begin = clock_s();
    do {
        if (!r->may_wait() || (r->ended && r->ended(r->ctx))) return false;
        (void)nanosleep(&poll, NULL);
    } while (clock_s() - begin < TRY_S && check_space(r->dir, r->need) != STATUS_OK);
    return true;
}

static void say_full(const struct ckpt_room *r)
{
    char a[32], b[32];
    log_warn("the disk is full: checkpoint %lld needs %s, %s are free in '%s'; it is saved when there is "
             "space (or "
             "end the run, or take ckpt.on_full=stop)",
             (long long)r->step, text_bytes(a, (double)r->need), text_bytes(b, (double)io_free_bytes(r->dir)),
             r->dir);
}

int ckpt_make_room(const char *dir, int64_t step, int keep)
{
    int deleted = 0;
    if (retain(dir, step - 1, NULL, keep > 1 ? keep - 1 : 1, &deleted) != STATUS_OK)
        log_warn("%s", status_message());
    if (deleted > 0)
        log_info("the disk is full: %d old checkpoint%s deleted before step %lld is saved", deleted,
                 deleted > 1 ? "s" : "", (long long)step);
    return deleted;
}

bool ckpt_try_again(struct ckpt_room *r, status st)
{
    char last[1024];
    if (st != STATUS_IO || !r->may_wait || !says_full()) return false;
    snprintf(last, sizeof last, "%s", status_message());
    if (r->ask)
        r->ask(r->ctx);
    else if (ckpt_make_room(r->dir, r->step, r->keep) > 0)
        return true;
    if (r->said == 0 || clock_s() - r->said > SAY_S) say_full(r), r->said = clock_s();
    if (wait_for_space(r)) return true;
    (void)FAIL(STATUS_IO, "%s", last);
    return false;
}

static status save_waiting(struct ckpt_plan *p, const char *dir, int keep, ckpt_may_wait_fn *may_wait)
{
    struct ckpt_room room = {
        .dir = dir, .step = p->m.step, .need = bytes_needed(&p->m), .keep = keep, .may_wait = may_wait};
    status st;
    do st = save_planned(p, dir);
    while (ckpt_try_again(&room, st));
    return st;
}

static bool can_repeat(const struct ckpt_item *items, int count)
{
    for (int i = 0; i < count; i++)
        if (items[i].fill && !items[i].again) return false;
    return true;
}

void ckpt_saved(const char *run_dir, int64_t step, const json_t *meta, int keep)
{
    char dir[CKPT_PATH_MAX];
    snprintf(dir, sizeof dir, "%.*s/ckpt", CKPT_PATH_MAX - 64, run_dir);
    if (ckpt_saved_mark(run_dir) != STATUS_OK) log_warn("%s", status_message());
    if (retain(dir, step, meta, keep, NULL) != STATUS_OK)
        log_warn("%s; old checkpoints are left for the next save", status_message());
}

struct saving {
    const char *run_dir;
    int keep;
    struct ckpt_cut cut;
    ckpt_may_wait_fn *may_wait;
};
static status save_as(const struct saving *s, int64_t step, const struct ckpt_item *items, int count,
                      const json_t *meta)
{
    CHECK(step >= 0, "step %lld", (long long)step);
    CHECK(s->keep >= 1, "keep %d", s->keep);
    char dir[CKPT_PATH_MAX];
    if (strlen(s->run_dir) > CKPT_PATH_MAX - 64)
        return FAIL(STATUS_IO, "the path of the run directory is too long: '%.60s...'", s->run_dir);
    snprintf(dir, sizeof dir, "%s/ckpt", s->run_dir);
    struct ckpt_plan p = {.m = {.step = step, .chunk_bytes = s->cut.chunk_bytes},
                          .file_bytes = s->cut.file_bytes};
    TRY(io_make_dirs(dir));
    if (ckpt_leftovers_remove(s->run_dir) != STATUS_OK)
        log_warn("%s; left for the next save", status_message());
    p.m.meta = meta ? json_incref((json_t *)(uintptr_t)meta) : json_object();
    status st = ckpt_run_id(dir, p.m.run_id);
    if (st == STATUS_OK) st = ckpt_plan_make(&p, items, count, 0);
    if (st == STATUS_OK) st = save_waiting(&p, dir, s->keep, can_repeat(items, count) ? s->may_wait : NULL);
    ckpt_plan_free(&p);
    if (st == STATUS_OK) ckpt_saved(s->run_dir, step, meta, s->keep);
    return st;
}

status ckpt_save_cut(const char *run_dir, int64_t step, const struct ckpt_item *items, int count,
                     const json_t *meta, int keep, struct ckpt_cut cut)
{
    const struct saving s = {.run_dir = run_dir, .keep = keep, .cut = cut};
    return save_as(&s, step, items, count, meta);
}

status checkpoint_save(const char *run_dir, int64_t step, const struct ckpt_item *items, int count,
                       const json_t *meta, int keep, ckpt_may_wait_fn *may_wait)
{
    const struct saving s = {run_dir, keep, {CKPT_CHUNK_BYTES, CKPT_FILE_BYTES}, may_wait};
    return save_as(&s, step, items, count, meta);
}
