/* Shared by the verbs ingot data build | inspect | verify | synth. */
#ifndef INGOT_CLI_CMD_DATA_H
#define INGOT_CLI_CMD_DATA_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
struct shard_set;
struct tokenizer;

/* inspect --step: the data of one step of a run. */
struct args;
struct cmd_data_step {
    int64_t step, rank, ranks, micro, sequence; /* step: as in the log, from 1; micro, sequence -1: all */
    const char *tokenizer_dir;                  /* NULL: the run's */
    bool full, json;
};
status cmd_data_step(const struct args *a, const struct cmd_data_step *which);

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
#define CMD_DATA_HINTS_NONE                                                                                  \
    {                                                                                                        \
        NULL, NULL, -1                                                                                       \
    }
#define CMD_DATA_HINT_FLAGS(h) FLAG("dtype", &(h).dtype), FLAG("eot", &(h).eot), FLAG("eod", &(h).eod)
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
