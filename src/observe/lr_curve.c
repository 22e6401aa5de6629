#include "observe/lr_curve.h"
#include "base/io.h"
#include "base/memory.h"
#include "observe/report_int.h"

#include <math.h>
#include <stdlib.h>

#define SMOOTHING 0.9
#define DIVERGED  1.5
#define RISEN     0.1

bool lr_curve_add(struct lr_curve *c, double lr, double loss, double grad_norm)
{
    CHECK(c->count < LR_CURVE_MOST, "more than %d steps", LR_CURVE_MOST);
    c->diverged = !isfinite(loss);
    if (c->diverged) return true;
    c->average = SMOOTHING * c->average + (1 - SMOOTHING) * loss;
    c->weight = SMOOTHING * c->weight + (1 - SMOOTHING);
    const double smooth = c->average / c->weight;
    double low = smooth;
    for (int64_t i = 0; i < c->count; i++) low = fmin(low, c->point[i].smooth);
    c->point[c->count++] = (struct lr_point){lr, loss, smooth, grad_norm};
    c->diverged = smooth >= DIVERGED * low && low > 0;
    return c->diverged;
}

struct lr_found lr_curve_find(const struct lr_curve *c)
{
    const struct lr_point *p = c->point;
    struct lr_found f = {-1, -1, NAN, c->diverged};
    if (c->count < LR_CURVE_LEAST) return f;
    for (int64_t i = 0; i < c->count; i++)
        if (f.lowest < 0 || p[i].smooth < p[f.lowest].smooth) f.lowest = i;
    double fall = 0;
    for (int64_t i = LR_CURVE_SPAN; i <= f.lowest; i++) {
        const double slope =
            (p[i].smooth - p[i - LR_CURVE_SPAN].smooth) / log(p[i].lr / p[i - LR_CURVE_SPAN].lr);
        if (slope < fall) fall = slope, f.steepest = i - LR_CURVE_SPAN / 2;
    }
    if (f.steepest < 0) f.lowest = -1; /* it never fell: the lowest is where the test began */
    if (f.lowest >= 0 &&
        p[c->count - 1].smooth - p[f.lowest].smooth > RISEN * (p[0].smooth - p[f.lowest].smooth))
        f.rises = true;
    if (f.lowest >= 0) f.suggested = p[f.lowest].lr / 10;
    return f;
}

const char *lr_curve_marks(const struct lr_curve *c, char buf[LR_CURVE_TEXT])
{
    static const char *const marks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    const int64_t width = c->count < LR_CURVE_MARKS ? c->count : LR_CURVE_MARKS;
    double low = INFINITY, high = -INFINITY;
    int at = 0;
    for (int64_t i = 0; i < c->count; i++)
        low = fmin(low, c->point[i].smooth), high = fmax(high, c->point[i].smooth);
    buf[0] = 0;
    for (int64_t k = 0; k < width; k++) {
        const double v = c->point[c->count * k / width].smooth;
        const int level = high > low ? (int)(7.999 * (v - low) / (high - low)) : 0;
        at += snprintf(buf + at, LR_CURVE_TEXT - (size_t)at, "%s", marks[level]);
    }
    return buf;
}

/* ---- the page: one chart, drawn here, since its x is a rate and no step */

enum { WIDTH = 1000, HEIGHT = 420, LEFT = 60, RIGHT = 20, TOP = 20, BOTTOM = 40 };
struct frame {
    double x0, x1, y0, y1; /* log10 of the rate; loss */
};

static double place_x(const struct frame *f, double lr)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (log10(lr) - f->x0) / (f->x1 - f->x0);
}

static double place_y(const struct frame *f, double loss)
{
    const double part = fmin(fmax((loss - f->y0) / (f->y1 - f->y0), 0), 1);
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * part;
}

/* The losses up to what the first step had and a little more: what diverges leaves the picture. */
static struct frame frame_of(const struct lr_curve *c)
{
    const struct lr_point *p = c->point;
    struct frame f = {log10(p[0].lr), log10(p[c->count - 1].lr), p[0].smooth, p[0].smooth};
    for (int64_t i = 0; i < c->count; i++) {
        f.y0 = fmin(f.y0, fmin(p[i].loss, p[i].smooth));
        f.y1 = fmax(f.y1, p[i].smooth);
    }
    const double room = fmax(0.05 * (f.y1 - f.y0), 1e-3);
    f.y0 -= room, f.y1 += room;
    if (f.x1 <= f.x0) f.x1 = f.x0 + 1;
    return f;
}

static void put_mark(FILE *out, const struct frame *f, double lr, const char *colour, const char *text,
                     int row)
{
    const double x = place_x(f, lr);
    if (!isfinite(lr) || x < LEFT || x > WIDTH - RIGHT) return;
    fprintf(out,
            "<line x1=%.1f x2=%.1f y1=%d y2=%d stroke='var(%s)' stroke-dasharray='4 3'/><text x=%.1f y=%d "
            "fill='var(%s)'>%s %.2e</text>\n",
            x, x, TOP, HEIGHT - BOTTOM, colour, x + 5, TOP + 14 + 16 * row, colour, text, lr);
}

static void put_axes(FILE *out, const struct frame *f)
{
    for (int e = (int)ceil(f->x0 - 1e-9); e <= (int)floor(f->x1 + 1e-9); e++) {
        const double x = place_x(f, pow(10, e));
        fprintf(out,
                "<line x1=%.1f x2=%.1f y1=%d y2=%d stroke='var(--line)'/><text x=%.1f y=%d "
                "text-anchor=middle fill='var(--soft)'>1e%d</text>\n",
                x, x, TOP, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 18, e);
    }
    for (int k = 0; k <= 4; k++) {
        const double v = f->y0 + (f->y1 - f->y0) * k / 4, y = place_y(f, v);
        fprintf(out,
                "<line x1=%d x2=%d y1=%.1f y2=%.1f stroke='var(--line)'/><text x=%d y=%.1f text-anchor=end "
                "fill='var(--soft)'>%.3g</text>\n",
                LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, v);
    }
}

static void put_chart(FILE *out, const struct lr_curve *c, const struct lr_found *found)
{
    const struct frame f = frame_of(c);
    fprintf(out,
            "<figure><svg viewBox='0 0 %d %d' width='100%%' font-size=12 role=img aria-label='loss over "
            "learning rate'>\n",
            WIDTH, HEIGHT);
    put_axes(out, &f);
    for (int64_t i = 0; i < c->count; i++)
        fprintf(out, "<circle cx=%.1f cy=%.1f r=1.8 fill='var(--r7)'/>", place_x(&f, c->point[i].lr),
                place_y(&f, c->point[i].loss));
    fprintf(out, "\n<polyline fill=none stroke='var(--r0)' stroke-width=2 points='");
    for (int64_t i = 0; i < c->count; i++)
        fprintf(out, "%.1f,%.1f ", place_x(&f, c->point[i].lr), place_y(&f, c->point[i].smooth));
    fprintf(out, "'/>\n");
    if (found->lowest >= 0) {
        put_mark(out, &f, c->point[found->lowest].lr, "--r1", "lowest", 0);
        put_mark(out, &f, c->point[found->steepest].lr, "--r4", "steepest", 1);
        put_mark(out, &f, found->suggested, "--r2", "suggested", 2);
    }
    fprintf(out, "</svg></figure>\n");
}

static void put_page(FILE *out, const struct lr_curve *c, const char *run)
{
    const struct lr_found f = lr_curve_find(c);
    report_put_head(out, "Learning rate, range test", "ingot train --lr-find", "compare");
    fprintf(out, "<p class=sub>");
    report_put_text(out, run);
    fprintf(out,
            ": %lld steps, the rate from %.2e to %.2e; %s. Dots: loss of each step, nats per token; line: "
            "its moving average (0.9). Suggested: a tenth of the rate with the lowest average.</p>\n",
            (long long)c->count, c->point[0].lr, c->point[c->count - 1].lr,
            c->diverged ? "it ended when the loss diverged" : "the loss did not diverge");
    put_chart(out, c, &f);
    fprintf(out, "<footer>Made by ingot %s. Smith, arXiv:1506.01186.</footer>\n", INGOT_VERSION);
    fprintf(out, "</main></body></html>\n");
}

static void put_lines(FILE *out, const struct lr_curve *c)
{
    for (int64_t i = 0; i < c->count; i++)
        fprintf(out, "{\"lr\": %.9g, \"loss\": %.9g, \"smooth\": %.9g, \"grad_norm\": %.9g}\n",
                c->point[i].lr, c->point[i].loss, c->point[i].smooth, c->point[i].grad_norm);
}

static status write_text(const char *dir, const char *name, const char *text, size_t bytes)
{
    char path[1200];
    snprintf(path, sizeof path, "%.1100s/%s", dir, name);
    return io_write_file(path, text, bytes);
}

status lr_curve_write(const struct lr_curve *c, const char *dir, const char *run)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = memory_stream(&text, &bytes);
    put_lines(out, c);
    memory_stream_close(out);
    status st = write_text(dir, "lr-find.jsonl", text, bytes);
    free(text);
    TRY(st);
    if (c->count == 0) return STATUS_OK;
    out = memory_stream(&text, &bytes);
    put_page(out, c, run);
    memory_stream_close(out);
    st = write_text(dir, "lr-find.html", text, bytes);
    free(text);
    return st;
}
