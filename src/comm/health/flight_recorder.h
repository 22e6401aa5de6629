/* flight_recorder: a ring of the last calls of each rank, in shared memory. After an abort the surviving rank writes it
 * to RUN/comm-flight.txt (docs/FORMATS.md), as PyTorch's NCCL flight recorder does. */
#ifndef INGOT_COMM_HEALTH_FLIGHT_RECORDER_H
#define INGOT_COMM_HEALTH_FLIGHT_RECORDER_H
#include "comm/comm_int.h"

enum { FLIGHT_RECORDER_CALLS = 64 };     /* of each rank */
struct flight_recorder;                  /* zeroed memory is empty */
size_t flight_recorder_bytes(int ranks); /* a multiple of 128 */
void flight_recorder_begin(struct flight_recorder *f, const struct comm *c, const struct comm_call *call);
/* The last call has succeeded; one that failed stays open. */
void flight_recorder_end(struct flight_recorder *f, int rank);
/* The last call of a rank, as comm_call_text formats it; "nothing". */
const char *flight_recorder_last(const struct flight_recorder *f, int rank, char text[COMM_TEXT]);

/* The file to write; NULL: stderr, only the last call of each rank. */
void flight_recorder_path_set(struct flight_recorder *f, const char *path);
/* Writes it, one line per rank and call, oldest first, and logs the path. Does nothing if there were no
 * calls. */
void flight_recorder_write(const struct flight_recorder *f, int ranks, const char *reason);
#endif
