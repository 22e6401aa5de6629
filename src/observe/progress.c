/* The display of a process: a thread that redraws the last line of a terminal, or says on a pipe that a work lasts. A log
 * line clears the bar first (log_before_line_set). The lock of the log guards all but the watch function. */
#include "observe/progress.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/scope.h"
#include "base/text.h"
#include "observe/observe_int.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH_DEFAULT = 80, TICK_MS = 100 };
#define REDRAW_S        0.5
#define RECORD_REDRAW_S 0.1
#define SCROLL_S        60.0 /* a step that ends so long after the last line leaves one */

/* A process has one terminal, and the hooks of log and scope take no argument. */
static struct {
    bool on, terminal, thread_on;
    bool drawn;                         /* a bar is on the screen's last line */
    double drawn_s, line_s, scrolled_s; /* when: bar, line on a pipe, line on a terminal */
    int64_t scroll_every;
    struct progress_view view;
    atomic_int layer; /* see struct progress_view; written by the scope listener */
    pthread_t thread;
    pthread_mutex_t watch_lock; /* held while the watch function runs, and while it is changed */
    pthread_cond_t ended;
    bool end; /* guarded by watch_lock, as are the next two */
    void (*watch)(void *ctx);
    void *watch_ctx;
} display = {.watch_lock = PTHREAD_MUTEX_INITIALIZER};

static void wipe(void)
{
    if (!display.drawn) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    display.drawn = false;
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

static int terminal_width(void)
{
    return text_columns(STDERR_FILENO, WIDTH_DEFAULT);
}

static void draw(double now)
{
    struct progress_view *v = &display.view;
    char text[1024];
    v->layer = atomic_load(&display.layer);
    progress_bar(text, sizeof text, v, progress_eta(v, v->run.step, now), now, terminal_width());
    fprintf(stderr, "\r%s\033[K", text);
    fflush(stderr);
    display.drawn_s = now;
    display.drawn = true;
}

/* A first line after PROGRESS_FIRST_S; then only where no other line came for PROGRESS_AGAIN_S. */
static bool line_is_due(double now)
{
    const struct progress_view *v = &display.view;
    if (!v->working || now - v->begin_s < PROGRESS_FIRST_S) return false;
    return now - display.line_s >=
           (v->count[v->kind] == 0 && display.line_s <= v->begin_s ? PROGRESS_FIRST_S : PROGRESS_AGAIN_S);
}

void progress_tick(double now)
{
    char text[256] = "";
    log_hold();
    struct progress_view *v = &display.view;
    const bool shows = display.on && (v->working || v->run.steps_total > 0);
    if (shows && display.terminal && now - display.drawn_s >= REDRAW_S) draw(now);
    if (shows && !display.terminal && line_is_due(now)) {
        v->layer = atomic_load(&display.layer);
        progress_said(text, sizeof text, v, now);
        display.line_s = now;
    }
    log_release();
    if (text[0]) log_info("%s", text);
}

static void *tick(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&display.watch_lock);
    while (!display.end) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += TICK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&display.ended, &display.watch_lock, &until);
        if (display.end) break;
        if (display.watch) display.watch(display.watch_ctx);
        progress_tick(clock_s());
    }
    pthread_mutex_unlock(&display.watch_lock);
    return NULL;
}

static void open_view(void)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    display.terminal = isatty(STDERR_FILENO) && (term == NULL || strcmp(term, "dumb") != 0);
    display.view = (struct progress_view){.last = METRICS_NONE,
                                          .run.step_s = NAN,
                                          .eval_step = -1,
                                          .color = no_color == NULL || no_color[0] == 0,
                                          .unicode = locale_is_utf8()};
    display.drawn = false;
    display.drawn_s = 0;
    display.line_s = display.scrolled_s = clock_s();
    display.scroll_every = 1;
    display.on = true;
}

void progress_start(void)
{
    pthread_condattr_t monotonic;
    if (display.on) return;
    log_hold();
    open_view();
    log_release();
    if (display.terminal) log_before_line_set(wipe);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&display.ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    display.end = false;
    display.thread_on = pthread_create(&display.thread, NULL, tick, NULL) == 0;
    if (!display.thread_on) log_warn("no thread for the progress display: long work will be silent");
}

/* Notes how far a micro-batch is. */
static void on_scope(const struct scope_event *e, void *ctx)
{
    (void)ctx;
    if (strncmp(e->name, "block.", 6) != 0) return;
    const int layer = (int)e->idx + 1;
    if (strcmp(e->name + 6, "fwd") == 0) atomic_store_explicit(&display.layer, layer, memory_order_relaxed);
    if (strcmp(e->name + 6, "bwd") == 0) atomic_store_explicit(&display.layer, -layer, memory_order_relaxed);
}

void progress_stop(void)
{
    if (!display.on) return;
    pthread_mutex_lock(&display.watch_lock);
    display.end = true;
    display.watch = NULL;
    pthread_cond_signal(&display.ended);
    pthread_mutex_unlock(&display.watch_lock);
    if (display.thread_on) pthread_join(display.thread, NULL);
    pthread_cond_destroy(&display.ended);
    if (display.view.run.layers > 0) dispatch_remove(on_scope);
    if (display.terminal) log_before_line_set(NULL);
    log_hold();
    wipe();
    display.on = false;
    log_release();
}

void progress_watch_set(void (*fn)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&display.watch_lock);
    display.watch = fn;
    display.watch_ctx = ctx;
    pthread_mutex_unlock(&display.watch_lock);
}

void progress_begin(enum progress_work kind, const char *what, int64_t total)
{
    if (!display.on) return;
    struct progress_view *v = &display.view;
    log_hold();
    v->kind = kind;
    v->working = true;
    v->total = total;
    v->done = 0;
    v->begin_s = v->part_s = clock_s();
    snprintf(v->what, sizeof v->what, "%s", what);
    atomic_store(&display.layer, 0);
    log_release();
}

void progress_done(int64_t done, int64_t total)
{
    if (!display.on) return;
    log_hold();
    display.view.done = done;
    display.view.total = total;
    display.view.part_s = clock_s();
    atomic_store(&display.layer, 0);
    log_release();
}

void progress_end(void)
{
    if (!display.on) return;
    struct progress_view *v = &display.view;
    log_hold();
    if (v->working) {
        const double seconds = clock_s() - v->begin_s;
        if (v->kind == WORK_STEP && v->count[WORK_STEP] == 0)
            v->first_step_s = seconds;
        else
            v->seconds[v->kind] += seconds;
        v->count[v->kind]++;
        v->parts[v->kind] += v->total;
    }
    v->working = false;
    if (v->run.steps_total == 0) wipe();
    log_release();
}

void progress_step(int64_t step)
{
    if (!display.on) return;
    log_hold();
    display.view.run.step = step;
    log_release();
}

struct progress_left progress_left(void)
{
    struct progress_left left = {WORK_COUNT, NAN, NAN};
    if (!display.on) return left;
    log_hold();
    const struct progress_view *v = &display.view;
    const double now = clock_s(), all = progress_work_left(v, now);
    if (v->working) {
        const double parts = v->total > 1 ? (double)(v->total - v->done) : 1;
        const double each = (all + now - v->part_s) / fmax(1, parts);
        left = (struct progress_left){v->kind, fmax(0, each - (now - v->part_s)), 0};
        left.rest_s = fmax(0, all - left.part_s);
        if (isnan(all)) left.part_s = left.rest_s = NAN;
    }
    log_release();
    return left;
}

void progress_run_set(const struct progress_run *r)
{
    if (!display.on) return;
    log_hold();
    const bool listens = display.view.run.layers > 0;
    display.view.run = *r;
    display.scroll_every = progress_scroll_every(r->steps_total);
    log_release();
    if (r->layers > 0 && !listens) dispatch_add(on_scope, NULL);
}

/* Whether a record leaves a line on the terminal: an evaluation, the first step that is seen, each n-th, the last. */
static bool scrolls(const struct metrics *m, double now)
{
    if (!isnan(m->val_loss)) return true;
    if (isnan(m->loss)) return false;
    return isnan(display.view.last.loss) || m->step % display.scroll_every == 0 ||
           m->step == display.view.run.steps_total || now - display.scrolled_s >= SCROLL_S;
}

static void to_terminal(const struct metrics *m, bool scroll, double now)
{
    char text[512];
    if (scroll) {
        progress_scroll(text, sizeof text, &display.view, m, terminal_width());
        wipe();
        fprintf(stderr, "%s\n", text);
        display.scrolled_s = now;
    }
    if (scroll || now - display.drawn_s >= RECORD_REDRAW_S) draw(now);
}

void progress_record(const struct metrics *m)
{
    char text[1024];
    if (!display.on) return;
    log_hold();
    struct progress_view *v = &display.view;
    const double now = clock_s();
    const bool scroll = scrolls(m, now), terminal = display.terminal;
    v->run.step = m->step;
    if (!isnan(m->loss)) v->last.loss = m->loss;
    if (!isnan(m->tokens_per_s)) v->last.tokens_per_s = m->tokens_per_s;
    if (!isnan(m->val_loss)) {
        v->last.val_loss = m->val_loss;
        v->eval_step = m->step;
    }
    progress_line(text, sizeof text, m, v->run.steps_total, progress_eta(v, m->step, now));
    display.line_s = now;
    if (terminal) to_terminal(m, scroll, now);
    log_release();
    if (terminal)
        log_line_file(LOG_INFO, "%s", text);
    else
        log_info("%s", text);
}
