/* Copies that another thread makes beside the step: threads, memory, and a graph that waits for them. */
#ifndef INGOT_DEV_BESIDE_H
#define INGOT_DEV_BESIDE_H
#include "dev/dev.h"

/* For each thread but the one that has opened the device, before its first call. */
status dev_use(const struct dev *d) WARN_UNUSED;
/* Pins memory that is there already, of whole pages, such as memory that ranks share; nothing on the host. dev_unpin
 * before it is unmapped. */
status dev_pin(const struct dev *d, void *p, size_t bytes, const char *what) WARN_UNUSED;
void dev_unpin(const struct dev *d, void *p); /* NULL is fine */
/* dev_stream_wait, and when captured, every replay of the graph waits: for an event that is recorded outside of the
 * graph, and before its launch. */
status dev_stream_wait_outside(struct stream *s, const struct event *e) WARN_UNUSED;
#endif
