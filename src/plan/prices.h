/* prices: what devices and energy cost, from a file of the user's (docs/FORMATS.md: prices.conf). No price is built in:
 * prices age. */
#ifndef INGOT_PLAN_PRICES_H
#define INGOT_PLAN_PRICES_H
#include "base/status.h"
#include <stdbool.h>

enum { PRICES_MAX = 64 };
struct price {
    char name[64];              /* a kind of --machine, "cpu" (a rank without a GPU) or "energy" (a kWh) */
    double value;
    char date[16], source[160];
    int line;
};
struct prices {
    char path[1024];            /* of the file, there or not */
    bool there;
    char currency[8];           /* of all; "": there is none */
    struct price list[PRICES_MAX];
    int count;
};
/* `file` NULL: $XDG_CONFIG_HOME/ingot/prices.conf or ~/.config/ingot/prices.conf, which may be missing. STATUS_CONFIG
 * names file and line: a wrong word, a price that comes twice, two currencies. */
status prices_read(struct prices *p, const char *file) WARN_UNUSED;
/* NULL: not in the file. */
const struct price *prices_find(const struct prices *p, const char *name);
#endif
