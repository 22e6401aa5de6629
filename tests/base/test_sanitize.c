/* sanitize_access: under the address sanitizer, bytes that are not to be accessed end the process with a report; all others do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sanitize.h"

static bool ends(int64_t begin, int64_t bytes) /* of 13 */
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const int null = open("/dev/null", O_WRONLY);
        if (null < 0 || dup2(null, STDERR_FILENO) < 0) _exit(99);
        char *p = malloc(13);
        if (p == NULL) _exit(99);
        sanitize_access(p + begin, bytes);
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_false(WIFEXITED(how) && WEXITSTATUS(how) == 99);
    return !WIFEXITED(how) || WEXITSTATUS(how) != 0;
}

static void what_is_not_to_be_accessed_ends_the_process(void **state)
{
    (void)state;
    assert_false(ends(0, 13));
    assert_false(ends(13, 0));
    assert_int_equal(ends(0, 14), SANITIZED);
    assert_int_equal(ends(12, 2), SANITIZED);
    assert_int_equal(ends(-1, 5), SANITIZED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_not_to_be_accessed_ends_the_process)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
