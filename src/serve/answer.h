/* A model, and one request answered by it. */
#ifndef INGOT_SERVE_ANSWER_H
#define INGOT_SERVE_ANSWER_H
#include "serve/job.h"
#include "train/restore.h"

struct completion_model {
    struct trainer trainer;
    struct tokenizer *tokenizer;
    struct completion_head head;
    int64_t rows; /* tokens of a forward */
    uint64_t answers;
};
/* Answers one request, in pieces if it is a stream. False: *e, and nothing more was put. */
bool answer_run(struct completion_model *m, struct job *j, struct completion *c, struct completion_error *e);
/* An event of a stream, malloc'd. */
char *answer_event(const char *data);
#endif
