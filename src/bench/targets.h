/* What a measured number is compared with: rows of bench/targets.def. */
#ifndef INGOT_BENCH_TARGETS_H
#define INGOT_BENCH_TARGETS_H
#include <stddef.h>

enum target_unit { TARGET_GBS, TARGET_US };
struct target {
    enum target_unit unit;
    double value;
    size_t bytes;   /* rates: from this size on; times: up to it */
    int cards;      /* that the value is of */
};
/* By the driver's name of the GPU. 0: nothing is known of it at this size. Of several rows that fit, the one of the largest size for
 * rates, the smallest for times. */
int target_find(const char *card, const char *what, size_t bytes, enum target_unit unit, struct target *t);

enum { TARGET_TEXT = 256 };
enum target_verdict { TARGET_NONE, TARGET_PASS, TARGET_LOOK };
/* `measured` GB/s or us, on `cards` GPUs. A rate may be 5 % below, a time 25 % above. `text`: "pass", or what to look at. */
enum target_verdict target_judge(const struct target *t, const char *what, double measured, int cards, char text[TARGET_TEXT]);
const char *target_verdict_text(enum target_verdict v);

/* Bus bandwidth over algorithm bandwidth as nccl-tests defines it, for "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
 * "broadcast", "ring". */
double target_bus_factor(const char *op, int ranks);
#endif
