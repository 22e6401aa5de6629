/* The board: memory that the ranks of a machine share. Each shows there that it lives, each may end the waits of all with a reason, and
 * each looks at all others while it waits. For the backends of comm/. */
#ifndef INGOT_COMM_BOARD_H
#define INGOT_COMM_BOARD_H
#include "comm/comm_int.h"

struct board;
size_t board_bytes(int ranks); /* whole pages */
/* Zeroed memory becomes a board. `bytes`: what its file holds, with what lies behind the board. */
void board_init(void *memory, int ranks, size_t bytes);
bool board_fits(const struct board *b, int ranks, size_t bytes);
/* The first one says why: false for the others. */
bool board_abort(struct board *b, const char *text);
bool board_aborted(const struct board *b);
void board_reason(struct board *b, char text[COMM_TEXT]); /* "" when nobody has */
bool board_ended(const struct board *b, int rank);        /* left in good order */

/* A rank's place at the board: its heart, and what it sees of the others. */
struct watch;
status watch_open(struct watch **out, struct board *b, int rank) WARN_UNUSED;
/* A failing rank ends the waits of the others. NULL is fine. */
void watch_close(struct watch *w, status st);
/* Until all ranks have a place, a minute at most. */
status watch_meet(struct watch *w) WARN_UNUSED;
/* Looks at all ranks, for a wait that goes on: STATUS_COMM when the waits are ended, or a rank gives no sign of life. A few times per
 * second. */
status watch_look(struct watch *w, const struct comm *c, const struct comm_call *call) WARN_UNUSED;
/* STATUS_COMM, and everybody is told that a rank (of all) is lost. */
status watch_lost(struct watch *w, int rank, const char *what, const struct comm *c, const struct comm_call *call);
#endif
