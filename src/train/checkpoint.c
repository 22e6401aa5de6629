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

/* What is to be written: the manifest, and the safetensors headers of its files. */
struct plan {
    struct ckpt_manifest m;
    int64_t file_bytes;
    char **headers; /* [m.file_count] */
};

static void plan_free(struct plan *p)
{
    for (int i = 0; p->headers && i < p->m.file_count; i++) free(p->headers[i]);
    free(p->headers);
    ckpt_manifest_free(&p->m);
}

/* Which file a tensor is in: the next one when this one would be too large with it. */
static void plan_files(struct plan *p, const struct safetensors_source *sources, int count)
{
    struct ckpt_manifest *m = &p->m;
    int64_t held = 0;
    m->tensor_count = count;
    m->file_count = 1;
    for (int i = 0; i < count; i++) {
        struct ckpt_manifest_tensor *t = &m->tensors[i];
        t->item = *(const struct ckpt_item *)sources[i].ctx;
        t->bytes = ckpt_manifest_item_bytes(&t->item);
        if (held > 0 && t->bytes > p->file_bytes - held) m->file_count++, held = 0;
        CHECK(m->file_count <= CKPT_FILES_MAX, "%d files", m->file_count);
        if (__builtin_add_overflow(held, t->bytes, &held)) CHECK(0, "size of the checkpoint");
        t->file = m->file_count - 1;
    }
}

/* Places the tensors [*at, ...) of file `file`, and writes its header. */
static status plan_file(struct plan *p, const struct safetensors_source *sources, int file, int *at)
{
    struct ckpt_manifest *m = &p->m;
    struct ckpt_manifest_file *f = &m->files[file];
    const int first = *at;
    while (*at < m->tensor_count && m->tensors[*at].file == file) ++*at;
    snprintf(f->name, sizeof f->name, "state-%05d.safetensors", file);
    /* Data begin on a page, for direct and mapped access. */
    TRY(safetensors_write_header(sources + first, *at - first, 4096, &p->headers[file], &f->data_start));
    f->header_crc = ckpt_chunk_header_crc(m, file, p->headers[file], f->data_start);
    f->bytes = f->data_start;
    for (int i = first; i < *at; i++) {
        struct ckpt_manifest_tensor *t = &m->tensors[i];
        t->offset = f->bytes;
        t->chunk_first = m->crc_count;
        m->crc_count += ckpt_manifest_chunks(t->bytes, m->chunk_bytes);
        if (__builtin_add_overflow(f->bytes, t->bytes, &f->bytes)) CHECK(0, "size of the checkpoint");
    }
    return STATUS_OK;
}

/* Fills p->m with tensors in file order, and their files. */
static status plan_tensors(struct plan *p, const struct ckpt_item *items, int count)
{
    struct ckpt_manifest *m = &p->m;
    struct safetensors_source *sources = calloc((size_t)count + 1, sizeof *sources);
    m->tensors = calloc((size_t)count + 1, sizeof *m->tensors);
    m->files = calloc((size_t)count + 1, sizeof *m->files);
    p->headers = calloc((size_t)count + 1, sizeof *p->headers);
    status st = STATUS_OK;
    int at = 0;
    if (!sources || !m->tensors || !m->files || !p->headers)
        TRY_OUT(FAIL(STATUS_FIT, "no memory for %d tensors", count));
    for (int i = 0; i < count; i++) sources[i] = source_of(&items[i]);
    qsort(sources, (size_t)count, sizeof *sources, safetensors_write_order);
    plan_files(p, sources, count);
    for (int f = 0; f < m->file_count; f++) TRY_OUT(plan_file(p, sources, f, &at));
    m->crcs = calloc((size_t)m->crc_count + 1, sizeof *m->crcs);
    if (!m->crcs) st = FAIL(STATUS_FIT, "no memory for %lld checksums", (long long)m->crc_count);
out:
    free(sources);
    return st;
}

/* ---- writing ---- */

static status open_files(const struct plan *p, const char *tmp, struct io_file *files)
{
    char path[CKPT_PATH_MAX + 64];
    for (int i = 0; i < p->m.file_count; i++) {
        snprintf(path, sizeof path, "%s/%s", tmp, p->m.files[i].name);
        TRY(io_create(&files[i], path));
        TRY(io_pwrite(&files[i], p->headers[i], (size_t)p->m.files[i].data_start, 0));
    }
    return STATUS_OK;
}

static status write_data(struct plan *p, const char *tmp)
{
    const int count = p->m.file_count;
    struct io_file *files = calloc((size_t)count, sizeof *files);
    if (files == NULL) return FAIL(STATUS_FIT, "no memory for %d files", count);
    for (int i = 0; i < count; i++) files[i].fd = -1;
    status st = open_files(p, tmp, files);
    if (st == STATUS_OK) st = ckpt_chunk_write(&p->m, files);
    for (int i = 0; i < count; i++)
        if (st == STATUS_OK)
            st = io_commit(&files[i]);
        else
            io_abandon(&files[i]);
    free(files);
    return st;
}

static status write_all(struct plan *p, const char *tmp)
{
    char path[CKPT_PATH_MAX + 64], *text;
    size_t bytes;
    TRY(io_make_dir(tmp));
    TRY(write_data(p, tmp));
    TRY(ckpt_manifest_format(&p->m, &text, &bytes));
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
    int64_t bytes = 0;
    for (int i = 0; i < m->file_count; i++) bytes += m->files[i].bytes;
    return bytes + bytes / 10;
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

static status save_planned(struct plan *p, const char *dir)
{
    const struct ckpt_manifest *m = &p->m;
    char tmp[CKPT_PATH_MAX + 64];
    TRY(check_space(dir, bytes_needed(m)));
    snprintf(tmp, sizeof tmp, "%s/.tmp-%lld-%d", dir, (long long)m->step, (int)getpid());
    status st = write_all(p, tmp);
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

static status save_waiting(struct plan *p, const char *dir, int keep, ckpt_may_wait_fn *may_wait)
{
    const struct ckpt_manifest *m = &p->m;
    char last[1024];
    double said = 0;
    for (;;) {
        status st = save_planned(p, dir);
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
    struct plan p = {.m = {.step = step, .chunk_bytes = s->cut.chunk_bytes}, .file_bytes = s->cut.file_bytes};
    TRY(check_items(items, count));
    TRY(io_make_dirs(dir));
    if (ckpt_leftovers_remove(s->run_dir) != STATUS_OK)
        log_warn("%s; left for the next save", status_message());
    p.m.meta = meta ? json_incref((json_t *)(uintptr_t)meta) : json_object();
    status st = read_run_id(dir, p.m.run_id);
    if (st == STATUS_OK) st = plan_tensors(&p, items, count);
    if (st == STATUS_OK) st = save_waiting(&p, dir, s->keep, can_repeat(items, count) ? s->may_wait : NULL);
    plan_free(&p);
    if (st != STATUS_OK) return st;
    if (ckpt_saved_mark(s->run_dir) != STATUS_OK) log_warn("%s", status_message());
    if (retain(dir, step, meta, s->keep, NULL) != STATUS_OK)
        log_warn("%s; old checkpoints are left for the next save", status_message());
    return STATUS_OK;
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
