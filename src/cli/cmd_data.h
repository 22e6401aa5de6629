/* ingot data build | inspect | verify | synth: what the verbs share. */
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

/* inspect --step: what a step of a run saw. */
status cmd_data_step(int argc, char **argv);

/* The tokenizer that is named, else the one of the set's manifest; NULL with STATUS_OK when that one is not there
 * any more, has changed, or nobody knows one: it only costs the text. */
status cmd_data_tokenizer(struct tokenizer **t, const char *named, const struct shard_set *set);
/* The text of one token, with control characters and what is not UTF-8 on its own written as escapes; the id when
 * `t` is NULL. */
void cmd_data_put_token(const struct tokenizer *t, int32_t id, FILE *out);

/* Flags about shards that do not say it themselves. */
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

/* A progress line about a pass over shards: on a terminal after one second, else a log line every ten. */
struct cmd_data_meter {
    const char *verb; /* "verified" */
    int64_t start_ns, next_ns;
    bool terminal, shown;
};
void cmd_data_meter_begin(struct cmd_data_meter *m, const char *verb);
void cmd_data_meter_show(void *ctx, int64_t done, int64_t total); /* bytes; ctx: the meter */
void cmd_data_meter_end(struct cmd_data_meter *m);
#endif
