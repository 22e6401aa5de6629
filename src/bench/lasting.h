/* Sustained work on a GPU for some seconds: the rate at the clock that the power limit allows, and the power draw. */
#ifndef INGOT_BENCH_LASTING_H
#define INGOT_BENCH_LASTING_H
#include "dev/power.h"

/* STATUS_CONFIG when --seconds is outside 0 to 60. */
status lasting_check(int64_t seconds) WARN_UNUSED;

struct lasting {
    double runs_per_s; /* 0: not measured */
    struct power_draw draw;
};

/* Queues runs on s without letting the queue run dry: a quarter of `seconds` as warm-up, then `seconds` measured. */
struct lasting_work {
    status (*queue)(void *context, int64_t run);
    void *context;
};
status lasting_measure(struct stream *s, struct power_meter *meter, double seconds, const struct lasting_work *work,
                       struct lasting *out) WARN_UNUSED;

/* Prints " lasting 668.1 TFLOP/s, 698 W, 1.04 pJ/FLOP, 1432 MHz". `work` is the number of units per run ("FLOP",
 * "B"); `scale` is the number of units in the printed rate ("TFLOP/s", 1e12). With `json`, prints members of a JSON
 * object: ,"lasting_tflops":668.1,"watts":698,... Prints nothing when nothing was measured. */
struct lasting_unit {
    const char *rate, *unit, *json; /* "TFLOP/s", "FLOP", "tflops" */
    double scale;
};
void lasting_print(const struct lasting *l, const struct lasting_unit *u, double work, bool json);
#endif
