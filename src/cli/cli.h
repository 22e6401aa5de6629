/* The command line: one function per verb. argc/argv begin after the verb. A verb prints results to stdout, words to stderr. */
#ifndef INGOT_CLI_CLI_H
#define INGOT_CLI_CLI_H
#include "base/flags.h"
#define VERB(name, function, usage, text) status function(int argc, char **argv);
#include "cli/verbs.def"
#undef VERB
#endif
