/* The command line: one function per verb. argc/argv begin after the verb. A verb prints results to stdout and
 * messages to stderr. */
#ifndef INGOT_CLI_CLI_H
#define INGOT_CLI_CLI_H
#include "base/flags.h"

struct spec;
#define VERB(name, function, usage, text) status function(int argc, char **argv);
#include "cli/verbs.def"
#undef VERB
/* Loads RUN.yaml and overrides from the arguments that flags_parse left. */
status cmd_load_spec(const char *verb, int argc, char **argv, struct spec *spec) WARN_UNUSED;
#endif
