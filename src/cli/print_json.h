/* Results of --json: one object on stdout. */
#ifndef INGOT_CLI_PRINT_JSON_H
#define INGOT_CLI_PRINT_JSON_H
#include <jansson.h>
/* Prints and frees it. */
void print_json(json_t *o);
/* Sets a number; one that is not finite is left out. */
void json_set_real(json_t *o, const char *key, double value);
#endif
