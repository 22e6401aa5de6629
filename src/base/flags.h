/* Command line options. */
#ifndef INGOT_BASE_FLAGS_H
#define INGOT_BASE_FLAGS_H
#include "base/status.h"

/* One flag of a verb: --name VALUE, --name=VALUE, or a switch. */
enum flag_type { FLAG_SWITCH, FLAG_TEXT, FLAG_INT, FLAG_REAL };
struct flag {
    const char *name;       /* without dashes; -o is short for --out */
    enum flag_type type;
    void *value;            /* bool*, const char**, int64_t*, double* */
    const char *text;       /* for --help */
};
/* Removes the flags from argv and leaves the positional arguments (their count in *argc). With `allow_overrides`,
 * words of the form "--section.key=value" stay in argv for spec_load. An unknown flag is STATUS_CONFIG with the
 * nearest name. --help prints usage and flags and sets *help. */
status flags_parse(const char *usage, const struct flag *flags, int count, int *argc, char **argv,
                   int allow_overrides, int *help) WARN_UNUSED;
#endif
