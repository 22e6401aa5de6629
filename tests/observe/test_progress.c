/* The lines a person sees, letter by letter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pty.h>

#include "base/clock.h"
#include "base/log.h"
#include "observe/observe_int.h"
#include "scratch.h"

static struct metrics record(void)
{
    struct metrics m = METRICS_NONE;
    m.step = 500;
    m.tokens = 500 * 8192;
    m.loss = 4.125;
    m.lr = 3e-4;
    m.grad_norm = 0.5;
    m.tokens_per_s = 12345.6;
    return m;
}

static void the_plain_line_has_a_key_for_every_value_there_is(void **state)
{
    (void)state;
    char line[512];
    struct metrics m = record();
    progress_line(line, sizeof line, &m, 2000, 130);
    assert_string_equal(
        line, "step=500/2000 loss=4.1250 lr=3.000e-04 grad_norm=0.5000 tokens_per_s=12346 eta=2m10s");
    m = METRICS_NONE;
    m.step = 7;
    m.val_loss = 3.5;
    m.val_bpb = 1.25;
    progress_line(line, sizeof line, &m, 0, NAN);
    assert_string_equal(line, "step=7 val_loss=3.5000 val_bpb=1.2500");
}

static int columns(const char *text)
{
    int n = 0;
    for (; *text; text++) {
        if (*text == '\033')
            text = strchr(text, 'm');
        else if ((*text & 0xc0) != 0x80)
            n++;
    }
    return n;
}

static struct progress_view view(void)
{
    struct progress_view v = {
        .run = {.step = 500, .steps_total = 2000, .step_s = NAN}, .last = record(), .eval_step = -1};
    v.last.loss = 4.1234;
    v.last.val_loss = 4.5;
    return v;
}

static void the_bar_leaves_columns_free(void **state)
{
    (void)state;
    struct progress_view v = view();
    char bar[1024];
    progress_bar(bar, sizeof bar, &v, 130, 0, 102);
    assert_string_equal(bar, "step 500/2000 ========-------------------------  25%  loss 4.123  ETA "
                             "2m10s  12.3k tok/s  val 4.500");
    v.run.steps_total = 0; /* nobody knows how long */
    progress_bar(bar, sizeof bar, &v, NAN, 0, 100);
    assert_string_equal(bar, "step 500   loss 4.123  12.3k tok/s  val 4.500");
    v.run.steps_total = 2000;
    for (int variant = 0; variant < 8; variant++) {
        v.color = variant & 1;
        v.unicode = variant & 2;
        v.working = variant & 4;
        v.kind = WORK_STEP;
        v.total = 4096;
        for (int width = 1; width < 200; width++) {
            progress_bar(bar, sizeof bar, &v, 130, 20, width);
            assert_true(columns(bar) < width);
        }
    }
}

static void the_bar_says_what_lasts(void **state)
{
    (void)state;
    struct progress_view v = view();
    char bar[1024];
    v.run.layers = 12;
    v.working = true;
    v.kind = WORK_STEP;
    v.begin_s = 1000;
    v.part_s = 1010;
    v.done = 2;
    v.total = 16;
    v.layer = 5;
    progress_bar(bar, sizeof bar, &v, NAN, 1000.9, 60);
    assert_null(strstr(bar, "micro"));
    progress_bar(bar, sizeof bar, &v, NAN, 1012, 60);
    assert_non_null(strstr(bar, "  25%  micro 3/16 12s"));
    v.layer = -5;
    progress_bar(bar, sizeof bar, &v, NAN, 1014, 60);
    assert_non_null(strstr(bar, "  micro 3/16 layer 5/12 back 14s"));
    v.kind = WORK_EVAL;
    progress_bar(bar, sizeof bar, &v, NAN, 1014, 60);
    assert_non_null(strstr(bar, "  evaluating 3/16 14s"));
    v = (struct progress_view){
        .working = true, .kind = WORK_OTHER, .what = "training the tokenizer", .begin_s = 1000};
    progress_bar(bar, sizeof bar, &v, NAN, 1004, 60);
    assert_string_equal(bar, "training the tokenizer   4s");
    v.done = 1;
    v.total = 4;
    progress_bar(bar, sizeof bar, &v, NAN, 1004, 60);
    assert_string_equal(bar, "training the tokenizer =======-----------------------  4s");
}

static void a_pipe_reads_how_far_work_is(void **state)
{
    (void)state;
    struct progress_view v = view();
    char text[256];
    v.working = true;
    v.kind = WORK_STEP;
    v.begin_s = 1000;
    v.part_s = 1040;
    v.done = 4;
    v.total = 16;
    progress_said(text, sizeof text, &v, 1041);
    assert_string_equal(text, "step 501/2000: micro-batch 5 of 16, since 41s, about 1m59s more");
    v.kind = WORK_SAVE;
    v.total = v.done = 0;
    snprintf(v.what, sizeof v.what, "saving");
    progress_said(text, sizeof text, &v, 1012);
    assert_string_equal(text, "saving: since 12s");
}

static void the_eta_counts_what_is_to_come(void **state)
{
    (void)state;
    struct progress_view v = {.run = {.steps_total = 100,
                                      .step_s = 3,
                                      .eval_every = 25,
                                      .ckpt_every = 50,
                                      .eval_parts = 4,
                                      .eval_parts_last = 20,
                                      .eval_part_steps = 0.5},
                              .last = METRICS_NONE,
                              .eval_step = -1};
    /* As predicted: 100 steps, three evaluations of four parts and one of 20, at half a step a part. */
    assert_true(progress_eta(&v, 0, 0) == 300 + 3 * 6 + 30);
    /* Measured: the first step does not count as soon as there is another. */
    v.first_step_s = 50;
    v.count[WORK_STEP] = 1;
    assert_true(progress_eta(&v, 99, 0) == 50 + 20 * 25);
    v.count[WORK_STEP] = 11;
    v.seconds[WORK_STEP] = 20;
    v.count[WORK_EVAL] = 1;
    v.parts[WORK_EVAL] = 4;
    v.seconds[WORK_EVAL] = 8;
    v.count[WORK_SAVE] = 1;
    v.seconds[WORK_SAVE] = 7;
    v.count[WORK_SAMPLE] = 1;
    v.seconds[WORK_SAMPLE] = 1;
    assert_true(progress_eta(&v, 25, 0) == 75 * 2 + 2 * (8 + 1) + (40 + 1) + 2 * 7);
    assert_true(progress_eta(&v, 75, 0) == 25 * 2 + (40 + 1) + 7);
    /* The last evaluation is to come, then it is over. */
    assert_true(progress_eta(&v, 100, 0) == 41);
    v.eval_step = 100;
    assert_true(progress_eta(&v, 100, 0) == 0);
}

static void lines_scroll_some_twenty_times(void **state)
{
    (void)state;
    static const int64_t totals[] = {1, 7, 40, 150, 2000, 99999, 1000000},
                         every[] = {1, 1, 2, 5, 100, 5000, 50000};
    for (int i = 0; i < 7; i++) assert_int_equal(progress_scroll_every(totals[i]), every[i]);
    struct progress_view v = view();
    struct metrics m = record();
    char text[256];
    progress_scroll(text, sizeof text, &v, &m, 120);
    assert_string_equal(text, "step  500/2000  loss 4.1250  12.3k tok/s  lr 3.00e-04  grad norm 0.5");
    progress_scroll(text, sizeof text, &v, &m, 40);
    assert_string_equal(text, "step  500/2000  loss 4.1250");
    m = METRICS_NONE;
    m.step = 500;
    m.val_loss = 4.5;
    m.val_bpb = 2;
    m.val_accuracy = 0.25;
    progress_scroll(text, sizeof text, &v, &m, 80);
    assert_string_equal(text, "step  500/2000  val loss 4.5000  2.0000 bits per byte  accuracy 25.0 %");
    for (int width = 1; width < 120; width++) {
        progress_scroll(text, sizeof text, &v, &m, width);
        assert_true(columns(text) < width);
    }
}

/* stderr goes to `fd` while `body` runs. */
static void with_stderr(int fd, void (*body)(const struct scratch *s), const struct scratch *s)
{
    fflush(stderr);
    int kept = dup(STDERR_FILENO);
    assert_true(dup2(fd, STDERR_FILENO) >= 0);
    body(s);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
}

static void run_two_steps(const struct scratch *s)
{
    struct observe *o;
    progress_start();
    progress_run_set(&(struct progress_run){.step = 497, .steps_total = 500, .step_s = NAN});
    assert_int_equal(observe_open(&o, s->dir, 0, 1), STATUS_OK);
    struct metrics m = record();
    m.step = 499;
    observe_metrics(o, &m);
    log_info("a word between");
    m.step = 500;
    observe_metrics(o, &m);
    observe_close(o);
    progress_stop();
}

/* With log.every = 100 the bar moves between records all the same. */
static void run_a_step_without_a_record(const struct scratch *s)
{
    (void)s;
    progress_start();
    progress_run_set(&(struct progress_run){.step = 100, .steps_total = 500, .step_s = 1});
    progress_begin(WORK_STEP, "step", 1);
    progress_end();
    progress_step(101);
    progress_tick(clock_s() + 9);
    progress_stop();
}

static void a_file_gets_one_line_per_record(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    int fd = open(scratch_path(&s, "stderr"), O_RDWR | O_CREAT, 0600);
    with_stderr(fd, run_two_steps, &s);
    close(fd);
    char *text = scratch_read(&s, "stderr", NULL);
    assert_string_equal(
        text, "step=499/500 loss=4.1250 lr=3.000e-04 grad_norm=0.5000 tokens_per_s=12346\na word between\n"
              "step=500/500 loss=4.1250 lr=3.000e-04 grad_norm=0.5000 tokens_per_s=12346 eta=0s\n");
    free(text);
    scratch_remove(&s);
}

/* What a terminal of 60 columns gets of `body`. */
static ssize_t on_a_terminal(char *text, size_t size, void (*body)(const struct scratch *s),
                             const struct scratch *s)
{
    struct winsize window = {.ws_row = 24, .ws_col = 60};
    int ours, theirs;
    assert_int_equal(openpty(&ours, &theirs, NULL, NULL, &window), 0);
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    setenv("LC_ALL", "C", 1);
    with_stderr(theirs, body, s);
    ssize_t n = 0;
    struct pollfd more = {.fd = ours, .events = POLLIN};
    while (poll(&more, 1, 0) == 1) { /* a terminal hands over what it has in pieces */
        const ssize_t got = read(ours, text + n, size - 1 - (size_t)n);
        assert_true(got > 0);
        n += got;
    }
    text[n] = 0;
    close(ours);
    close(theirs);
    return n;
}

static void the_bar_moves_between_records(void **state)
{
    (void)state;
    char text[4096];
    struct scratch s = scratch_make();
    on_a_terminal(text, sizeof text, run_a_step_without_a_record, &s);
    assert_non_null(strstr(text, "step 101/500 "));
    scratch_remove(&s);
}

static void a_terminal_gets_a_bar_that_log_lines_wipe(void **state)
{
    (void)state;
    char text[4096];
    struct scratch s = scratch_make();
    const ssize_t n = on_a_terminal(text, sizeof text, run_two_steps, &s);
    assert_non_null(strstr(text, "step 499/500  loss 4.1250  12.3k tok/s  lr 3.00e-04\r\n\rstep 499/500 "));
    assert_non_null(strstr(text, "\r\033[Ka word between\r\n"));
    assert_non_null(strstr(text, "step 500/500  loss 4.1250  12.3k tok/s  lr 3.00e-04\r\n\rstep 500/500 "));
    assert_non_null(strstr(text, "100%  loss 4.125"));
    assert_string_equal(text + n - 4, "\r\033[K"); /* nothing of the bar stays */
    scratch_remove(&s);
}

static void work_that_lasts(const struct scratch *s)
{
    (void)s;
    progress_start();
    const double now = clock_s();
    progress_begin(WORK_OTHER, "training the tokenizer", 0);
    progress_tick(now + 9);
    progress_tick(now + 11); /* a line */
    progress_tick(now + 39);
    progress_tick(now + 42); /* another */
    progress_end();
    progress_tick(now + 100);
    progress_stop();
}

static void a_file_gets_a_line_when_work_lasts(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    int fd = open(scratch_path(&s, "stderr"), O_RDWR | O_CREAT, 0600);
    with_stderr(fd, work_that_lasts, &s);
    close(fd);
    char *text = scratch_read(&s, "stderr", NULL);
    assert_string_equal(text, "training the tokenizer: since 11s\ntraining the tokenizer: since 42s\n");
    free(text);
    scratch_remove(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plain_line_has_a_key_for_every_value_there_is),
        cmocka_unit_test(the_bar_leaves_columns_free),
        cmocka_unit_test(the_bar_says_what_lasts),
        cmocka_unit_test(a_pipe_reads_how_far_work_is),
        cmocka_unit_test(the_eta_counts_what_is_to_come),
        cmocka_unit_test(lines_scroll_some_twenty_times),
        cmocka_unit_test(the_bar_moves_between_records),
        cmocka_unit_test(a_file_gets_one_line_per_record),
        cmocka_unit_test(a_terminal_gets_a_bar_that_log_lines_wipe),
        cmocka_unit_test(a_file_gets_a_line_when_work_lasts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
