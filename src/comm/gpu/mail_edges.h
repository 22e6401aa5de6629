/* mail_edges: in which order the ranks of a ring connect to their neighbours. Edge e joins rank e and the next one; NCCL connects
 * both ends at once, and each end waits for the other.
 *
 * Every rank takes its two edges in the order of one list: even edges, then odd ones, each from the lowest on. Of the edges that are
 * not connected, the first of the list is the next of both its ends, so no rank waits forever; and the even edges, which have no end
 * in common but for the last of an odd ring, connect at the same time. */
#ifndef INGOT_COMM_GPU_MAIL_EDGES_H
#define INGOT_COMM_GPU_MAIL_EDGES_H
#include <stdbool.h>

static inline bool mail_edge_before(int a, int b) { return a % 2 != b % 2 ? a % 2 < b % 2 : a < b; }
/* The edges of a rank, which are two also between two ranks. Edge `rank` leads to the next rank. */
static inline void mail_edges(int rank, int ranks, int edges[2])
{
    const int before = (rank + ranks - 1) % ranks;
    const bool first = mail_edge_before(rank, before);
    edges[0] = first ? rank : before;
    edges[1] = first ? before : rank;
}
#endif
