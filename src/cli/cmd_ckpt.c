/* ingot ckpt: lists a run's checkpoints, verifies them, compares two of them; import and export (cmd_hf.c).
 */
#include "base/io.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/print_json.h"
#include "train/checkpoint.h"
#include "train/health.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t bytes_of(const struct ckpt_item *t)
{
    int64_t n = (int64_t)dtype_bytes(t->dt);
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

static status open_existing(struct checkpoint **c, const char *path)
{
    bool found;
    TRY(checkpoint_open(c, path, &found));
    return found ? STATUS_OK : FAIL(STATUS_CKPT, "'%s' is neither a checkpoint nor a run with one", path);
}

static status take_words(struct args *a, int words, bool *json)
{
    const struct flag flags[] = {FLAG("json", json)};
    TRY(args_parse(a, flags, 1));
    return a->help ? STATUS_OK : args_words(a, words, words);
}

/* ---- list ---- */

/* One row; `name` is a directory below `dir`. */
static void list_one(const char *dir, const char *name, json_t *rows)
{
    char path[1400], size[32];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    struct checkpoint *c = NULL;
    bool found;
    bool sound = checkpoint_open(&c, path, &found) == STATUS_OK && found;
    int64_t bytes = 0;
    for (int i = 0; sound && i < checkpoint_count(c); i++) bytes += bytes_of(checkpoint_item(c, i));
    const char *reason = sound ? "" : status_message(), *why = "";
    const bool learned = sound && health_of_meta(checkpoint_meta(c), &why);
    if (rows)
        json_array_append_new(rows, json_pack("{s:s,s:s,s:b,s:s,s:b,s:s,s:I,s:i}", "name", name, "path", path,
                                              "sound", sound, "reason", reason, "learned", learned, "why",
                                              why, "bytes", (json_int_t)bytes, "tensors",
                                              sound ? checkpoint_count(c) : 0));
    else if (sound)
        printf("%-16s %10s  %5d tensors%s%s\n", name, text_bytes(size, (double)bytes), checkpoint_count(c),
               learned ? "" : "; not sound: ", why);
    else
        printf("%-16s unusable: %s\n", name, reason);
    checkpoint_close(c);
}

status cmd_ckpt_list(struct args *a)
{
    bool json = false;
    TRY(take_words(a, 1, &json));
    if (a->help) return STATUS_OK;
    char dir[1200];
    struct io_list names;
    bool there;
    snprintf(dir, sizeof dir, "%.1100s/ckpt", a->words[0]);
    TRY(io_exists(dir, &there));
    if (!there) return FAIL(STATUS_CKPT, "'%s' is no run directory: it has no ckpt in it", a->words[0]);
    TRY(io_list(dir, &names));
    json_t *rows = json ? json_array() : NULL;
    for (int i = 0; i < names.count; i++)
        if (strncmp(names.names[i], "step-", 5) == 0) list_one(dir, names.names[i], rows);
    io_list_free(&names);
    if (json) print_json(json_pack("{s:s,s:o}", "run", a->words[0], "checkpoints", rows));
    return STATUS_OK;
}

/* ---- verify ---- */

/* A checkpoint, or all that a run has. */
status cmd_ckpt_verify(struct args *a)
{
    bool json = false;
    TRY(take_words(a, 1, &json));
    if (a->help) return STATUS_OK;
    char dir[1200], path[1500], first[1024] = "";
    struct io_list names = {0};
    snprintf(dir, sizeof dir, "%.1100s/ckpt", a->words[0]);
    bool is_run;
    TRY(io_exists(dir, &is_run));
    if (is_run) TRY(io_list(dir, &names));
    json_t *rows = json ? json_array() : NULL;
    status worst = STATUS_OK;
    int checked = 0;
    for (int i = 0; i < (is_run ? names.count : 1); i++) {
        if (is_run && strncmp(names.names[i], "step-", 5) != 0) continue;
        snprintf(path, sizeof path, "%s%s%s", is_run ? dir : a->words[0], is_run ? "/" : "",
                 is_run ? names.names[i] : "");
        status st = checkpoint_verify(path);
        const char *reason = st == STATUS_OK ? "" : status_message();
        if (json)
            json_array_append_new(
                rows, json_pack("{s:s,s:b,s:s}", "path", path, "sound", st == STATUS_OK, "reason", reason));
        else if (st == STATUS_OK)
            printf("%s: every byte is as it was saved\n", path);
        else
            printf("%s: %s\n", path, reason);
        if (worst == STATUS_OK && st != STATUS_OK) {
            worst = st;
            snprintf(first, sizeof first, "%s", reason);
        }
        checked++;
    }
    io_list_free(&names);
    if (json)
        print_json(json_pack("{s:b,s:o}", "sound", worst == STATUS_OK && checked > 0, "checkpoints", rows));
    if (checked == 0) return FAIL(STATUS_CKPT, "'%s' has no checkpoints", dir);
    return worst == STATUS_OK ? STATUS_OK : FAIL(worst, "%s", first);
}

/* ---- diff ---- */

struct diff_row {
    const char *name;
    const char *how; /* "equal", "differs", "other shape", "only in A", "only in B" */
    double largest;  /* of |a - b| over the elements; NaN where that means nothing */
    int64_t elements;
};

static bool same_kind(const struct ckpt_item *a, const struct ckpt_item *b)
{
    bool same = a->dt == b->dt && a->rank == b->rank;
    for (int i = 0; same && i < a->rank; i++) same = a->shape[i] == b->shape[i];
    return same;
}

/* Largest |a - b|, and how many elements differ; infinite when only one of two is a number. */
static status compare(const struct checkpoint *a, const struct checkpoint *b, struct ckpt_item t,
                      struct diff_row *row)
{
    int64_t bytes = bytes_of(&t), step = (int64_t)dtype_bytes(t.dt);
    char *x = malloc((size_t)bytes + 1), *y = malloc((size_t)bytes + 1);
    status st = x && y ? STATUS_OK
                       : FAIL(STATUS_OUT_OF_MEMORY, "no memory for tensor '%s' of %lld bytes", t.name,
                              (long long)bytes);
    t.data = x;
    if (st == STATUS_OK) st = checkpoint_read(a, &t, 1);
    t.data = y;
    if (st == STATUS_OK) st = checkpoint_read(b, &t, 1);
    bool real = t.dt == DTYPE_F64 || t.dt == DTYPE_F32 || t.dt == DTYPE_BF16 || t.dt == DTYPE_F16;
    row->largest = real ? 0 : NAN;
    for (int64_t i = 0; st == STATUS_OK && i < bytes / step; i++) {
        if (memcmp(x + i * step, y + i * step, (size_t)step) == 0) continue;
        row->elements++;
        if (!real) continue;
        double d = fabs(dtype_load(x, i, t.dt) - dtype_load(y, i, t.dt));
        if (isnan(d)) d = INFINITY;
        if (d > row->largest) row->largest = d;
    }
    free(x);
    free(y);
    return st;
}

/* Whether the stored hashes say that two tensors are equal. One in pieces has none: it is read. */
static bool equal_hashes(const struct checkpoint *a, int i, const struct checkpoint *b, int at)
{
    return checkpoint_item_hashed(a, i) && checkpoint_item_hashed(b, at) &&
           checkpoint_item_hash(a, i) == checkpoint_item_hash(b, at);
}

static void print_row(const struct diff_row *r, json_t *rows)
{
    if (rows) {
        json_t *largest = isfinite(r->largest) ? json_real(r->largest) : json_null();
        json_array_append_new(rows, json_pack("{s:s,s:s,s:I,s:o}", "name", r->name, "how", r->how, "elements",
                                              (json_int_t)r->elements, "max_abs_diff", largest));
    } else if (strcmp(r->how, "differs") == 0) {
        printf("%-48s %lld elements differ, at most by %g\n", r->name, (long long)r->elements, r->largest);
    } else if (strcmp(r->how, "equal") != 0) {
        printf("%-48s %s\n", r->name, r->how);
    }
}

static status diff_opened(const struct checkpoint *a, const struct checkpoint *b, bool json)
{
    json_t *rows = json ? json_array() : NULL;
    int64_t equal = 0, other = 0;
    status st = STATUS_OK;
    for (int i = 0; i < checkpoint_count(a) && st == STATUS_OK; i++) {
        const struct ckpt_item *t = checkpoint_item(a, i);
        int at = checkpoint_find(b, t->name);
        struct diff_row row = {.name = t->name, .how = "differs", .largest = NAN};
        if (at < 0)
            row.how = "only in the first";
        else if (!same_kind(t, checkpoint_item(b, at)))
            row.how = "other dtype or shape";
        else if (equal_hashes(a, i, b, at) ||
                 ((st = compare(a, b, *t, &row)) == STATUS_OK && row.elements == 0))
            row.how = "equal";
        *(strcmp(row.how, "equal") == 0 ? &equal : &other) += 1;
        if (st == STATUS_OK) print_row(&row, rows);
    }
    for (int i = 0; i < checkpoint_count(b) && st == STATUS_OK; i++) {
        struct diff_row row = {
            .name = checkpoint_item(b, i)->name, .how = "only in the second", .largest = NAN};
        if (checkpoint_find(a, row.name) >= 0) continue;
        other++;
        print_row(&row, rows);
    }
    if (st != STATUS_OK)
        json_decref(rows);
    else if (json)
        print_json(json_pack("{s:s,s:s,s:b,s:o}", "a", checkpoint_path(a), "b", checkpoint_path(b), "same",
                             other == 0, "tensors", rows));
    else
        printf("%lld tensors equal, %lld not\n", (long long)equal, (long long)other);
    return st;
}

status cmd_ckpt_diff(struct args *a)
{
    bool json = false;
    TRY(take_words(a, 2, &json));
    if (a->help) return STATUS_OK;
    struct checkpoint *first, *second = NULL;
    TRY(open_existing(&first, a->words[0]));
    status st = open_existing(&second, a->words[1]);
    if (st == STATUS_OK) st = diff_opened(first, second, json);
    checkpoint_close(first);
    checkpoint_close(second);
    return st;
}
