/* The command line: one function per verb. A verb prints results to stdout and messages to stderr. */
#ifndef INGOT_CLI_CLI_H
#define INGOT_CLI_CLI_H
#include "base/flags.h"

struct spec;
#define VERB(name, function, form, arguments, text) status function(struct args *a) WARN_UNUSED;
#define NOTE(text)
#define OPTION(name, letter, type, value, text)
#include "cli/verbs.def"
#undef VERB
#undef NOTE
#undef OPTION
/* Loads the RUN.yaml that the words name, and the keys. */
status cmd_load_spec(const struct args *a, struct spec *spec) WARN_UNUSED;
#endif
