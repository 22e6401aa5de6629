/* What made a step long, in words. */
#include "base/text.h"
#include "dev/hostfs.h"
#include "observe/alert_int.h"

#include <math.h>
#include <string.h>

/* The state letter of a process, as /proc has it; 0: not known. */
static char process_state(int pid)
{
    char text[512];
    const struct hostfs fs = hostfs_here();
    if (pid <= 0 || !hostfs_read(&fs, text, sizeof text, "/proc/%d/stat", pid)) return 0;
    const char *at = strrchr(text, ')'); /* the name may hold anything */
    return at && at[1] == ' ' ? at[2] : 0;
}

const char *alert_process_text(const struct alert_place *p, char buf[ALERT_NAME])
{
    const char state = process_state(p->pid);
    if (state == 'T' || state == 't')
        snprintf(buf, ALERT_NAME, "its process %d is stopped: kill -CONT %d lets it go on", p->pid, p->pid);
    else
        snprintf(buf, ALERT_NAME, "its process %d %s", p->pid,
                 state == 'D'   ? "waits for a disk or a network file system"
                 : state == 'R' ? "computes"
                 : state == 'Z' ? "has ended"
                 : state        ? "sleeps: it waits for something of its own"
                                : "is on another host, or gone");
    return buf;
}

/* Load and cores of the machine, where it says them. */
static void load_text(char *out, size_t size)
{
    double load;
    char text[32];
    const struct hostfs fs = hostfs_here();
    if (hostfs_number(&fs, &load, "/proc/loadavg"))
        snprintf(out, size, ", load %s", text_count(text, load));
    else
        snprintf(out, size, "%s", "");
}

const char *alert_blame(const struct alert_rules *r, int rank, const struct rank_time *now,
                        const struct rank_time *usual, double save_s, char buf[ALERT_NAME])
{
    char a[32], b[32], load[48] = "";
    const double more = now->work_s - usual->work_s, data = now->data_s - usual->data_s;
    const double cores = now->cpu_s / now->work_s, before = usual->cpu_s / usual->work_s;
    const struct alert_place *own = &r->setup.places[0], *p = &r->setup.places[rank];
    for (int i = 0; i < ALERTS_MAX; i++) { /* its GPU's clock, the host's record says */
        const struct alert *on = &r->active[i].a;
        if (!r->active[i].used || !r->active[i].of_host || on->rank != rank || rank < 0) continue;
        snprintf(buf, ALERT_NAME, "%.60s: %.140s", on->where, on->text);
        return buf;
    }
    if (data > 0.5 * more)
        snprintf(buf, ALERT_NAME,
                 "it waits %s per step for its data, usual are %s: a slow disk, or data.threads",
                 text_time(a, now->data_s), text_time(b, fmax(usual->data_s, 0)));
    else if (save_s > 0.5 * more)
        snprintf(buf, ALERT_NAME, "it waited %s for the write of a checkpoint", text_time(a, save_s));
    else if (cores < 0.8 * before) {
        if (strcmp(own->host, p->host) == 0) load_text(load, sizeof load);
        snprintf(buf, ALERT_NAME,
                 "its process got %.2g cores, usual are %.2g: it was stopped, or others use its cores%s",
                 cores, before, load);
    } else
        snprintf(buf, ALERT_NAME, "its own work takes %s, usual are %s; no other cause is on record",
                 text_time(a, now->work_s - now->data_s), text_time(b, usual->work_s - usual->data_s));
    return buf;
}
