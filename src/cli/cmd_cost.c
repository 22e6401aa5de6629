/* ingot cost: what a run will take, by its plan; and what it did take, by its ledger. */
#include "cli/cmd_cost.h"
#include "plan/outlook.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct cost_price cost_price_of(const struct order *o, double given, const char *option, const char *name)
{
    struct cost_price p = {.known = isfinite(given), .value = given};
    const struct price *row = p.known || name[0] == 0 ? NULL : prices_find(&o->prices, name);
    snprintf(p.from, sizeof p.from, "%s", option);
    if (row == NULL) return p;
    p.known = true;
    p.value = row->value;
    snprintf(p.from, sizeof p.from, "%s, %s", row->date, row->source);
    return p;
}

static const char *home_path(const char *path, char buf[1024])
{
    const char *home = getenv("HOME");
    const size_t n = home ? strlen(home) : 0;
    const bool below = n > 1 && strncmp(path, home, n) == 0 && path[n] == '/';
    snprintf(buf, 1024, "%s%s", below ? "~" : "", path + (below ? n : 0));
    return buf;
}

const char *cost_price_missing(const struct order *o, const char *option, const char *name, char buf[1400])
{
    char path[1024];
    const int n = snprintf(buf, 1400, "give %s X, or write `%s PRICE CURRENCY YYYY-MM-DD SOURCE`", option,
                           name[0] ? name : "NAME");
    if (o->prices.path[0])
        snprintf(buf + n, 1400 - (size_t)n, " into %s", home_path(o->prices.path, path));
    else
        snprintf(buf + n, 1400 - (size_t)n, " into a file for --prices");
    return buf;
}

const char *cost_currency(const struct order *o, char buf[16])
{
    snprintf(buf, 16, "%s%s", o->prices.currency[0] ? " " : "", o->prices.currency);
    return buf;
}

/* What is no run directory. */
static status refuse(const struct args *a)
{
    struct stat info;
    if (a->word_count == 1 && stat(a->words[0], &info) != 0)
        return FAIL(STATUS_CONFIG, "cost: %s: no such run", a->words[0]);
    return FAIL(STATUS_CONFIG, "cost: before a run, name the machine, such as --machine 8xH100");
}

status cmd_cost(struct args *a)
{
    struct order o = {
        .price = NAN, .energy_price = NAN, .pue = outlook_default().pue, .mtbf = outlook_default().mtbf};
    const char *prices = NULL;
    struct stat info;
    const struct flag flags[] = {FLAG("machine", &o.machine), FLAG("tokens", &o.tokens),
                                 FLAG("price", &o.price),     FLAG("energy-price", &o.energy_price),
                                 FLAG("prices", &prices),     FLAG("past", &o.past),
                                 FLAG("pue", &o.pue),         FLAG("mtbf", &o.mtbf),
                                 FLAG("table", &o.table),     FLAG("json", &o.json)};
    TRY(args_parse(a, flags, sizeof flags / sizeof flags[0]));
    if (a->help) return STATUS_OK;
    if (o.price < 0 || o.energy_price < 0 || !(o.pue >= 1 && o.pue <= 10 && o.mtbf >= 0))
        return FAIL(STATUS_CONFIG, "cost: prices and --mtbf are 0 or more, --pue is from 1 to 10");
    const status st = prices_read(&o.prices, prices);
    if (st != STATUS_OK) return status_wrap(st, "cost");
    if (o.machine) return cost_before(a, &o);
    if (!(a->word_count == 1 && stat(a->words[0], &info) == 0 && S_ISDIR(info.st_mode))) return refuse(a);
    if (o.table || o.tokens || o.past)
        return FAIL(STATUS_CONFIG, "cost: --table, --tokens and --past are for a plan: add --machine");
    return cost_after(a->words[0], &o);
}
