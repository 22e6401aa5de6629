/* The inputs of `data build` and `tokenizer train`, as files: directories and patterns become the files in them, and
 * standard input one file. */
#ifndef INGOT_CLI_INPUTS_H
#define INGOT_CLI_INPUTS_H
#include "base/status.h"
#include <stdbool.h>

struct inputs {
    char **paths; /* owned */
    int *words; /* owned: the word that each path is of, from 0 */
    int count, room, word;
    bool standard; /* "-" is among them */
};
/* Expands the words, sorted within each:
 *     a directory     its files with a known ending (.txt, .jsonl, .parquet, ... also .gz, .zst), recursively
 *     a pattern       the files it matches; a pattern of token shards (`shards`: any pattern) stays one input
 *     -               /dev/stdin; what is no file, such as a pipe, is first written to an unlinked file in `spool`
 * STATUS_IO: nothing there. Call inputs_free also on failure. */
status inputs_expand(struct inputs *in, char **words, int count, const char *spool, bool shards) WARN_UNUSED;
void inputs_free(struct inputs *in);
#endif
