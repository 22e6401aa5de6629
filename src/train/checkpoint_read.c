/* Opening, choosing, reading and checking. Two kinds of trouble are kept apart: a damaged checkpoint
 * (STATUS_CKPT) is skipped for an older one, with a warning; a file system that fails (STATUS_IO: no
 * descriptors left, a bad sector) ends the attempt, for nobody wants to lose steps because of a limit of
 * open files. */
#include "base/io.h"
#include "base/log.h"
#include "model/safetensors.h"
#include "train/ckpt_int.h"
#include "train/health.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ckpt_step_path(char out[CKPT_PATH_MAX], const char *dir, int64_t step)
{
    snprintf(out, CKPT_PATH_MAX, "%s/step-%08lld", dir, (long long)step);
}

/* N of "step-N", written as ckpt_step_path writes it; -1 for other names. */
static int64_t step_of(const char *name)
{
    char again[64];
    if (strncmp(name, "step-", 5) != 0 || strspn(name + 5, "0123456789") != strlen(name + 5) ||
        strlen(name) > 5 + 18)
        return -1;
    int64_t step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%08lld", (long long)step);
    return strcmp(name, again) == 0 ? step : -1;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

status ckpt_steps(const char *dir, int64_t **steps, int *count)
{
    struct io_list list;
    TRY(io_list(dir, &list));
    *count = 0;
    *steps = malloc(((size_t)list.count + 1) * sizeof **steps);
    for (int i = 0; *steps && i < list.count; i++)
        if (step_of(list.names[i]) >= 0) (*steps)[(*count)++] = step_of(list.names[i]);
    io_list_free(&list);
    if (!*steps) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the names in '%s'", dir);
    qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
    return STATUS_OK;
}

status ckpt_back(const char *dir, int64_t *step)
{
    char path[CKPT_PATH_MAX + 16], *text;
    size_t bytes;
    enum io_kind kind;
    *step = CKPT_NOT_BACK;
    snprintf(path, sizeof path, "%s/back", dir);
    TRY(io_kind(path, &kind));
    if (kind == IO_NONE) return STATUS_OK;
    TRY(io_read_file(path, 4096, &text, &bytes));
    const bool good =
        bytes > 1 && bytes < 20 && text[bytes - 1] == '\n' && strspn(text, "0123456789") == bytes - 1;
    if (good) *step = strtoll(text, NULL, 10);
    free(text);
    return good ? STATUS_OK
                : FAIL(STATUS_CKPT,
                       "'%s' is damaged: it holds no step; remove it, and --resume=STEP names one", path);
}

/* ---- opening one ---- */

/* Reads a regular file of the checkpoint into malloc'd memory; anything else is damage. bytes_want >= 0: the
 * size must be exactly this. */
static status read_part(const char *path, int64_t bytes_want, int64_t bytes_read, char **data, int64_t *bytes)
{
    enum io_kind kind;
    int fd;
    int64_t size;
    *data = NULL;
    TRY(io_kind(path, &kind));
    if (kind == IO_NONE) return FAIL(STATUS_CKPT, "'%s' is missing", path);
    if (kind != IO_FILE) return FAIL(STATUS_CKPT, "'%s' is not a regular file", path);
    TRY(io_open(path, LINKS_REFUSE, &fd, &size));
    status st = STATUS_OK;
    if (bytes_want >= 0 && size != bytes_want)
        st = FAIL(STATUS_CKPT, "'%s' has %lld bytes instead of %lld", path, (long long)size,
                  (long long)bytes_want);
    if (bytes_read < 0 && size > CKPT_BYTES_MAX)
        st = FAIL(STATUS_CKPT, "'%s' has %lld bytes, too many for a manifest", path, (long long)size);
    *bytes = bytes_read < 0 ? size : bytes_read;
    if (st == STATUS_OK && !(*data = malloc((size_t)*bytes + 1)))
        st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld bytes of '%s'", (long long)*bytes, path);
    if (st == STATUS_OK) st = io_pread(fd, path, *data, (size_t)*bytes, 0);
    io_close(&fd);
    if (st != STATUS_OK) {
        free(*data);
        *data = NULL;
    }
    return st;
}

/* Checks the size of every data file and the checksum of its header: cheap enough for opening. */
static status check_files(const struct checkpoint *c)
{
    for (int i = 0; i < c->manifest.file_count; i++) {
        const struct ckpt_manifest_file *f = &c->manifest.files[i];
        char path[CKPT_PATH_MAX + 64], *header;
        int64_t bytes;
        snprintf(path, sizeof path, "%s/%s", c->path, f->name);
        TRY(read_part(path, f->bytes, f->data_start, &header, &bytes));
        uint32_t crc = ckpt_chunk_header_crc(&c->manifest, i, header, bytes);
        free(header);
        if (crc != f->header_crc)
            return FAIL(STATUS_CKPT, "'%s': the checksum of its header is %08x, not %08x", path, crc,
                        f->header_crc);
    }
    return STATUS_OK;
}

static int by_tensor_name(const void *a, const void *b, void *tensors)
{
    const struct ckpt_manifest_whole *t = tensors;
    return strcmp(t[*(const int *)a].item.name, t[*(const int *)b].item.name);
}

static status open_checked(struct checkpoint *c)
{
    char path[CKPT_PATH_MAX + 64], *text;
    int64_t bytes;
    enum io_kind kind;
    TRY(io_kind(c->path, &kind));
    if (kind != IO_DIR) return FAIL(STATUS_CKPT, "'%s' is not a directory", c->path);
    snprintf(path, sizeof path, "%s/manifest.json", c->path);
    TRY(read_part(path, -1, -1, &text, &bytes));
    status st = ckpt_manifest_parse(&c->manifest, text, (size_t)bytes, path);
    free(text);
    TRY(st);
    const char *slash = strrchr(c->path, '/');
    int64_t named = step_of(slash ? slash + 1 : c->path);
    if (named >= 0 && named != c->manifest.step)
        return FAIL(STATUS_CKPT, "'%s' holds a checkpoint of step %lld", c->path,
                    (long long)c->manifest.step);
    TRY(check_files(c));
    int count = c->manifest.whole_count;
    c->by_name = malloc(((size_t)count + 1) * sizeof *c->by_name);
    if (!c->by_name) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d tensors", count);
    for (int i = 0; i < count; i++) c->by_name[i] = i;
    qsort_r(c->by_name, (size_t)count, sizeof *c->by_name, by_tensor_name, c->manifest.whole);
    return STATUS_OK;
}

status ckpt_open_dir(struct checkpoint **c, const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    *c = NULL;
    if (length >= CKPT_PATH_MAX) return FAIL(STATUS_CKPT, "the path '%.60s...' is too long", path);
    struct checkpoint *made = calloc(1, sizeof *made);
    if (!made) return FAIL(STATUS_OUT_OF_MEMORY, "no memory to open '%s'", path);
    snprintf(made->path, sizeof made->path, "%.*s", (int)length, path);
    status st = open_checked(made);
    if (st == STATUS_OK)
        *c = made;
    else
        checkpoint_close(made);
    return st;
}

status checkpoint_of_meta(struct checkpoint **c, const char *name, json_t *meta)
{
    *c = calloc(1, sizeof **c);
    if (*c == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of %s", name);
    snprintf((*c)->path, sizeof(*c)->path, "%s", name);
    (*c)->manifest.meta = json_incref(meta);
    (*c)->manifest.step = json_integer_value(json_object_get(meta, "step"));
    return STATUS_OK;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c) return;
    ckpt_manifest_free(&c->manifest);
    free(c->by_name);
    free(c);
}

/* ---- choosing ---- */

/* The newest sound checkpoint in `dir` below step `below`; *found false when there is no checkpoint
 * directory. */
static status open_newest(struct checkpoint **c, const char *dir, int64_t below, bool *found)
{
    int64_t *steps, back;
    int count, tried = 0;
    TRY(ckpt_back(dir, &back));
    TRY(ckpt_steps(dir, &steps, &count));
    status st = STATUS_OK;
    for (int i = 0; i < count && !*c; i++) {
        char path[CKPT_PATH_MAX];
        if (steps[i] >= below || steps[i] > back) continue;
        ckpt_step_path(path, dir, steps[i]);
        tried++;
        st = ckpt_open_dir(c, path);
        if (st == STATUS_CKPT)
            log_warn("skipping checkpoint %lld: %s", (long long)steps[i], status_message());
        else if (st != STATUS_OK)
            break;
    }
    free(steps);
    *found = *c != NULL;
    if (st != STATUS_CKPT) return st;
    char last[1024];
    snprintf(last, sizeof last, "%s", status_message());
    return FAIL(STATUS_CKPT, "none of the %d checkpoints in '%s' is sound; the last one tried: %s", tried,
                dir, last);
}

/* The ckpt directory of a run directory; *is_run false when `path` has none, being a checkpoint itself or
 * nothing. */
static status run_ckpt_dir(const char *path, char dir[CKPT_PATH_MAX], bool *is_run)
{
    enum io_kind kind;
    if (strlen(path) > CKPT_PATH_MAX - 64) return FAIL(STATUS_CKPT, "the path '%.60s...' is too long", path);
    snprintf(dir, CKPT_PATH_MAX, "%s/ckpt", path);
    TRY(io_kind(dir, &kind));
    *is_run = kind != IO_NONE;
    return STATUS_OK;
}

status checkpoint_open(struct checkpoint **c, const char *path, bool *found)
{
    char dir[CKPT_PATH_MAX], manifest[CKPT_PATH_MAX + 16];
    bool is_run = false;
    *c = NULL;
    *found = false;
    TRY(run_ckpt_dir(path, dir, &is_run));
    if (is_run) return open_newest(c, dir, INT64_MAX, found);
    enum io_kind kind;
    snprintf(manifest, sizeof manifest, "%s/manifest.json", path);
    TRY(io_kind(manifest, &kind));
    const char *slash = strrchr(path, '/');
    if (kind == IO_NONE && step_of(slash ? slash + 1 : path) < 0) return STATUS_OK;
    TRY(ckpt_open_dir(c, path));
    *found = true;
    return STATUS_OK;
}

status checkpoint_newest(const char *run_dir, int64_t *step)
{
    char dir[CKPT_PATH_MAX];
    int64_t *steps;
    int count;
    *step = -1;
    snprintf(dir, sizeof dir, "%.*s/ckpt", CKPT_PATH_MAX - 64, run_dir);
    TRY(ckpt_steps(dir, &steps, &count));
    if (count > 0) *step = steps[0];
    free(steps);
    return STATUS_OK;
}

status checkpoint_newest_sound(const char *run_dir, int64_t *step)
{
    return checkpoint_newest_sound_until(run_dir, INT64_MAX, step);
}

status checkpoint_newest_sound_until(const char *run_dir, int64_t last, int64_t *step)
{
    char dir[CKPT_PATH_MAX], path[CKPT_PATH_MAX];
    const char *why;
    int64_t *steps, back;
    int count;
    *step = -1;
    snprintf(dir, sizeof dir, "%.*s/ckpt", CKPT_PATH_MAX - 64, run_dir);
    TRY(ckpt_back(dir, &back));
    TRY(ckpt_steps(dir, &steps, &count));
    for (int i = 0; i < count && *step < 0; i++) {
        struct checkpoint *c;
        if (steps[i] > back || steps[i] > last) continue;
        ckpt_step_path(path, dir, steps[i]);
        if (ckpt_open_dir(&c, path) != STATUS_OK) continue;
        if (health_of_meta(checkpoint_meta(c), &why)) *step = steps[i];
        checkpoint_close(c);
    }
    free(steps);
    return STATUS_OK;
}

status checkpoint_at(const char *run_dir, int64_t step, char *path, size_t size)
{
    enum { SHOWN = 8 };
    char dir[CKPT_PATH_MAX], there[SHOWN * 21 + 8] = "";
    int64_t *steps;
    int count, at = 0, n = 0;
    snprintf(dir, sizeof dir, "%.*s/ckpt", CKPT_PATH_MAX - 64, run_dir);
    snprintf(path, size, "%s/step-%08lld", dir, (long long)step);
    TRY(ckpt_steps(dir, &steps, &count));
    while (at < count && steps[at] != step) at++;
    for (int i = 0; i < count && i < SHOWN; i++)
        n += snprintf(there + n, sizeof there - (size_t)n, "%s%lld", i ? ", " : "", (long long)steps[i]);
    free(steps);
    if (at < count) return STATUS_OK;
    return FAIL(STATUS_CKPT, "%s has no checkpoint of step %lld; it has %s%s", run_dir, (long long)step,
                count ? there : "none", count > SHOWN ? ", ..." : "");
}

int64_t checkpoint_step(const struct checkpoint *c)
{
    return c->manifest.step;
}
const json_t *checkpoint_meta(const struct checkpoint *c)
{
    return c->manifest.meta;
}
const char *checkpoint_path(const struct checkpoint *c)
{
    return c->path;
}
int checkpoint_count(const struct checkpoint *c)
{
    return c->manifest.whole_count;
}

const struct ckpt_item *checkpoint_item(const struct checkpoint *c, int i)
{
    CHECK(i >= 0 && i < c->manifest.whole_count, "tensor %d of %d", i, c->manifest.whole_count);
    return &c->manifest.whole[i].item;
}

bool checkpoint_item_hashed(const struct checkpoint *c, int i)
{
    CHECK(i >= 0 && i < c->manifest.whole_count, "tensor %d of %d", i, c->manifest.whole_count);
    return !c->manifest.whole[i].in_pieces;
}

uint64_t checkpoint_item_hash(const struct checkpoint *c, int i)
{
    CHECK(i >= 0 && i < c->manifest.whole_count, "tensor %d of %d", i, c->manifest.whole_count);
    CHECK(!c->manifest.whole[i].in_pieces, "tensor %d is stored in pieces", i);
    return c->manifest.tensors[c->manifest.stored[c->manifest.whole[i].first]].hash;
}

int checkpoint_find(const struct checkpoint *c, const char *name)
{
    int low = 0, high = c->manifest.whole_count;
    while (low < high) {
        int middle = low + (high - low) / 2, t = c->by_name[middle];
        int order = strcmp(c->manifest.whole[t].item.name, name);
        if (order == 0) return t;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

/* ---- reading ---- */

static void describe(char out[128], const struct ckpt_item *t)
{
    int n = snprintf(out, 128, "%s [", dtype_name(t->dt));
    for (int i = 0; i < t->rank; i++)
        n += snprintf(out + n, 128 - (size_t)n, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    snprintf(out + n, 128 - (size_t)n, "]");
}

static status match(const struct checkpoint *c, const struct ckpt_item *want, int *index)
{
    *index = checkpoint_find(c, want->name);
    if (*index < 0)
        return FAIL(STATUS_CKPT, "%s: has no tensor '%s'; is it of another model?", c->path, want->name);
    const struct ckpt_item *have = &c->manifest.whole[*index].item;
    bool same = have->dt == want->dt && have->rank == want->rank;
    for (int i = 0; same && i < want->rank; i++) same = have->shape[i] == want->shape[i];
    if (same) return STATUS_OK;
    char a[128], b[128];
    describe(a, have);
    describe(b, want);
    return FAIL(STATUS_CKPT, "%s: tensor '%s' is %s; this run needs %s", c->path, want->name, a, b);
}

/* Zeroes tensors that the checkpoint does not have. */
static status clear(const struct ckpt_item *item)
{
    const int64_t bytes = ckpt_manifest_item_bytes(item);
    if (item->take == NULL) {
        memset(item->data, 0, (size_t)bytes);
        return STATUS_OK;
    }
    void *zeros = calloc(1, (size_t)bytes + 1);
    if (zeros == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for '%s'", item->name);
    item->take(item->ctx, item, zeros, 0, bytes);
    free(zeros);
    return STATUS_OK;
}

/* The stored tensors to read, and the item that each is for. */
struct reading {
    int *which;
    const struct ckpt_item **to;
    int count, room;
};

/* Adds what there is of a tensor, or clears an item that the checkpoint does not have. */
static status add_item(const struct checkpoint *c, const struct ckpt_item *item, struct reading *r)
{
    const struct ckpt_manifest *m = &c->manifest;
    int at;
    if (item->optional && checkpoint_find(c, item->name) < 0) return clear(item);
    TRY(match(c, item, &at));
    const struct ckpt_manifest_whole *w = &m->whole[at];
    for (int i = 0; i < w->count; i++) {
        CHECK(r->count < r->room, "the pieces of tensor '%s' are read twice", item->name);
        r->which[r->count] = m->stored[w->first + i];
        r->to[r->count++] = item;
    }
    return STATUS_OK;
}

/* *damaged: the data are damaged. False: tensors do not match. */
static status read_items(const struct checkpoint *c, const struct ckpt_item *items, int count, bool *damaged)
{
    const int room = c->manifest.tensor_count + count;
    struct reading r = {calloc((size_t)room + 1, sizeof *r.which),
                        calloc((size_t)room + 1, sizeof(struct ckpt_item *)), 0, room};
    status st = r.which && r.to ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d tensors", count);
    *damaged = false;
    for (int i = 0; i < count && st == STATUS_OK; i++) st = add_item(c, &items[i], &r);
    if (st == STATUS_OK) {
        st = ckpt_chunk_read(c, r.which, r.to, r.count);
        *damaged = st == STATUS_CKPT;
    }
    free(r.which);
    free(r.to);
    return st;
}

status checkpoint_read(const struct checkpoint *c, struct ckpt_item *items, int count)
{
    bool damaged;
    return read_items(c, items, count, &damaged);
}

status checkpoint_restore(struct checkpoint **c, const char *path, struct ckpt_item *items, int count,
                          const struct ckpt_ranks *ranks, bool *found)
{
    char dir[CKPT_PATH_MAX];
    bool is_run = false, damaged;
    *c = NULL;
    TRY(run_ckpt_dir(path, dir, &is_run));
    TRY(checkpoint_open(c, path, found));
    while (*found) {
        status st = read_items(*c, items, count, &damaged);
        if (ranks && (st == STATUS_OK || damaged)) {
            const bool mine = damaged;
            TRY(ranks->agree(ranks->ctx, &damaged));
            if (damaged && !mine) st = FAIL(STATUS_CKPT, "%s: another rank finds it damaged", (*c)->path);
        }
        if (st == STATUS_OK) return STATUS_OK;
        int64_t step = checkpoint_step(*c);
        checkpoint_close(*c);
        *c = NULL;
        *found = false;
        if (!damaged || !is_run) return st;
        log_warn("skipping checkpoint %lld: %s", (long long)step, status_message());
        TRY(open_newest(c, dir, step, found));
        if (!*found)
            return FAIL(STATUS_CKPT,
                        "none of the checkpoints in '%s' is sound; `ingot ckpt verify` shows the faults",
                        dir);
    }
    return STATUS_OK;
}

/* ---- the full check ---- */

/* The safetensors headers must agree with the manifest, for programs that read the files without it.
 * */
static status check_header_agrees(const struct checkpoint *c, int file)
{
    char path[CKPT_PATH_MAX + 64];
    struct safetensors *s;
    snprintf(path, sizeof path, "%s/%s", c->path, c->manifest.files[file].name);
    TRY(safetensors_open(&s, path));
    status st = STATUS_OK;
    int count = 0;
    for (int i = 0; i < c->manifest.tensor_count && st == STATUS_OK; i++) {
        const struct ckpt_manifest_tensor *t = &c->manifest.tensors[i];
        if (t->file != file) continue;
        const struct safetensor *have = safetensors_find(s, t->item.name);
        bool same =
            have && have->dt == (int)t->item.dt && have->rank == t->item.rank && have->bytes == t->bytes;
        for (int d = 0; same && d < t->item.rank; d++) same = have->shape[d] == t->item.shape[d];
        if (!same)
            st = FAIL(STATUS_CKPT, "'%s': its header and the manifest differ on tensor '%s'", path,
                      t->item.name);
        count++;
    }
    if (st == STATUS_OK && count != safetensors_count(s))
        st = FAIL(STATUS_CKPT, "'%s' holds %d tensors; the manifest lists %d", path, safetensors_count(s),
                  count);
    safetensors_close(s);
    return st;
}

static status check_no_strangers(const struct checkpoint *c)
{
    struct io_list list;
    TRY(io_list(c->path, &list));
    status st = STATUS_OK;
    for (int i = 0; i < list.count && st == STATUS_OK; i++) {
        bool known = strcmp(list.names[i], "manifest.json") == 0;
        for (int f = 0; f < c->manifest.file_count && !known; f++)
            known = strcmp(list.names[i], c->manifest.files[f].name) == 0;
        if (!known)
            st = FAIL(STATUS_CKPT, "'%s/%s' is no part of the checkpoint; move it away", c->path,
                      list.names[i]);
    }
    io_list_free(&list);
    return st;
}

status checkpoint_verify(const char *path)
{
    struct checkpoint *c;
    TRY(ckpt_open_dir(&c, path));
    status st = check_no_strangers(c);
    for (int i = 0; i < c->manifest.file_count && st == STATUS_OK; i++) st = check_header_agrees(c, i);
    if (st == STATUS_OK) st = ckpt_chunk_read(c, c->manifest.stored, NULL, c->manifest.tensor_count);
    checkpoint_close(c);
    return st;
}
