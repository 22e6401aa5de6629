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
#include "base/text.h"
#include "model/safetensors.h"
#include "train/ckpt_int.h"
#include "train/ckpt_leftovers.h"
#include "train/health.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the layout of the file ---- */

static status read_run_id(const char *dir, char id[33])
{
    char path[CKPT_PATH_MAX + 16], text[256], hex[65];
    enum io_kind kind;
    snprintf(path, sizeof path, "%s/run.id", dir);
    TRY(io_kind(path, &kind));
    if (kind == IO_NONE) {
        struct sha256 sum;
        int n =
            snprintf(text, sizeof text, "%lld %.6f %d", (long long)clock_ns(), clock_wall_s(), (int)getpid());
        sha256_init(&sum);
        sha256_add(&sum, text, (size_t)n);
        sha256_add(&sum, dir, strlen(dir));
        sha256_hex(&sum, hex);
        snprintf(id, 33, "%.32s", hex);
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

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct ckpt_item *const *)a)->name, (*(const struct ckpt_item *const *)b)->name);
}

static status check_items(const struct ckpt_item *items, int count)
{
    CHECK(count >= 0 && count <= CKPT_TENSORS_MAX, "%d tensors", count);
    const struct ckpt_item **order = malloc(((size_t)count + 1) * sizeof *order);
    if (!order) return FAIL(STATUS_FIT, "no memory for %d tensors", count);
    for (int i = 0; i < count; i++) {
        const char *fault = ckpt_manifest_name_fault(items[i].name);
        CHECK(!fault, "tensor name '%.128s' %s", items[i].name, fault);
        CHECK(items[i].rank >= 0 && items[i].rank <= 4, "%s: rank %d", items[i].name, items[i].rank);
        int64_t bytes = ckpt_manifest_item_bytes(&items[i]);
        CHECK(bytes == 0 || (bytes > 0 && (items[i].data || items[i].fill)), "%s: %lld bytes at %p",
              items[i].name, (long long)bytes, items[i].data);
        order[i] = &items[i];
    }
    qsort(order, (size_t)count, sizeof *order, by_name);
    for (int i = 1; i < count; i++)
        CHECK(by_name(&order[i - 1], &order[i]) != 0, "two tensors '%s'", order[i]->name);
    free(order);
    return STATUS_OK;
}

static struct safetensors_source source_of(const struct ckpt_item *t)
{
    struct safetensors_source s = {
        .name = t->name, .dt = t->dt, .rank = t->rank, .ctx = (void *)(uintptr_t)t};
    memcpy(s.shape, t->shape, sizeof t->shape);
    return s;
}

static int file_order(const void *a, const void *b)
{
    const struct safetensors_source x = source_of(a), y = source_of(b);
    return safetensors_write_order(&x, &y);
}

void checkpoint_order(struct ckpt_item *items, int count)
{
    qsort(items, (size_t)count, sizeof *items, file_order);
}

/* Fills m->tensors in file order and m->files[0]; *header is the safetensors header. */
static status plan_tensors(struct ckpt_manifest *m, const struct ckpt_item *items, int count, char **header)
{
    *header = NULL;
    struct safetensors_source *sources = calloc((size_t)count + 1, sizeof *sources);
    m->tensors = calloc((size_t)count + 1, sizeof *m->tensors);
    m->files = calloc(1, sizeof *m->files);
    status st = STATUS_OK;
    if (!sources || !m->tensors || !m->files) TRY_OUT(FAIL(STATUS_FIT, "no memory for %d tensors", count));
    for (int i = 0; i < count; i++) sources[i] = source_of(&items[i]);
    qsort(sources, (size_t)count, sizeof *sources, safetensors_write_order);
    struct ckpt_manifest_file *f = m->files;
    m->file_count = 1;
    m->tensor_count = count;
    snprintf(f->name, sizeof f->name, "state-%05d.safetensors", 0);
    /* Data begin on a page, for direct and mapped access. */
    TRY_OUT(safetensors_write_header(sources, count, 4096, header, &f->data_start));
    f->header_crc = ckpt_chunk_header_crc(m, 0, *header, f->data_start);
    int64_t at = f->data_start;
    for (int i = 0; i < count; i++) {
        struct ckpt_manifest_tensor *t = &m->tensors[i];
        t->item = *(const struct ckpt_item *)sources[i].ctx;
        t->offset = at;
        t->bytes = ckpt_manifest_item_bytes(&t->item);
        t->chunk_first = m->crc_count;
        m->crc_count += ckpt_manifest_chunks(t->bytes, m->chunk_bytes);
        if (__builtin_add_overflow(at, t->bytes, &at)) CHECK(0, "size of the checkpoint");
    }
    f->bytes = at;
    m->crcs = calloc((size_t)m->crc_count + 1, sizeof *m->crcs);
    if (!m->crcs) st = FAIL(STATUS_FIT, "no memory for %lld checksums", (long long)m->crc_count);
out:
    free(sources);
    return st;
}

/* ---- writing ---- */

static status write_data(struct ckpt_manifest *m, const char *tmp, const char *header)
{
    struct io_file f;
    char path[CKPT_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", tmp, m->files[0].name);
    TRY(io_create(&f, path));
    status st = io_pwrite(&f, header, (size_t)m->files[0].data_start, 0);
    if (st == STATUS_OK) st = ckpt_chunk_write(m, &f);
    if (st == STATUS_OK) return io_commit(&f);
    io_abandon(&f);
    return st;
}

static status write_all(struct ckpt_manifest *m, const char *tmp, const char *header)
{
    char path[CKPT_PATH_MAX + 64], *text;
    size_t bytes;
    TRY(io_make_dir(tmp));
    TRY(write_data(m, tmp, header));
    TRY(ckpt_manifest_format(m, &text, &bytes));
    snprintf(path, sizeof path, "%s/manifest.json", tmp);
    status st = io_write_file(path, text, bytes); /* its commit also syncs the directory */
    free(text);
    return st;
}

/* Renames `path` to trash and removes it. */
static status discard(const char *dir, const char *path, int64_t step)
{
    char trash[CKPT_PATH_MAX + 64];
    snprintf(trash, sizeof trash, "%s/.trash-%lld-%d", dir, (long long)step, (int)getpid());
    TRY(io_rename_dir(path, trash));
    return io_remove_tree(trash);
}

/* Moves the finished directory to its final name. If a run that was resumed below this step left a checkpoint
 * there, the two are swapped, so one exists at every moment. */
static status place(const char *dir, const char *tmp, int64_t step)
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
        if (io_remove_tree(tmp) != STATUS_OK) log_warn("%s; left for the next save", status_message());
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

/* With the manifest, and with what a file system needs besides. */
static int64_t bytes_needed(const struct ckpt_manifest *m)
{
    return m->files[0].bytes + m->files[0].bytes / 10;
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

static status save_planned(struct ckpt_manifest *m, const char *dir, const char *header)
{
    char tmp[CKPT_PATH_MAX + 64];
    TRY(check_space(dir, bytes_needed(m)));
    snprintf(tmp, sizeof tmp, "%s/.tmp-%lld-%d", dir, (long long)m->step, (int)getpid());
    status st = write_all(m, tmp, header);
    if (st == STATUS_OK) st = place(dir, tmp, m->step);
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
static bool wait_for_space(const char *dir, int64_t need, ckpt_may_wait_fn *may_wait)
{
    const struct timespec poll = {.tv_nsec = POLL_NS};
    const double begin = clock_s();
    do {
        if (!may_wait()) return false;
        (void)nanosleep(&poll, NULL);
    } while (clock_s() - begin < TRY_S && check_space(dir, need) != STATUS_OK);
    return true;
}

static void say_full(const struct ckpt_manifest *m, const char *dir)
{
    char a[32], b[32];
    log_warn("the disk is full: checkpoint %lld needs %s, %s are free in '%s'; it is saved when there is "
             "space (or "
             "end the run, or take ckpt.on_full=stop)",
             (long long)m->step, text_bytes(a, (double)bytes_needed(m)),
             text_bytes(b, (double)io_free_bytes(dir)), dir);
}

static status save_waiting(struct ckpt_manifest *m, const char *dir, const char *header, int keep,
                           ckpt_may_wait_fn *may_wait)
{
    char last[1024];
    double said = 0;
    for (;;) {
        status st = save_planned(m, dir, header);
        if (st != STATUS_IO || !may_wait || !says_full()) return st;
        snprintf(last, sizeof last, "%s", status_message());
        int deleted = 0;
        if (retain(dir, m->step - 1, NULL, keep > 1 ? keep - 1 : 1, &deleted) != STATUS_OK)
            log_warn("%s", status_message());
        if (deleted > 0) {
            log_info("the disk is full: %d old checkpoint%s deleted before step %lld is saved", deleted,
                     deleted > 1 ? "s" : "", (long long)m->step);
            continue;
        }
        if (said == 0 || clock_s() - said > SAY_S) say_full(m, dir), said = clock_s();
        if (!wait_for_space(dir, bytes_needed(m), may_wait)) return FAIL(STATUS_IO, "%s", last);
    }
}

static bool can_repeat(const struct ckpt_item *items, int count)
{
    for (int i = 0; i < count; i++)
        if (items[i].fill && !items[i].again) return false;
    return true;
}

struct saving {
    const char *run_dir;
    int keep;
    int64_t chunk_bytes;
    ckpt_may_wait_fn *may_wait;
};
static status save_as(const struct saving *s, int64_t step, const struct ckpt_item *items, int count,
                      const json_t *meta)
{
    CHECK(step >= 0, "step %lld", (long long)step);
    CHECK(s->keep >= 1, "keep %d", s->keep);
    char dir[CKPT_PATH_MAX], *header = NULL;
    if (strlen(s->run_dir) > CKPT_PATH_MAX - 64)
        return FAIL(STATUS_IO, "the path of the run directory is too long: '%.60s...'", s->run_dir);
    snprintf(dir, sizeof dir, "%s/ckpt", s->run_dir);
    struct ckpt_manifest m = {.step = step, .chunk_bytes = s->chunk_bytes};
    TRY(check_items(items, count));
    TRY(io_make_dirs(dir));
    if (ckpt_leftovers_remove(s->run_dir) != STATUS_OK)
        log_warn("%s; left for the next save", status_message());
    m.meta = meta ? json_incref((json_t *)(uintptr_t)meta) : json_object();
    status st = read_run_id(dir, m.run_id);
    if (st == STATUS_OK) st = plan_tensors(&m, items, count, &header);
    if (st == STATUS_OK)
        st = save_waiting(&m, dir, header, s->keep, can_repeat(items, count) ? s->may_wait : NULL);
    free(header);
    ckpt_manifest_free(&m);
    if (st != STATUS_OK) return st;
    if (ckpt_saved_mark(s->run_dir) != STATUS_OK) log_warn("%s", status_message());
    if (retain(dir, step, meta, s->keep, NULL) != STATUS_OK)
        log_warn("%s; old checkpoints are left for the next save", status_message());
    return STATUS_OK;
}

status ckpt_save_chunked(const char *run_dir, int64_t step, const struct ckpt_item *items, int count,
                         const json_t *meta, int keep, int64_t chunk_bytes)
{
    const struct saving s = {.run_dir = run_dir, .keep = keep, .chunk_bytes = chunk_bytes};
    return save_as(&s, step, items, count, meta);
}

status checkpoint_save(const char *run_dir, int64_t step, const struct ckpt_item *items, int count,
                       const json_t *meta, int keep, ckpt_may_wait_fn *may_wait)
{
    const struct saving s = {run_dir, keep, CKPT_CHUNK_BYTES, may_wait};
    return save_as(&s, step, items, count, meta);
}
