/* flight_recorder: a ring of the last calls of each rank, in shared memory. After an abort the surviving rank writes it to
 * RUN/comm-flight.txt (docs/FORMATS.md), as PyTorch's NCCL flight recorder does. */
#ifndef INGOT_COMM_HEALTH_FLIGHT_RECORDER_H
#define INGOT_COMM_HEALTH_FLIGHT_RECORDER_H
#include "comm/comm_int.h"

enum { FLIGHT_RECORDER_CALLS = 64 };     /* of each rank */
struct flight_recorder;                  /* zeroed memory is an empty one */
size_t flight_recorder_bytes(int ranks); /* a multiple of 128 */
void flight_recorder_begin(struct flight_recorder *f, const struct comm *c, const struct comm_call *call);
/* The call that began last has succeeded; one that failed stays open. */
void flight_recorder_end(struct flight_recorder *f, int rank);
/* What a rank called last, as comm_call_text says it; "nothing". */
const char *flight_recorder_last(const struct flight_recorder *f, int rank, char text[COMM_TEXT]);

/* Where it is written; without a path, to stderr: the last call of each rank alone. */
void flight_recorder_path_set(struct flight_recorder *f, const char *path);
/* Writes it, one line per rank and call, oldest first. Says where, in the log. Quiet when nothing was called. */
void flight_recorder_write(const struct flight_recorder *f, int ranks, const char *reason);
#endif
