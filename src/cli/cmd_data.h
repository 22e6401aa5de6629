/* Shared by the verbs ingot data build | inspect | verify | synth. */
#ifndef INGOT_CLI_CMD_DATA_H
#define INGOT_CLI_CMD_DATA_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
struct shard_set;
struct tokenizer;

status cmd_data_inspect(int argc, char **argv);
status cmd_data_verify(int argc, char **argv);
status cmd_data_synth(int argc, char **argv);

/* inspect --step: the data of one step of a run. */
status cmd_data_step(int argc, char **argv);

/* Loads the named tokenizer, else the one of the set's manifest. *t is NULL with STATUS_OK when that one is missing,
 * has changed, or is not known; only the text is then not shown. */
status cmd_data_tokenizer(struct tokenizer **t, const char *named, const struct shard_set *set);
/* Prints the text of one token. Control characters and bytes that are not UTF-8 on their own are printed as escapes.
 * `t` NULL: prints the id. */
void cmd_data_put_token(const struct tokenizer *t, int32_t id, FILE *out);

/* Flags that describe shards without a manifest. */
struct shard_hints;
struct cmd_data_hints {
    const char *dtype, *eod; /* NULL: not given */
    int64_t eot;             /* -1: not given */
};
#define CMD_DATA_HINTS_NONE {NULL, NULL, -1}
#define CMD_DATA_HINT_FLAGS(h)                                                                                         \
    {"dtype", FLAG_TEXT, &(h).dtype, "type of the ids in files without a header: uint16 | uint32 | int32 | int64"},    \
    {"eot", FLAG_INT, &(h).eot, "shards without a manifest: the end-of-text id"},                                      \
    {"eod", FLAG_TEXT, &(h).eod, "shards without a manifest: it stands before | after each document | none"}
status cmd_data_hints(const struct cmd_data_hints *f, struct shard_hints *out);

/* A progress line for a pass over shards: on a terminal from the first second on, else a log line every ten seconds. */
struct cmd_data_meter {
    const char *verb; /* "verified" */
    int64_t start_ns, next_ns;
    bool terminal, shown;
};
void cmd_data_meter_begin(struct cmd_data_meter *m, const char *verb);
void cmd_data_meter_show(void *ctx, int64_t done, int64_t total); /* bytes; ctx: the meter */
void cmd_data_meter_end(struct cmd_data_meter *m);
#endif
