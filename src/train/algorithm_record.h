/* record: the algorithms of a GPU's GEMMs (ops/choose.h) in the description of a checkpoint, for all ranks: "algorithms" are rank 0's, and
 * "algorithms_by_rank" holds, under a rank's number, the lines of its that rank 0 has not: other layers' GEMMs, or other algorithms for the
 * same ones, where no file was shared while they were timed. */
#ifndef INGOT_TRAIN_ALGORITHM_RECORD_H
#define INGOT_TRAIN_ALGORITHM_RECORD_H
#include "comm/comm.h"
#include <jansson.h>

/* Of what all ranks have chosen (`mine`: this one's text, whose lines are taken out of it; NULL: none). Collective; *out is a new object on
 * rank 0, empty where nothing was chosen, and NULL on the others. */
status algorithm_record_gather(struct comm *world, char *mine, json_t **out) WARN_UNUSED;
/* The text for a rank that goes on: its own lines, those of rank 0, and those of the others, which ranks of another mesh meet; of lines for
 * one GEMM the later one counts. Caller frees; NULL: no memory. */
char *algorithm_record_text(const json_t *record, int rank);
#endif
