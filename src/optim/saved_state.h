/* saved_state: host memory for the copy of what a checkpoint saves of a rank: master weights and moments. A save that
 * goes on beside training (train/save_memory.h) allocates it, and the planner counts it. */
#ifndef INGOT_OPTIM_SAVED_STATE_H
#define INGOT_OPTIM_SAVED_STATE_H
#include "parallel/mesh.h"
#include "tensor/params.h"

/* Whether this rank saves anything: of several replicas only the first one does. */
bool saved_state_mine(const struct mesh *mesh);
/* Elements of its master weights: all, where the weights are their own masters and every rank has them. */
int64_t saved_state_masters(const struct params *p);
/* Bytes of an arena with all of it; 0: it saves nothing. After params_layout. */
size_t saved_state_bytes(const struct params *p, const struct mesh *mesh);

/* Ranks of one host share the memory of their copies: a mark per rank, then the copies, each in whole pages. */
enum { SAVED_STATE_PAGE = 4096, SAVED_STATE_MARK = 64 };
static inline int64_t saved_state_pages(int64_t bytes)
{
    return (bytes + SAVED_STATE_PAGE - 1) / SAVED_STATE_PAGE * SAVED_STATE_PAGE;
}
#endif
