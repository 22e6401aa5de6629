/* What a signal is answered with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "observe/progress.h"
#include "train/stop.h"

/* The line of a SIGINT in a step of `seconds` in `micros` micro-batches, its first one. */
static const char *answer(char text[256], double seconds, int64_t micros)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    const int kept = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    progress_start();
    progress_run_set(&(struct progress_run){.steps_total = 10, .step_s = seconds});
    progress_begin(WORK_STEP, "step", micros);
    stop_answer(SIGINT, 1, true);
    progress_stop();
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    text[0] = 0;
    if (fgets(text, 256, file) == NULL) text[0] = 0;
    fclose(file);
    return text;
}

static void a_long_step_is_dropped_and_the_wait_is_said(void **state)
{
    (void)state;
    char text[256];
    assert_string_equal(
        answer(text, 7.6 * 3600, 16),
        "SIGINT: dropping step 1 (7h36m left) after its micro-batch, about 28m30s, then saving; "
        "again to stop now without saving\n");
    assert_string_equal(
        answer(text, 100, 100),
        "SIGINT: dropping step 1 (1m40s left), then saving; again to stop now without saving\n");
}

static void a_short_step_is_finished(void **state)
{
    (void)state;
    char text[256];
    assert_string_equal(
        answer(text, 8, 16),
        "SIGINT: finishing step 1, about 8s, then saving; again to stop now without saving\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_step_is_dropped_and_the_wait_is_said),
        cmocka_unit_test(a_short_step_is_finished),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
