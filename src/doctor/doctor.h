/* doctor: what may stop or slow a run on this host, each finding with a remedy. The checks are rows of doctor.def. */
#ifndef INGOT_DOCTOR_DOCTOR_H
#define INGOT_DOCTOR_DOCTOR_H
#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

struct comm; /* comm/comm.h */
struct spec; /* spec/spec.h */
enum doctor_level { DOCTOR_QUICK, DOCTOR_FULL, DOCTOR_ACCEPT };
enum doctor_verdict { DOCTOR_PASS, DOCTOR_SKIP, DOCTOR_WARN, DOCTOR_FAIL };
struct doctor_check {
    const char *name, *group;
    enum doctor_level level;
    status code; /* of a failure */
    const char *reads, *limit, *remedy;
};
struct doctor_finding {
    const struct doctor_check *check;
    enum doctor_verdict verdict;
    char entity[96];           /* UUID of a GPU, name of a port or file system; "": the host */
    char text[256];            /* what was found, or why the check was skipped */
    double measured, expected; /* NaN: no number */
    double seconds;
};

struct doctor_how {
    enum doctor_level level;
    const char *storage; /* directory where runs are written; NULL: "." */
    const char *state;   /* file of counters at the last look; NULL: ingot/doctor-HOST.json in XDG_STATE_HOME or ~/.local/state */
    const char *script;  /* NULL, or a made-up host: faults.def */
    bool alone;          /* for a job of this host alone: failures of its network are warnings */
    struct comm *comm;   /* of ranks that all run the doctor, one per host; NULL: this host alone */
    bool fresh;          /* neither reads nor writes the state */
    const struct spec *spec; /* of a run that shall start here; NULL: none */
    bool net;            /* also messages between ranks; alone: between two processes of this host */
    const char *baseline; /* file of doctor_json to compare rates with; NULL: none */
    double within;       /* share below it that is a warning */
};
struct doctor;
/* Reads the host and runs the checks of `how->level` and below. The state file is replaced if that is possible. */
status doctor_run(struct doctor **d, const struct doctor_how *how) WARN_UNUSED;
/* The findings of doctor_json, in a file of another host, or of another day. Of `how` baseline and within count.
 * STATUS_DATA: it is no such file. */
status doctor_replay(struct doctor **d, const char *path, const struct doctor_how *how) WARN_UNUSED;
void doctor_close(struct doctor *d);
int doctor_count(const struct doctor *d);
const struct doctor_finding *doctor_finding(const struct doctor *d, int index);
enum doctor_verdict doctor_verdict(const struct doctor *d); /* the worst finding's; SKIP counts as PASS */
/* Exit code by the failures: of several the first of 11, 10, 74, 5, 3, 2. `strict`: warnings are failures. */
status doctor_exit(const struct doctor *d, bool strict);

/* What a page has without a terminal. */
enum { DOCTOR_COLUMNS = 100 };
/* An entry per check, in lines of at most `columns`; `all` false: warnings and failures alone. */
void doctor_print(const struct doctor *d, FILE *out, int columns, bool all);
/* The table of all checks, in Markdown: the one of docs/DOCTOR.md. */
void doctor_print_checks(FILE *out);
json_t *doctor_json(const struct doctor *d, bool strict); /* docs/FORMATS.md; the caller owns it */
/* One line as Nagios and Slurm's health check read it, with counts as performance data; returns their exit code:
 * 0 fine, 1 a warning, 2 a failure, 3 not known (no check ran). */
int doctor_nagios(const struct doctor *d, FILE *out);
/* After a run at DOCTOR_ACCEPT: writes accept-HOST-DATE.json to the storage directory, and remembers the rates of each
 * GPU for the next time. `path` [1024] is the file. */
status doctor_certificate(const struct doctor *d, char *path) WARN_UNUSED;

/* Replays the faults of faults.def on a made-up host and prints one line for each; STATUS_INTERNAL names how many were
 * not found, or found beside another. */
status doctor_selftest(FILE *out) WARN_UNUSED;
/* The rows of doctor.def, in order; NULL: no more. */
const struct doctor_check *doctor_check(int index);
const char *doctor_verdict_text(enum doctor_verdict v);
#endif
