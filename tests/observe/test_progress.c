/* The lines a person sees, letter by letter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <pty.h>

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

static void the_bar_never_fills_the_last_column(void **state)
{
    (void)state;
    struct metrics m = record();
    struct progress p = {.steps_total = 2000, .loss = 4.1234, .val_loss = 4.5};
    char bar[1024];
    progress_bar(bar, sizeof bar, &p, &m, 130, 100);
    assert_string_equal(bar, "step 500/2000 ========-------------------------  25%  loss 4.123  ETA "
                             "2m10s  12.3k tok/s  val 4.500");
    p.steps_total = 0; /* nobody knows how long */
    progress_bar(bar, sizeof bar, &p, &m, NAN, 100);
    assert_string_equal(bar, "step 500   loss 4.123  12.3k tok/s  val 4.500");
    p.steps_total = 2000;
    for (int variant = 0; variant < 4; variant++) {
        p.color = variant & 1;
        p.unicode = variant & 2;
        for (int width = 1; width < 200; width++) {
            progress_bar(bar, sizeof bar, &p, &m, 130, width);
            assert_true(columns(bar) < width);
        }
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
    assert_int_equal(observe_open(&o, s->dir, 0, 500), STATUS_OK);
    struct metrics m = record();
    m.step = 499;
    observe_metrics(o, &m);
    log_info("a word between");
    m.step = 500;
    observe_metrics(o, &m);
    observe_close(o);
}

static void a_file_gets_one_line_per_record(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    int fd = open(scratch_path(&s, "stderr"), O_RDWR | O_CREAT, 0600);
    with_stderr(fd, run_two_steps, &s);
    close(fd);
    char *text = scratch_read(&s, "stderr", NULL);
    /* The first ETA hangs on the clock; the last is zero whatever the clock says. */
    assert_ptr_equal(
        strstr(text, "step=499/500 loss=4.1250 lr=3.000e-04 grad_norm=0.5000 tokens_per_s=12346 eta="), text);
    assert_non_null(strstr(text, "\na word between\nstep=500/500 loss=4.1250 lr=3.000e-04 grad_norm=0.5000 "
                                 "tokens_per_s=12346 eta=0s\n"));
    assert_null(strchr(text, '\r'));
    assert_null(strchr(text, '\033'));
    free(text);
    scratch_remove(&s);
}

static void a_terminal_gets_a_bar_that_log_lines_wipe(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct winsize size = {.ws_row = 24, .ws_col = 60};
    int ours, theirs;
    assert_int_equal(openpty(&ours, &theirs, NULL, NULL, &size), 0);
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    setenv("LC_ALL", "C", 1);
    with_stderr(theirs, run_two_steps, &s);
    char text[4096];
    ssize_t n = read(ours, text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = 0;
    assert_ptr_equal(strstr(text, "\rstep 499/500 "), text);
    assert_non_null(strstr(text, "\r\033[Ka word between\r\n\rstep 500/500 "));
    assert_non_null(strstr(text, "100%  loss 4.125"));
    assert_string_equal(text + n - 2, "\r\n");
    close(ours);
    close(theirs);
    scratch_remove(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plain_line_has_a_key_for_every_value_there_is),
        cmocka_unit_test(the_bar_never_fills_the_last_column),
        cmocka_unit_test(a_file_gets_one_line_per_record),
        cmocka_unit_test(a_terminal_gets_a_bar_that_log_lines_wipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
