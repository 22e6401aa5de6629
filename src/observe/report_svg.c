/* Charts as inline SVG. A chart is drawn in CSS pixels at its natural size and scales with the page. Its
 * colours come from the page's style sheet, which has light and dark variants. Long series are drawn as the
 * minimum and maximum of each column. */
#include "observe/report_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT = 52, RIGHT = 14, TOP = 10, BOTTOM = 26, HOVER_POINTS_MAX = 240 };
struct axis {
    double low, high, step; /* of the values; step between ticks */
    double at_low, at_high; /* where they lie, in pixels */
};

static double place(const struct axis *a, double v)
{
    return a->at_low + (v - a->low) / (a->high - a->low) * (a->at_high - a->at_low);
}

/* 1, 2 or 5 times a power of ten, so that about `ticks` of them cover the range. */
static double nice_step(double range, int ticks)
{
    double raw = range / ticks, power = pow(10, floor(log10(raw))), part = raw / power;
    return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}

static struct axis axis_make(double low, double high, int ticks, double at_low, double at_high)
{
    /* All values (nearly) equal: a band around them. */
    double tiny = fmax(fabs(high), fabs(low)) * 1e-9;
    if (high - low <= tiny || high - low < 1e-300) {
        double half = fmax(fabs(high) * 0.1, 1e-12);
        low -= half;
        high += half;
    }
    return (struct axis){low, high, nice_step(high - low, ticks), at_low, at_high};
}

static void range_add(double *low, double *high, double v)
{
    if (!(*low <= v)) *low = v;
    if (!(*high >= v)) *high = v;
}

/* The range of a chart: 99 % of the raw values, and all that is drawn boldly. A single spike must not
 * flatten the curve. */
static void value_range(const struct chart *c, const double *sums, double *low, double *high)
{
    const struct series *s = c->raw;
    *low = *high = NAN;
    if (s->count) {
        double *sorted = series_sorted(s);
        int64_t cut = s->count / 200;
        range_add(low, high, sorted[cut]);
        range_add(low, high, sorted[s->count - 1 - cut]);
        free(sorted);
    }
    for (int64_t i = 0; c->smooth && i < s->count; i++) range_add(low, high, series_smooth(s, sums, i));
    for (int64_t i = 0; c->points && i < c->points->count; i++) range_add(low, high, c->points->y[i]);
    double pad = (*high - *low) * 0.05;
    *high += pad;
    *low = c->from_zero ? fmin(*low, 0) : *low - pad;
}

/* "3e-4" and not "0.0003" or "3e-04": the tick in units of `power`. */
static const char *label(char buf[48], double v, enum chart_axis kind, double step, double power)
{
    if (fabs(v) < step * 1e-6) return "0";
    if (kind == AXIS_COUNT) {
        const double scale[] = {1e12, 1e9, 1e6, 1e3};
        const char *const mark[] = {"T", "B", "M", "k"};
        for (int i = 0; i < 4; i++)
            if (power >= scale[i] * (i == 3 ? 10 : 1)) {
                snprintf(buf, 48, "%.6g%s", v / scale[i], mark[i]);
                return buf;
            }
    }
    if (kind == AXIS_POWER && power < 0.01)
        snprintf(buf, 48, "%.4ge%d", v / power, (int)lround(log10(power)));
    else
        snprintf(buf, 48, "%.6g", v);
    return buf;
}

static void draw_axes(FILE *out, const struct axis *x, const struct axis *y, enum chart_axis kind)
{
    char buf[48];
    double most = fmax(fabs(y->low), fabs(y->high)), power = pow(10, floor(log10(fmax(most, 1e-300))));
    for (double k = ceil(y->low / y->step); k * y->step <= y->high + y->step * 1e-9; k++) {
        double v = k * y->step, at = place(y, v);
        fprintf(out, "<path class=grid d='M%.1f %.1fH%.1f'/><text class=ty x=%.1f y=%.1f>%s</text>",
                x->at_low, at, x->at_high, x->at_low - 7, at + 4, label(buf, v, kind, y->step, power));
    }
    power = pow(10, floor(log10(fmax(x->high, 1))));
    for (double k = ceil(x->low / x->step); k * x->step <= x->high + x->step * 1e-9; k++) {
        double v = k * x->step, at = place(x, v);
        fprintf(out, "<path class=tick d='M%.1f %.1fv4'/><text class=tx x=%.1f y=%.1f>%s</text>", at,
                y->at_low, at, y->at_low + 17, label(buf, v, AXIS_COUNT, x->step, power));
    }
    fprintf(out, "<text class=ty x=%.1f y=%.1f>step</text>", x->at_low - 12, y->at_low + 17);
    fprintf(out, "<path class=base d='M%.1f %.1fH%.1f'/>", x->at_low, y->at_low, x->at_high);
}

/* Every value, or the extremes of each of `columns` columns. */
static void draw_raw(FILE *out, const struct series *s, const struct axis *x, const struct axis *y,
                     int columns)
{
    fprintf(out, "<path class=raw d='");
    char command = 'M';
    if (s->count <= 2 * columns)
        for (int64_t i = 0; i < s->count; i++, command = 'L')
            fprintf(out, "%c%.1f %.1f", command, place(x, s->x[i]), place(y, s->y[i]));
    else
        for (int k = 0; k < columns; k++, command = 'L') {
            int64_t from = s->count * k / columns, to = s->count * (k + 1) / columns;
            double low = NAN, high = NAN;
            for (int64_t i = from; i < to; i++) range_add(&low, &high, s->y[i]);
            double at = place(x, s->x[from]);
            fprintf(out, "%c%.1f %.1fV%.1f", command, at, place(y, low), place(y, high));
        }
    fprintf(out, "'/>");
}

/* The value of the bold line. */
static double bold(const struct chart *c, const double *sums, int64_t i)
{
    return c->smooth ? series_smooth(c->raw, sums, i) : c->raw->y[i];
}

static void draw_line(FILE *out, const struct chart *c, const double *sums, const struct axis *x,
                      const struct axis *y, int columns)
{
    const struct series *s = c->raw;
    int64_t n = s->count < columns ? s->count : columns;
    fprintf(out, "<path class=smooth d='");
    for (int64_t k = 0; k < n; k++) {
        int64_t i = n > 1 ? k * (s->count - 1) / (n - 1) : 0;
        fprintf(out, "%c%.1f %.1f", k ? 'L' : 'M', place(x, s->x[i]), place(y, bold(c, sums, i)));
    }
    fprintf(out, "'/>");
}

static void draw_points(FILE *out, const struct series *s, const struct axis *x, const struct axis *y)
{
    fprintf(out, "<path class=val d='");
    for (int64_t i = 0; i < s->count; i++)
        fprintf(out, "%c%.1f %.1f", i ? 'L' : 'M', place(x, s->x[i]), place(y, s->y[i]));
    fprintf(out, "'/>");
    for (int64_t i = 0; i < s->count && s->count <= 200; i++)
        fprintf(out, "<circle class=dot cx=%.1f cy=%.1f r=3.5><title>step %.0f: %.4f</title></circle>",
                place(x, s->x[i]), place(y, s->y[i]), s->x[i], s->y[i]);
}

/* What the page's script shows under the pointer: "x,y,step,value" per point. */
static void draw_hover(FILE *out, const struct chart *c, const double *sums, const struct axis *x,
                       const struct axis *y)
{
    const struct series *s = c->raw;
    int64_t n = s->count < HOVER_POINTS_MAX ? s->count : HOVER_POINTS_MAX;
    fprintf(out, "<g class=tip hidden data-p='");
    for (int64_t k = 0; k < n; k++) {
        int64_t i = n > 1 ? k * (s->count - 1) / (n - 1) : 0;
        double v = bold(c, sums, i);
        fprintf(out, "%s%.1f,%.1f,%.0f,%.4g", k ? " " : "", place(x, s->x[i]), place(y, v), s->x[i], v);
    }
    fprintf(out, "'><path d='M0 %.1fV%.1f'/><circle r=3.5 /><text y=%.1f></text></g>", y->at_high, y->at_low,
            y->at_high + 11);
}

void report_svg_chart(FILE *out, const struct chart *c)
{
    const struct series *s = c->raw, *p = c->points;
    if (s->count == 0 && (p == NULL || p->count == 0)) return;
    double *sums = series_sums(s), low, high, last = 1;
    value_range(c, sums, &low, &high);
    for (int64_t i = 0; i < s->count; i++) last = fmax(last, s->x[i]);
    for (int64_t i = 0; p && i < p->count; i++) last = fmax(last, p->x[i]);
    int columns = (c->width - LEFT - RIGHT) / 2;
    struct axis x = axis_make(0, last, c->width / 95, LEFT, c->width - RIGHT);
    x.step = fmax(x.step, 1);
    struct axis y = axis_make(low, high, c->height / 36, c->height - BOTTOM, TOP);

    fprintf(out, "<figure><figcaption>%s <small>%s</small>", c->title, c->unit);
    if (p && p->count)
        fprintf(
            out,
            "<span class=legend><i class=k-raw></i>each step<i class=k-smooth></i>smoothed<i class=k-val></i>"
            "validation</span>");
    fprintf(out, "</figcaption><svg class='chart%s' viewBox='0 0 %d %d' role=img aria-label='%s by step'>",
            c->width > 600 ? " wide" : "", c->width, c->height, c->title);
    fprintf(out, "<clipPath id=c%d><rect x=%d y=%d width=%d height=%d /></clipPath>", c->id, LEFT, TOP - 4,
            c->width - LEFT - RIGHT + 6, c->height - TOP - BOTTOM + 4);
    draw_axes(out, &x, &y, c->axis);
    for (int64_t i = 0; c->starts && i < c->starts->count && i < 200; i++)
        if (c->starts->x[i] > 0 && c->starts->x[i] < last)
            fprintf(out, "<path class=mark d='M%.1f %.1fV%.1f'><title>went on from step %.0f</title></path>",
                    place(&x, c->starts->x[i]), y.at_low, y.at_high, c->starts->x[i]);
    fprintf(out, "<g clip-path='url(#c%d)'>", c->id);
    if (c->smooth) draw_raw(out, s, &x, &y, columns);
    draw_line(out, c, sums, &x, &y, c->smooth ? columns : 2 * columns);
    if (p && p->count) draw_points(out, p, &x, &y);
    fprintf(out, "</g>");
    draw_hover(out, c, sums, &x, &y);
    fprintf(out, "</svg></figure>\n");
    free(sums);
}
