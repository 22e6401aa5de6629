/* The command line: one function per verb. argc/argv begin after the verb. A verb prints results to stdout, words to stderr. */
#ifndef INGOT_CLI_CLI_H
#define INGOT_CLI_CLI_H
#include "base/status.h"
#define VERB(name, function, usage, text) status function(int argc, char **argv);
#include "cli/verbs.def"
#undef VERB

/* One flag of a verb: --name VALUE, --name=VALUE, or a switch. */
enum flag_type { FLAG_SWITCH, FLAG_TEXT, FLAG_INT, FLAG_REAL };
struct flag {
    const char *name;       /* without dashes */
    enum flag_type type;
    void *value;            /* bool*, const char**, int64_t*, double* */
    const char *text;       /* for --help */
};
/* Takes the flags out of argv and leaves the positional arguments (count in *argc). With `overrides` not NULL, "--section.key=value" words are
 * left in place for spec_load. Unknown flags: STATUS_CONFIG with the nearest name. --help prints usage, flags and sets *help. */
status flags_parse(const char *usage, const struct flag *flags, int count, int *argc, char **argv, int allow_overrides, int *help) WARN_UNUSED;
#endif
