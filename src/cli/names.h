/* What other programs call ingot's keys, options and verbs: the rows of spec/synonyms.def. */
#ifndef INGOT_CLI_NAMES_H
#define INGOT_CLI_NAMES_H
#include <stdio.h>
/* The tables of docs/NAMES.md. */
void names_print_markdown(FILE *out);
/* {"names": [{"words": [...], "target": ..., "note": ...}, ...]} */
void names_print_json(FILE *out);
#endif
