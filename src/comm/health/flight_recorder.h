/* The flight recorder: the last calls of each rank, in the memory that ranks share, for whoever is left when they are ended. */
#ifndef INGOT_COMM_HEALTH_FLIGHT_RECORDER_H
#define INGOT_COMM_HEALTH_FLIGHT_RECORDER_H
#include "comm/comm_int.h"

enum { FLIGHT_CALLS = 64 };     /* of each rank */
struct flight;                  /* zeroed memory is an empty one */
size_t flight_bytes(int ranks); /* a multiple of 128 */
void flight_begin(struct flight *f, const struct comm *c, const struct comm_call *call);
/* The call that began last has succeeded; one that failed stays open. */
void flight_end(struct flight *f, int rank);
/* What a rank called last, as comm_call_text says it; "nothing". */
const char *flight_last(const struct flight *f, int rank, char text[COMM_TEXT]);

/* Where it is written; without a path, to stderr: the last call of each rank alone. */
void flight_path_set(struct flight *f, const char *path);
/* Writes it, one line per rank and call, oldest first. Says where, in the log. Quiet when nothing was called. */
void flight_write(const struct flight *f, int ranks, const char *reason);
#endif
