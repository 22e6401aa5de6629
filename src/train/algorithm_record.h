/* algorithm_record: the GEMM algorithms that each rank chose on its GPU (ops/choose.h), stored in a checkpoint's
 * metadata.
 *
 * "algorithms" are rank 0's. "algorithms_by_rank" has, per rank, the lines that rank 0 does not have: GEMMs of other
 * layers, or other algorithms for the same GEMM if the ranks shared no cache file while they measured. */
#ifndef INGOT_TRAIN_ALGORITHM_RECORD_H
#define INGOT_TRAIN_ALGORITHM_RECORD_H
#include "comm/comm.h"
#include <jansson.h>

/* Gathers the choices of all ranks (`mine`: this rank's text, which is modified; NULL: none). Collective. *out is a new
 * object on rank 0, empty if nothing was chosen; NULL on the others. */
status algorithm_record_gather(struct comm *world, char *mine, json_t **out) WARN_UNUSED;
/* The text for a rank that resumes: lines of all ranks, since another mesh may need other GEMMs; then rank 0's, then
 * its own. Of several lines for one GEMM the last one counts. Caller frees; NULL: no memory. */
char *algorithm_record_text(const json_t *record, int rank);
#endif
