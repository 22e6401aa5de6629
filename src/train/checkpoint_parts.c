#include "train/checkpoint_parts.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/seal.h"
#include "train/ckpt_int.h"
#include "train/ckpt_leftovers.h"
#include "train/ckpt_pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { POLL_NS = 20 * 1000 * 1000 };

struct ckpt_parts {
    char run_dir[CKPT_PATH_MAX], dir[CKPT_PATH_MAX], tmp[CKPT_PATH_MAX + 64];
    struct ckpt_begun begun;
    struct ckpt_plan plan;
    int me;
    bool given_up;  /* by rank 0 */
    bool committed; /* on rank 0, as the next */
    bool said;      /* that another rank waits for space */
};

static void tmp_path(char out[CKPT_PATH_MAX + 64], const char *run_dir, const struct ckpt_begun *b)
{
    snprintf(out, CKPT_PATH_MAX + 64, "%.*s/ckpt/.tmp-%lld-%d", CKPT_PATH_MAX - 64, run_dir,
             (long long)b->step, (int)b->pid);
}

/* ---- beginning ---- */

static status begin_in(const char *run_dir, const char *dir, struct ckpt_begun *b)
{
    char tmp[CKPT_PATH_MAX + 64];
    TRY(io_make_dirs(dir));
    if (ckpt_leftovers_remove(run_dir) != STATUS_OK) log_warn("%s; left for the next save", status_message());
    TRY(ckpt_run_id(dir, b->run_id));
    tmp_path(tmp, run_dir, b);
    return io_make_dir(tmp);
}

status checkpoint_parts_begin(const char *run_dir, int64_t step, struct ckpt_full full, struct ckpt_begun *b)
{
    char dir[CKPT_PATH_MAX];
    struct ckpt_room room = {
        .dir = dir, .step = step, .need = 1, .keep = full.keep, .may_wait = full.may_wait};
    status st;
    CHECK(step >= 0 && full.keep >= 1, "step %lld, keep %d", (long long)step, full.keep);
    if (strlen(run_dir) > CKPT_PATH_MAX - 64)
        return FAIL(STATUS_IO, "the path of the run directory is too long: '%.60s...'", run_dir);
    *b = (struct ckpt_begun){.step = step, .pid = (int32_t)getpid()};
    snprintf(dir, sizeof dir, "%s/ckpt", run_dir);
    ckpt_draw_id(dir, 16, b->nonce);
    do st = begin_in(run_dir, dir, b);
    while (ckpt_try_again(&room, st));
    return st;
}

/* Whether this host sees a directory that rank 0 has made. */
static status sees(const char *path)
{
    char host[65] = "?";
    enum io_kind kind;
    TRY(io_kind(path, &kind));
    if (kind == IO_DIR) return STATUS_OK;
    (void)gethostname(host, sizeof host - 1);
    return FAIL(
        STATUS_IO,
        "host %s does not see '%s', which rank 0 has made: every host writes its part of a checkpoint; "
        "put run.dir on a file system that all of them share",
        host, path);
}

status checkpoint_parts_reached(const char *run_dir)
{
    return sees(run_dir);
}

status checkpoint_parts_seen(const char *run_dir, const struct ckpt_begun *b)
{
    char tmp[CKPT_PATH_MAX + 64];
    tmp_path(tmp, run_dir, b);
    return sees(tmp);
}

void checkpoint_parts_drop(const char *run_dir, const struct ckpt_begun *b)
{
    char tmp[CKPT_PATH_MAX + 64];
    tmp_path(tmp, run_dir, b);
    if (io_remove_tree(tmp) != STATUS_OK) log_warn("%s; the next save will try again", status_message());
}

status checkpoint_parts_open(struct ckpt_parts **out, const char *run_dir, const struct ckpt_begun *b,
                             const struct ckpt_item *items, int count, int me)
{
    struct ckpt_parts *p = calloc(1, sizeof *p);
    *out = p;
    if (p == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of a checkpoint");
    p->me = me;
    p->begun = *b;
    snprintf(p->run_dir, sizeof p->run_dir, "%.*s", CKPT_PATH_MAX - 64, run_dir);
    snprintf(p->dir, sizeof p->dir, "%.*s/ckpt", CKPT_PATH_MAX - 64, run_dir);
    tmp_path(p->tmp, run_dir, b);
    struct ckpt_manifest *m = &p->plan.m;
    p->plan.file_bytes = CKPT_FILE_BYTES;
    m->step = b->step;
    m->chunk_bytes = CKPT_CHUNK_BYTES;
    memcpy(m->run_id, b->run_id, sizeof m->run_id);
    return ckpt_plan_make(&p->plan, items, count, me);
}

void checkpoint_parts_close(struct ckpt_parts *p)
{
    if (p == NULL) return;
    if (p->me == 0 && !p->committed) checkpoint_parts_drop(p->run_dir, &p->begun);
    ckpt_plan_free(&p->plan);
    free(p);
}

/* ---- every rank: its part ---- */

/* Of ranks above 0: an error after rank 0 has given up is none. */
static status unless_given_up(struct ckpt_parts *p, status st)
{
    char message[1024];
    enum io_kind kind;
    if (st == STATUS_OK || p->me == 0) return st;
    snprintf(message, sizeof message, "%s", status_message());
    p->given_up = io_kind(p->tmp, &kind) == STATUS_OK && kind == IO_NONE;
    if (!p->given_up) return FAIL(st, "%s", message);
    log_detail("rank 0 has given up the checkpoint of step %lld", (long long)p->begun.step);
    return STATUS_OK;
}

/* The files by which a rank tells rank 0 that it has finished, and that its disk is full. */
static void part_name(char out[32], int rank)
{
    snprintf(out, 32, "part-%05d.json", rank);
}

static void full_path(const struct ckpt_parts *p, char out[CKPT_PATH_MAX + 128])
{
    snprintf(out, CKPT_PATH_MAX + 128, "%s/full-%05d", p->tmp, p->me);
}

struct full_disk {
    const struct ckpt_parts *p;
    const struct ckpt_waiter *w;
};

/* On a rank above 0. If not even this file can be made, there is space only when others make it. */
static void ask_for_room(void *ctx)
{
    const struct full_disk *f = ctx;
    char path[CKPT_PATH_MAX + 128];
    full_path(f->p, path);
    if (io_write_file(path, "", 0) != STATUS_OK) log_detail("%s", status_message());
}

static bool job_ended(void *ctx)
{
    const struct full_disk *f = ctx;
    return f->w->ended(f->w->ctx);
}

/* What this rank does while the disk is full. `f` must live as long. */
static struct ckpt_room room_of(const struct full_disk *f)
{
    const struct ckpt_parts *p = f->p;
    return (struct ckpt_room){.dir = p->dir,
                              .step = p->begun.step,
                              .need = ckpt_bytes_needed(&p->plan.m, ckpt_plan_files(&p->plan, p->me)),
                              .keep = f->w->full.keep,
                              .may_wait = f->w->full.may_wait,
                              .ended = job_ended,
                              .ask = p->me > 0 ? ask_for_room : NULL,
                              .ctx = (void *)(uintptr_t)f};
}

status checkpoint_parts_write(struct ckpt_parts *p, const struct ckpt_waiter *w)
{
    const struct full_disk full = {p, w};
    struct ckpt_room room = room_of(&full);
    status st;
    do {
        st = ckpt_check_space(&room);
        if (st == STATUS_OK) st = ckpt_write_files(&p->plan, p->tmp, p->me);
    } while (ckpt_try_again(&room, st));
    return unless_given_up(p, st);
}

/* The layout as a number: ranks that differ in it must not be put together. */
static uint32_t layout_crc(const struct ckpt_manifest *m)
{
    uint32_t crc = 0;
    for (int i = 0; i < m->file_count; i++)
        crc = crc32c(crc, &m->files[i].header_crc, sizeof m->files[i].header_crc);
    return crc;
}

/* The text of part-RRRRR.json, malloc'd; NULL: no memory. */
static char *part_text(const struct ckpt_parts *p, int64_t note, size_t *bytes)
{
    const struct ckpt_manifest *m = &p->plan.m;
    const struct ckpt_span span = ckpt_plan_tensors(&p->plan, p->me);
    char *body = NULL;
    FILE *out = memory_stream(&body, bytes);
    fprintf(out,
            "{\n\"nonce\": \"%s\",\n\"rank\": %d,\n\"layout\": \"%08x\",\n\"note\": %lld,\n\"hashes\": \"",
            p->begun.nonce, p->me, layout_crc(m), (long long)note);
    int64_t crcs = m->tensors[span.first].chunk_first;
    for (int i = span.first; i < span.end; i++) {
        fprintf(out, "%016llx", (unsigned long long)m->tensors[i].hash);
        crcs = m->tensors[i].chunk_first + ckpt_manifest_chunks(m->tensors[i].bytes, m->chunk_bytes);
    }
    fprintf(out, "\",\n\"crc32c\": \"");
    for (int64_t i = m->tensors[span.first].chunk_first; i < crcs; i++) fprintf(out, "%08x", m->crcs[i]);
    fprintf(out, "\",\n");
    memory_stream_close(out);
    char *text = ckpt_manifest_seal(body, *bytes, bytes);
    free(body);
    return text;
}

status checkpoint_parts_tell(struct ckpt_parts *p, int64_t note, const struct ckpt_waiter *w)
{
    const struct full_disk full = {p, w};
    const struct ckpt_span span = ckpt_plan_tensors(&p->plan, p->me);
    struct ckpt_room room = room_of(&full);
    char name[32], path[CKPT_PATH_MAX + 128];
    size_t bytes = 0;
    if (p->given_up || span.first == span.end) return STATUS_OK;
    char *text = part_text(p, note, &bytes);
    if (text == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the checksums of a checkpoint");
    part_name(name, p->me);
    snprintf(path, sizeof path, "%s/%s", p->tmp, name);
    room.need = (int64_t)bytes;
    status st;
    do st = io_write_file(path, text, bytes);
    while (ckpt_try_again(&room, st));
    free(text);
    return unless_given_up(p, st);
}

bool checkpoint_parts_settled(const char *run_dir, const struct ckpt_begun *b)
{
    char tmp[CKPT_PATH_MAX + 64];
    enum io_kind kind;
    tmp_path(tmp, run_dir, b);
    return io_kind(tmp, &kind) != STATUS_OK || kind == IO_NONE;
}

/* ---- rank 0: all parts ---- */

static uint64_t hex_at(const char *text, int64_t i, int digits)
{
    char one[17];
    snprintf(one, sizeof one, "%.*s", digits, text + i * digits);
    return strtoull(one, NULL, 16);
}

static bool hex_text(const json_t *root, const char *key, int64_t digits, const char **text)
{
    *text = json_string_value(json_object_get(root, key));
    return *text && (int64_t)strlen(*text) == digits && (int64_t)strspn(*text, "0123456789abcdef") == digits;
}

/* Takes the checksums of a rank; false: it is not the word of that rank about this save. */
static bool take_part(struct ckpt_parts *p, int rank, const json_t *root, int64_t *note)
{
    struct ckpt_manifest *m = &p->plan.m;
    const struct ckpt_span span = ckpt_plan_tensors(&p->plan, rank);
    const struct ckpt_manifest_tensor *last = &m->tensors[span.end - 1];
    const int64_t first = m->tensors[span.first].chunk_first,
                  end = last->chunk_first + ckpt_manifest_chunks(last->bytes, m->chunk_bytes);
    const char *nonce = json_string_value(json_object_get(root, "nonce")), *layout, *hashes, *crcs;
    if (nonce == NULL || strcmp(nonce, p->begun.nonce) != 0 ||
        json_integer_value(json_object_get(root, "rank")) != rank || !hex_text(root, "layout", 8, &layout) ||
        hex_at(layout, 0, 8) != layout_crc(m) ||
        !hex_text(root, "hashes", 16 * (span.end - span.first), &hashes) ||
        !hex_text(root, "crc32c", 8 * (end - first), &crcs))
        return false;
    for (int i = span.first; i < span.end; i++) m->tensors[i].hash = hex_at(hashes, i - span.first, 16);
    for (int64_t i = first; i < end; i++) m->crcs[i] = (uint32_t)hex_at(crcs, i - first, 8);
    *note = json_integer_value(json_object_get(root, "note"));
    return true;
}

static status read_part(struct ckpt_parts *p, int rank, int64_t *note)
{
    char name[32], path[CKPT_PATH_MAX + 128], *text;
    size_t bytes;
    part_name(name, rank);
    snprintf(path, sizeof path, "%s/%s", p->tmp, name);
    TRY(io_read_file(path, CKPT_BYTES_MAX, &text, &bytes));
    json_t *root = ckpt_manifest_sealed(text, bytes) ? json_loadb(text, bytes, 0, NULL) : NULL;
    free(text);
    const bool good = root && take_part(p, rank, root, note);
    json_decref(root);
    if (!good)
        return FAIL(STATUS_CKPT, "'%s' is not what rank %d tells of this save: do all hosts run one ingot?",
                    path, rank);
    return io_remove_tree(path); /* the manifest has it now */
}

/* Answers ranks whose disk is full, and says so: what they log is not shown. */
static void make_room(struct ckpt_parts *p, const struct io_list *list, const struct ckpt_waiter *w)
{
    char path[CKPT_PATH_MAX + 400];
    int asks = -1;
    for (int i = 0; i < list->count; i++) {
        if (strncmp(list->names[i], "full-", 5) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", p->tmp, list->names[i]);
        asks = (int)strtol(list->names[i] + 5, NULL, 10);
        if (io_remove_tree(path) != STATUS_OK) log_warn("%s", status_message());
    }
    if (asks < 0 || ckpt_make_room(p->dir, p->begun.step, w->full.keep) > 0 || p->said) return;
    p->said = true;
    log_warn(
        "the disk is full: %s has no space for its part of checkpoint %lld; it is saved when there is space "
        "(or end the run, or take ckpt.on_full=stop)",
        w->who(w->ctx, asks), (long long)p->begun.step);
}

static bool listed(const struct io_list *list, const char *name)
{
    int at = 0;
    while (at < list->count && strcmp(list->names[at], name) != 0) at++;
    return at < list->count;
}

/* Ranks up to the last one with tensors. */
static int writers(const struct ckpt_parts *p)
{
    const int count = p->plan.m.tensor_count;
    return count > 0 ? p->plan.m.tensors[count - 1].item.writer + 1 : 0;
}

/* Reads what has arrived. *missing: a rank that has not told yet; -1: none. */
static status read_parts(struct ckpt_parts *p, bool *got, const struct ckpt_waiter *w, int64_t *lowest,
                         int *missing)
{
    struct io_list list;
    enum io_kind kind;
    TRY(io_kind(p->tmp, &kind));
    if (kind != IO_DIR) return FAIL(STATUS_IO, "'%s' has vanished while ranks write into it", p->tmp);
    TRY(io_list(p->tmp, &list));
    status st = STATUS_OK;
    *missing = -1;
    for (int r = 1; r < writers(p) && st == STATUS_OK; r++) {
        const struct ckpt_span span = ckpt_plan_tensors(&p->plan, r);
        char name[32];
        int64_t note = INT64_MAX;
        part_name(name, r);
        if (got[r] || span.first == span.end) continue;
        if (!listed(&list, name)) {
            if (*missing < 0) *missing = r;
            continue;
        }
        st = read_part(p, r, &note);
        got[r] = true;
        if (note < *lowest) *lowest = note;
    }
    if (st == STATUS_OK) make_room(p, &list, w);
    io_list_free(&list);
    return st;
}

status checkpoint_parts_wait(struct ckpt_parts *p, const struct ckpt_waiter *w, int64_t *lowest)
{
    const struct timespec poll = {.tv_nsec = POLL_NS};
    const double begin = clock_s();
    bool *got = calloc((size_t)writers(p) + 1, sizeof *got);
    if (got == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the parts of a checkpoint");
    status st;
    int missing = -1;
    *lowest = INT64_MAX;
    while ((st = read_parts(p, got, w, lowest, &missing)) == STATUS_OK && missing >= 0) {
        const bool late = clock_s() - begin > w->seconds;
        if (late || w->ended(w->ctx)) {
            char within[48] = "";
            if (late) snprintf(within, sizeof within, " within %.0f s", w->seconds);
            st = FAIL(STATUS_COMM,
                      "%s has not written its part of the checkpoint of step %lld%s, which is not saved",
                      w->who(w->ctx, missing), (long long)p->begun.step, within);
            break;
        }
        (void)nanosleep(&poll, NULL);
    }
    free(got);
    return st;
}

/* Opens what is to be committed as a resume does: this host sees the files of all. */
static status check_seen(const struct ckpt_parts *p)
{
    struct checkpoint *c;
    TRY(ckpt_open_dir(&c, p->tmp));
    checkpoint_close(c);
    return STATUS_OK;
}

status checkpoint_parts_commit(struct ckpt_parts *p, const json_t *meta, const struct ckpt_waiter *w)
{
    const struct full_disk full = {p, w};
    struct ckpt_room room = room_of(&full);
    room.need = 1;
    CHECK(w->full.keep >= 1, "keep %d", w->full.keep);
    p->plan.m.meta = meta ? json_incref((json_t *)(uintptr_t)meta) : json_object();
    status st;
    do st = ckpt_write_manifest(&p->plan, p->tmp);
    while (ckpt_try_again(&room, st));
    TRY(st);
    TRY(check_seen(p));
    TRY(ckpt_place(p->dir, p->tmp, p->begun.step));
    p->committed = true;
    ckpt_saved(p->run_dir, p->begun.step, meta, w->full.keep);
    return STATUS_OK;
}
