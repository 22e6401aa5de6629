/* prices: prices of devices and energy, read from the user's file (docs/FORMATS.md: prices.conf). None is built in,
 * because prices change. */
#ifndef INGOT_PLAN_PRICES_H
#define INGOT_PLAN_PRICES_H
#include "base/status.h"
#include <stdbool.h>

enum { PRICES_MAX = 64 };
struct price {
    char name[64];              /* a kind of --machine, "cpu" (a rank without a GPU) or "energy" (a kWh) */
    double value;               /* per device hour; energy: per kWh */
    char date[16], source[160];
    int line;
};
struct prices {
    char path[1024];            /* of the file, which need not exist */
    bool there;                 /* the file exists */
    char currency[8];           /* of all prices; "": no prices */
    struct price list[PRICES_MAX];
    int count;
};
/* `file` NULL: $XDG_CONFIG_HOME/ingot/prices.conf or ~/.config/ingot/prices.conf, which need not exist. STATUS_CONFIG
 * names file and line: an unknown word, a price given twice, two currencies. */
status prices_read(struct prices *p, const char *file) WARN_UNUSED;
/* NULL: the file has no such price. */
const struct price *prices_find(const struct prices *p, const char *name);
#endif
