#include "base/process.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static status process_wait(const char *name, pid_t pid, int *code)
{
    while (waitpid(pid, code, 0) < 0)
        if (errno != EINTR)
            return FAIL(status_of_errno(errno), "%s: cannot be waited for: %s", name, strerror(errno));
    return STATUS_OK;
}

static status process_end(const char *name, pid_t pid)
{
    int code;
    TRY(process_wait(name, pid, &code));
    if (WIFSIGNALED(code)) return FAIL(STATUS_IO, "%s ended by signal %d", name, WTERMSIG(code));
    if (WEXITSTATUS(code) != 0) return FAIL(STATUS_IO, "%s ended with exit code %d", name, WEXITSTATUS(code));
    return STATUS_OK;
}

status process_run(const char *const argv[], const char *in_path, const char *out_path)
{
    posix_spawn_file_actions_t files;
    pid_t pid;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, in_path ? in_path : "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    /* posix_spawnp does not change the strings; its prototype is older than const */
    int err = posix_spawnp(&pid, argv[0], &files, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (err == ENOENT && access(in_path ? in_path : "/dev/null", R_OK) == 0)
        return FAIL(STATUS_CONFIG, "the program '%s' is not installed", argv[0]);
    if (err) return FAIL(STATUS_IO, "%s: cannot be started: %s", argv[0], strerror(err));
    return process_end(argv[0], pid);
}

status process_log(const char *const argv[], const char *log_path, int *code)
{
    posix_spawn_file_actions_t files;
    pid_t pid;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log_path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
    int err = posix_spawnp(&pid, argv[0], &files, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (err)
        return FAIL(STATUS_IO, "%s, which writes to %s: cannot be started: %s", argv[0], log_path,
                    strerror(err));
    int end;
    TRY(process_wait(argv[0], pid, &end));
    *code = WIFSIGNALED(end) ? 128 + WTERMSIG(end) : WEXITSTATUS(end);
    return STATUS_OK;
}

/* Reads until the other end is closed. False: not within the time, or the pipe failed. */
static bool read_all(int fd, double limit_s, char *out, size_t size)
{
    char rest[4096];
    size_t used = 0;
    const double end = clock_s() + limit_s;
    for (double left = limit_s; left > 0; left = end - clock_s()) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, (int)(left * 1000) + 1) < 0 && errno != EINTR) return false;
        if (wait.revents == 0) continue;
        const size_t room = size - 1 - used;
        ssize_t n = room ? read(fd, out + used, room) : read(fd, rest, sizeof rest);
        if (n < 0 && errno != EINTR) return false;
        if (n > 0 && room) used += (size_t)n;
        out[used] = 0;
        if (n == 0) return true;
    }
    return false;
}

status process_read(const char *const argv[], double limit_s, char *out, size_t size)
{
    posix_spawn_file_actions_t files;
    pid_t pid;
    int ends[2];
    out[0] = 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(status_of_errno(errno), "%s: no pipe for what it prints: %s", argv[0], strerror(errno));
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int err = posix_spawnp(&pid, argv[0], &files, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    const bool whole = err == 0 && read_all(ends[0], limit_s, out, size);
    close(ends[0]);
    if (err) return FAIL(STATUS_IO, "%s: cannot be started: %s", argv[0], strerror(err));
    if (!whole) kill(pid, SIGKILL);
    status st = process_end(argv[0], pid);
    return whole ? st : FAIL(STATUS_IO, "%s did not end within %g s", argv[0], limit_s);
}
