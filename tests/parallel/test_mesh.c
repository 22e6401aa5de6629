/* Where ranks stand in a mesh whose data-parallel ranks hold several copies of the state: neighbours share a copy out, and the places in sums
 * are still those of the tree over all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "parallel/mesh.h"

enum { DP = 8 };
static struct mesh_shape shape_of(int pp, int tp, int shard)
{
    return (struct mesh_shape){.pp = pp, .dp = DP, .tp = tp, .chunks = 1, .zero = 1, .shard = shard};
}

static void neighbours_share_a_copy_out(void **state)
{
    (void)state;
    for (int shard = 2; shard <= DP; shard *= 2)
        for (int tp = 1; tp <= 2; tp++)
            for (int pp = 1; pp <= 2; pp++) {
                const struct mesh_shape shape = shape_of(pp, tp, shard);
                int taken[2][2][DP] = {0};
                for (int rank = 0; rank < pp * DP * tp; rank++) {
                    const struct mesh m = mesh_place(&shape, rank);
                    const int r = rank / tp % DP;
                    assert_int_equal(m.tp_rank, rank % tp);
                    assert_int_equal(m.pp_rank, rank / tp / DP);
                    assert_int_equal(mesh_replica(&m), r / shard);
                    assert_int_equal(mesh_shard_rank(&m), r % shard);
                    assert_int_equal(taken[m.pp_rank][m.tp_rank][m.dp_rank]++, 0);
                    if (shard == DP) assert_int_equal(m.dp_rank, r);
                }
            }
}

/* Rank = ((pp_rank dp + r) cp + cp_rank) tp + tp_rank; the dp x cp ranks that share a copy of the state are neighbours. */
static void context_ranks_stand_between_tensor_and_data(void **state)
{
    (void)state;
    for (int shard = 2; shard <= 16; shard *= 2)
        for (int tp = 1; tp <= 2; tp++) {
            struct mesh_shape shape = shape_of(2, tp, shard);
            shape.cp = 2;
            assert_int_equal(mesh_ranks(&shape), 2 * DP * 2 * tp);
            for (int rank = 0; rank < mesh_ranks(&shape); rank++) {
                const struct mesh m = mesh_place(&shape, rank);
                assert_int_equal(((m.pp_rank * DP + m.dp_rank) * 2 + m.cp_rank) * tp + m.tp_rank, rank);
                assert_int_equal(mesh_replica(&m), rank / tp % (2 * DP) / shard);
                assert_int_equal(mesh_shard_rank(&m), rank / tp % (2 * DP) % shard);
                assert_int_equal(m.dp_cp_rank, mesh_shard_rank(&m) * (2 * DP / shard) + mesh_replica(&m));
            }
        }
}

/* comm_all_reduce's rule: those with even numbers plus those with odd numbers, each by the same rule. */
static float tree(const float *x, int count, int stride)
{
    if (count == 1) return x[0];
    return tree(x, count / 2, 2 * stride) + tree(x + stride, count / 2, 2 * stride);
}

static void sums_inside_and_across_copies_are_the_tree_of_all(void **state)
{
    (void)state;
    const float x[DP] = {1, 1e-8F, 3e7F, -2.7F, 1e-3F, -3e7F, 0.1F, 5e-8F}; /* of places, not of ranks */
    int orders = 0;
    for (int shard = 2; shard <= DP; shard *= 2) {
        const struct mesh_shape shape = shape_of(1, 1, shard);
        float parts[DP][DP], copies[DP], ranks[DP];
        for (int rank = 0; rank < DP; rank++) {
            const struct mesh m = mesh_place(&shape, rank);
            parts[mesh_replica(&m)][mesh_shard_rank(&m)] = x[m.dp_rank];
            ranks[rank] = x[m.dp_rank];
        }
        for (int c = 0; c < DP / shard; c++) copies[c] = tree(parts[c], shard, 1);
        assert_true(tree(copies, DP / shard, 1) == tree(x, DP, 1));
        orders += tree(ranks, DP, 1) != tree(x, DP, 1);
    }
    assert_int_equal(orders, 2); /* other orders give other sums: these numbers show it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_share_a_copy_out),
        cmocka_unit_test(context_ranks_stand_between_tensor_and_data),
        cmocka_unit_test(sums_inside_and_across_copies_are_the_tree_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
