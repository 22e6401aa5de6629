/* The page of `ingot plan --html`: time against money, memory of the fullest device, and all numbers as a table. One file
 * without scripts and without anything from the network. */
#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "model/param_count.h"
#include "plan/amounts.h"
#include "plan/purchase.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 860, HEIGHT = 380, LEFT = 90, RIGHT = 120, TOP = 20, BOTTOM = 50 };
static const char *const colors[] = {"#2a78d6", "#d9822b", "#1a9e77", "#c2477f",
                                     "#7a5bd0", "#8a6d3b", "#5a6672", "#b8860b"};
enum { COLORS = sizeof colors / sizeof colors[0] };

enum { LABELS = 64 };
struct box {
    double x, y, width; /* of a line of text: its left end and base line */
};
struct page {
    FILE *f;
    const struct purchase_args *a;
    const struct purchase_answer *answers;
    bool money;        /* the x axis: money, else device hours */
    double x[2], y[2]; /* logarithms of the axes' ends */
    struct box labels[LABELS];
    int label_count;
};

static const char style[] =
    "<style>:root{--ink:#1c2330;--dim:#5d6675;--line:#d8dce3;--page:#fff}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--dim:#9aa3b0;--line:#3a414d;--page:#14171c}}"
    "body{font:15px/1.5 "
    "system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:980px;margin:2em auto;"
    "padding:0 1em}svg{width:100%;height:auto}text{fill:var(--ink);font-size:12px}.dim,.dim "
    "text{fill:var(--dim)}"
    ".grid{stroke:var(--line)}table{border-collapse:collapse;width:100%;font-size:13px}th,td{text-align:"
    "right;"
    "padding:.25em .5em;border-bottom:1px solid "
    "var(--line)}th:first-child,td:first-child,th:last-child,td:last-child"
    "{text-align:left}.wide{overflow-x:auto}h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}"
    /* on a phone: charts in a box that scrolls, each row of the table a card */
    "@media(max-width:700px){body{margin:1em auto}.wide svg{min-width:760px}tr:first-child{display:none}"
    "tr{display:grid;grid-template-columns:1fr 1fr;padding:.6em 0;border-bottom:1px solid var(--line)}"
    "td,td:first-child,td:last-child{text-align:left;border:0;padding:.1em 0}td::before{content:attr(data-l) "
    "' ';"
    "color:var(--dim)}td:first-child,td:last-child{grid-column:1/-1}td:first-child{font-weight:600}}</style>";

static double cost_of(const struct page *p, const struct outlook *l)
{
    return p->money ? l->money : l->device_hours;
}

static void widen(double range[2], double value)
{
    range[0] = fmin(range[0], log10(value));
    range[1] = fmax(range[1], log10(value));
}

/* Of all offers; money only when each has a price. */
static void measure(struct page *p)
{
    p->money = true;
    p->x[0] = p->y[0] = INFINITY, p->x[1] = p->y[1] = -INFINITY;
    for (int k = 0; k < p->a->count; k++) p->money = p->money && p->a->kinds[k].price > 0;
    for (int k = 0; k < p->a->count; k++)
        for (int i = 0; i < p->answers[k].count; i++) {
            const struct outlook *l = &p->answers[k].tried[i].outlook;
            widen(p->x, cost_of(p, l));
            widen(p->y, l->seconds / 86400);
        }
    if (p->a->deadline > 0) widen(p->y, p->a->deadline / 86400);
    for (int i = 0; i < 2; i++) {
        const double room = i ? 0.08 : -0.08;
        p->x[i] += room, p->y[i] += room;
    }
}

static double at_x(const struct page *p, double cost)
{
    return LEFT + (log10(cost) - p->x[0]) / (p->x[1] - p->x[0]) * (WIDTH - LEFT - RIGHT);
}
static double at_y(const struct page *p, double days)
{
    return HEIGHT - BOTTOM - (log10(days) - p->y[0]) / (p->y[1] - p->y[0]) * (HEIGHT - TOP - BOTTOM);
}

/* 1, 2 and 5 times powers of ten. */
static void draw_axis(const struct page *p, bool vertical)
{
    static const double steps[] = {1, 2, 5};
    const double *range = vertical ? p->y : p->x;
    char text[32];
    for (int power = (int)floor(range[0]); power <= (int)ceil(range[1]); power++)
        for (int i = 0; i < 3; i++) {
            const double value = steps[i] * pow(10, power);
            if (log10(value) < range[0] || log10(value) > range[1]) continue;
            if (range[1] - range[0] > 1.5 && i > 0) continue;
            if (vertical) {
                const double y = at_y(p, value);
                fprintf(p->f,
                        "<line class=grid x1=%d x2=%d y1=%.1f y2=%.1f /><text class=dim x=%d y=%.1f "
                        "text-anchor=end>%s</text>",
                        LEFT, WIDTH - RIGHT, y, y, LEFT - 8, y + 4, text_time(text, value * 86400));
            } else {
                const double x = at_x(p, value);
                fprintf(p->f,
                        "<line class=grid x1=%.1f x2=%.1f y1=%d y2=%d /><text class=dim x=%.1f y=%d "
                        "text-anchor=middle>%s</text>",
                        x, x, TOP, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 18, amount_number(text, value));
            }
        }
}

static bool is_free(const struct page *p, struct box b)
{
    enum { LINE = 14 };
    for (int i = 0; i < p->label_count; i++) {
        const struct box *o = &p->labels[i];
        if (b.x < o->x + o->width && o->x < b.x + b.width && fabs(b.y - o->y) < LINE) return false;
    }
    return b.x > LEFT && b.x + b.width < WIDTH - RIGHT;
}

/* A name beside a point: where no other one stands, if there is such a place. */
static void draw_label(struct page *p, double x, double y, const char *text)
{
    enum { PLACES = 6 };
    const double width = 7.0 * (double)strlen(text);
    const struct box places[PLACES] = {{x + 10, y - 8, width},  {x - 10 - width, y + 18, width},
                                       {x + 10, y + 18, width}, {x - 10 - width, y - 8, width},
                                       {x + 10, y + 34, width}, {x - 10 - width, y + 34, width}};
    int at = 0;
    while (at < PLACES - 1 && !is_free(p, places[at])) at++;
    if (p->label_count < LABELS) p->labels[p->label_count++] = places[at];
    fprintf(p->f, "<text x=%.1f y=%.1f>%s</text>", places[at].x, places[at].y, text);
}

static void draw_kind(struct page *p, int k)
{
    const struct purchase_answer *x = &p->answers[k];
    const char *color = colors[k % COLORS];
    char time[32], cost[32];
    fprintf(p->f, "<polyline fill=none stroke-width=2 stroke=\"%s\" points=\"", color);
    for (int i = 0; i < x->count; i++)
        fprintf(p->f, "%.1f,%.1f ", at_x(p, cost_of(p, &x->tried[i].outlook)),
                at_y(p, x->tried[i].outlook.seconds / 86400));
    fprintf(p->f, "\" />");
    for (int i = 0; i < x->count; i++) {
        const struct purchase_offer *o = &x->tried[i];
        const double px = at_x(p, cost_of(p, &o->outlook)), py = at_y(p, o->outlook.seconds / 86400);
        fprintf(p->f, "<circle cx=%.1f cy=%.1f r=%d fill=\"%s\"><title>%d x %s: %s, %s %s</title></circle>",
                px, py, i == x->best ? 7 : 4, color, o->cluster.devices, o->cluster.machine->name,
                text_time(time, o->outlook.seconds), amount_number(cost, cost_of(p, &o->outlook)),
                p->money ? "of money" : "device hours");
        char name[64];
        snprintf(name, sizeof name, "%d x %s", o->cluster.devices, o->cluster.machine->name);
        if (i == x->best || i == x->count - 1) draw_label(p, px, py, name);
    }
}

static void draw_frontier(struct page *p)
{
    fprintf(p->f, "<h2>Time against %s</h2><div class=wide><svg viewBox=\"0 0 %d %d\" role=img>",
            p->money ? "money" : "device hours", WIDTH, HEIGHT);
    draw_axis(p, false);
    draw_axis(p, true);
    if (p->a->deadline > 0) {
        const double y = at_y(p, p->a->deadline / 86400);
        fprintf(p->f,
                "<line x1=%d x2=%d y1=%.1f y2=%.1f stroke=\"#c0392b\" stroke-dasharray=\"6 4\" /><text x=%d "
                "y=%.1f>deadline</text>",
                LEFT, WIDTH - RIGHT, y, y, WIDTH - RIGHT + 6, y + 4);
    }
    for (int k = 0; k < p->a->count; k++) draw_kind(p, k);
    fprintf(p->f, "<text class=dim x=%d y=%d text-anchor=middle>%s</text></svg></div>",
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, p->money ? "money" : "device hours");
}

static const struct purchase_offer *shown(const struct purchase_answer *x)
{
    const int at = x->best >= 0 ? x->best : x->nearest;
    return at < 0 ? NULL : &x->tried[at];
}

/* One bar per kind: what lies in the memory of the fullest device. */
static void draw_memory(const struct page *p)
{
    static const char *const names[] = {
#define X(name, text) text,
        MESH_MEMORY(X)
#undef X
    };
    enum { BAR = 26, GAP = 14, PARTS = sizeof names / sizeof names[0] };
    double most = 0;
    char a[32], b[32];
    for (int k = 0; k < p->a->count; k++)
        if (shown(&p->answers[k])) most = fmax(most, shown(&p->answers[k])->device_bytes);
    fprintf(p->f, "<h2>Memory of the fullest device</h2><div class=wide><svg viewBox=\"0 0 %d %d\" role=img>",
            WIDTH, p->a->count * (BAR + GAP) + 30);
    for (int k = 0, y = 0; k < p->a->count; k++, y += BAR + GAP) {
        const struct purchase_offer *o = shown(&p->answers[k]);
        if (o == NULL) continue;
        const struct mesh_memory *m = &o->mesh.stages[o->mesh.fullest].memory;
        const double scale = (WIDTH - LEFT - 2 * RIGHT) / most, parts[] = {
#define X(name, text) m->name,
                                                                    MESH_MEMORY(X)
#undef X
                                                                };
        fprintf(p->f, "<text x=%d y=%d text-anchor=end>%s</text>", LEFT - 8, y + 18,
                o->cluster.machine->name);
        double x = LEFT;
        for (int i = 0; i < PARTS; i++) {
            fprintf(p->f, "<rect x=%.1f y=%d width=%.1f height=%d fill=\"%s\"><title>%s: %s</title></rect>",
                    x, y, parts[i] * scale, BAR, colors[i % COLORS], names[i], text_bytes(a, parts[i]));
            x += parts[i] * scale;
        }
        fprintf(
            p->f,
            "<rect class=grid x=%d y=%d width=%.1f height=%d fill=none /><text x=%.1f y=%d>%s of %s</text>",
            LEFT, y, o->device_bytes * scale, BAR, LEFT + o->device_bytes * scale + 8, y + 18,
            text_bytes(a, mesh_result_bytes(&o->mesh)), text_bytes(b, o->device_bytes));
    }
    for (int i = 0; i < PARTS; i++)
        fprintf(p->f, "<rect x=%d y=%d width=10 height=10 fill=\"%s\" /><text class=dim x=%d y=%d>%s</text>",
                LEFT + i * 92, p->a->count * (BAR + GAP) + 10, colors[i % COLORS], LEFT + i * 92 + 14,
                p->a->count * (BAR + GAP) + 19, names[i]);
    fprintf(p->f, "</svg></div>");
}

static void write_table(const struct page *p)
{
    char a[32], b[32], c[32], d[32];
    fprintf(p->f, "<h2>All that was looked at</h2><div class=wide><table><tr><th>devices<th>step<th>wall "
                  "time<th>device "
                  "hours<th>money<th>failures<th>goodput<th>memory<th>mesh");
    for (int k = 0; k < p->a->count; k++)
        for (int i = 0; i < p->answers[k].count; i++) {
            const struct purchase_offer *o = &p->answers[k].tried[i];
            const struct outlook *l = &o->outlook;
            const struct mesh_shape *m = &o->mesh.variant.mesh;
            char axes[MESH_AXES];
            fprintf(p->f, "<tr><td>%s%d x %s<td data-l=step>%s<td data-l=time>%s<td data-l='device hours'>%s",
                    i == p->answers[k].best ? "* " : "", o->cluster.devices, o->cluster.machine->name,
                    text_time(a, l->step), text_time(b, l->seconds), amount_number(c, l->device_hours));
            fprintf(p->f,
                    "<td data-l=money>%s<td data-l=failures>%.1f<td data-l=goodput>%.1f %%<td "
                    "data-l=memory>%s<td>%s, ZeRO %d%s",
                    l->money > 0 ? amount_number(a, l->money) : "-", l->failures, 100 * l->goodput.trains,
                    text_bytes(d, mesh_result_bytes(&o->mesh)), mesh_axes(axes, m), m->zero,
                    o->lacks[0] ? "; predicted only" : "");
        }
    fprintf(p->f, "</table></div>");
}

status purchase_page(const struct spec *s, const struct purchase_args *a,
                     const struct purchase_answer *answers, const char *path)
{
    char *text = NULL, params[32], tokens[32];
    size_t bytes = 0;
    int offers = 0;
    double count = 0;
    for (int k = 0; k < a->count; k++) {
        offers += answers[k].count;
        if (answers[k].count > 0) count = answers[k].tried[0].outlook.tokens;
    }
    if (offers == 0) return STATUS_OK;
    struct page p = {.f = memory_stream(&text, &bytes), .a = a, .answers = answers};
    measure(&p);
    fprintf(
        p.f,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">"
        "<title>ingot plan</title>%s<h1>%s parameters, %s tokens</h1>",
        style, text_count(params, (double)model_param_count(&s->model, s->model.vocab_size)),
        text_count(tokens, count));
    draw_frontier(&p);
    draw_memory(&p);
    write_table(&p);
    fprintf(p.f, "</html>\n");
    memory_stream_close(p.f);
    const status st = io_write_file(path, text, bytes);
    free(text);
    return st;
}
