/* The tensors of a save by several hosts: each rank's parts. A tensor that one rank holds is its; else each rank has a
 * piece, a vector NAME.rankR, and says where its elements are in the tensor. */
#include "train/ckpt_pieces.h"
#include "train/state_int.h"

#include <stdlib.h>
#include <string.h>

/* Where the elements of rank r's part of a row are in the tensor of array k; *entries: how many. */
static status runs_of(const struct state *s, int k, int row, int r, struct ckpt_run_list *runs,
                      int64_t *entries)
{
    const struct trainer *t = s->t;
    const struct params *p = &t->decoder.params;
    const struct state_array *a = &s->list[k];
    const struct state_local_range *from = &s->local_ranges[r * p->count + row];
    const struct mesh it = mesh_place(&t->mesh.shape, r);
    const int place = params_place_of(p, it.tp_rank, it.ep_rank);
    for (int64_t at = 0, n; at < from->count; at += n) {
        const struct param_line line = params_line(p, row, place, from->from + at);
        n = line.count < from->count - at ? line.count : from->count - at;
        TRY(ckpt_runs_add(runs, line.global, n));
    }
    *entries = 0;
    for (int i = 0; i < runs->count; i++) { /* of elements of the parameter: now of the array */
        struct ckpt_run *run = &runs->runs[i];
        CHECK(run->begin % a->block == 0 && (run->times == 1 || (run->stride | run->length) % a->block == 0),
              "a block of row %d is cut", row);
        *run = (struct ckpt_run){run->begin / a->block, state_blocks(a, run->length),
                                 state_blocks(a, run->stride), run->times};
        *entries += run->times * run->length;
    }
    CHECK(*entries == state_blocks(a, from->count), "blocks are cut in row %d", row);
    return STATUS_OK;
}

static status make_piece(struct ckpt_item *item, int r, const struct ckpt_run_list *runs, int64_t entries)
{
    struct ckpt_piece *p = calloc(1, sizeof *p + (size_t)runs->count * sizeof p->runs[0]);
    if (p == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the pieces of a checkpoint");
    memcpy(p->of, item->name, sizeof p->of);
    p->rank = item->rank;
    memcpy(p->shape, item->shape, sizeof p->shape);
    p->run_count = runs->count;
    memcpy(p->runs, runs->runs, (size_t)runs->count * sizeof p->runs[0]);
    const int n = snprintf(item->name, sizeof item->name, "%s.rank%d", p->of, r);
    CHECK(n < (int)sizeof item->name, "the name of tensor '%s' is too long for its pieces", p->of);
    item->rank = 1;
    memset(item->shape, 0, sizeof item->shape);
    item->shape[0] = entries;
    item->piece = p;
    return STATUS_OK;
}

static status add_part(struct state *s, int k, int row, int r)
{
    struct ckpt_item item = state_item(s, k, row);
    struct ckpt_run_list runs = {0};
    int64_t entries, elements = ckpt_manifest_item_bytes(&item) / (int64_t)dtype_bytes(item.dt);
    status st = runs_of(s, k, row, r, &runs, &entries);
    const bool whole = st == STATUS_OK && runs.count == 1 && runs.runs[0].length == elements;
    item.writer = r;
    if (r == comm_rank(s->t->mesh.world)) {
        const struct param_local_range held = params_local_range(&s->t->decoder.params, row);
        item.data = state_part(s, k, row, &held);
    }
    if (st == STATUS_OK && !whole) st = make_piece(&item, r, &runs, entries);
    ckpt_runs_free(&runs);
    if (st == STATUS_OK) s->items[s->count++] = item;
    return st;
}

/* How many parts of rows there are. */
static int64_t count_parts(const struct state *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < (int64_t)comm_ranks(s->t->mesh.world) * s->t->decoder.params.count; i++)
        n += s->local_ranges[i].count > 0;
    return n;
}

status state_list_parts(struct state *s)
{
    const struct params *p = &s->t->decoder.params;
    const int ranks = comm_ranks(s->t->mesh.world);
    const int64_t most = count_parts(s) * STATE_ARRAYS + 2 * p->count + 1;
    if (most > CKPT_TENSORS_MAX)
        return FAIL(STATUS_CKPT, "a checkpoint of %lld parts; %d are allowed", (long long)most,
                    CKPT_TENSORS_MAX);
    s->items = calloc((size_t)most, sizeof *s->items);
    if (s->items == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the checkpoint's description");
    for (int k = 0; k < STATE_ARRAYS; k++)
        for (int i = 0; i < p->count; i++)
            for (int r = 0; r < ranks; r++) {
                /* Not what this rank has copied: a replica copies nothing. */
                const bool has = s->list[k].device && !(s->list[k].second && p->rows[i].muon);
                if (has && s->local_ranges[r * p->count + i].count > 0) TRY(add_part(s, k, i, r));
            }
    state_list_rest(s);
    return STATUS_OK;
}
