/* The interface of a device driver: the calls of dev.h as one table. */
#ifndef INGOT_DEV_DRIVER_INT_H
#define INGOT_DEV_DRIVER_INT_H
#include "dev/dev.h"

struct dev_driver {
    /* optional: without a GPU, d->driver stays NULL and the call succeeds */
    status (*open)(struct dev *d, bool optional, int local);
    status (*use)(const struct dev *d); /* by the calling thread */
    status (*address)(const struct dev *d, char address[DEV_ADDRESS]);
    size_t (*bytes_used)(const struct dev *d);
    status (*memory)(const struct dev *d, size_t bytes, const char *what, void **out); /* zeroed */
    void (*memory_free)(void *p, size_t bytes);
    status (*pinned)(size_t bytes, void **out);
    void (*pinned_free)(void *p);
    status (*pin)(const struct dev *d, void *p, size_t bytes, const char *what); /* pins existing host memory */
    void (*pinned_unmap)(void *p, size_t bytes);            /* undoes pin and frees the memory */
    void (*unpin)(void *p);
    status (*stream_open)(struct stream *s);
    void (*stream_close)(struct stream *s);
    status (*copy)(struct stream *s, void *to, const void *from, size_t bytes);
    status (*copy_lines)(struct stream *s, const struct dev_lines *l);
    status (*zero)(struct stream *s, void *to, size_t bytes);
    status (*sync)(struct stream *s);
    status (*done)(struct stream *s, bool *done); /* all queued work has run or failed */
    status (*event_open)(struct event *e, bool timed);
    status (*stream_wait)(struct stream *s, const struct event *e);
    status (*stream_wait_outside)(struct stream *s, const struct event *e);
    void (*event_close)(struct event *e);
    status (*event_record)(struct stream *s, struct event *e);
    status (*event_stamp)(struct stream *s, struct event *e);
    status (*event_ms)(const struct event *begin, const struct event *end, double *ms);
    status (*graph_begin)(struct stream *s);
    status (*graph_end)(struct stream *s, struct graph *g, bool keep);
    status (*graph_launch)(struct stream *s, const struct graph *g);
    void (*graph_close)(struct graph *g);
};

/* The CUDA driver; in builds with the toolkit. */
const struct dev_driver *cuda_driver(void);
#endif
