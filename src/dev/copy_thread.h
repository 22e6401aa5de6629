/* Copies that another thread makes while the step runs: device calls of that thread, pinned memory, and a captured
 * graph that waits for its events. */
#ifndef INGOT_DEV_COPY_THREAD_H
#define INGOT_DEV_COPY_THREAD_H
#include "dev/dev.h"

/* Makes the device current in this thread. Call it first in each thread but the one that opened the device. */
status dev_use(const struct dev *d) WARN_UNUSED;
/* Pins existing memory, of whole pages, such as memory that ranks share; does nothing on the host. Call dev_unpin
 * before it is unmapped. */
status dev_pin(const struct dev *d, void *p, size_t bytes, const char *what) WARN_UNUSED;
void dev_unpin(const struct dev *d, void *p); /* NULL is fine */
/* dev_stream_wait for an event that is recorded outside of the graph. When captured, every replay waits for the event's
 * last record before its launch. */
status dev_stream_wait_outside(struct stream *s, const struct event *e) WARN_UNUSED;
#endif
