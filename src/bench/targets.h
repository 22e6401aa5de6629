/* Expected values for measurements: rows of bench/targets.def. */
#ifndef INGOT_BENCH_TARGETS_H
#define INGOT_BENCH_TARGETS_H
#include <stddef.h>

enum target_unit { TARGET_GBS, TARGET_US };
struct target {
    enum target_unit unit;
    double value;
    size_t bytes;   /* rates: smallest size; times: largest size */
    int gpus;      /* number of GPUs of the value */
};
/* Finds the target for a GPU by its driver name. Returns 0 when none is known for this size. When several rows fit,
 * rates use the row with the largest size, times the row with the smallest. */
int target_find(const char *gpu, const char *what, size_t bytes, enum target_unit unit, struct target *t);

enum { TARGET_TEXT = 256 };
enum target_verdict { TARGET_NONE, TARGET_PASS, TARGET_LOOK };
/* Compares `measured` (GB/s or us, on `gpus` GPUs) with the target. A rate may be 5 % lower, a time 25 %
 * higher. `text`: "pass", or what to check. */
enum target_verdict target_judge(const struct target *t, const char *what, double measured, int gpus,
                                 char text[TARGET_TEXT]);
const char *target_verdict_text(enum target_verdict v);

/* Bus bandwidth divided by algorithm bandwidth, as nccl-tests defines them, for "all_reduce", "all_gather",
 * "reduce_scatter", "all_to_all", "broadcast", "ring". */
double target_bus_factor(const char *op, int ranks);
#endif
