/* A model on several ranks of this host, each a process of its own. */
#ifndef INGOT_TESTS_MODEL_SUPPORT_RANKS_H
#define INGOT_TESTS_MODEL_SUPPORT_RANKS_H
#include "comm/comm.h"

/* Runs part(c, arg) on each rank; true: as it should be. A rank that says false, or ends otherwise, fails the test. */
typedef bool rank_part_fn(struct comm *c, const void *arg);
void expect_ranks(int ranks, rank_part_fn *part, const void *arg);
#endif
