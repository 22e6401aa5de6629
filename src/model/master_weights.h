/* Converts master weights between fp32 (as a file or the host stores them) and the run's storage: fp32, split master
 * weights in bf16 (tensor/params.h), or host memory. A host array has the layout of params.master, or the layout that
 * it would have: param_local_range.master. */
#ifndef INGOT_MODEL_MASTER_WEIGHTS_H
#define INGOT_MODEL_MASTER_WEIGHTS_H
#include "parallel/exec.h"

/* Sets the master weights of this rank to `from`, which may be params.master itself, and updates the copies that
 * GEMMs read. With ZeRO, call zero_all_gather_weights afterwards. Queued, but `from` has been read on return. */
status master_weights_put(const struct exec *r, const float *from) WARN_UNUSED;
/* The same for one row of split master weights: this rank's part. */
status master_weights_put_row(const struct exec *r, int row, const float *from) WARN_UNUSED;
/* Reads the master weights; complete on return. */
status master_weights_get(const struct exec *r, float *to) WARN_UNUSED;
/* The same in two parts, from a GPU to pinned memory: queues the copies on a stream of their own, on any thread; when
 * they have run, master_weights_join puts together what was split. */
status master_weights_queue(const struct exec *r, struct stream *side, float *to) WARN_UNUSED;
status master_weights_join(const struct exec *r, float *to) WARN_UNUSED;
#endif
