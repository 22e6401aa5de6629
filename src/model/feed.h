/* feed: the way of a step's data to the device and of its scalars back.
 *
 * One block of device memory, taken from an arena at start, with a pinned twin on the host:
 *     [step_scalars | micro-batch 0: tokens, targets, positions [rows], cu_seqlens [docs_max + 1] | micro-batch 1 | ...]
 * so that a step needs one upload, and a captured step finds its data at the same addresses every time. Micro-batches that the loader
 * laid out like this in pinned memory (batch.block) go up from there, past the twin. On the CPU the views are the loader's own memory
 * and nothing is copied. */
#ifndef INGOT_MODEL_FEED_H
#define INGOT_MODEL_FEED_H
#include "data/load/loader.h"
#include "dev/dev.h"
#include "ops/ops.h"

struct feed_shape {
    int micro_count;    /* micro-batches that are held at once */
    int64_t rows;       /* tokens of one, at most */
    int64_t docs_max;   /* documents of one, at most */
    bool documents;     /* of any length: the views then always hold docs_max documents, the last ones empty, so that all steps
                           look alike. Else they have equal lengths */
};
struct feed {
    struct feed_shape shape;
    const struct dev *dev;
    struct stream *stream;          /* NULL on the CPU */
    char *device, *host;            /* the block and its twin; NULL on the CPU */
    struct batch *micro;            /* [micro_count] views in the set's memory, owned */
    struct step_scalars *scalars;   /* in the set's memory */
    struct step_scalars own;        /* the CPU's */
};

/* Bytes of device memory; 0 on the CPU. */
size_t feed_bytes(enum dev_kind kind, const struct feed_shape *shape);
/* `device`: feed_bytes() of the device's memory (NULL on the CPU). */
status feed_open(struct feed *f, const struct dev *dev, struct stream *s, const struct feed_shape *shape,
                 void *device) WARN_UNUSED;
void feed_close(struct feed *f);
/* Makes f->micro[0..count) the given micro-batches, and *f->scalars the given scalars; queued. The arguments may be overwritten when it
 * returns, but blocks not before feed_read. Waits for nothing: the previous step was waited for (feed_read). */
status feed_put(struct feed *f, const struct batch *micro, int count, const struct step_scalars *scalars) WARN_UNUSED;
/* Waits until everything queued has run, and reads the scalars. */
status feed_read(struct feed *f, struct step_scalars *out) WARN_UNUSED;
#endif
