/* The table of verbs, from verbs.def. */
#ifndef INGOT_CLI_VERBS_H
#define INGOT_CLI_VERBS_H
#include "base/flags.h"
#include <stdio.h>

/* The row behind `at` that begins another verb (`at` NULL: the first verb); NULL: no more. */
const struct row *verb_next(const struct row *at);
/* The verb of that name, "train" or "data build"; NULL: none. */
const struct row *verb_find(const char *name);
/* The second word of a verb of `group` ("build"); NULL: the verb is of another group. */
const char *verb_of_group(const struct row *verb, const struct row *group);
/* All verbs of one word, and the exit codes: `ingot help`. */
void verbs_print(FILE *out);
/* Runs the verb that argv begins with. A wrong name is STATUS_CONFIG with the nearest one; no name: prints help. */
status verb_run(int argc, char **argv) WARN_UNUSED;
#endif
