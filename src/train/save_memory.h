/* save_memory: host memory for the copies of the state that are made while a checkpoint is written (ckpt.async). Taken
 * once, and used by each save. On the CPU by the first one; for a GPU it is pinned, which takes seconds: a thread does
 * that from the start of the run on. */
#ifndef INGOT_TRAIN_SAVE_MEMORY_H
#define INGOT_TRAIN_SAVE_MEMORY_H
#include "train/save_ranks.h"
#include <pthread.h>

struct save_memory {
    struct arena arena;      /* of this rank's copies */
    struct save_ranks ranks; /* of several ranks: it is shared */
    bool refused;            /* it does not fit beside the run, on a rank; said */
    enum { PIN_NONE, PIN_BEGUN, PIN_DONE } pin;
    bool running; /* the thread that pins is to be joined */
    pthread_t thread;
    status st; /* of that thread */
    char message[256];
    struct trainer *t;
};

/* Collective. Takes the memory, unless it is there; else m->refused, on all ranks alike. */
status save_memory_open(struct save_memory *m, struct trainer *t) WARN_UNUSED;
/* The same for a GPU, at the start of the run. */
status save_memory_pin(struct save_memory *m, struct trainer *t) WARN_UNUSED;
/* Collective, after save_memory_pin: waits until it is pinned; else m->refused. */
status save_memory_ready(struct save_memory *m) WARN_UNUSED;
void save_memory_close(struct save_memory *m);
#endif
