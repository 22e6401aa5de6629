/* Master weights in fp32, as a file or the host has them, and as a run stores them: whole; in bf16 as two halves (tensor/params.h); or in host
 * memory. In an array of the host they lie as in params.master, or as that would be: param_held.master. */
#ifndef INGOT_MODEL_MASTER_WEIGHTS_H
#define INGOT_MODEL_MASTER_WEIGHTS_H
#include "parallel/exec.h"

/* The master weights of this rank become `from`, which may be params.master itself, and what is read follows them; under ZeRO zero_all_gather_weights is
 * due behind that. Queued; `from` has been read. */
status master_weights_put(const struct exec *r, const float *from) WARN_UNUSED;
/* Of one row alone, stored as halves: what is here of it. */
status master_weights_put_row(const struct exec *r, int row, const float *from) WARN_UNUSED;
/* And back; there when the call returns. */
status master_weights_get(const struct exec *r, float *to) WARN_UNUSED;
#endif
