/* What an unknown option may have meant. */
#ifndef INGOT_CLI_HINT_H
#define INGOT_CLI_HINT_H
#include "base/flags.h"
/* The hint of struct args: a near option of the verb, a key, or what spec/synonyms.def knows. */
void hint_option(char *buf, size_t bytes, const struct row *verb, const char *name, const char *value);
/* The same for a verb that other programs have; false: none. */
bool hint_verb(char *buf, size_t bytes, const char *name);
#endif
