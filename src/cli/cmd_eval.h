/* ingot eval --tasks: benchmarks of a run's newest checkpoint. */
#ifndef INGOT_CLI_CMD_EVAL_H
#define INGOT_CLI_CMD_EVAL_H
#include "base/flags.h"

struct eval_tasks {
    const char *run, *samples; /* samples: a file to write; NULL: none */
    struct flag_list tasks;    /* "NAME=FILE[,NAME=FILE...]" */
    int64_t limit;             /* rows of each; 0: all */
    bool each, json;           /* each: samples hold every token */
    bool accept_data;          /* another tokenizer than the model was trained with is no error */
    int override_count;
    char **overrides;
};
/* STATUS_CONFIG, STATUS_DATA: see harness/harness.h. */
status eval_tasks(const struct eval_tasks *e) WARN_UNUSED;
#endif
