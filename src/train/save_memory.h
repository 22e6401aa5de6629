/* save_memory: host memory for the copies of the state that an asynchronous save makes (ckpt.async). It is allocated
 * once, and every save uses it. On the CPU the first save allocates it. For a GPU it is pinned, which takes seconds; a
 * thread does that from the start of the run on. */
#ifndef INGOT_TRAIN_SAVE_MEMORY_H
#define INGOT_TRAIN_SAVE_MEMORY_H
#include "train/save_ranks.h"
#include <pthread.h>

struct save_memory {
    struct arena arena;      /* this rank's copies */
    struct save_ranks ranks; /* the shared memory, when several ranks of one host are all */
    bool open;
    bool refused;            /* the buffers did not fit on some rank; the user has been warned */
    enum { PIN_NONE, PIN_BEGUN, PIN_DONE } pin;
    bool running; /* the pinning thread is still to be joined */
    pthread_t thread;
    status st; /* the pinning thread's result */
    char message[256];
    struct trainer *t;
};

/* Collective. Allocates the memory, unless that is done. If it does not fit, sets m->refused on all ranks. */
status save_memory_open(struct save_memory *m, struct trainer *t) WARN_UNUSED;
/* Starts to allocate and pin the memory of a GPU, at the start of the run. */
status save_memory_pin(struct save_memory *m, struct trainer *t) WARN_UNUSED;
/* Collective, after save_memory_pin: waits until the memory is pinned. If it was refused, sets m->refused. */
status save_memory_ready(struct save_memory *m) WARN_UNUSED;
void save_memory_close(struct save_memory *m);
#endif
