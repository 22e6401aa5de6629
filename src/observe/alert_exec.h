/* alert_exec: runs a shell command for each alert, one after the other, in the background. */
#ifndef INGOT_OBSERVE_ALERT_EXEC_H
#define INGOT_OBSERVE_ALERT_EXEC_H
#include <stdbool.h>
#include <sys/types.h>

enum { ALERT_EXEC_QUEUE = 32 };
struct alert_exec {
    const char *command;
    double limit_s;
    char *waiting[ALERT_EXEC_QUEUE]; /* records, owned */
    int count;
    pid_t pid;                       /* of the one that runs; 0: none */
    double begin_s;
    int failures;                    /* the first is said */
};
/* Queues a record, which becomes the command's standard input. What does not fit is said and left out. */
void alert_exec_add(struct alert_exec *e, const char *record);
/* Looks after the command that runs, and starts the next. Never waits. True: something runs or waits. */
bool alert_exec_look(struct alert_exec *e, double now_s);
/* Waits for all of them, limit_s in all. */
void alert_exec_end(struct alert_exec *e);
#endif
