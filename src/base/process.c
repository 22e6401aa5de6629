#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

status process_run(const char *const argv[], const char *in_path, const char *out_path)
{
    posix_spawn_file_actions_t files;
    pid_t pid;
    int code;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, in_path ? in_path : "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    /* posix_spawnp does not change the strings; its prototype is older than const */
    int err = posix_spawnp(&pid, argv[0], &files, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (err == ENOENT && access(in_path ? in_path : "/dev/null", R_OK) == 0)
        return FAIL(STATUS_CONFIG, "the program '%s' is not installed", argv[0]);
    if (err) return FAIL(STATUS_IO, "%s: cannot be started: %s", argv[0], strerror(err));
    while (waitpid(pid, &code, 0) < 0)
        if (errno != EINTR) return FAIL(STATUS_IO, "%s: cannot be waited for: %s", argv[0], strerror(errno));
    if (WIFSIGNALED(code)) return FAIL(STATUS_IO, "%s ended by signal %d", argv[0], WTERMSIG(code));
    if (WEXITSTATUS(code) != 0)
        return FAIL(STATUS_IO, "%s ended with exit code %d", argv[0], WEXITSTATUS(code));
    return STATUS_OK;
}
