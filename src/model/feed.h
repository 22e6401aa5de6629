/* feed: input staging: uploads a step's data to the device and reads its scalars back.
 *
 * The data is one block of device memory, allocated from an arena at start, with a pinned copy on the host:
 *     step_scalars | micro-batch 0: tokens, targets, positions [rows], cu_seqlens [docs_max + 1] | micro-batch 1 | ...
 * With context parallelism the rows are those of this rank, and behind them lie the whole micro-batch in the same form
 * and the documents as parts (batch.context).
 * A step needs one upload, and a captured step reads its data at the same addresses every time. If the loader wrote
 * micro-batches in this layout to pinned memory (batch.block), they are uploaded from there without the host copy. On
 * the CPU the views are the loader's own memory and nothing is copied. */
#ifndef INGOT_MODEL_FEED_H
#define INGOT_MODEL_FEED_H
#include "data/load/loader.h"
#include "dev/dev.h"
#include "ops/ops.h"
#include "parallel/context.h"

struct feed_shape {
    int micro_count;    /* micro-batches held at once */
    int64_t rows;       /* maximum tokens of a micro-batch */
    int64_t docs_max;   /* maximum documents of a micro-batch */
    bool documents;     /* documents of any length: the views then always have docs_max documents, the last ones
                           empty, and all steps have the same shape. False: all documents have the same length */
    int context;        /* ranks that share each sequence: a micro-batch has so many times the rows; 0 or 1: none */
};
struct feed_part { struct batch whole; struct context_batch of; };
struct feed {
    struct feed_shape shape;
    const struct dev *dev;
    struct stream *stream;          /* NULL on the CPU */
    struct context *context;        /* takes this rank's part of every micro-batch; not owned; NULL: whole ones */
    char *device, *host;            /* the block and its host copy; NULL on the CPU */
    struct batch *micro;            /* [micro_count] views in the set's memory, owned */
    struct feed_part *parts;        /* [micro_count] with shape.context, on a GPU: what micro[i].context says; owned */
    struct step_scalars *scalars;   /* in the set's memory */
    struct step_scalars own;        /* storage of *scalars on the CPU */
};

/* Bytes of device memory; 0 on the CPU. */
size_t feed_bytes(enum dev_kind kind, const struct feed_shape *shape);
/* `device`: feed_bytes() of device memory (NULL on the CPU). */
status feed_open(struct feed *f, const struct dev *dev, struct stream *s, const struct feed_shape *shape,
                 void *device) WARN_UNUSED;
void feed_close(struct feed *f);
/* Queues the upload of f->micro[0..count) and *f->scalars. On return the arguments may be overwritten; batch blocks
 * must stay unchanged until feed_read. Does not block: feed_read has waited for the previous step. */
status feed_put(struct feed *f, const struct batch *micro, int count, const struct step_scalars *scalars) WARN_UNUSED;
/* Overwrites the scalars, between two reads. */
status feed_scalars(struct feed *f, const struct step_scalars *scalars) WARN_UNUSED;
/* Waits until all queued work has run, and reads the scalars. */
status feed_read(struct feed *f, struct step_scalars *out) WARN_UNUSED;
#endif
