/* explain: why a run ended, or what it does now, in one sentence. A function of the records in the run's directory and,
 * if they do not say it, of what the host tells: its kernel's log, its boot, the process. */
#ifndef INGOT_OBSERVE_EXPLAIN_H
#define INGOT_OBSERVE_EXPLAIN_H
#include "base/status.h"
#include "dev/hostfs.h"
#include <jansson.h>
#include <stdint.h>

enum { EVIDENCE_MAX = 12 };
struct evidence {
    char file[80];  /* where it stands: "exit.json", "/dev/kmsg" */
    char text[360];
};
struct explanation {
    char run[1024];       /* the directory as given */
    char cause[32];       /* a name of explain.def */
    char sentence[2000];
    char todo[1400];
    int code;             /* exit code of the run; -1: it said none */
    int64_t step, planned; /* steps made; of the whole run, 0: not known */
    double time;          /* of its last record, seconds since 1970; NaN: none */
    struct evidence evidence[EVIDENCE_MAX];
    int evidence_count;
};
/* Explains the run at the wall clock `now`, on the host whose /proc and /dev `fs` reads. STATUS_DATA: no run
 * directory. */
status explain_run(struct explanation *e, const char *run_dir, double now, const struct hostfs *fs) WARN_UNUSED;
json_t *explain_json(const struct explanation *e); /* docs/FORMATS.md; the caller owns it */
#endif
