/* Work that a GPU keeps doing for seconds: what it reaches then, at the clock that its power limit leaves, and what it draws. */
#ifndef INGOT_BENCH_LASTING_H
#define INGOT_BENCH_LASTING_H
#include "dev/power.h"

/* STATUS_CONFIG: --seconds is 0 to 60. */
status lasting_check(int64_t seconds) WARN_UNUSED;

struct lasting {
    double runs_per_s; /* 0: not measured */
    struct power_draw draw;
};

/* Queues run after run on s, a quarter of `seconds` unmeasured and then for `seconds`, without letting the queue run dry. */
struct lasting_work {
    status (*queue)(void *context, int64_t run);
    void *context;
};
status lasting_measure(struct stream *s, struct power_meter *meter, double seconds, const struct lasting_work *work,
                       struct lasting *out) WARN_UNUSED;

/* " lasting 668.1 TFLOP/s, 698 W, 1.04 pJ/FLOP, 1432 MHz": `work` units in each run ("FLOP", "B"), rates in `scale` of them ("TFLOP/s", 1e12).
 * Or members of a JSON object: ,"lasting_tflops":668.1,"watts":698,... Nothing where nothing was measured. */
struct lasting_unit {
    const char *rate, *unit, *json; /* "TFLOP/s", "FLOP", "tflops" */
    double scale;
};
void lasting_print(const struct lasting *l, const struct lasting_unit *u, double work, bool json);
#endif
