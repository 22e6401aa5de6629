/* What a run will take, low, likely and high. */
#include "base/memory.h"
#include "base/text.h"
#include "cli/cmd_cost.h"
#include "cli/print_json.h"
#include "plan/amounts.h"
#include "plan/mesh_choose.h"
#include "plan/outlook.h"
#include "plan/past_errors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Assumptions where nothing better is known. Speed: a planned step against a measured one on an H100 or H200
 * (docs/PERF.md). Power: fitted nodes against measured ones (arXiv:2506.14551). */
#define SPEED_RANGE 0.05
#define POWER_RANGE 0.11
/* So many forecasts of one's own take the place of the first. */
enum { PAST_LEAST = 5 };

enum { LOW, LIKELY, HIGH, THREE };
/* Factors on what the plan says. */
struct range {
    double of[THREE];
    char from[256];
};
struct cost_row {
    struct cluster cluster;
    struct outlook outlook[THREE];
    struct range speed, power; /* of a step's time; of a device's power */
    status st;
    char why[512];
};

/* ---- ranges */

/* Measured over predicted: the median, and what nine of ten lie between (all, while there are few). */
static void set_past(struct range *r, const double *v, int count, const char *dir, const char *kind)
{
    const int cut = count / 20;
    r->of[LOW] = v[cut], r->of[LIKELY] = v[count / 2], r->of[HIGH] = v[count - 1 - cut];
    snprintf(r->from, sizeof r->from,
             "%d runs on %s below %.100s took %.3g to %.3g times what was predicted, the median %.3g", count,
             kind, dir, r->of[LOW], r->of[HIGH], r->of[LIKELY]);
}

static status speed_range(const struct order *o, const struct machine *m, struct range *r)
{
    struct past_errors past;
    int count;
    *r = (struct range){.of = {1 - SPEED_RANGE, 1, 1 + SPEED_RANGE}};
    snprintf(r->from, sizeof r->from,
             "assumed: a plan for an H100 or H200 is within 5 %% of a measured step (docs/PERF.md)");
    const status st = past_errors_read(o->past, &past);
    if (st != STATUS_OK) return status_wrap(st, "cost");
    double *v = past_errors_ratios(&past, m->name, m->kind != DEV_CPU, &count);
    if (count >= PAST_LEAST)
        set_past(r, v, count, past.from, m->name);
    else if (o->past || count > 0)
        snprintf(r->from + strlen(r->from), sizeof r->from - strlen(r->from),
                 "; %d run%s on %.20s below %.60s: from %d on they say it", count, count == 1 ? "" : "s",
                 m->name, past.from, (int)PAST_LEAST);
    free(v);
    past_errors_free(&past);
    return STATUS_OK;
}

static struct range power_range(const struct outlook *l)
{
    struct range r = {.of = {1 - POWER_RANGE, 1, 1 + POWER_RANGE}};
    snprintf(r.from, sizeof r.from, "assumed: the maker's power of %s, within 11 %% (arXiv:2506.14551)",
             l->system ? "the whole system" : "the device alone");
    return r;
}

/* ---- rows */

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
    a.pue = o->pue, a.mtbf = o->mtbf > 0 ? o->mtbf : INFINITY;
    status st = speed_range(o, c->machine, &r->speed);
    if (st == STATUS_OK) st = mesh_plan_open(&p, s, c);
    if (st == STATUS_OK) {
        st = mesh_choose(p, mesh);
        for (int k = 0; k < THREE && st == STATUS_OK; k++)
            st = outlook_of(p, mesh, mesh->step * r->speed.of[k], &a, &r->outlook[k]);
        mesh_plan_close(p);
    }
    free(mesh);
    r->st = st;
    r->power = power_range(&r->outlook[LIKELY]);
    if (st != STATUS_OK) snprintf(r->why, sizeof r->why, "%s", status_message());
    return st;
}

/* The amounts of a row, low, likely and high. */
struct amounts {
    double seconds[THREE], hours[THREE], kwh[THREE], rent[THREE], power[THREE], sum[THREE];
    struct cost_price rent_price, power_price;
    bool has_sum;
};
static struct amounts amounts_of(const struct cost_row *r, const struct order *o)
{
    struct amounts a = {.rent_price = cost_price_of(o, o->price, "--price", r->cluster.machine->name),
                        .power_price = cost_price_of(o, o->energy_price, "--energy-price", "energy")};
    const bool counted = r->outlook[LIKELY].watts > 0;
    a.has_sum = a.rent_price.known && a.power_price.known && counted;
    for (int k = 0; k < THREE; k++) {
        a.seconds[k] = r->outlook[k].seconds;
        a.hours[k] = r->outlook[k].device_hours;
        a.kwh[k] = counted ? r->outlook[k].joules / 3.6e6 * r->power.of[k] : (double)NAN;
        a.rent[k] = a.rent_price.known ? a.hours[k] * a.rent_price.value : (double)NAN;
        a.power[k] = a.power_price.known ? a.kwh[k] * a.power_price.value : (double)NAN;
        a.sum[k] = a.has_sum ? a.rent[k] + a.power[k] : (double)NAN;
    }
    return a;
}

/* ---- JSON */

static void set_three(json_t *j, const char *key, const double v[THREE])
{
    char range[64];
    if (!isfinite(v[LIKELY])) return;
    snprintf(range, sizeof range, "%s_range", key);
    json_object_set_new(j, key, json_real(v[LIKELY]));
    json_object_set_new(j, range, json_pack("[f, f]", v[LOW], v[HIGH]));
}

static json_t *range_json(const struct range *r)
{
    return json_pack("{s:f, s:f, s:f, s:s}", "low", r->of[LOW], "likely", r->of[LIKELY], "high", r->of[HIGH],
                     "from", r->from);
}

static json_t *row_json(const struct cost_row *r, const struct order *o)
{
    const struct outlook *l = &r->outlook[LIKELY];
    char text[64];
    if (r->st != STATUS_OK)
        return json_pack("{s:s, s:i, s:s}", "machine", cluster_text(text, &r->cluster), "devices",
                         r->cluster.devices, "why", r->why);
    const struct amounts a = amounts_of(r, o);
    json_t *j = json_pack("{s:s, s:i, s:f, s:f, s:f, s:f}", "machine", cluster_text(text, &r->cluster),
                          "devices", r->cluster.devices, "tokens", l->tokens, "step_s", l->step, "goodput",
                          l->goodput.trains, "failures", l->failures);
    set_three(j, "seconds", a.seconds);
    set_three(j, "device_hours", a.hours);
    json_set_real(j, "checkpoint_interval_s", l->goodput.interval);
    json_object_set_new(j, "checkpoint_bytes", json_real(l->checkpoint_bytes));
    json_object_set_new(j, "kept_bytes", json_real(l->kept_bytes));
    set_three(j, "kwh", a.kwh);
    if (l->watts > 0) json_object_set_new(j, "joules_per_token", json_real(l->joules / l->tokens));
    set_three(j, "money", a.rent);
    set_three(j, "energy_money", a.power);
    set_three(j, "money_in_all", a.sum);
    json_object_set_new(j, "speed", range_json(&r->speed));
    if (l->watts > 0) json_object_set_new(j, "power", range_json(&r->power));
    if (o->prices.currency[0]) json_object_set_new(j, "currency", json_string(o->prices.currency));
    return j;
}

/* ---- text */

/* What the format makes too long, or 0.00, in words. */
static const char *number(char buf[32], const char *format, double v)
{
    if (v >= 1e6 || (v > 0 && v < 0.01)) return amount_number(buf, v);
    snprintf(buf, 32, v >= 1e4 ? "%.0f" : format, v);
    return buf;
}

static void print_three(const char *name, const char *format, const double v[THREE], const char *behind)
{
    char text[THREE][32];
    for (int k = 0; k < THREE; k++) {
        if (format)
            number(text[k], format, v[k]);
        else
            text_time(text[k], v[k]);
    }
    printf("%-12s %12s %12s %12s%s%s\n", name, text[LOW], text[LIKELY], text[HIGH], behind[0] ? "  " : "",
           behind);
}

static void print_energy(const struct cost_row *r, const struct order *o, const struct amounts *a)
{
    char text[400], missing[1400], unit[16];
    const struct outlook *l = &r->outlook[LIKELY];
    const char *money = cost_currency(o, unit)[0] ? unit + 1 : "";
    if (l->watts <= 0) {
        printf("energy       not known: no power is known for this machine\n");
        return;
    }
    snprintf(text, sizeof text, "kWh, %.3g J/token: %.0f W per device%s, PUE %g", l->joules / l->tokens,
             l->watts, l->system ? " with its share of the system" : " alone", o->pue);
    print_three("energy", "%.4g", a->kwh, text);
    snprintf(text, sizeof text, "%s%s= kWh x %g (%s)", money, money[0] ? " " : "", a->power_price.value,
             a->power_price.from);
    if (a->power_price.known)
        print_three("its price", "%.2f", a->power, text);
    else
        printf("its price    not known: %s\n", cost_price_missing(o, "--energy-price", "energy", missing));
}

static void print_failures(const struct outlook *l)
{
    char a[32], failures[64], checkpoints[AMOUNT_CHECKPOINTS];
    if (isinf(l->job.mtbf))
        printf("failures     none, as --mtbf 0 says\n");
    else
        printf("failures     %s (one in %.6g device hours); goodput %.2f %%\n",
               amount_failures(failures, l->failures), l->job.mtbf / 3600, 100 * l->goodput.trains);
    if (isfinite(l->goodput.interval)) printf("checkpoints  %s\n", amount_checkpoints(checkpoints, l));
    printf("storage      %s: ckpt.keep, and one that is being written\n", text_bytes(a, l->kept_bytes));
}

static void print_row(const struct cost_row *r, const struct order *o)
{
    const struct outlook *l = &r->outlook[LIKELY];
    const struct amounts a = amounts_of(r, o);
    char x[64], y[32], text[400], missing[1400], unit[16];
    const char *money = cost_currency(o, unit)[0] ? unit + 1 : "";
    const char *gap = money[0] ? " " : "";
    printf("machine      %s\n", cluster_text(x, &r->cluster));
    printf("run          %s tokens: %.0f steps of %s (plan)\n", text_count(y, l->tokens), l->steps,
           text_time(x, l->step / r->speed.of[LIKELY]));
    printf("%-12s %12s %12s %12s\n", "", "low", "likely", "high");
    print_three("time", NULL, a.seconds, "");
    print_three("hours", "%.4g", a.hours, "device hours (time x devices)");
    snprintf(text, sizeof text, "%s%s= hours x %g (%s)", money, gap, a.rent_price.value, a.rent_price.from);
    if (a.rent_price.known)
        print_three("money", "%.2f", a.rent, text);
    else
        printf("money        not known: %s\n",
               cost_price_missing(o, "--price", r->cluster.machine->name, missing));
    print_energy(r, o, &a);
    if (a.has_sum) print_three("in all", "%.2f", a.sum, money);
    print_failures(l);
    printf("speed        %s\n", r->speed.from);
    if (l->watts > 0) printf("power        %s\n", r->power.from);
}

static void print_table(const struct cost_row *rows, int count, const struct order *o)
{
    char time[32], text[32], missing[1400];
    const struct cost_price price = cost_price_of(o, o->price, "--price", rows[0].cluster.machine->name);
    printf("%8s  %12s  %12s  %8s  %10s  %10s\n", "devices", "time", "device hours", "goodput", "kWh",
           price.known ? "money" : "");
    for (int i = 0; i < count; i++) {
        const struct outlook *l = &rows[i].outlook[LIKELY];
        if (rows[i].st != STATUS_OK) {
            printf("%8d  %s\n", rows[i].cluster.devices, rows[i].why);
            continue;
        }
        const struct amounts a = amounts_of(&rows[i], o);
        printf("%8d  %12s  %12s  %6.2f %%", rows[i].cluster.devices, text_time(time, l->seconds),
               number(text, "%.4g", l->device_hours), 100 * l->goodput.trains);
        printf("  %10s", l->watts > 0 ? number(text, "%.4g", a.kwh[LIKELY]) : "-");
        if (price.known) printf("  %10s", number(text, "%.2f", a.rent[LIKELY]));
        printf("\n");
    }
    if (!price.known)
        printf("money: %s\n", cost_price_missing(o, "--price", rows[0].cluster.machine->name, missing));
}

enum { ROWS_MAX = 32 };
static status plan_rows(const struct spec *s, const struct cluster *all, const struct order *o,
                        struct cost_row *rows)
{
    int count = 0;
    status st = STATUS_OK;
    for (int n = o->table ? 1 : all->devices; st != STATUS_CONFIG && count < ROWS_MAX; n *= 2) {
        struct cluster c = *all;
        c.devices = n < all->devices ? n : all->devices;
        if (c.devices < c.node) c.node = c.devices;
        st = plan_row(s, &c, o, &rows[count++]);
        if (!o->table) TRY(st);
        if (st == STATUS_CONFIG && strncmp(status_message(), "the run has no length", 21) != 0 && o->table)
            st = STATUS_OUT_OF_MEMORY; /* a number of devices that the batch cannot be divided by */
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

status cost_before(const struct args *a, const struct order *o)
{
    struct spec spec;
    struct cluster c;
    TRY(cmd_load_spec(a, LOAD_PLAN, &spec, NULL));
    TRY(cmd_plan_data(&spec, true));
    TRY(cluster_parse(o->machine, &c));
    struct cost_row *rows = calloc(ROWS_MAX, sizeof *rows);
    MEMORY_CHECK(rows, "no memory for %d rows", (int)ROWS_MAX);
    const status st = plan_rows(&spec, &c, o, rows);
    free(rows);
    return st;
}
