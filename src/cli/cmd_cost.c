/* ingot cost: what a run will take, by its plan; and what it did take, by its ledger. */
#include "base/clock.h"
#include "base/io.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/print_json.h"
#include "observe/host_lines.h"
#include "observe/ledger.h"
#include "observe/runs.h"
#include "plan/mesh_choose.h"
#include "plan/outlook.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Half the width of the ranges: a planned step against a measured one (docs/PERF.md), and the power of a node (arXiv
 * 2506.14551). */
#define SPEED_RANGE 0.05
#define POWER_RANGE 0.11

struct order {
    const char *machine, *tokens;
    double price, energy_price, pue, mtbf;
    bool table, json;
};
static const char no_price[] = "give --price X per device hour (none is built in: prices age)";

/* ---- before: by the plan */

struct cost_row {
    struct cluster cluster;
    struct outlook outlook;
    status st;
    char why[160];
};

static double kwh_of(const struct cost_row *r)
{
    return r->outlook.joules / 3.6e6;
}

static double energy_money(const struct cost_row *r, const struct order *o)
{
    return kwh_of(r) * o->energy_price;
}

static status plan_row(const struct spec *s, const struct cluster *c, const struct order *o,
                       struct cost_row *r)
{
    struct mesh_plan *p;
    struct mesh_result *mesh = calloc(1, sizeof *mesh);
    MEMORY_CHECK(mesh, "no memory for a plan");
    struct outlook_args a = outlook_default();
    int64_t tokens = 0;
    *r = (struct cost_row){.cluster = *c};
    if (o->tokens && !(text_to_int(o->tokens, &tokens) && tokens > 0)) {
        free(mesh);
        return FAIL(STATUS_CONFIG, "cost: --tokens %s: a number of tokens, such as 300B", o->tokens);
    }
    a.tokens = (double)tokens;
    a.price = o->price, a.pue = o->pue, a.mtbf = o->mtbf > 0 ? o->mtbf : INFINITY;
    status st = mesh_plan_open(&p, s, c);
    if (st == STATUS_OK) {
        st = mesh_choose(p, mesh);
        if (st == STATUS_OK) st = outlook_of(p, mesh, mesh->step, &a, &r->outlook);
        mesh_plan_close(p);
    }
    free(mesh);
    r->st = st;
    if (st != STATUS_OK) snprintf(r->why, sizeof r->why, "%s", status_message());
    return st;
}

static json_t *range_json(double v, double range)
{
    return json_pack("[f, f]", v * (1 - range), v * (1 + range));
}

static json_t *row_json(const struct cost_row *r, const struct order *o)
{
    const struct outlook *l = &r->outlook;
    char text[64];
    if (r->st != STATUS_OK)
        return json_pack("{s:s, s:i, s:s}", "machine", cluster_text(text, &r->cluster), "devices",
                         r->cluster.devices, "why", r->why);
    json_t *j =
        json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:o, s:f}", "machine", cluster_text(text, &r->cluster),
                  "devices", r->cluster.devices, "tokens", l->tokens, "step_s", l->step, "seconds",
                  l->seconds, "device_hours", l->device_hours, "device_hours_range",
                  range_json(l->device_hours, SPEED_RANGE), "goodput", l->goodput.trains);
    json_object_set_new(j, "failures", json_real(l->failures));
    json_set_real(j, "checkpoint_interval_s", l->goodput.interval);
    json_object_set_new(j, "checkpoint_bytes", json_real(l->checkpoint_bytes));
    json_object_set_new(j, "kept_bytes", json_real(l->kept_bytes));
    if (l->watts > 0) {
        json_object_set_new(j, "kwh", json_real(kwh_of(r)));
        json_object_set_new(j, "kwh_range", range_json(kwh_of(r), SPEED_RANGE + POWER_RANGE));
        json_object_set_new(j, "joules_per_token", json_real(l->joules / l->tokens));
    }
    if (o->price > 0) json_object_set_new(j, "money", json_real(l->money));
    if (o->price > 0) json_object_set_new(j, "money_range", range_json(l->money, SPEED_RANGE));
    if (o->energy_price > 0 && l->watts > 0)
        json_object_set_new(j, "energy_money", json_real(energy_money(r, o)));
    return j;
}

static void print_row(const struct cost_row *r, const struct order *o)
{
    const struct outlook *l = &r->outlook;
    char a[64], b[32], c[32];
    printf("machine      %s\n", cluster_text(a, &r->cluster));
    printf("time         %s for %s tokens: %.0f steps of %s (plan)\n", text_time(a, l->seconds),
           text_count(b, l->tokens), l->steps, text_time(c, l->step));
    printf("hours        %.4g device hours (%.4g to %.4g: a plan is within 5 %% of a measured step)\n",
           l->device_hours, l->device_hours * (1 - SPEED_RANGE), l->device_hours * (1 + SPEED_RANGE));
    if (o->price > 0)
        printf("money        %.2f = %.4g x %g (%.2f to %.2f)\n", l->money, l->device_hours, o->price,
               l->money * (1 - SPEED_RANGE), l->money * (1 + SPEED_RANGE));
    else
        printf("money        not known: %s\n", no_price);
    if (l->watts <= 0)
        printf("energy       not known: no power is known for this machine\n");
    else {
        printf("energy       %.4g kWh (%.4g to %.4g), %.3g J/token: %.0f W per device%s, PUE %g\n", kwh_of(r),
               kwh_of(r) * (1 - SPEED_RANGE - POWER_RANGE), kwh_of(r) * (1 + SPEED_RANGE + POWER_RANGE),
               l->joules / l->tokens, l->watts, l->system ? " with its share of the system" : " alone",
               o->pue);
        if (o->energy_price > 0)
            printf("             %.2f = %.4g kWh x %g\n", energy_money(r, o), kwh_of(r), o->energy_price);
    }
    if (isinf(l->job.mtbf))
        printf("failures     none, as --mtbf 0 says\n");
    else
        printf("failures     %.3g expected (one in %.6g device hours); goodput %.2f %%\n", l->failures,
               l->job.mtbf / 3600, 100 * l->goodput.trains);
    if (isfinite(l->goodput.interval))
        printf("checkpoints  every %s, %s each\n", text_time(a, l->goodput.interval),
               text_bytes(b, l->checkpoint_bytes));
    printf("storage      %s: ckpt.keep, and one that is being written\n", text_bytes(a, l->kept_bytes));
}

static void print_table(const struct cost_row *rows, int count, const struct order *o)
{
    char time[32];
    printf("%8s  %12s  %12s  %8s  %10s  %10s\n", "devices", "time", "device hours", "goodput", "kWh",
           o->price > 0 ? "money" : "");
    for (int i = 0; i < count; i++) {
        const struct outlook *l = &rows[i].outlook;
        if (rows[i].st != STATUS_OK) {
            printf("%8d  %s\n", rows[i].cluster.devices, rows[i].why);
            continue;
        }
        printf("%8d  %12s  %12.4g  %6.2f %%", rows[i].cluster.devices, text_time(time, l->seconds),
               l->device_hours, 100 * l->goodput.trains);
        if (l->watts > 0)
            printf("  %10.4g", kwh_of(&rows[i]));
        else
            printf("  %10s", "-");
        if (o->price > 0) printf("  %10.2f", l->money);
        printf("\n");
    }
    if (!(o->price > 0)) printf("money: %s\n", no_price);
}

enum { ROWS_MAX = 32 };
static status plan_rows(const struct spec *s, const struct cluster *all, const struct order *o)
{
    struct cost_row rows[ROWS_MAX];
    int count = 0;
    status st = STATUS_OK;
    for (int n = o->table ? 1 : all->devices; st != STATUS_CONFIG && count < ROWS_MAX; n *= 2) {
        struct cluster c = *all;
        c.devices = n < all->devices ? n : all->devices;
        if (c.devices < c.node) c.node = c.devices;
        st = plan_row(s, &c, o, &rows[count++]);
        if (!o->table) TRY(st);
        if (st == STATUS_CONFIG && strncmp(status_message(), "the run has no length", 21) != 0 && o->table)
            st = STATUS_FIT; /* a number of devices that the batch cannot be divided by */
        if (n >= all->devices) break;
    }
    if (st == STATUS_CONFIG) return st;
    if (o->json && !o->table) {
        json_t *j = row_json(&rows[0], o);
        json_object_set_new(j, "schema", json_string("ingot.cost/1"));
        print_json(j);
    } else if (o->json) {
        json_t *list = json_array();
        for (int i = 0; i < count; i++) json_array_append_new(list, row_json(&rows[i], o));
        print_json(json_pack("{s:s, s:o}", "schema", "ingot.cost/1", "rows", list));
    } else if (o->table)
        print_table(rows, count, o);
    else
        print_row(&rows[0], o);
    return STATUS_OK;
}

static status before(const struct args *a, const struct order *o)
{
    struct spec spec;
    struct cluster c;
    TRY(cmd_load_spec(a, LOAD_PLAN, &spec, NULL));
    TRY(cmd_plan_data(&spec, true));
    TRY(cluster_parse(o->machine, &c));
    return plan_rows(&spec, &c, o);
}

/* ---- after: by the ledger */

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
    return STATUS_OK;
}

static void print_spent(const struct spent *s, const struct order *o, const char *run)
{
    char a[32], when[32];
    const struct ledger_sum *l = &s->sum;
    double percent[LEDGER_COUNT];
    printf("%s: %lld steps, %d start%s, %s of wall time on %.0f rank%s%s\n", run, (long long)l->step,
           l->starts, l->starts == 1 ? "" : "s", text_time(a, l->wall), s->ranks, s->ranks == 1 ? "" : "s",
           l->ended ? "" : "; its last process has not ended by itself");
    for (int k = 0; k < LEDGER_COUNT; k++) percent[k] = l->wall > 0 ? 100 * l->seconds[k] / l->wall : 0;
    for (int k = 0; k < LEDGER_COUNT; k++)
        printf("  %-11s %7.2f %%  %12s  %s\n", classes[k].key, percent[k], text_time(when, l->seconds[k]),
               classes[k].text);
    printf("  %-11s %7.2f %%  %12s\n", "in all", l->wall > 0 ? 100.0 : 0.0, text_time(when, l->wall));
    printf("hours        %.4g device hours\n", s->device_hours);
    if (isfinite(s->joules)) {
        printf("energy       %.4g kWh by the GPUs' counters, %.4g with PUE %g\n", s->joules / 3.6e6,
               s->joules / 3.6e6 * o->pue, o->pue);
        if (o->energy_price > 0)
            printf("             %.2f = %.4g kWh x %g\n", s->joules / 3.6e6 * o->pue * o->energy_price,
                   s->joules / 3.6e6 * o->pue, o->energy_price);
    } else
        printf("energy       not known: no GPU has counted it (gpu-HOST.jsonl)\n");
    if (o->price > 0)
        printf("money        %.2f = %.4g x %g; lost steps %.2f\n", s->device_hours * o->price,
               s->device_hours, o->price, s->ranks * l->seconds[LEDGER_LOST] / 3600 * o->price);
    else
        printf("money        not known: %s\n", no_price);
}

static void print_spent_json(const struct spent *s, const struct order *o, const char *run)
{
    json_t *ledger = json_object(), *j;
    for (int k = 0; k < LEDGER_COUNT; k++)
        json_object_set_new(ledger, classes[k].key, json_real(s->sum.seconds[k]));
    j = json_pack("{s:s, s:s, s:I, s:i, s:b, s:f, s:f, s:f, s:o}", "schema", "ingot.cost/1", "run", run,
                  "step", (json_int_t)s->sum.step, "starts", s->sum.starts, "ended", s->sum.ended, "wall_s",
                  s->sum.wall, "ranks", s->ranks, "device_hours", s->device_hours, "ledger", ledger);
    if (isfinite(s->joules)) json_object_set_new(j, "kwh", json_real(s->joules / 3.6e6));
    if (o->price > 0) json_object_set_new(j, "money", json_real(s->device_hours * o->price));
    if (o->energy_price > 0 && isfinite(s->joules))
        json_object_set_new(j, "energy_money", json_real(s->joules / 3.6e6 * o->pue * o->energy_price));
    print_json(j);
}

static status after(const char *run, const struct order *o)
{
    struct spent s;
    const status st = spent_of(run, &s);
    if (st != STATUS_OK) return st;
    if (o->json)
        print_spent_json(&s, o, run);
    else
        print_spent(&s, o, run);
    return STATUS_OK;
}

status cmd_cost(struct args *a)
{
    struct order o = {.pue = outlook_default().pue, .mtbf = outlook_default().mtbf};
    struct stat info;
    const struct flag flags[] = {FLAG("machine", &o.machine), FLAG("tokens", &o.tokens),
                                 FLAG("price", &o.price),     FLAG("energy-price", &o.energy_price),
                                 FLAG("pue", &o.pue),         FLAG("mtbf", &o.mtbf),
                                 FLAG("table", &o.table),     FLAG("json", &o.json)};
    TRY(args_parse(a, flags, sizeof flags / sizeof flags[0]));
    if (a->help) return STATUS_OK;
    if (!(o.price >= 0 && o.energy_price >= 0 && o.pue >= 1 && o.pue <= 10 && o.mtbf >= 0))
        return FAIL(STATUS_CONFIG, "cost: prices and --mtbf are 0 or more, --pue is from 1 to 10");
    if (o.machine) return before(a, &o);
    const bool dir = a->word_count == 1 && stat(a->words[0], &info) == 0 && S_ISDIR(info.st_mode);
    if (!dir)
        return FAIL(STATUS_CONFIG,
                    a->word_count == 1 && stat(a->words[0], &info) != 0
                        ? "cost: %s: no such run"
                        : "cost: before a run, name the machine, such as --machine 8xH100%s",
                    a->word_count == 1 && stat(a->words[0], &info) != 0 ? a->words[0] : "");
    if (o.table || o.tokens)
        return FAIL(STATUS_CONFIG, "cost: --table and --tokens are for a plan: add --machine");
    return after(a->words[0], &o);
}
