/* Inside explain: what is known of a run before somebody judges it. */
#ifndef INGOT_OBSERVE_EXPLAIN_INT_H
#define INGOT_OBSERVE_EXPLAIN_INT_H
#include "observe/explain.h"
#include "observe/monitor.h"
#include "observe/report_int.h"
#include <stdbool.h>

enum cause {
#define CAUSE(name, what, todo) CAUSE_##name,
#define REASON(code, words, cause)
#include "observe/explain.def"
#undef CAUSE
#undef REASON
    CAUSE_NONE
};

enum { KERNEL_TEXT = 300 };
/* What the host says, if this is the run's. "" and NaN: not known. */
struct host_facts {
    bool here;                   /* this host is the run's */
    char name[128];              /* of the run's host */
    char boot_then[64], boot[64]; /* identities of the boot in which the run began, and of now */
    char process;                /* state of the run's process as in /proc/PID/stat: 'T', 'D', ...; 0: there is none */
    char oom[KERNEL_TEXT], crash[KERNEL_TEXT]; /* lines of the kernel's log about the run */
    double oom_then, oom_now;    /* kills in its control group, at its start and now */
    double memory, limit;        /* bytes of the host, of its control group */
};
struct run_facts {
    const char *dir;
    const struct hostfs *fs;
    double now;
    struct report_data data;
    struct monitor *monitor;
    char reason[2048];           /* exit.json's, or else what stands for it */
    int64_t pid;                 /* of the run's first rank; 0: not known */
    char log_last[600], log_error[600]; /* newest line of log.txt, and newest of level error or warning; "" */
    char log_waits[600];         /* what a save that has not been made since waits for; "" */
    char flight[600];            /* why ranks were ended; "": no comm-flight.txt of this part of the run */
    char bug[1200];              /* the first failed CHECK of this part of the run (bug.txt), in words; "" */
    char saving[80];             /* a checkpoint that was being written: its directory; "" */
    double rss, memory_free, disk_free; /* of the last records; NaN */
    struct host_facts host;
};
/* Reads all of them; the caller frees f->data and f->monitor with explain_facts_free, also after a failure. */
status explain_facts_read(struct run_facts *f, const char *run_dir, double now, const struct hostfs *fs) WARN_UNUSED;
void explain_facts_free(struct run_facts *f);
#endif
