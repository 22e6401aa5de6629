/* What the files of `ingot cost` share. */
#ifndef INGOT_CLI_CMD_COST_H
#define INGOT_CLI_CMD_COST_H
#include "cli/cli.h"
#include "plan/prices.h"

struct order {
    const char *machine, *tokens, *past;
    double price, energy_price; /* as given; NaN: not given */
    double pue, mtbf;
    bool table, json;
    struct prices prices;
};
/* The price of what `name` names in prices.conf, unless an option gives it. */
struct cost_price {
    bool known;
    double value;
    char from[256];   /* "--price", or date and source */
};
struct cost_price cost_price_of(const struct order *o, double given, const char *option, const char *name);
/* What to do where it is not known. Returns buf. */
const char *cost_price_missing(const struct order *o, const char *option, const char *name, char buf[1400]);
/* " USD", or "" where no file says the currency. */
const char *cost_currency(const struct order *o, char buf[16]);

/* cmd_cost_before.c: by the plan */
status cost_before(const struct args *a, const struct order *o) WARN_UNUSED;
/* cmd_cost_after.c: by the ledger */
status cost_after(const char *run, const struct order *o) WARN_UNUSED;
#endif
