/* ingot launch: starts the ranks of a job on this machine, watches them, and ends them together. */
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cmd_launch.h"
#include "cli/cmd_launch_elastic.h"
#include "cli/print_json.h"
#include "comm/comm.h"
#include "dev/near.h"
#include "doctor/doctor.h"
#include "train/checkpoint.h"
#include "train/memory_copy.h"
#include "train/signals.h"

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
    int copies;           /* memory that outlives the ranks (train/memory_copy.h); empty until they fill it */
    char cores[OWN - 16]; /* that all ranks may use: near_text */
    char **argv;          /* of a rank: argv[0] is this program */
    int result;           /* --json: what rank 0 prints on stdout; -1: it prints there itself */
    const int *slots;     /* of the ranks of this start: which of all it is */
    pid_t pids[COMM_RANKS_MAX];     /* 0: has ended */
    double still_s[COMM_RANKS_MAX]; /* since when a signal has stopped it; 0: it runs */
    int running;
    int first;     /* the rank that ended first for a reason of its own; -1: none */
    bool absent;   /* it could not be started */
    status code;   /* what the job ends with */
    bool stopped;  /* asked to end by SIGINT or SIGTERM */
    int saves;     /* the signal that asked the ranks to save and stop, of this start; 0: none */
    double kill_s; /* when those that are still there are killed; 0: never */
    bool killed;
    char reason[256];
    struct launch_output output;
};

/* ---- signals. A handler can reach nothing but file-scope state. */

static volatile sig_atomic_t asked_to_end, asked_to_save; /* SIGINT or SIGTERM; SIGUSR1 or SIGUSR2 */

static void on_signal(int number)
{
    if (number == SIGINT || number == SIGTERM) asked_to_end = number;
    if (number == SIGUSR1 || number == SIGUSR2) asked_to_save = number;
}

/* No SA_RESTART: they end the wait for children; SIGALRM does nothing else. */
static void signals_catch_all(void)
{
    const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM};
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_handler = on_signal;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) sigaction(numbers[i], &act, NULL);
    signals_ignore();
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
enum { OWN_COUNT = 6 };
static char **environment_of(const struct job *j, int rank, char own[OWN_COUNT][OWN])
{
    static const char *const names[OWN_COUNT] = {
        "INGOT_RANK=",  "INGOT_RANKS=",      "INGOT_COMM=",
        "INGOT_CORES=", "INGOT_LOCAL_RANK=", MEMORY_COPY_VARIABLE "="};
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    char **list = calloc(count + OWN_COUNT + 1, sizeof *list);
    if (list == NULL) return NULL;
    for (size_t i = 0; i < count; i++) {
        bool mine = false;
        for (int k = 0; k < OWN_COUNT; k++)
            mine = mine || strncmp(environ[i], names[k], strlen(names[k])) == 0;
        if (!mine) list[kept++] = environ[i];
    }
    snprintf(own[0], sizeof own[0], "%s%d", names[0], rank);
    snprintf(own[1], sizeof own[1], "%s%d", names[1], j->ranks);
    snprintf(own[2], sizeof own[2], "%sfd:%d", names[2], j->fd);
    snprintf(own[3], sizeof own[3], "%s%s", names[3], j->cores);
    snprintf(own[4], sizeof own[4], "%s%d", names[4], j->slots[rank]);
    snprintf(own[5], sizeof own[5], "%s%d", names[5], j->copies);
    for (int k = 0; k < OWN_COUNT; k++) list[kept++] = own[k];
    return list;
}

/* In a process group of its own: a Ctrl-C of the terminal reaches it once, through this process. SIGUSR1 and SIGUSR2 wait until the rank
 * catches them (signals_catch); else they would end it while it starts. */
static status start_rank(struct job *j, int rank)
{
    posix_spawnattr_t how;
    sigset_t later;
    char own[OWN_COUNT][OWN];
    char **env = environment_of(j, rank, own);
    if (env == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory to start rank %d", rank);
    posix_spawn_file_actions_t files;
    posix_spawnattr_init(&how);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    sigemptyset(&later);
    sigaddset(&later, SIGUSR1);
    sigaddset(&later, SIGUSR2);
    posix_spawnattr_setsigmask(&how, &later);
    posix_spawn_file_actions_init(&files);
    if (rank > 0) posix_spawn_file_actions_adddup2(&files, j->output.spool, STDERR_FILENO);
    if (j->result >= 0) posix_spawn_file_actions_adddup2(&files, j->result, STDOUT_FILENO);
    int err = posix_spawn(&j->pids[rank], "/proc/self/exe", &files, &how, j->argv, env);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&how);
    free(env);
    if (rank == 0) j->output.lead = j->pids[rank];
    if (err == 0) {
        j->running++;
        return STATUS_OK;
    }
    j->pids[rank] = 0;
    j->first = rank;
    j->absent = true;
    snprintf(j->reason, sizeof j->reason, "rank %d cannot be started: %s", rank, strerror(err));
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
    const int end = asked_to_end, save = asked_to_save;
    asked_to_end = asked_to_save = 0;
    if (save) signal_ranks(j, j->saves = save);
    if (end) signal_ranks(j, end);
    j->stopped = j->stopped || end;
}

static void watch_ranks(struct job *j)
{
    while (j->running > 0) {
        int how;
        alarm(1);
        const pid_t pid = waitpid(-1, &how, WUNTRACED | WCONTINUED);
        alarm(0);
        pass_signals_on(j);
        launch_output_show(&j->output, false);
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
    j->running = j->saves = 0;
    j->first = -1;
    j->absent = false;
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
    launch_output_show(&j->output, true);
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
    int64_t ranks, restarts, least;
    bool json, no_doctor;
    int argc;
    char **argv;
};

/* The command of a rank; with `resume`, one that goes on. The keys of a smaller mesh are last, and win. */
static char **rank_command(const struct order *o, struct mesh_shrink *mesh, const char *go_on)
{
    static const char *const program = "ingot", *const as_json = "--json";
    bool resume = go_on != NULL;
    char **list = calloc((size_t)o->argc + MESH_SHRINK_KEYS + 4, sizeof *list);
    bool json = o->json;
    int count = 0;
    if (list == NULL) return NULL;
    list[count++] = (char *)program; /* posix_spawn changes none of them */
    for (int i = 0; i < o->argc; i++) {
        const bool back = strncmp(o->argv[i], "--resume=", 9) == 0,
                   plain = strcmp(o->argv[i], "--resume") == 0;
        list[count++] = resume && (back || plain) ? (char *)go_on : o->argv[i];
        if (back || plain) resume = false;
        if (strcmp(o->argv[i], as_json) == 0) json = false;
    }
    if (resume) list[count++] = (char *)go_on;
    for (int i = 0; i < mesh->key_count; i++) list[count++] = mesh->keys[i];
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

/* One start of all ranks, or one more: with `go_on`, a form of --resume; NULL: as the user said. */
static status start(const struct order *o, struct job *j, struct elastic *e, const char *go_on)
{
    j->ranks = e->ranks;
    j->slots = e->slots;
    elastic_begin(e);
    if (o->json && ftruncate(j->result, 0) != 0) return FAIL(STATUS_IO, "the result: %s", strerror(errno));
    j->argv = rank_command(o, &e->mesh, go_on);
    if (j->argv == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a rank's command");
    status st = run_once(j);
    free(j->argv);
    return st;
}

/* Whether the job ends with what its ranks have ended with. */
static bool is_last(const struct order *o, const struct job *j, status st, int64_t restarts, int numeric)
{
    if (st == STATUS_OK || st == STATUS_CONFIG || j->stopped) return true; /* the same mistake again */
    if (st == STATUS_STOPPED) return j->saves == 0 || o->restarts == 0;
    return restarts >= o->restarts || numeric > 1;
}

/* From the newest checkpoint; after a loss that was not finite from the newest sound one. */
static void how_to_go_on(const struct job *j, status st, char go_on[64])
{
    char why[256];
    int64_t step = -1;
    snprintf(why, sizeof why, "%s", status_message()); /* the looking may leave another one */
    snprintf(go_on, 64, "--resume");
    if (st == STATUS_NUMERIC && j->output.run_dir[0] &&
        checkpoint_newest_sound(j->output.run_dir, &step) == STATUS_OK && step >= 0)
        snprintf(go_on, 64, "--resume=%lld", (long long)step);
    if (st != STATUS_STOPPED) (void)FAIL(st, "%s", why);
}

/* Whether the start ended because of the rank j->first, and not of what all ranks read or compute. */
static bool ended_by_itself(const struct job *j, status st)
{
    return j->first >= 0 && (st == STATUS_COMM || st == STATUS_OUT_OF_MEMORY || st == STATUS_DEVICE ||
                             st == STATUS_CORRUPT || st == STATUS_INTERNAL);
}

/* Starts the ranks until they are done. A stop that a user's signal asked for is no failure; a loss that is not finite may be a fault of
 * the machine, once: the steps are the same again. */
static status start_again(const struct order *o, struct job *j, struct elastic *e, int64_t *restarts)
{
    int numeric = 0;
    char go_on[64];
    for (bool first = true;; first = false) {
        status st = start(o, j, e, first ? NULL : go_on);
        if (st == STATUS_NUMERIC) numeric++;
        if (is_last(o, j, st, *restarts, numeric)) {
            if (st == STATUS_NUMERIC && *restarts < o->restarts && !j->stopped)
                return status_wrap(
                    st, "not started again, since a restart ended in the same way (lower optim.lr, "
                        "or remove the newest checkpoints)");
            return st;
        }
        how_to_go_on(j, st, go_on);
        if ((st == STATUS_NUMERIC || st == STATUS_CORRUPT) &&
            ftruncate(j->copies, 0) != 0) /* the copy may be of steps that were not sound */
            return FAIL(STATUS_IO, "the copies in memory: %s", strerror(errno));
        if (st == STATUS_STOPPED)
            log_info("%s: the ranks have saved and go on", signals_name(j->saves));
        else
            log_warn("%s; restart %lld of %lld", status_message(), (long long)++*restarts,
                     (long long)o->restarts);
        TRY(elastic_next(e, ended_by_itself(j, st) ? j->first : -1, j->absent));
    }
}

/* The spec of the run; false: the ranks have none, or will say what is wrong. */
static bool find_spec(const struct order *o, struct spec *spec)
{
    for (int i = 0; i < o->argc; i++)
        if (strcmp(o->argv[i], "--help") == 0 || strcmp(o->argv[i], "-h") == 0) return false;
    return strcmp(o->argv[0], "train") == 0 && cmd_train_spec(o->argc - 1, o->argv + 1, spec) == STATUS_OK;
}

static status run_job(const struct order *o)
{
    struct job job = {.ranks = (int)o->ranks, .fd = -1, .result = -1};
    const double begin = clock_s();
    int64_t restarts = 0;
    struct spec spec;
    struct elastic elastic;
    signals_catch_all();
    const bool run = find_spec(o, &spec);
    elastic_open(&elastic, o->least > 0 && run ? &spec : NULL, job.ranks, (int)o->least);
    if (o->json && (job.result = memfd_create("result", MFD_CLOEXEC)) < 0)
        return FAIL(status_of_errno(errno), "no memory for the result: %s", strerror(errno));
    if ((job.copies = memfd_create("copies", 0)) < 0)
        return FAIL(status_of_errno(errno), "no memory for copies of the state: %s", strerror(errno));
    status st = launch_output_open(&job.output, run ? spec.run.run_dir : "");
    if (st == STATUS_OK) st = start_again(o, &job, &elastic, &restarts);
    launch_output_close(&job.output);
    if (o->json) print_summary(&job, st, restarts, clock_s() - begin);
    if (o->json) close(job.result);
    close(job.copies);
    return st;
}

/* The quick part of `ingot doctor`: a failure ends the launch before the first step, warnings make one line. */
static status host_fit(void)
{
    struct doctor *d;
    char names[256] = "";
    TRY(doctor_run(&d, &(struct doctor_how){.level = DOCTOR_QUICK, .alone = true}));
    const status st = doctor_exit(d, false);
    if (st != STATUS_OK) doctor_print(d, stderr, text_columns(STDERR_FILENO, DOCTOR_COLUMNS), false);
    for (int i = 0; i < doctor_count(d) && st == STATUS_OK; i++) {
        const struct doctor_finding *f = doctor_finding(d, i);
        const size_t used = strlen(names);
        if (f->verdict == DOCTOR_WARN)
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", f->check->name);
    }
    doctor_close(d);
    if (names[0]) log_info("doctor    warnings: %s; `ingot doctor` explains them", names);
    if (st == STATUS_OK) return STATUS_OK;
    return FAIL(st, "launch: this host is not fit for a run (above); --no-doctor starts all the same");
}

status cmd_launch(struct args *a)
{
    struct order o = {0};
    const struct flag flags[] = {FLAG("ranks", &o.ranks), FLAG("restart", &o.restarts),
                                 FLAG("min-ranks", &o.least), FLAG("no-doctor", &o.no_doctor),
                                 FLAG("json", &o.json)};
    TRY(args_parse(a, flags, 5));
    if (a->help) return STATUS_OK;
    const int argc = o.argc = a->word_count;
    char **argv = o.argv = a->words;
    if (o.ranks < 1 || o.ranks > COMM_RANKS_MAX)
        return FAIL(STATUS_CONFIG,
                    "launch: -n N says how many ranks, from 1 to %d: `ingot launch -n 4 train RUN.yaml`",
                    COMM_RANKS_MAX);
    if (o.restarts < 0)
        return FAIL(STATUS_CONFIG, "launch: --restart %lld: 0 or more", (long long)o.restarts);
    if (o.least != 0 &&
        (o.least < 1 || o.least > o.ranks || o.restarts == 0 || argc == 0 || strcmp(argv[0], "train") != 0))
        return FAIL(STATUS_CONFIG,
                    "launch: --min-ranks %lld: from 1 to the %lld ranks, for `train` with --restart N",
                    (long long)o.least, (long long)o.ranks);
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
    if (!o.no_doctor) TRY(host_fit());
    return run_job(&o);
}
