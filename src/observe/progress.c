/* Progress on a terminal is one line that is redrawn:
 *
 *   step 120/2000 ━━━━━━───────────────  6%  loss 4.123  val 4.310  12.3k tok/s  ETA 2m10s
 *
 * Elsewhere it is one key=value line per record. A log line clears the bar first (log_before_line_set); the
 * next record draws it again. */
#include "observe/observe_int.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { BAR_COLUMNS_MIN = 8, BAR_COLUMNS_MAX = 40, WIDTH_DEFAULT = 80 };

/* The log hook takes no argument, and a process has one terminal: the progress that draws on it. */
static struct progress *volatile on_terminal;

static void wipe(void)
{
    struct progress *p = on_terminal;
    if (p == NULL || !p->drawn) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    p->drawn = false;
}

static bool locale_is_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *v = getenv(names[i]);
        if (v && v[0]) return strcasestr(v, "utf-8") || strcasestr(v, "utf8");
    }
    return false;
}

void progress_open(struct progress *p, int64_t step, int64_t steps_total)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    *p = (struct progress){
        .steps_total = steps_total, .step_first = step, .time_open = clock_s(), .loss = NAN, .val_loss = NAN};
    p->time_first = p->time_open;
    p->terminal = isatty(STDERR_FILENO) && (term == NULL || strcmp(term, "dumb") != 0);
    p->color = no_color == NULL || no_color[0] == 0;
    p->unicode = locale_is_utf8();
    if (!p->terminal) return;
    on_terminal = p;
    log_before_line_set(wipe);
}

static int terminal_width(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return WIDTH_DEFAULT;
}

/* Seconds to go, at the mean rate since the first record: the first step warms up, and is left out as soon
 * as there is another. */
static double eta(struct progress *p, int64_t step)
{
    double now = clock_s();
    double rate = step > p->step_first ? (now - p->time_first) / (double)(step - p->step_first) : NAN;
    if (p->time_first == p->time_open) {
        p->time_first = now;
        p->step_first = step;
    }
    return p->steps_total > 0 ? (double)(p->steps_total - step) * rate : NAN;
}

/* snprintf at the end of `out`; what does not fit is cut. */
PRINTF_LIKE(3, 4) static void add(char *out, size_t size, const char *fmt, ...)
{
    size_t at = strlen(out);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out + at, size - at, fmt, ap);
    va_end(ap);
}

void progress_line(char *out, size_t size, const struct metrics *m, int64_t steps_total, double eta_s)
{
    snprintf(out, size, "step=%lld", (long long)m->step);
    if (steps_total > 0) add(out, size, "/%lld", (long long)steps_total);
    if (!isnan(m->loss)) add(out, size, " loss=%.4f", m->loss);
    if (!isnan(m->val_loss)) add(out, size, " val_loss=%.4f", m->val_loss);
    if (!isnan(m->val_bpb)) add(out, size, " val_bpb=%.4f", m->val_bpb);
    if (!isnan(m->lr)) add(out, size, " lr=%.3e", m->lr);
    if (!isnan(m->grad_norm)) add(out, size, " grad_norm=%.4f", m->grad_norm);
    if (!isnan(m->tokens_per_s)) add(out, size, " tokens_per_s=%.0f", m->tokens_per_s);
    if (!isnan(m->mfu)) add(out, size, " mfu=%.3f", m->mfu);
    char buf[32];
    if (!isnan(eta_s)) add(out, size, " eta=%s", text_duration(buf, eta_s));
}

static void add_bar(char *out, size_t size, const struct progress *p, double part, int columns)
{
    const char *full = p->unicode ? "━" : "=", *empty = p->unicode ? "─" : "-";
    int done = (int)(part * columns);
    if (p->color) add(out, size, "\033[36m");
    for (int i = 0; i < done; i++) add(out, size, "%s", full);
    if (p->color) add(out, size, "\033[90m");
    for (int i = done; i < columns; i++) add(out, size, "%s", empty);
    if (p->color) add(out, size, "\033[0m");
}

void progress_bar(char *out, size_t size, const struct progress *p, const struct metrics *m, double eta_s,
                  int width)
{
    double part = p->steps_total > 0 ? (double)m->step / (double)p->steps_total : 0;
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    char head[64], buf[32], items[5][48];
    int count = 0;
    if (p->steps_total > 0) {
        snprintf(head, sizeof head, "step %lld/%lld ", (long long)m->step, (long long)p->steps_total);
        snprintf(items[count++], sizeof items[0], " %3d%%", (int)(part * 100));
    } else {
        snprintf(head, sizeof head, "step %lld ", (long long)m->step);
    }
    if (!isnan(p->loss)) snprintf(items[count++], sizeof items[0], "  loss %.3f", p->loss);
    if (!isnan(eta_s)) snprintf(items[count++], sizeof items[0], "  ETA %s", text_duration(buf, eta_s));
    if (!isnan(m->tokens_per_s))
        snprintf(items[count++], sizeof items[0], "  %s tok/s", text_count(buf, m->tokens_per_s));
    if (!isnan(p->val_loss)) snprintf(items[count++], sizeof items[0], "  val %.3f", p->val_loss);

    /* The last column stays free: some terminals wrap when it is written. Items are in order of worth; those
     * that leave no bar are dropped. */
    int left = width - 1 - (int)strlen(head), shown = 0;
    for (; shown < count; shown++) {
        int n = (int)strlen(items[shown]);
        if (left - n < (shown < 2 ? 0 : BAR_COLUMNS_MIN)) break;
        left -= n;
    }
    out[0] = 0;
    if (left < 0) {
        snprintf(out, width > 0 && (size_t)width < size ? (size_t)width : size, "%s", head);
        return;
    }
    add(out, size, "%s", head);
    if (left >= BAR_COLUMNS_MIN && p->steps_total > 0)
        add_bar(out, size, p, part, left < BAR_COLUMNS_MAX ? left : BAR_COLUMNS_MAX);
    for (int i = 0; i < shown; i++) add(out, size, "%s", items[i]);
}

void progress_record(struct progress *p, const struct metrics *m)
{
    char text[1024];
    double left_s = eta(p, m->step);
    if (!p->terminal) {
        progress_line(text, sizeof text, m, p->steps_total, left_s);
        log_info("%s", text);
        return;
    }
    if (!isnan(m->loss)) p->loss = m->loss;
    if (!isnan(m->val_loss)) p->val_loss = m->val_loss;
    double now = clock_s();
    if (p->drawn && now - p->time_drawn < 0.1 && m->step < p->steps_total) return;
    progress_bar(text, sizeof text, p, m, left_s, terminal_width());
    fprintf(stderr, "\r%s\033[K", text);
    fflush(stderr);
    p->time_drawn = now;
    p->drawn = true;
}

void progress_close(struct progress *p)
{
    if (!p->terminal) return;
    log_before_line_set(NULL);
    on_terminal = NULL;
    if (p->drawn) fputc('\n', stderr);
    p->drawn = false;
}
