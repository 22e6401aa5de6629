/* The board: memory that the ranks of a machine share. Each shows there that it lives, each may end the waits of all with a reason, and
 * each looks at all others while it waits. For the backends of comm/. */
#ifndef INGOT_COMM_HEALTH_HEARTBEAT_H
#define INGOT_COMM_HEALTH_HEARTBEAT_H
#include "comm/health/flight_recorder.h"

struct board;
size_t board_bytes(int ranks); /* whole pages */
/* A file of memory with a board in front, inherited by children; `bytes`: of the whole file. */
status board_create(int ranks, size_t bytes, int *fd) WARN_UNUSED;
/* Where another process of this machine and user finds the file, and how it knows that it is the right one. */
struct board_place {
    int32_t pid, fd;
    uint8_t nonce[16];
};
status board_place(int fd, struct board_place *p) WARN_UNUSED;
status board_join(const struct board_place *p, int *fd) WARN_UNUSED;
/* What the processes of a machine that see each other have in common; its host name comes first. */
enum { BOARD_MACHINE = 160 };
void board_machine(char name[BOARD_MACHINE]);

bool board_fits(const struct board *b, int ranks, size_t bytes);
int board_ranks(const struct board *b);
struct flight *board_flight(struct board *b);
bool board_ended(const struct board *b, int rank); /* left in good order */
/* The first one says why: false for the others. */
bool board_abort(struct board *b, const char *text);
bool board_aborted(const struct board *b);
void board_reason(struct board *b, char text[COMM_TEXT]); /* "" when nobody has */

/* What the board shows of a rank, for the board of another machine. */
struct board_life {
    int32_t rank, pid;
    uint32_t beats, turns;
    int32_t waits, ended;
};
void board_life(const struct board *b, int rank, struct board_life *life);
void board_set_life(struct board *b, const struct board_life *life); /* of a rank that is elsewhere */

/* A rank's place at the board: its heart, and what it sees of the others. */
struct watch;
status watch_open(struct watch **out, struct board *b, int rank) WARN_UNUSED;
/* A failing rank ends the waits of the others. True: it was this rank that ended all. NULL is fine. */
bool watch_close(struct watch *w, status st);
/* Until all ranks have a place, a minute at most. */
status watch_meet(struct watch *w) WARN_UNUSED;
/* Around a wait for others that is not over at once; watch_look in between, a few times per second: STATUS_COMM when the waits are ended, a
 * rank gives no sign of life, all ranks wait for each other, or this wait lasts too long. */
void watch_wait_begin(struct watch *w);
void watch_wait_end(struct watch *w);
status watch_look(struct watch *w, const struct comm *c, const struct comm_call *call) WARN_UNUSED;
/* From then on the heart looks after the others, too, and when all are ended and this rank does not see it within GUARD_S, ends the process
 * with the reason and the exit code of STATUS_COMM: a queue of a GPU that is full blocks whoever queues more, for ever. */
void watch_guard(struct watch *w);
/* STATUS_COMM, and everybody is told that a rank (of all) is lost. */
status watch_lost(struct watch *w, int rank, const char *what, const struct comm *c, const struct comm_call *call);
#endif
