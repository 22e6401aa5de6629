#include "observe/alert_exec.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void failed(struct alert_exec *e, const char *why)
{
    if (e->failures++ == 0) log_warn("log.alert_exec: %s; further failures are not said", why);
}

void alert_exec_add(struct alert_exec *e, const char *record)
{
    if (e->command[0] == 0) return;
    if (e->count == ALERT_EXEC_QUEUE) {
        failed(e, "more alerts than it can take: some are only in alerts.jsonl");
        return;
    }
    char *copy = strdup(record);
    MEMORY_CHECK(copy != NULL, "no memory for an alert's record");
    e->waiting[e->count++] = copy;
}

/* The record through a file in memory: a command that does not read it blocks nothing. */
static int record_file(const char *record)
{
    const int fd = memfd_create("alert", MFD_CLOEXEC);
    const size_t n = strlen(record);
    if (fd >= 0 && write(fd, record, n) == (ssize_t)n && lseek(fd, 0, SEEK_SET) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static void start(struct alert_exec *e, double now_s)
{
    const char *const argv[] = {"sh", "-c", e->command, NULL};
    char *record = e->waiting[0];
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none;
    memmove(e->waiting, e->waiting + 1, sizeof e->waiting[0] * (size_t)--e->count);
    const int fd = record_file(record);
    free(record);
    if (fd < 0) {
        failed(e, "no memory for an alert's record");
        return;
    }
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, fd, STDIN_FILENO);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&how); /* a group of its own: all that it starts can be ended */
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setpgroup(&how, 0);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    const int err = posix_spawnp(&e->pid, argv[0], &files, &how, (char *const *)argv, environ);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    close(fd);
    e->begin_s = now_s;
    if (err == 0) return;
    e->pid = 0;
    failed(e, strerror(err));
}

static void look_after(struct alert_exec *e, double now_s)
{
    char why[96];
    int code = 0;
    const pid_t ended = waitpid(e->pid, &code, WNOHANG);
    if (ended == 0 && now_s - e->begin_s < e->limit_s) return;
    if (ended == 0) {
        kill(-e->pid, SIGKILL);
        while (waitpid(e->pid, &code, 0) < 0 && errno == EINTR) {}
        snprintf(why, sizeof why, "the command did not end within %g s and was ended", e->limit_s);
        failed(e, why);
    } else if (ended > 0 && code != 0) {
        snprintf(why, sizeof why, "the command ended with %s %d", WIFSIGNALED(code) ? "signal" : "exit code",
                 WIFSIGNALED(code) ? WTERMSIG(code) : WEXITSTATUS(code));
        failed(e, why);
    }
    e->pid = 0;
}

bool alert_exec_look(struct alert_exec *e, double now_s)
{
    if (e->pid) look_after(e, now_s);
    if (e->pid == 0 && e->count) start(e, now_s);
    return e->pid || e->count;
}

void alert_exec_end(struct alert_exec *e)
{
    const double end = clock_s() + e->limit_s;
    while (alert_exec_look(e, clock_s()) && clock_s() < end) usleep(20000);
    if (e->pid) {
        e->limit_s = 0;
        look_after(e, clock_s());
    }
    while (e->count) free(e->waiting[--e->count]);
}
