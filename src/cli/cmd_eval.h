/* ingot eval --tasks: benchmarks of a run's newest checkpoint. */
#ifndef INGOT_CLI_CMD_EVAL_H
#define INGOT_CLI_CMD_EVAL_H
#include "base/flags.h"
#include <jansson.h>

struct eval_tasks {
    const char *run, *samples; /* samples: a file to write; NULL: none */
    struct flag_list tasks;    /* "NAME=FILE[,NAME=FILE...]" */
    int64_t limit;             /* rows of each; 0: all */
    int64_t every;             /* watch: every n-th checkpoint; 0: 1 */
    bool each, json, watch;    /* each: samples hold every token; watch: checkpoints as they come */
    bool accept_data;          /* another tokenizer than the model was trained with is no error */
    int override_count;
    char **overrides;
};
/* STATUS_CONFIG, STATUS_DATA: see harness/harness.h. */
status eval_tasks(const struct eval_tasks *e) WARN_UNUSED;

/* For cmd_eval_watch.c: tasks that have been read, to be judged with one checkpoint after another. */
struct eval_session;
status eval_session_open(struct eval_session **s, const struct eval_tasks *e) WARN_UNUSED; /* files are read */
void eval_session_close(struct eval_session *s);
/* Scores a run's newest checkpoint or the given one; the first call reads the run's tokenizer. */
status eval_session_judge(struct eval_session *s, const char *path, int64_t *step) WARN_UNUSED;
int eval_session_count(const struct eval_session *s);
/* Result of a task: an object, the caller's. */
json_t *eval_session_result(const struct eval_session *s, int task);
const char *eval_session_name(const struct eval_session *s, int task);
const char *eval_session_file(const struct eval_session *s, int task);
/* A line for each task and group; `step` -1: without it. */
void eval_session_print(const struct eval_session *s, int64_t step);
/* eval_tasks with `watch`. */
status eval_watch(const struct eval_tasks *e) WARN_UNUSED;
#endif
