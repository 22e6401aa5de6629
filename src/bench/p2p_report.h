/* Rows of the benchmarks of links and collectives: judged by bench/targets.def, kept as JSON, one object per line. */
#ifndef INGOT_BENCH_P2P_REPORT_H
#define INGOT_BENCH_P2P_REPORT_H
#include "base/status.h"
#include "bench/targets.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct p2p_row {
    const char *what;       /* of targets.def, or another word: nothing is expected then */
    const char *op, *way;   /* of a collective; NULL: none */
    int from, to;           /* GPUs; below 0: none */
    int cards;              /* that took part */
    size_t bytes;
    double us;              /* of one; 0: only the rate is known */
    double gbs, bus_gbs;    /* 0: none; the bus bandwidth is judged where there is one */
    bool graph;
    bool unjudged;          /* there is a better way, whose row is judged */
};
struct p2p_report {
    const char *bench, *card, *path;
    char *text;             /* of the file */
    size_t text_bytes;
    FILE *lines;
    bool to_stdout;         /* lines go there at once, and no tables */
    int pass, look;
};
/* `path` NULL: no file. */
status p2p_report_open(struct p2p_report *r, const char *bench, const char *card, const char *path) WARN_UNUSED;
/* `text`: the verdict for people; "" when nothing is expected. */
enum target_verdict p2p_report_row(struct p2p_report *r, const struct p2p_row *row, char text[TARGET_TEXT]);
/* Writes the file when st is OK; returns st, or what kept it from being written. */
status p2p_report_close(struct p2p_report *r, status st) WARN_UNUSED;
#endif
