#include "train/waiting.h"
#include "base/log.h"

enum { WAIT_STEPS = 20 };

void waiting_step(struct waiting *w, double seconds, double waited, const struct run_spec *r)
{
    w->seconds += seconds;
    w->waited += waited;
    if (++w->steps < (int64_t)WAIT_STEPS << w->warnings || w->seconds < 1) return;
    if (w->waited > 0.01 * w->seconds) {
        /* One line of a terminal; `ingot explain` and the alert say what else helps. */
        log_warn("%lld steps waited %.1f %% of their time for data: raise data.threads (%lld)",
                 (long long)w->steps, 100 * w->waited / w->seconds, (long long)r->data_threads);
        if (w->warnings < 30) w->warnings++;
    }
    *w = (struct waiting){.warnings = w->warnings};
}
