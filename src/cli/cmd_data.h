/* ingot data build | inspect | verify: what the verbs share. */
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

struct inspect_options {
    int64_t documents;
    const char *tokenizer_dir; /* NULL: that of the manifest */
    bool json;
};
/* inspect --step: what a step of a run saw. */
status cmd_data_step(int argc, char **argv);

/* The tokenizer that is named, else the one of the set's manifest; NULL with STATUS_OK when that one is not there
 * any more or nobody knows one: it only costs the text. */
status cmd_data_tokenizer(struct tokenizer **t, const char *named, const struct shard_set *set);
/* The text of one token, with control characters and what is not UTF-8 on its own written as escapes; the id when
 * `t` is NULL. */
void cmd_data_put_token(const struct tokenizer *t, int32_t id, FILE *out);
#endif
