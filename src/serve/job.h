/* Requests for completions that wait in a queue, and what comes back for them. */
#ifndef INGOT_SERVE_JOB_H
#define INGOT_SERVE_JOB_H
#include "serve/completion.h"

enum { QUEUE_MAX = 8 }; /* requests that wait; one more is being answered */
struct queue;
struct job;
struct queue *queue_open(void);
void queue_stop(struct queue *q);  /* all waits end */
void queue_close(struct queue *q); /* after queue_stop, when no job is left */

/* ---- who asks */
/* Takes the request. NULL: *why says so, and the caller keeps it. */
struct job *queue_submit(struct queue *q, struct completion *c, struct completion_error *why);
/* Waits for news, a time at most. True: the job is done, or a stream has text. */
bool job_wait(struct job *j, double seconds);
/* The answer, or what a stream has had since the last call; malloc'd, NULL: nothing. *done: no more will come.
 * *http: 200, or that of the error that the text is. */
char *job_take(struct job *j, unsigned *http, bool *done);
/* The caller wants no more of it. */
void job_drop(struct job *j);

/* ---- who answers */
struct job *queue_next(struct queue *q); /* waits for one; NULL: the queue was stopped and is empty */
void queue_finish(struct queue *q, struct job *j);
struct completion *job_request(struct job *j);
/* Appends to what the caller of the job gets, and takes the text. False: nobody wants more. */
bool job_put(struct job *j, char *text, unsigned http, bool done);
bool job_wanted(struct job *j);
bool job_begun(struct job *j); /* something was put */
#endif
