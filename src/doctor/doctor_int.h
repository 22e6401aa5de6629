/* Inside doctor: what the checks read and how they report. */
#ifndef INGOT_DOCTOR_DOCTOR_INT_H
#define INGOT_DOCTOR_DOCTOR_INT_H
#include "dev/hostfs.h"
#include "dev/nvml.h"
#include "doctor/doctor.h"

/* Numbers of this host that are not in files; a script sets them by name ("system NAME=VALUE"). NaN: not known. */
#define SYSTEM_VALUES(X)                                                             \
    X(now_s)         /* wall clock */                                                \
    X(memlock)       /* bytes; infinity: no limit */                                 \
    X(nofile)                                                                        \
    X(cores)         /* that this process may use */                                 \
    X(shm_bytes)     /* size of /dev/shm; 0: there is none */                        \
    X(disk_bytes)    /* free for us where runs are written */                        \
    X(disk_inodes)                                                                   \
    X(clock_error_s) /* the kernel's bound; infinity: not synchronised */            \
    X(nccl)          /* version, 22809; 0: none */                                   \
    X(cufile)        /* 0, 1 */
struct system_values {
#define X(name) double name;
    SYSTEM_VALUES(X)
#undef X
};

enum { CARDS_MAX = 32, FINDINGS_MAX = 512, NAMES_MAX = 128, MADE_UP_RANKS = 8 };
struct doctor {
    enum doctor_level level;
    bool alone;
    struct comm *comm;
    struct hostfs fs;
    struct system_values system;
    char host[128], driver[96], storage[1024];
    struct nvml *nvml;
    int nvml_code;       /* of nvmlInit */
    char nvml_why[256];  /* why there is no NVML */
    int cards;           /* that NVML counts; 0: none */
    struct nvml_card card[CARDS_MAX];
    json_t *before, *counters; /* name -> value: at the last look; now */
    double before_s;     /* wall time of the last look; NaN: none */
    const struct spec *spec; /* of doctor_how, as the next three */
    bool net;
    double message_rate[MADE_UP_RANKS]; /* bytes/s, of a made-up host */
    int messages;
    double within;
    json_t *baseline;    /* what that file holds; NULL: none */
    json_t *replayed;    /* NULL: it is this host, now */
    struct doctor_check foreign[FINDINGS_MAX]; /* of findings that are replayed and in no row of doctor.def */
    json_t *rates;       /* what was measured: [{"what", "entity", "value", "unit"}] */
    const struct doctor_check *check; /* that runs */
    struct doctor_finding findings[FINDINGS_MAX];
    int count;
    double begin_s, seconds;
};

/* The functions of doctor.def: check_NAME. Each reports at least one finding. */
#define CHECKUP(name, ...) void check_##name(struct doctor *d);
#include "doctor/doctor.def"

void report(struct doctor *d, enum doctor_verdict v, const char *entity, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* The same with a number and what it should be. */
void report_number(struct doctor *d, enum doctor_verdict v, const char *entity, double measured, double expected,
                   const char *fmt, ...) PRINTF_LIKE(6, 7);
/* Whether the running check has reported something. */
bool reported(const struct doctor *d);
/* True, and reported as SKIP, without a GPU that answers. */
bool no_cards(struct doctor *d);
const char *card_label(const struct doctor *d, int index, char text[32]); /* "gpu4" */
/* Card answers: its values may be read. */
bool card_sound(const struct doctor *d, int index);

bool has_ports(const struct doctor *d); /* of InfiniBand or RoCE */

/* Growth of a counter since the last look, and remembers it for the next one. NaN: there was none, or the counter has
 * begun again. */
double grown(struct doctor *d, const char *entity, const char *name, double now);
status history_open(struct doctor *d, const char *path) WARN_UNUSED;
void history_save(const struct doctor *d, const char *path);
/* Earlier acceptances: {"ENTITY": {"WHAT": {"best": RATE, "unit": UNIT, "time": SECONDS}}}; an empty object: none yet,
 * or not readable. The caller owns it. past_path: its file; false: this user has no directory for it. */
json_t *past_read(void);
bool past_path(char *path, size_t bytes);
void rate_add(struct doctor *d, const char *what, const char *entity, double value, const char *unit);

/* `ingot ARGUMENTS...` in a process of its own, with one GPU visible (uuid NULL: all). `out` holds 1 MiB. */
status bench_read(const char *uuid, const char *const arguments[], double limit_s, char *out) WARN_UNUSED;
/* The object of doctor_json in a file; the caller owns it. STATUS_DATA: something else. */
status doctor_file_read(const char *path, json_t **out) WARN_UNUSED;
status facts_read(struct doctor *d, const struct doctor_how *how) WARN_UNUSED;
/* A variable of the environment; NULL: not set. `text` holds it. */
const char *env_of(const struct doctor *d, const char *name, char *text, size_t bytes);
/* Standard output of a program; false: it is not there or fails. In a made-up host the file "/tools/COMMAND LINE". */
bool tool_read(const struct doctor *d, const char *const argv[], char *out, size_t bytes);
#endif
