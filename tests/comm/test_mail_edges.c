/* Goal: the ranks of a ring connect to their neighbours without waiting in a circle, and in few rounds. Method: rings of 2 to 256 ranks; in a
 * round every edge that is next at both ends connects. */
#include "comm/gpu/mail_edges.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

enum { RANKS_MAX = 256 };

static void every_edge_connects(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= RANKS_MAX; ranks++) {
        int edges[RANKS_MAX][2], done[RANKS_MAX] = {0}, connected = 0, rounds = 0;
        for (int r = 0; r < ranks; r++) {
            mail_edges(r, ranks, edges[r]);
            assert_int_equal(edges[r][0] + edges[r][1], r + (r + ranks - 1) % ranks);
            assert_int_not_equal(edges[r][0], edges[r][1]);
        }
        for (int last = -1; connected > last; rounds++) {
            int now[RANKS_MAX];
            last = connected;
            for (int r = 0; r < ranks; r++) now[r] = done[r];
            for (int e = 0; e < ranks; e++) {
                const int upper = (e + 1) % ranks;
                if (now[e] == 2 || now[upper] == 2) continue;
                if (edges[e][now[e]] != e || edges[upper][now[upper]] != e) continue;
                done[e]++, done[upper]++, connected++;
            }
        }
        assert_int_equal(connected, ranks);
        assert_true(rounds - 1 <= 3); /* the last round found none */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_edge_connects)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
