/* Programs that are run for what they print: their output, their failure, and one that does not end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/process.h"

static void output_is_kept_as_far_as_it_fits(void **state)
{
    (void)state;
    char out[8];
    const char *const hello[] = {"sh", "-c", "printf hello; printf lost >&2", NULL};
    assert_int_equal(process_read(hello, 600, out, sizeof out), STATUS_OK);
    assert_string_equal(out, "hello");
    const char *const much[] = {"sh", "-c", "yes | head -c 1000000", NULL}; /* more than a pipe holds */
    assert_int_equal(process_read(much, 600, out, sizeof out), STATUS_OK);
    assert_string_equal(out, "y\ny\ny\ny");
}

static void failures_say_which_program(void **state)
{
    (void)state;
    char out[64];
    const char *const fails[] = {"sh", "-c", "exit 3", NULL}, *const none[] = {"no-such-program", NULL};
    assert_int_equal(process_read(fails, 600, out, sizeof out), STATUS_IO);
    assert_non_null(strstr(status_message(), "sh ended with exit code 3"));
    assert_int_equal(process_read(none, 600, out, sizeof out), STATUS_IO);
    assert_non_null(strstr(status_message(), "no-such-program"));
    const char *const stays[] = {"sleep", "100000", NULL};
    assert_int_equal(process_read(stays, 0.05, out, sizeof out), STATUS_IO); /* killed: the test ends */
    assert_non_null(strstr(status_message(), "did not end within"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_kept_as_far_as_it_fits),
        cmocka_unit_test(failures_say_which_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
