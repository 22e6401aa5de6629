/* `ingot help WORD`: what a word means that is no verb. */
#ifndef INGOT_CLI_FIND_H
#define INGOT_CLI_FIND_H
#include "base/status.h"
#include <stdio.h>
/* Prints the keys and commands that `word` names here or in another program (spec/synonyms.def). If there are none: the
 * keys, verbs and options whose text has the word. Upper case, - for _ and leading dashes do not matter. STATUS_CONFIG
 * if nothing has it. */
status find_word(const char *word, FILE *out) WARN_UNUSED;
#endif
