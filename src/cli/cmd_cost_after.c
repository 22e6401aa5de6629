/* What a run did take. */
#include "base/clock.h"
#include "base/io.h"
#include "base/text.h"
#include "cli/cmd_cost.h"
#include "cli/print_json.h"
#include "observe/host_lines.h"
#include "observe/ledger.h"
#include "observe/past.h"
#include "observe/runs.h"
#include "plan/machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *key, *text;
} classes[] = {
#define X(name, word, words) {word, words},
    LEDGER_CLASSES(X)
#undef X
};

struct spent {
    struct ledger_sum sum;
    double ranks, device_hours; /* hours in which a process ran, times the ranks */
    double joules;              /* NaN: no GPU counted it */
    char kind[64];              /* of device, as in prices.conf; "": not known */
    struct past_forecast past;
};

static status spent_of(const char *run, struct spent *s)
{
    char path[1100], *text;
    size_t bytes;
    TRY(ledger_read(run, run_is_locked(run) ? clock_wall_s() : (double)NAN, &s->sum));
    s->ranks = 1;
    snprintf(path, sizeof path, "%.1000s/env.json", run);
    if (io_read_file(path, 16 << 20, &text, &bytes) == STATUS_OK) {
        json_t *env = json_loads(text, 0, NULL);
        const json_t *ranks = json_object_get(env, "ranks");
        if (json_is_integer(ranks) && json_integer_value(ranks) > 0)
            s->ranks = (double)json_integer_value(ranks);
        json_decref(env);
        free(text);
    }
    s->device_hours = s->ranks * (s->sum.wall - s->sum.seconds[LEDGER_STOPPED]) / 3600;
    s->joules = host_lines_joules(run);
    TRY(past_of(run, &s->past));
    const struct machine *m = machine_of_gpu(s->past.device);
    snprintf(s->kind, sizeof s->kind, "%s", strcmp(s->past.device, "cpu") == 0 ? "cpu" : m ? m->name : "");
    return STATUS_OK;
}

static double kwh_of(const struct spent *s, const struct order *o)
{
    return s->joules / 3.6e6 * o->pue;
}

/* In hundredths of a percent, each what the sum of all up to it adds: so they are 100.00 in all. */
static void print_ledger(const struct ledger_sum *l)
{
    char when[32];
    double sum = 0, shown = 0;
    for (int k = 0; k < LEDGER_COUNT; k++) {
        sum += l->seconds[k];
        const double upto = l->wall > 0 ? round(1e4 * fmin(sum / l->wall, 1)) : 0;
        printf("  %-11s %7.2f %%  %12s  %s\n", classes[k].key, (upto - shown) / 100,
               text_time(when, l->seconds[k]), classes[k].text);
        shown = upto;
    }
    printf("  %-11s %7.2f %%  %12s\n", "in all", shown / 100, text_time(when, l->wall));
}

static void print_money(const struct spent *s, const struct order *o)
{
    char missing[1400], unit[16];
    const struct cost_price p = cost_price_of(o, o->price, "--price", s->kind);
    cost_currency(o, unit);
    if (p.known)
        printf("money        %.2f%s = %.4g x %g (%s); lost steps %.2f\n", s->device_hours * p.value, unit,
               s->device_hours, p.value, p.from, s->ranks * s->sum.seconds[LEDGER_LOST] / 3600 * p.value);
    else
        printf("money        not known: %s\n", cost_price_missing(o, "--price", s->kind, missing));
}

static void print_energy(const struct spent *s, const struct order *o)
{
    char unit[16];
    if (!isfinite(s->joules)) {
        printf("energy       not known: no GPU has counted it (gpu-HOST.jsonl)\n");
        return;
    }
    const struct cost_price p = cost_price_of(o, o->energy_price, "--energy-price", "energy");
    printf("energy       %.4g kWh by the GPUs' counters, %.4g with PUE %g\n", s->joules / 3.6e6, kwh_of(s, o),
           o->pue);
    if (p.known)
        printf("             %.2f%s = %.4g kWh x %g (%s)\n", kwh_of(s, o) * p.value, cost_currency(o, unit),
               kwh_of(s, o), p.value, p.from);
}

static void print_spent(const struct spent *s, const struct order *o, const char *run)
{
    char a[32], b[32];
    const struct ledger_sum *l = &s->sum;
    printf("%s: %lld steps, %d start%s, %s of wall time on %.0f rank%s%s\n", run, (long long)l->step,
           l->starts, l->starts == 1 ? "" : "s", text_time(a, l->wall), s->ranks, s->ranks == 1 ? "" : "s",
           l->ended ? "" : "; its last process has not ended by itself");
    print_ledger(l);
    if (s->past.predicted > 0 && s->past.measured > 0)
        printf("plan         a step took %s, %s were predicted: %.3g times as long\n",
               text_time(a, s->past.measured), text_time(b, s->past.predicted),
               s->past.measured / s->past.predicted);
    printf("hours        %.4g device hours\n", s->device_hours);
    print_energy(s, o);
    print_money(s, o);
}

static void print_spent_json(const struct spent *s, const struct order *o, const char *run)
{
    json_t *ledger = json_object(), *j;
    const struct cost_price p = cost_price_of(o, o->price, "--price", s->kind),
                            e = cost_price_of(o, o->energy_price, "--energy-price", "energy");
    for (int k = 0; k < LEDGER_COUNT; k++)
        json_object_set_new(ledger, classes[k].key, json_real(s->sum.seconds[k]));
    j = json_pack("{s:s, s:s, s:I, s:i, s:b, s:f, s:f, s:f, s:o}", "schema", "ingot.cost/1", "run", run,
                  "step", (json_int_t)s->sum.step, "starts", s->sum.starts, "ended", s->sum.ended, "wall_s",
                  s->sum.wall, "ranks", s->ranks, "device_hours", s->device_hours, "ledger", ledger);
    if (isfinite(s->joules)) json_object_set_new(j, "kwh", json_real(s->joules / 3.6e6));
    json_set_real(j, "predicted_step_s", s->past.predicted);
    json_set_real(j, "measured_step_s", s->past.measured);
    if (p.known) json_object_set_new(j, "money", json_real(s->device_hours * p.value));
    if (e.known && isfinite(s->joules))
        json_object_set_new(j, "energy_money", json_real(kwh_of(s, o) * e.value));
    if (o->prices.currency[0]) json_object_set_new(j, "currency", json_string(o->prices.currency));
    print_json(j);
}

status cost_after(const char *run, const struct order *o)
{
    struct spent s;
    TRY(spent_of(run, &s));
    if (o->json)
        print_spent_json(&s, o, run);
    else
        print_spent(&s, o, run);
    return STATUS_OK;
}
