#include "bench/targets.h"
#include "plan/machine.h"

#include <stdio.h>
#include <string.h>

enum rate { RATE_GBS, RATE_US, RATE_LINK, RATE_NET, RATE_NODE, RATE_HOST, RATE_MEMORY };
static const struct row {
    const char *machine, *what;
    enum rate rate;
    double value;
    size_t bytes;
    int gpus;
} rows[] = {
#define GBS(x)                                     RATE_GBS, x
#define US(x)                                      RATE_US, x
#define LINK(x)                                    RATE_LINK, x
#define NET(x)                                     RATE_NET, x
#define NODE(x)                                    RATE_NODE, x
#define HOST(x)                                    RATE_HOST, x
#define MEMORY(x)                                  RATE_MEMORY, x
#define TARGET(machine, what, number, bytes, gpus) {#machine, #what, number, bytes, gpus},
#include "bench/targets.def"
#undef TARGET
};
/* By the first letters of the measurement's name. */
static const struct look {
    const char *what, *text;
} looks[] = {
#define LOOK(what, text) {#what, text},
#include "bench/targets.def"
#undef LOOK
};
enum { ROWS = sizeof rows / sizeof rows[0], LOOKS = sizeof looks / sizeof looks[0] };

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* GB/s or us; 0: machine.def has no value. */
static double value_of(const struct row *r, const struct machine *m)
{
    switch (r->rate) {
    case RATE_GBS:
    case RATE_US: return r->value;
    case RATE_LINK: return r->value * m->link_rate * 1e-9;
    case RATE_NET: return r->value * m->net_rate * 1e-9;
    case RATE_NODE: return r->value * least(m->link_rate, m->node * m->net_rate) * 1e-9;
    case RATE_HOST: return r->value * m->host_rate * 1e-9;
    case RATE_MEMORY: return r->value * m->memory_rate * 1e-9;
    }
    return 0;
}

int target_find(const char *gpu, const char *what, size_t bytes, enum target_unit unit, struct target *t)
{
    const struct machine *m = machine_of_gpu(gpu);
    int found = 0;
    if (m == NULL) return 0;
    for (int own = 1; own >= 0 && !found; own--) /* rows of this machine first, then rows of any */
        for (int i = 0; i < ROWS; i++) {
            const struct row *r = &rows[i];
            const bool time = r->rate == RATE_US;
            if (strcmp(r->machine, own ? m->name : "any") != 0 || strcmp(r->what, what) != 0) continue;
            if (time != (unit == TARGET_US) || (time ? bytes > r->bytes : bytes < r->bytes)) continue;
            if (found && (time ? r->bytes >= t->bytes : r->bytes <= t->bytes)) continue;
            *t = (struct target){unit, value_of(r, m), r->bytes, r->gpus};
            found = t->value > 0;
        }
    return found;
}

static const char *look_at(const char *what)
{
    for (int i = 0; i < LOOKS; i++)
        if (strncmp(what, looks[i].what, strlen(looks[i].what)) == 0) return looks[i].text;
    return "other work on the machine";
}

enum target_verdict target_judge(const struct target *t, const char *what, double measured, int gpus,
                                 char text[TARGET_TEXT])
{
    static const double slack_rate = 0.95, slack_time = 1.25;
    const bool time = t->unit == TARGET_US;
    const bool pass = time ? measured <= slack_time * t->value : measured >= slack_rate * t->value;
    char of[32] = "";
    if (gpus != t->gpus) snprintf(of, sizeof of, ", a number of %d GPUs", t->gpus);
    if (pass)
        snprintf(text, TARGET_TEXT, "pass (%.4g %s%s)", t->value, time ? "us" : "GB/s", of);
    else
        snprintf(text, TARGET_TEXT, "%.4g %s expected%s; look at %s", t->value, time ? "us" : "GB/s", of,
                 look_at(what));
    return pass ? TARGET_PASS : TARGET_LOOK;
}

const char *target_verdict_text(enum target_verdict v)
{
    static const char *const texts[] = {"none", "pass", "look"};
    return texts[v];
}

double target_bus_factor(const char *op, int ranks)
{
    if (strcmp(op, "ring") == 0 || strcmp(op, "broadcast") == 0) return 1;
    return (strcmp(op, "all_reduce") == 0 ? 2.0 : 1.0) * (ranks - 1) / ranks;
}
