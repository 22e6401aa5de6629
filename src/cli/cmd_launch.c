/* ingot launch: starts the ranks of a job on this machine, watches them, and ends them together. */
#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/print_json.h"
#include "comm/comm.h"
#include "dev/near.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum {
    GRACE_S = 5, /* what ranks get to end by themselves */
    OWN = 512    /* bytes of a variable of theirs */
};

struct job {
    int ranks, fd;
    char cores[OWN - 16];           /* that all ranks may use: near_text */
    char **argv;                    /* of a rank: argv[0] is this program */
    int result;                     /* --json: what rank 0 prints on stdout; -1: it prints there itself */
    pid_t pids[COMM_RANKS_MAX];     /* 0: has ended */
    double still_s[COMM_RANKS_MAX]; /* since when a signal has stopped it; 0: it runs */
    int running;
    int first;     /* the rank that ended first for a reason of its own; -1: none */
    status code;   /* what the job ends with */
    bool stopped;  /* asked to by a signal */
    double kill_s; /* when those that are still there are killed; 0: never */
    bool killed;
    char reason[256];
};

/* ---- signals: what comes in goes on to all ranks. A handler can reach nothing but file-scope state. */

static volatile sig_atomic_t received;

static void on_signal(int number)
{
    received = number;
}

/* No SA_RESTART: they end the wait for children. */
static void signals_catch_all(void)
{
    const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGALRM};
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_handler = on_signal;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) sigaction(numbers[i], &act, NULL);
}

static void signal_ranks(struct job *j, int number)
{
    for (int r = 0; r < j->ranks; r++)
        if (j->pids[r]) kill(j->pids[r], number);
}

/* ---- start */

/* The cores of rank r: an equal share of those that this process may use; with more ranks than cores, one that is shared. */
static void share_of_cores(const cpu_set_t *all, int rank, int ranks, cpu_set_t *share)
{
    const int cores = CPU_COUNT(all);
    int begin = cores >= ranks ? rank * cores / ranks : rank % cores;
    int end = cores >= ranks ? (rank + 1) * cores / ranks : begin + 1;
    CPU_ZERO(share);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, all)) continue;
        if (seen >= begin && seen < end) CPU_SET(cpu, share);
        seen++;
    }
}

/* This environment with what a rank needs to know; caller frees the list, not its strings. */
static char **environment_of(const struct job *j, int rank, char own[4][OWN])
{
    static const char *const names[] = {"INGOT_RANK=", "INGOT_RANKS=", "INGOT_COMM=", "INGOT_CORES="};
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    char **list = calloc(count + 5, sizeof *list);
    if (list == NULL) return NULL;
    for (size_t i = 0; i < count; i++) {
        bool mine = false;
        for (int k = 0; k < 4; k++) mine = mine || strncmp(environ[i], names[k], strlen(names[k])) == 0;
        if (!mine) list[kept++] = environ[i];
    }
    snprintf(own[0], sizeof own[0], "%s%d", names[0], rank);
    snprintf(own[1], sizeof own[1], "%s%d", names[1], j->ranks);
    snprintf(own[2], sizeof own[2], "%sfd:%d", names[2], j->fd);
    snprintf(own[3], sizeof own[3], "%s%s", names[3], j->cores);
    for (int k = 0; k < 4; k++) list[kept++] = own[k];
    return list;
}

/* In a process group of its own: a Ctrl-C of the terminal reaches it once, through this process. */
static status start_rank(struct job *j, int rank)
{
    posix_spawnattr_t how;
    char own[4][OWN];
    char **env = environment_of(j, rank, own);
    if (env == NULL) return FAIL(STATUS_FIT, "no memory to start rank %d", rank);
    posix_spawn_file_actions_t files;
    posix_spawnattr_init(&how);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_init(&files);
    if (j->result >= 0) posix_spawn_file_actions_adddup2(&files, j->result, STDOUT_FILENO);
    int err = posix_spawn(&j->pids[rank], "/proc/self/exe", &files, &how, j->argv, env);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&how);
    free(env);
    if (err == 0) {
        j->running++;
        return STATUS_OK;
    }
    j->pids[rank] = 0;
    return FAIL(STATUS_COMM, "rank %d cannot be started: %s", rank, strerror(err));
}

static status start_ranks(struct job *j)
{
    cpu_set_t all, share;
    const bool bind = sched_getaffinity(0, sizeof all, &all) == 0;
    if (bind) near_text(&all, j->cores, sizeof j->cores);
    status st = STATUS_OK;
    for (int r = 0; r < j->ranks && st == STATUS_OK; r++) {
        share_of_cores(&all, r, j->ranks, &share);
        if (bind) sched_setaffinity(0, sizeof share, &share); /* inherited */
        st = start_rank(j, r);
    }
    if (bind) sched_setaffinity(0, sizeof all, &all);
    return st;
}

/* ---- watch */

/* A rank has ended. The first one that did so for a reason of its own gives the job its code: others end because of it. */
static void note_end(struct job *j, int rank, int how)
{
    const int code = WIFEXITED(how) ? WEXITSTATUS(how) : 0;
    const int number = WIFSIGNALED(how) ? WTERMSIG(how) : 0;
    j->pids[rank] = 0;
    j->running--;
    if (number == 0 && (code == STATUS_OK || code == STATUS_STOPPED)) {
        if (code == STATUS_STOPPED && j->code == STATUS_OK) j->code = STATUS_STOPPED;
        return;
    }
    if (j->kill_s == 0) j->kill_s = clock_s() + GRACE_S;
    if (j->first >= 0) return;
    if ((number == 0 && code == STATUS_COMM) || (number == SIGKILL && j->killed)) {
        j->code = STATUS_COMM;
        return;
    }
    j->first = rank;
    j->code = number ? STATUS_COMM : (status)code;
    if (number)
        snprintf(j->reason, sizeof j->reason, "rank %d was ended by signal %d (%s)", rank, number,
                 strsignal(number));
    else
        snprintf(j->reason, sizeof j->reason, "rank %d ended with exit code %d (%s)", rank, code,
                 status_text((status)code));
    comm_job_abort(j->fd, "%s", j->reason);
}

/* A rank that is stopped and not continued has no sign of life to give, perhaps not even a first one. */
static void note_stops(struct job *j)
{
    for (int r = 0; r < j->ranks; r++) {
        if (j->pids[r] == 0 || j->still_s[r] == 0 || clock_s() - j->still_s[r] < COMM_SILENCE_S) continue;
        if (j->first < 0) {
            j->first = r;
            j->code = STATUS_COMM;
            snprintf(j->reason, sizeof j->reason,
                     "rank %d (process %d) was stopped by a signal and stood still", r, (int)j->pids[r]);
            comm_job_abort(j->fd, "%s", j->reason);
        }
        if (j->kill_s == 0) j->kill_s = clock_s() + GRACE_S;
        kill(j->pids[r], SIGKILL);
    }
}

static void pass_signals_on(struct job *j)
{
    const int number = received;
    if (number == 0) return;
    received = 0;
    if (number == SIGALRM) return; /* only ends the wait */
    j->stopped = true;
    signal_ranks(j, number);
}

static void watch_ranks(struct job *j)
{
    while (j->running > 0) {
        int how;
        alarm(1);
        const pid_t pid = waitpid(-1, &how, WUNTRACED | WCONTINUED);
        alarm(0);
        pass_signals_on(j);
        for (int r = 0; r < j->ranks && pid > 0; r++) {
            if (j->pids[r] != pid) continue;
            if (WIFSTOPPED(how) || WIFCONTINUED(how))
                j->still_s[r] = WIFSTOPPED(how) ? clock_s() : 0;
            else
                note_end(j, r, how);
        }
        note_stops(j);
        if (j->kill_s == 0 || clock_s() < j->kill_s || j->running == 0) continue;
        j->killed = true;
        signal_ranks(j, SIGKILL);
    }
}

static status run_once(struct job *j)
{
    j->running = 0;
    j->first = -1;
    j->code = STATUS_OK;
    j->kill_s = 0;
    j->killed = false;
    memset(j->still_s, 0, sizeof j->still_s);
    if (j->ranks > 1) TRY(comm_job_create(j->ranks, &j->fd));
    status st = start_ranks(j);
    if (st != STATUS_OK) {
        comm_job_abort(j->fd, "%s", status_message());
        j->kill_s = clock_s() + GRACE_S;
    }
    watch_ranks(j);
    char why[COMM_TEXT] = "";
    if (j->first < 0) comm_job_abort_reason(j->fd, why);
    if (j->code == STATUS_COMM) comm_job_write_flight(j->fd, j->first < 0 ? why : j->reason);
    if (j->fd >= 0) close(j->fd);
    j->fd = -1;
    if (st != STATUS_OK) return st;
    if (j->code == STATUS_OK) return STATUS_OK;
    if (j->code == STATUS_STOPPED)
        return FAIL(STATUS_STOPPED, "all ranks have stopped; the same command with --resume resumes it");
    if (j->first < 0) return FAIL(STATUS_COMM, "%s", why[0] ? why : "the ranks lost each other");
    return FAIL(j->code, "%s first; the others were stopped", j->reason);
}

/* ---- the verb */

struct order {
    int64_t ranks, restarts;
    bool json;
    int argc;
    char **argv;
};

/* The command of a rank; with `resume`, one that goes on. */
static char **rank_command(const struct order *o, bool resume)
{
    static const char *const program = "ingot", *const go_on = "--resume", *const as_json = "--json";
    char **list = calloc((size_t)o->argc + 4, sizeof *list);
    bool json = o->json;
    int count = 0;
    if (list == NULL) return NULL;
    list[count++] = (char *)program; /* posix_spawn changes none of them */
    for (int i = 0; i < o->argc; i++) {
        list[count++] = o->argv[i];
        if (strcmp(o->argv[i], go_on) == 0) resume = false;
        if (strcmp(o->argv[i], as_json) == 0) json = false;
    }
    if (resume) list[count++] = (char *)go_on;
    if (json) list[count++] = (char *)as_json;
    return list;
}

/* What rank 0 said on stdout; null: nothing that is JSON. */
static json_t *result_of(const struct job *j)
{
    FILE *f = fdopen(dup(j->result), "r");
    if (f == NULL) return json_null();
    rewind(f);
    json_t *o = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);
    fclose(f);
    return o ? o : json_null();
}

static void print_summary(const struct job *j, status st, int64_t restarts, double seconds)
{
    json_t *o = json_pack("{s:i, s:i, s:s, s:I, s:f, s:o}", "ranks", j->ranks, "code", (int)st, "meaning",
                          status_text(st), "restarts", (json_int_t)restarts, "seconds", seconds, "result",
                          result_of(j));
    if (j->first >= 0)
        json_object_set_new(o, "first", json_pack("{s:i, s:s}", "rank", j->first, "reason", j->reason));
    print_json(o);
}

static status run_job(const struct order *o)
{
    struct job job = {.ranks = (int)o->ranks, .fd = -1, .result = -1};
    const double begin = clock_s();
    if (o->json && (job.result = memfd_create("result", MFD_CLOEXEC)) < 0)
        return FAIL(status_of_errno(errno), "no memory for the result: %s", strerror(errno));
    signals_catch_all();
    for (int64_t k = 0;; k++) {
        if (o->json && ftruncate(job.result, 0) != 0)
            return FAIL(status_of_errno(errno), "the result: %s", strerror(errno));
        job.argv = rank_command(o, k > 0);
        if (job.argv == NULL) return FAIL(STATUS_FIT, "no memory for a rank's command");
        status st = run_once(&job);
        free(job.argv);
        if (st == STATUS_OK || st == STATUS_STOPPED || k >= o->restarts || job.stopped ||
            st == STATUS_CONFIG) { /* which would be the same again */
            if (o->json) print_summary(&job, st, k, clock_s() - begin);
            if (o->json) close(job.result);
            return st;
        }
        log_warn("%s; restart %lld of %lld", status_message(), (long long)k + 1, (long long)o->restarts);
    }
}

status cmd_launch(struct args *a)
{
    struct order o = {0};
    const struct flag flags[] = {FLAG("ranks", &o.ranks), FLAG("restart", &o.restarts),
                                 FLAG("json", &o.json)};
    TRY(args_parse(a, flags, 3));
    if (a->help) return STATUS_OK;
    const int argc = o.argc = a->word_count;
    char **argv = o.argv = a->words;
    if (o.ranks < 1 || o.ranks > COMM_RANKS_MAX)
        return FAIL(STATUS_CONFIG,
                    "launch: -n N says how many ranks, from 1 to %d: `ingot launch -n 4 train RUN.yaml`",
                    COMM_RANKS_MAX);
    if (o.restarts < 0)
        return FAIL(STATUS_CONFIG, "launch: --restart %lld: 0 or more", (long long)o.restarts);
    if (argc == 0)
        return FAIL(STATUS_CONFIG, "launch: what shall the ranks run? `ingot launch -n 4 -- train RUN.yaml`");
    const bool bench = argc > 1 && strcmp(argv[0], "bench") == 0 &&
                       (strcmp(argv[1], "collectives") == 0 || strcmp(argv[1], "train") == 0);
    if (strcmp(argv[0], "train") != 0 && !bench)
        return FAIL(STATUS_CONFIG,
                    "launch: '%.40s' does not run on several ranks; `train`, `bench train` and `bench "
                    "collectives` do",
                    argv[0]);
    struct comm_env here;
    TRY(comm_env_read(&here));
    if (here.by != COMM_BY_NONE)
        return FAIL(STATUS_CONFIG, "launch: this process is a rank already: %d of %d", here.rank, here.ranks);
    return run_job(&o);
}
