#include "observe/explain.h"
#include "base/text.h"
#include "base/utf8.h"
#include "observe/explain_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

static const struct {
    const char *name, *what, *todo;
} causes[] = {
#define CAUSE(cause, happened, remedy) {#cause, happened, remedy},
#define REASON(code, words, cause)
#include "observe/explain.def"
#undef CAUSE
#undef REASON
    {"", "", ""}};

static const struct {
    int code;
    const char *words;
    enum cause cause;
} reasons[] = {
#define CAUSE(name, what, todo)
#define REASON(number, text, name) {number, text, CAUSE_##name},
#include "observe/explain.def"
#undef CAUSE
#undef REASON
};

static const struct {
    int first, last;
    const char *what, *remedy;
} xids[] = {
#define XID(from, to, happened, todo, action) {from, to, happened, todo},
#include "dev/xid.def"
};

enum { DETAIL = 600 };

/* What a run wrote may hold anything; it becomes one line of UTF-8. */
static void clean(char *text)
{
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ') *p = ' ';
    for (size_t n; text[n = utf8_valid(text, strlen(text))];) text[n] = '?';
}

static void see(struct explanation *e, const char *file, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void see(struct explanation *e, const char *file, const char *fmt, ...)
{
    va_list args;
    if (e->evidence_count == EVIDENCE_MAX) return;
    struct evidence *v = &e->evidence[e->evidence_count++];
    snprintf(v->file, sizeof v->file, "%s", file);
    va_start(args, fmt);
    vsnprintf(v->text, sizeof v->text, fmt, args);
    va_end(args);
    clean(v->file);
    clean(v->text);
}

static const char *clock_text(char buf[64], double time)
{
    struct tm tm;
    const time_t t = (time_t)time;
    if (!isfinite(time)) return "";
    gmtime_r(&t, &tm);
    strftime(buf, 64, "%Y-%m-%d %H:%M:%S UTC", &tm);
    return buf;
}

static enum cause reason_cause(int code, const char *reason)
{
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (reasons[i].code == code && strstr(reason, reasons[i].words)) return reasons[i].cause;
    return CAUSE_NONE;
}

/* ---- what memory and GPUs say */

static bool memory_short(const struct run_facts *f)
{
    return f->memory_free < 0.03 * f->host.memory || f->rss > 0.95 * f->host.memory ||
           f->rss > 0.95 * f->host.limit;
}

static void see_memory(struct explanation *e, const struct run_facts *f)
{
    char a[32], b[32];
    if (isfinite(f->memory_free))
        see(e, "gpu-HOST.jsonl", "memory_available %s of %s", text_bytes(a, f->memory_free),
            text_bytes(b, f->host.memory));
    if (isfinite(f->rss)) see(e, "metrics.jsonl", "rss_bytes %s", text_bytes(a, f->rss));
    if (isfinite(f->host.limit)) see(e, "env.json", "memory_max %s", text_bytes(a, f->host.limit));
}

/* By the out-of-memory killer, for all that can be seen; CAUSE_NONE: no sign of it. */
static enum cause memory_cause(struct explanation *e, const struct run_facts *f)
{
    const struct host_facts *h = &f->host;
    const bool grown = h->oom_now > h->oom_then && strcmp(h->boot, h->boot_then) == 0;
    if (h->oom[0] == 0 && !grown && !memory_short(f)) return CAUSE_NONE;
    if (h->oom[0]) see(e, "/dev/kmsg", "%s", h->oom);
    if (grown)
        see(e, "memory.events", "oom_kill %.0f at the start, %.0f now (control group)", h->oom_then,
            h->oom_now);
    see_memory(e, f);
    return grown || strstr(h->oom, "emory cgroup") ? CAUSE_oom_cgroup
           : h->oom[0]                             ? CAUSE_oom_killer
                                                   : CAUSE_oom_likely;
}

/* The newest Xid in the ten minutes before the run's last record, and later; false: none. */
static bool see_xid(struct explanation *e, const struct run_facts *f, char what[DETAIL])
{
    const struct xid_line *newest = NULL;
    char file[160], where[160] = "";
    for (int i = 0; i < f->monitor->host_count; i++) {
        const struct host_lines *h = &f->monitor->hosts[i];
        for (int k = 0; k < h->xids; k++) {
            const struct xid_line *x = &h->xid[k];
            if (x->xid == 45 || x->xid == 63 || x->time < f->data.last_s - 600) continue;
            if (newest && newest->time > x->time) continue;
            newest = x;
            snprintf(file, sizeof file, "gpu-%.120s.jsonl", h->host);
            snprintf(where, sizeof where, "gpu%d of %.100s", x->gpu, h->host);
        }
    }
    if (newest == NULL) return false;
    const char *known = "see NVIDIA's Xid catalog", *todo = NULL;
    for (size_t i = 0; i < sizeof xids / sizeof xids[0]; i++)
        if (newest->xid >= xids[i].first && newest->xid <= xids[i].last)
            known = xids[i].what, todo = xids[i].remedy;
    snprintf(what, DETAIL, "Xid %d on %.70s: %.90s", newest->xid, where, known);
    see(e, file, "xid %d, gpu %d", newest->xid, newest->gpu);
    if (todo) snprintf(e->todo, sizeof e->todo, "%s; then the same command with --resume", todo);
    return true;
}

/* ---- a run that has ended */

/* A failed CHECK, which aborts the process: its words tell more than what others saw of its end. */
static bool see_bug(struct explanation *e, const struct run_facts *f, char detail[DETAIL])
{
    if (f->bug[0] == 0) return false;
    see(e, "bug.txt", "%s", f->bug);
    snprintf(detail, DETAIL, "%.*s", DETAIL - 1, f->bug);
    return true;
}

static enum cause by_word(struct explanation *e, const struct run_facts *f, char detail[DETAIL])
{
    enum cause c = e->code == STATUS_OK ? CAUSE_finished : reason_cause(e->code, f->reason);
    see(e, "exit.json", "code %d: %s", e->code, f->reason);
    if (c == CAUSE_peer && f->flight[0]) c = reason_cause(STATUS_COMM, f->flight);
    if (e->code == STATUS_COMM && f->flight[0]) see(e, "comm-flight.txt", "%s", f->flight);
    if (c == CAUSE_peer_killed && memory_cause(e, f) != CAUSE_NONE) c = CAUSE_peer_oom;
    if (e->code == STATUS_DEVICE || e->code == STATUS_COMM)
        if (see_xid(e, f, detail)) c = CAUSE_gpu_xid;
    for (int i = 0; i < f->monitor->alerts.count && c == CAUSE_finished; i++) {
        const struct alert *a = &f->monitor->alerts.list[i];
        if (strcmp(a->name, "loss_spike") != 0 || a->code != STATUS_NUMERIC) continue;
        see(e, "metrics.jsonl", "%s from step %lld on: %s", a->name, (long long)a->step, a->text);
        c = CAUSE_finished_unsound;
    }
    const bool ended_by_others = e->code == STATUS_COMM && c != CAUSE_peer_oom;
    if ((ended_by_others || e->code == STATUS_INTERNAL) && see_bug(e, f, detail)) c = CAUSE_check;
    return c;
}

static bool disk_is_full(const struct run_facts *f)
{
    struct statvfs info;
    return statvfs(f->dir, &info) == 0 && info.f_bavail * info.f_frsize < 64 << 10;
}

/* What the log's last line says of a signal that had come. */
static enum cause signal_cause(struct explanation *e, const struct run_facts *f)
{
    const char *said = strstr(f->log_last, ": finishing ");
    if (said == NULL) said = strstr(f->log_last, ": dropping ");
    if (said == NULL) said = strstr(f->log_last, ": saving");
    if (said == NULL || strstr(f->log_last, "SIG") == NULL) return CAUSE_NONE;
    see(e, "log.txt", "%s", f->log_last);
    return strstr(f->log_last, "SIGINT") ? CAUSE_interrupt_twice : CAUSE_grace_over;
}

/* It left no word: what others say. */
static enum cause without_word(struct explanation *e, const struct run_facts *f, char detail[DETAIL])
{
    const struct host_facts *h = &f->host;
    enum cause c = CAUSE_NONE;
    see(e, "exit.json", "it is not there, and no process holds the run's lock");
    if (see_bug(e, f, detail)) return CAUSE_check;
    if (f->flight[0]) {
        c = reason_cause(STATUS_COMM, f->flight);
        see(e, "comm-flight.txt", "%s", f->flight);
        return c == CAUSE_peer_killed && memory_cause(e, f) != CAUSE_NONE ? CAUSE_peer_oom : c;
    }
    if (see_xid(e, f, detail)) return CAUSE_gpu_xid;
    if ((c = h->oom[0] || h->oom_now > h->oom_then ? memory_cause(e, f) : CAUSE_NONE) != CAUSE_NONE) return c;
    if (h->crash[0]) {
        see(e, "/dev/kmsg", "%s", h->crash);
        return CAUSE_crashed;
    }
    if (h->here && h->boot[0] && h->boot_then[0] && strcmp(h->boot, h->boot_then) != 0) {
        see(e, "env.json", "boot %s", h->boot_then);
        see(e, "boot_id", "%s now", h->boot);
        return CAUSE_host_restarted;
    }
    if ((c = signal_cause(e, f)) != CAUSE_NONE) return c;
    if ((c = memory_cause(e, f)) != CAUSE_NONE) return c;
    if (disk_is_full(f) || f->disk_free < 1 << 20) {
        see(e, "statvfs", "no space left on the file system of %s", f->dir);
        return CAUSE_disk_full_likely;
    }
    if (f->data.records == 0 && f->data.starts.count == 0) return CAUSE_never_began;
    return h->here || h->name[0] == 0 ? CAUSE_killed : CAUSE_killed_elsewhere;
}

/* ---- a run that runs */

static enum cause alert_cause(const char *name)
{
    static const struct {
        const char *name;
        enum cause cause;
    } rows[] = {{"throttle", CAUSE_slow_gpu},     {"straggler", CAUSE_slow_gpu},
                {"slow_rank", CAUSE_slow_rank},   {"data_wait", CAUSE_slow_data},
                {"slow", CAUSE_slow_steps},       {"loss_spike", CAUSE_spike_lasts},
                {"grad_spike", CAUSE_spike_lasts}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].cause;
    return CAUSE_NONE;
}

static enum cause now_cause(struct explanation *e, const struct run_facts *f, char detail[DETAIL])
{
    const struct monitor *m = f->monitor;
    const double silent = f->now - m->last_s;
    const bool stands = silent > (f->data.records ? fmax(5 * m->step_s_median, 30) : 600);
    char how[64];
    enum cause worst = CAUSE_NONE;
    see(e, "lock", "a process holds it%s",
        f->pid ? (snprintf(how, sizeof how, ": process %lld", (long long)f->pid), how) : "");
    if (stands || (f->host.process == 'T' && silent > 1)) {
        see(e, "metrics.jsonl", "no step for %.0f s; the median step takes %.3g s", silent, m->step_s_median);
        if (f->host.process)
            see(e, "/proc", "process %lld is in state %c", (long long)f->pid, f->host.process);
        if (f->log_error[0] && strcmp(f->log_error, f->log_last) == 0) see(e, "log.txt", "%s", f->log_error);
        if (f->host.process == 'T' || f->host.process == 't') return CAUSE_frozen;
        if (f->log_waits[0]) {
            if (strcmp(f->log_waits, f->log_last) != 0) see(e, "log.txt", "%s", f->log_waits);
            return CAUSE_waits_space;
        }
        if (f->host.process == 'D') return CAUSE_waits_disk;
        return CAUSE_stalled;
    }
    for (int i = 0; i < m->alerts.count; i++) {
        const struct alert *a = &m->alerts.list[i];
        const enum cause c = alert_cause(a->name);
        if (a->over || (c == CAUSE_spike_lasts && a->code != STATUS_NUMERIC)) continue;
        if (c == CAUSE_NONE || c > worst) continue; /* explain.def: the worse ones first */
        worst = c;
        snprintf(detail, DETAIL, "%s%s%.120s", a->where, a->where[0] ? ": " : "", a->text);
    }
    if (worst != CAUSE_NONE) see(e, "monitor --alerts", "%s", detail);
    return worst != CAUSE_NONE ? worst : f->data.records ? CAUSE_running : CAUSE_preparing;
}

/* ---- the sentence */

static void place(char out[256], const struct explanation *e)
{
    if (e->planned > 0)
        snprintf(out, 256, "step %lld of %lld", (long long)e->step, (long long)e->planned);
    else
        snprintf(out, 256, "step %lld", (long long)e->step);
}

/* Where in its work a run without a word was. */
static const char *during(const struct run_facts *f, enum cause c)
{
    if (c < CAUSE_oom_killer || c > CAUSE_killed_elsewhere) return "";
    return f->data.records == 0 ? ", before its first step"
           : f->saving[0]       ? ", while a checkpoint was written"
                                : "";
}

/* The run's own words, as far as they say more than the cause. */
static void quote(char out[700], const struct explanation *e, const struct run_facts *f, enum cause c)
{
    const char *words = e->code >= 0 ? f->reason : f->flight;
    out[0] = 0;
    if (c == CAUSE_finished || c == CAUSE_finished_unsound || (e->code < 0 && f->data.locked)) return;
    if (words[0]) snprintf(out, 700, " (%.600s%s)", words, strlen(words) > 600 ? "..." : "");
}

static void put_todo(struct explanation *e, enum cause c)
{
    const char *from = causes[c].todo;
    size_t at = 0;
    if (e->todo[0]) return;
    for (; *from && at + 1 < sizeof e->todo; from++) {
        if (strncmp(from, "%RUN", 4) != 0) {
            e->todo[at++] = *from;
            continue;
        }
        const int n = snprintf(e->todo + at, sizeof e->todo - at, "%s", e->run);
        at = at + (size_t)n < sizeof e->todo ? at + (size_t)n : sizeof e->todo - 1;
        from += 3;
    }
    e->todo[at] = 0;
}

static void put_sentence(struct explanation *e, const struct run_facts *f, enum cause c, const char *detail)
{
    char at[256], when[64], words[700], name[300];
    place(at, e);
    quote(words, e, f, c);
    snprintf(name, sizeof name, "%s", f->data.name);
    if (c == CAUSE_running_away || (e->code < 0 && f->data.locked))
        snprintf(e->sentence, sizeof e->sentence, "%s runs, %s: %s%s%s", name, at, causes[c].what,
                 detail[0] ? ": " : "", detail);
    else if (c == CAUSE_never_began)
        snprintf(e->sentence, sizeof e->sentence, "%s: %s", name, causes[c].what);
    else
        snprintf(e->sentence, sizeof e->sentence, "%s ended at %s%s%s%s: %s%s%s%s", name, at,
                 isfinite(e->time) ? ", " : "", clock_text(when, e->time), during(f, c), causes[c].what,
                 detail[0] ? ": " : "", detail, words);
}

/* Records that go on although this host sees no lock: a network file system that does not carry locks. */
static bool fresh_elsewhere(const struct run_facts *f)
{
    return !f->host.here && f->host.name[0] && f->data.exit == NULL &&
           f->now - f->data.last_s < fmax(5 * f->monitor->step_s_median, 30);
}

static void see_last(struct explanation *e, const struct run_facts *f)
{
    char when[64];
    if (f->data.records)
        see(e, "metrics.jsonl", "last record: step %lld, loss %.4g, %s", (long long)e->step,
            series_last(&f->data.loss), clock_text(when, e->time));
    if (f->saving[0] && e->code < 0) see(e, "ckpt", "%s was being written", f->saving);
    if (e->code < 0 && f->log_last[0] && e->evidence_count < EVIDENCE_MAX &&
        strcmp(e->evidence[e->evidence_count - 1].file, "log.txt") != 0)
        see(e, "log.txt", "last line: %s", f->log_last);
}

status explain_run(struct explanation *e, const char *run_dir, double now, const struct hostfs *fs)
{
    struct run_facts f;
    char detail[DETAIL] = "";
    enum cause c;
    *e = (struct explanation){.code = -1, .time = NAN};
    snprintf(e->run, sizeof e->run, "%s", run_dir);
    status st = explain_facts_read(&f, run_dir, now, fs);
    if (st != STATUS_OK) {
        explain_facts_free(&f);
        return st;
    }
    (void)report_data_state(&f.data, &e->code);
    e->step = f.data.steps;
    e->planned = report_data_planned(&f.data);
    e->time = f.data.last_s;
    const json_t *step = json_object_get(f.data.exit, "step");
    if (json_is_integer(step)) e->step = json_integer_value(step);
    if (e->code >= 0)
        c = by_word(e, &f, detail);
    else if (f.data.locked)
        c = now_cause(e, &f, detail);
    else
        c = fresh_elsewhere(&f) ? CAUSE_running_away : without_word(e, &f, detail);
    if (c == CAUSE_NONE) c = CAUSE_bug; /* a code that no table knows */
    see_last(e, &f);
    put_sentence(e, &f, c, detail);
    put_todo(e, c);
    clean(e->run);
    clean(e->sentence);
    clean(e->todo);
    snprintf(e->cause, sizeof e->cause, "%s", causes[c].name);
    explain_facts_free(&f);
    return STATUS_OK;
}

json_t *explain_json(const struct explanation *e)
{
    json_t *list = json_array();
    for (int i = 0; i < e->evidence_count; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:s}", "file", e->evidence[i].file, "text", e->evidence[i].text));
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:o}", "schema", "ingot.explain/1", "run",
                          e->run, "cause", e->cause, "sentence", e->sentence, "do", e->todo, "step",
                          (json_int_t)e->step, "planned", (json_int_t)e->planned, "evidence", list);
    json_object_set_new(o, "exit", e->code >= 0 ? json_integer(e->code) : json_null());
    if (isfinite(e->time)) json_object_set_new(o, "last_record", json_real(e->time));
    return o;
}
