#include "cli/plan_run.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct plan_run plan_run_default(void)
{
    const struct outlook_args d = outlook_default();
    return (struct plan_run){.jitter = 2,
                             .mtbf = d.mtbf,
                             .detect = d.detect,
                             .restart = d.restart,
                             .stall = -1,
                             .seed = 1,
                             .outlook = d};
}

/* "15T", "300B" and whatever text_to_int takes. */
static bool tokens_of(const char *text, double *out)
{
    const size_t n = strlen(text);
    char head[64];
    int64_t whole;
    if (n > 1 && n < sizeof head && strchr("Tt", text[n - 1])) {
        snprintf(head, sizeof head, "%.*s", (int)(n - 1), text);
        return text_to_real(head, out) && (*out *= 1e12) >= 1;
    }
    if (!text_to_int(text, &whole)) return text_to_real(text, out) && *out >= 1;
    *out = (double)whole;
    return whole >= 1;
}

/* "0.1:1.15": percent of the devices, and their factor. */
static status stragglers_of(const char *text, struct simulate_spread *s)
{
    char share[32];
    const char *colon = strchr(text, ':');
    if (colon && colon - text < (ptrdiff_t)sizeof share) {
        snprintf(share, sizeof share, "%.*s", (int)(colon - text), text);
        if (text_to_real(share, &s->slow_share) && text_to_real(colon + 1, &s->slow_factor) &&
            s->slow_share >= 0 && s->slow_share <= 100 && s->slow_factor >= 1 && s->slow_factor <= 100) {
            s->slow_share /= 100;
            return STATUS_OK;
        }
    }
    return FAIL(
        STATUS_CONFIG,
        "plan: --stragglers %s: percent of the devices and how many times longer they take, such as 0.1:1.15",
        text);
}

static status check_ranges(const struct plan_run *o)
{
    const struct {
        const char *name;
        double value, low, high;
        const char *unit;
    } ranges[] = {{"jitter", o->jitter, 0, 100, "percent"},    {"mtbf", o->mtbf, 0, 1e12, "device hours"},
                  {"detect", o->detect, 0, 1e6, "seconds"},    {"restart", o->restart, 0, 1e6, "seconds"},
                  {"stall", o->stall, -1, 1e6, "seconds"},     {"storage", o->storage, 0, 1e9, "GB/s"},
                  {"interval", o->interval, 0, 1e9, "seconds"}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (!(ranges[i].value >= ranges[i].low && ranges[i].value <= ranges[i].high))
            return FAIL(STATUS_CONFIG, "plan: --%s %g: from %g to %g %s", ranges[i].name, ranges[i].value,
                        fmax(0, ranges[i].low), ranges[i].high, ranges[i].unit);
    return STATUS_OK;
}

bool plan_run_asked(const struct plan_run *o)
{
    return o->simulate;
}

status plan_run_check(struct plan_run *o, const char *machine)
{
    TRY(check_ranges(o));
    if (!o->simulate && o->timeline) return FAIL(STATUS_CONFIG, "plan: --timeline goes with --simulate");
    if (o->simulate && machine == NULL)
        return FAIL(STATUS_CONFIG, "plan: --simulate needs a machine, such as --machine 64xH100");
    if (o->tokens && !tokens_of(o->tokens, &o->outlook.tokens))
        return FAIL(STATUS_CONFIG, "plan: --tokens %s: a number of tokens, such as 300B or 15T", o->tokens);
    o->spread =
        (struct simulate_spread){.jitter = o->jitter / 100, .slow_factor = 1, .seed = (uint64_t)o->seed};
    if (o->stragglers) TRY(stragglers_of(o->stragglers, &o->spread));
    struct outlook_args *l = &o->outlook;
    l->mtbf = o->mtbf > 0 ? o->mtbf : INFINITY;
    l->detect = o->detect, l->restart = o->restart, l->stall = o->stall;
    l->storage = o->storage * 1e9, l->interval = o->interval;
    return STATUS_OK;
}

status plan_run_print(const struct plan_run *o, const struct spec *s, const char *machine,
                      const struct assume *assume, bool json)
{
    return simulate_print(s, &(struct simulate_print_args){.machine = machine,
                                                           .assume = assume,
                                                           .outlook = o->outlook,
                                                           .spread = o->spread,
                                                           .timeline = o->timeline,
                                                           .json = json});
}
