#include "cli/cmd_train_lr.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/print_json.h"
#include "train/restore.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

status lr_find_range(const char *text, struct lr_find_options *o)
{
    char copy[96], *rest = copy, *part[4] = {0};
    int parts = 0;
    o->low = 1e-6, o->high = 1, o->steps = 100;
    if (text == NULL || text[0] == 0) return STATUS_OK;
    bool fits = snprintf(copy, sizeof copy, "%s", text) < (int)sizeof copy;
    while (fits && parts < 4 && rest) part[parts++] = strsep(&rest, ":");
    fits = fits && (parts == 2 || parts == 3) && text_to_real(part[0], &o->low) &&
           text_to_real(part[1], &o->high) && (parts == 2 || text_to_int(part[2], &o->steps));
    if (fits && o->low > 0 && o->high > o->low && o->high <= 100 && o->steps >= LR_CURVE_LEAST &&
        o->steps <= LR_CURVE_MOST)
        return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "--lr-find=%s: the lowest and the highest rate, such as --lr-find=1e-6:1, at most 100, and "
                "the steps, %d to %d, such as --lr-find=1e-5:0.1:200",
                text, LR_CURVE_LEAST, LR_CURVE_MOST);
}

static void print_lines(const struct lr_curve *c, const struct lr_found *f, const struct lr_find_options *o,
                        const char *dir)
{
    char marks[LR_CURVE_TEXT];
    const int64_t last = c->count - 1;
    if (c->count > 0)
        printf("loss       %s  %.1e to %.1e, smoothed\n", lr_curve_marks(c, marks), c->point[0].lr,
               c->point[last].lr);
    if (c->diverged)
        printf("diverged   after %lld steps%s\n", (long long)c->count,
               c->count < o->steps ? ", where the test ended" : "");
    else
        printf("diverged   never, up to %.3e\n", o->high);
    if (f->lowest >= 0) {
        printf("lowest     %.3e: smoothed loss %.4f\n", c->point[f->lowest].lr, c->point[f->lowest].smooth);
        printf("steepest   %.3e\n", c->point[f->steepest].lr);
    }
    if (f->lowest >= 0 && f->rises)
        printf("suggested  --optim.lr=%.2g: a tenth of the rate with the lowest smoothed loss\n",
               f->suggested);
    else if (f->lowest >= 0)
        printf("suggested  nothing: the loss still falls at the end; try --lr-find=%.0e:%.0e\n", o->low,
               fmin(100, 10 * o->high));
    else
        printf("suggested  nothing: the loss never fell; try --lr-find=%.0e:%.0e\n", o->low / 100, o->high);
    printf("page       %s/lr-find.html\n", dir);
}

static void set_rate(json_t *to, const char *name, const struct lr_curve *c, int64_t at)
{
    json_set_real(to, name, at >= 0 ? c->point[at].lr : NAN);
}

static void print_object(const struct lr_curve *c, const struct lr_found *f, const char *dir)
{
    json_t *curve = json_array(), *o = json_pack("{s:s, s:b, s:I, s:b}", "dir", dir, "diverged", c->diverged,
                                                 "steps", (json_int_t)c->count, "rises", f->rises);
    for (int64_t i = 0; i < c->count; i++)
        json_array_append_new(curve,
                              json_pack("[f, f, f]", c->point[i].lr, c->point[i].loss, c->point[i].smooth));
    set_rate(o, "lowest", c, f->lowest);
    set_rate(o, "steepest", c, f->steepest);
    json_set_real(o, "suggested", f->rises ? f->suggested : NAN);
    json_object_set_new(o, "curve", curve);
    print_json(o);
}

static status show(const struct spec *spec, const struct lr_find_options *o, const struct lr_curve *c,
                   bool json)
{
    char dir[SPEC_TEXT + 16];
    const struct lr_found f = lr_curve_find(c);
    snprintf(dir, sizeof dir, "%s/lr-find", spec->run.run_dir);
    TRY(io_make_dirs(dir));
    TRY(lr_curve_write(c, dir, spec->run.run_dir));
    if (json)
        print_object(c, &f, dir);
    else
        print_lines(c, &f, o, dir);
    return STATUS_OK;
}

status cmd_lr_find(const struct spec *spec, struct lr_find_options *o, const struct comm_env *env, bool json)
{
    struct lr_curve *c = memory_get(sizeof *c);
    status st = comm_open(&o->comm, env);
    if (st == STATUS_OK) {
        st = lr_find(spec, o, c);
        if (st == STATUS_OK && env->rank == 0) st = show(spec, o, c, json);
        comm_close(o->comm, st);
    }
    free(c);
    return st;
}
