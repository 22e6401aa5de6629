/* Command line options. */
#ifndef INGOT_BASE_FLAGS_H
#define INGOT_BASE_FLAGS_H
#include "base/status.h"

/* One flag of a verb: --name VALUE, --name=VALUE, or a switch. */
enum flag_type { FLAG_SWITCH, FLAG_TEXT, FLAG_INT, FLAG_REAL };
struct flag {
    const char *name;       /* without dashes; -o stands for --out */
    enum flag_type type;
    void *value;            /* bool*, const char**, int64_t*, double* */
    const char *text;       /* for --help */
};
/* Takes the flags out of argv and leaves the positional arguments (count in *argc). With `allow_overrides`, "--section.key=value" words
 * are left in place for spec_load. Unknown flags: STATUS_CONFIG with the nearest name. --help prints usage and flags and sets *help. */
status flags_parse(const char *usage, const struct flag *flags, int count, int *argc, char **argv, int allow_overrides, int *help) WARN_UNUSED;
#endif
