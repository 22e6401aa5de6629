/* Result rows of the link and collective benchmarks: compared with bench/targets.def, written as JSON, one object per
 * line. */
#ifndef INGOT_BENCH_P2P_REPORT_H
#define INGOT_BENCH_P2P_REPORT_H
#include "base/status.h"
#include "bench/targets.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct p2p_row {
    const char *what;       /* a name of targets.def, or another word, which has no target */
    const char *op, *way;   /* a collective and its path; NULL: none */
    int from, to;           /* GPU numbers; below 0: none */
    int gpus;              /* number of GPUs that took part */
    size_t bytes;
    double us;              /* time of one repetition; 0: only the rate is known */
    double gbs, bus_gbs;    /* 0: none; the bus bandwidth is compared when present */
    bool graph;
    bool unjudged;          /* not compared: the row of a better path is */
};
struct p2p_report {
    const char *bench, *gpu, *path;
    char *text;             /* contents of the file */
    size_t text_bytes;
    FILE *lines;
    bool to_stdout;         /* lines are written immediately, without tables */
    int pass, look;
};
/* Opens a report. `path` NULL: no file. */
void p2p_report_open(struct p2p_report *r, const char *bench, const char *gpu, const char *path);
/* Adds a row. `text` is the printed verdict; "" without a target. */
enum target_verdict p2p_report_row(struct p2p_report *r, const struct p2p_row *row, char text[TARGET_TEXT]);
/* Writes the file when st is OK. Returns st, or the error of writing. */
status p2p_report_close(struct p2p_report *r, status st) WARN_UNUSED;
#endif
