/* What is known of a run: its records, and what the host says about its process. */
#include "observe/explain_int.h"
#include "base/io.h"
#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { LOG_TAIL = 64 << 10, KERNEL_LOG = 1 << 20 };

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* A line of log.txt is "TIME LEVEL TEXT". */
static bool is_level(const char *line, const char *level)
{
    const char *blank = strchr(line, ' ');
    const size_t n = strlen(level);
    return blank && strncmp(blank + 1, level, n) == 0 && blank[n + 1] == ' ';
}

static void read_log(struct run_facts *f)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/log.txt", f->dir);
    char *log = report_file_tail(path, LOG_TAIL);
    for (char *line = log, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next == NULL) break; /* torn */
        *next++ = 0;
        snprintf(f->log_last, sizeof f->log_last, "%s", line);
        if (strstr(line, "it is saved when there is space"))
            snprintf(f->log_waits, sizeof f->log_waits, "%s", line);
        else if (strstr(line, " info checkpoint of step "))
            f->log_waits[0] = 0;
        if (is_level(line, "error") || is_level(line, "warning"))
            snprintf(f->log_error, sizeof f->log_error, "%s", line);
    }
    free(log);
}

/* "# REASON" of a comm-flight.txt that is newer than this part of the run. */
static void read_flight(struct run_facts *f)
{
    char path[1200], start[1200];
    struct stat flight, env;
    snprintf(path, sizeof path, "%s/comm-flight.txt", f->dir);
    snprintf(start, sizeof start, "%s/env.json", f->dir);
    if (stat(path, &flight) != 0) return;
    if (stat(start, &env) == 0 &&
        (flight.st_mtim.tv_sec < env.st_mtim.tv_sec ||
         (flight.st_mtim.tv_sec == env.st_mtim.tv_sec && flight.st_mtim.tv_nsec < env.st_mtim.tv_nsec)))
        return;
    char *all = report_file_tail(path, 1 << 20);
    if (all && all[0] == '#')
        snprintf(f->flight, sizeof f->flight, "%.*s", (int)strcspn(all + 1 + strspn(all + 1, " "), "\n"),
                 all + 1 + strspn(all + 1, " "));
    free(all);
}

/* When this part of the run began; 0: not known. */
static double start_of(const json_t *env)
{
    struct tm tm = {0};
    const char *end = strptime(text(env, "start"), "%Y-%m-%dT%H:%M:%SZ", &tm);
    return end && *end == 0 ? (double)timegm(&tm) : 0;
}

/* Lines of bug.txt: TIME, rank, process, where, check, text, with tabs between. */
static void read_bug(struct run_facts *f)
{
    char path[1200];
    const double began = start_of(f->data.env);
    snprintf(path, sizeof path, "%s/bug.txt", f->dir);
    char *all = report_file_tail(path, LOG_TAIL);
    for (char *line = all, *next; line && *line && f->bug[0] == 0; line = next) {
        enum { TIME, RANK, PROCESS, WHERE, COND, TEXT, FIELDS };
        char *field[FIELDS] = {line}, *at = line;
        struct tm tm = {0};
        int count = 1;
        next = strchr(line, '\n');
        if (next == NULL) break; /* torn */
        *next++ = 0;
        while (count < FIELDS && (at = strchr(at, '\t')) != NULL) *at++ = 0, field[count++] = at;
        const char *end = strptime(field[TIME], "%Y-%m-%dT%H:%M:%SZ", &tm);
        if (count < FIELDS || end == NULL || (double)timegm(&tm) < began) continue;
        snprintf(f->bug, sizeof f->bug, "%s: check %s at %s, %s", field[TEXT], field[COND], field[WHERE],
                 field[RANK]);
    }
    free(all);
}

/* "process 4711 on node07" */
static void read_lock(struct run_facts *f)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/lock", f->dir);
    char *holder = report_file_tail(path, 4096);
    static const char *const word = "process ";
    if (holder && strncmp(holder, word, strlen(word)) == 0)
        f->pid = (int64_t)strtoll(holder + strlen(word), NULL, 10);
    free(holder);
}

static void find_saving(struct run_facts *f)
{
    char path[1200];
    struct io_list names;
    snprintf(path, sizeof path, "%s/ckpt", f->dir);
    if (io_list(path, &names) != STATUS_OK) return;
    for (int i = 0; i < names.count; i++)
        if (strncmp(names.names[i], ".tmp-", 5) == 0)
            snprintf(f->saving, sizeof f->saving, "%.79s", names.names[i]);
    io_list_free(&names);
}

/* ---- the host */

/* A line of the kernel's log: of the run's process, or of a program of this name (in a container the log has other
 * numbers of processes). */
struct kernel_line {
    bool ours, named, killed, crashed;
    const char *text;
};

static struct kernel_line kernel_line(const char *said, int64_t pid)
{
    char killed[32], crashed[32];
    snprintf(killed, sizeof killed, " %lld (", (long long)pid);
    snprintf(crashed, sizeof crashed, "[%lld]", (long long)pid);
    return (struct kernel_line){.ours = pid > 0 && (strstr(said, killed) || strstr(said, crashed)),
                                .named = strstr(said, "(ingot)") || strstr(said, "ingot["),
                                .killed = strstr(said, "Killed process") != NULL,
                                .crashed = strstr(said, "segfault") || strstr(said, "trap "),
                                .text = said};
}

/* What counts: a line of the run's own process; without one, the first of a program of this name. */
static void keep_line(char out[KERNEL_TEXT], bool *own, const struct kernel_line *l)
{
    if (*own || (!l->ours && (!l->named || out[0]))) return;
    snprintf(out, KERNEL_TEXT, "%s", l->text);
    *own = l->ours;
}

/* The kernel's log, "PRIORITY,NUMBER,MICROSECONDS,-;TEXT". Lines from before the run's last record count for nothing:
 * the run went on after them. */
static void read_kernel_log(struct run_facts *f, double began)
{
    char *log = malloc(KERNEL_LOG);
    double up = NAN;
    bool own_oom = false, own_crash = false;
    MEMORY_CHECK(log, "no memory for the kernel's log");
    log[0] = 0;
    if (!hostfs_read(f->fs, log, KERNEL_LOG, "/dev/kmsg")) log[0] = 0;
    if (!hostfs_number(f->fs, &up, "/proc/uptime")) up = NAN;
    const double since = fmax(began, f->data.last_s - 1);
    for (char *line = log, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        const char *said = strchr(line, ';'), *stamp = strchr(line, ',');
        stamp = stamp ? strchr(stamp + 1, ',') : NULL;
        if (said == NULL || stamp == NULL) continue;
        const double age = up - 1e-6 * strtod(stamp + 1, NULL);
        if (age > f->now - since + 1) continue;
        const struct kernel_line l = kernel_line(said + 1, f->pid);
        if (l.killed) keep_line(f->host.oom, &own_oom, &l);
        if (l.crashed) keep_line(f->host.crash, &own_crash, &l);
    }
    free(log);
}

static void read_process(struct run_facts *f)
{
    char stat[512];
    if (f->pid <= 0 || !hostfs_read(f->fs, stat, sizeof stat, "/proc/%lld/stat", (long long)f->pid)) return;
    const char *behind = strrchr(stat, ')'); /* a program's name may hold anything */
    if (behind && behind[1] == ' ') f->host.process = behind[2];
}

static void read_host(struct run_facts *f)
{
    struct host_facts *h = &f->host;
    char name[128] = "", events[512];
    const json_t *env = f->data.env, *system = json_object_get(env, "system"),
                 *group = json_object_get(system, "cgroup");
    snprintf(h->name, sizeof h->name, "%s", text(env, "host"));
    snprintf(h->boot_then, sizeof h->boot_then, "%s", text(system, "boot"));
    h->memory = number(env, "memory_bytes");
    const char *limit = text(group, "memory_max");
    h->limit = limit[0] >= '0' && limit[0] <= '9' ? strtod(limit, NULL) : (double)NAN;
    h->oom_then = hostfs_value(text(group, "memory_events"), "oom_kill");
    h->oom_now = NAN;
    if (!hostfs_read(f->fs, name, sizeof name, "/proc/sys/kernel/hostname")) name[0] = 0;
    h->here = name[0] && strcmp(name, h->name) == 0;
    if (!h->here) return;
    if (!hostfs_read(f->fs, h->boot, sizeof h->boot, "/proc/sys/kernel/random/boot_id")) h->boot[0] = 0;
    if (hostfs_read(f->fs, events, sizeof events, "/sys/fs/cgroup/memory.events"))
        h->oom_now = hostfs_value(events, "oom_kill");
    read_process(f);
    read_kernel_log(f, start_of(env));
}

static void last_memory(struct run_facts *f)
{
    f->rss = series_last(&f->data.rss_bytes);
    f->memory_free = series_last(&f->data.host_available);
    f->disk_free = series_last(&f->data.host_disk_free);
    for (int i = 0; i < f->monitor->host_count; i++) {
        const struct host_lines *h = &f->monitor->hosts[i];
        f->memory_free = fmin(f->memory_free, h->memory_available);
        f->disk_free = fmin(f->disk_free, h->disk_free);
    }
}

status explain_facts_read(struct run_facts *f, const char *run_dir, double now, const struct hostfs *fs)
{
    *f = (struct run_facts){.dir = run_dir, .now = now, .fs = fs};
    TRY(report_data_read(&f->data, run_dir, 0));
    f->monitor = calloc(1, sizeof *f->monitor);
    MEMORY_CHECK(f->monitor, "no memory for a run's alerts");
    TRY(monitor_read(f->monitor, run_dir, now));
    snprintf(f->reason, sizeof f->reason, "%s", text(f->data.exit, "reason"));
    read_log(f);
    read_flight(f);
    read_bug(f);
    read_lock(f);
    find_saving(f);
    last_memory(f);
    read_host(f);
    return STATUS_OK;
}

void explain_facts_free(struct run_facts *f)
{
    report_data_free(&f->data);
    if (f->monitor) monitor_free(f->monitor);
    free(f->monitor);
    f->monitor = NULL;
}
