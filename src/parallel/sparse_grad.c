#include "parallel/sparse_grad.h"
#include "base/scope.h"
#include "dev/dev.h"

#include <stdlib.h>

static int64_t chunk_count_of(int64_t elements)
{
    return (elements + UPDATE_CHUNK - 1) / UPDATE_CHUNK;
}

static struct table table_of(const struct params *p, int row, int64_t reads)
{
    const int64_t *shape = p->rows[row].shape, slots = shape[0] < reads ? shape[0] : reads;
    return (struct table){
        .row = row, .width = shape[1], .slots = slots, .chunk_count = chunk_count_of(slots * shape[1])};
}

void sparse_grad_layout(struct sparse_grad *t, const struct sparse_grad_layout *l)
{
    const struct params *p = l->params;
    const int64_t parts = l->micros * (l->mesh ? mesh_cp(&l->mesh->shape) : 1), reads = parts * l->reads;
    *t = (struct sparse_grad){.mesh = l->mesh,
                              .reads = l->reads,
                              .micros = parts,
                              .own = l->micros / (l->mesh ? l->mesh->shape.dp : 1)};
    int64_t elements = 0;
    for (int i = 0; i < p->count && p->sparse; i++) {
        if (p->rows[i].role != ROLE_TABLE) continue;
        struct table one = table_of(p, i, reads);
        one.chunk_first = t->chunk_count;
        one.chunk_place = t->chunks_model;
        t->chunks_model += one.chunk_count;
        if (!p->units[p->rows[i].unit].is_local) continue;
        CHECK(t->count < TABLES_MAX, "more tables than model_spec_check lets pass");
        one.ids = arena_take(l->grad, (size_t)reads * sizeof *one.ids, "rows that tokens read");
        one.grads =
            arena_take(l->grad, (size_t)(reads * one.width) * sizeof *one.grads, "gradients of reads");
        one.rows = arena_take(l->grad, (size_t)one.slots * sizeof *one.rows, "rows that a step reads");
        elements += one.slots * one.width;
        t->chunk_count += one.chunk_count;
        t->list[t->count++] = one;
    }
    if (t->count == 0) return;
    t->sums = arena_take(l->grad, (size_t)elements * sizeof *t->sums, "gradients of rows");
    t->scratch = arena_take(l->grad, (size_t)reads * ROWS_UNIQUE_SCRATCH, "reads in order");
    t->chunks =
        arena_take(l->optim, (size_t)t->chunk_count * sizeof *t->chunks, "chunks of sparse gradients");
    for (int i = 0; i < t->count && t->sums;
         i++) /* rows are multiples of 16 elements, so chunks begin there */
        t->list[i].sums =
            i == 0 ? t->sums : t->list[i - 1].sums + t->list[i - 1].slots * t->list[i - 1].width;
}

status sparse_grad_open(struct sparse_grad *t, dev_stream s)
{
    if (t->count == 0) return STATUS_OK;
    struct update_chunk *chunks = calloc((size_t)t->chunk_count, sizeof *chunks);
    if (chunks == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the chunks of sparse gradients");
    int64_t elements = 0;
    for (int i = 0; i < t->count; i++) {
        const struct table *one = &t->list[i];
        for (int64_t c = 0, left = one->slots * one->width; c < one->chunk_count; c++, left -= UPDATE_CHUNK)
            chunks[one->chunk_first + c] =
                (struct update_chunk){.begin = elements + c * UPDATE_CHUNK,
                                      .count = (int32_t)(left < UPDATE_CHUNK ? left : UPDATE_CHUNK)};
        elements += one->slots * one->width;
    }
    status st = dev_upload(s, t->chunks, chunks, (size_t)t->chunk_count * sizeof *chunks);
    if (st == STATUS_OK) st = dev_zero(s, t->sums, (size_t)elements * sizeof *t->sums);
    free(chunks);
    return st;
}

struct table_reads sparse_grad_reads(const struct sparse_grad *t, int row, int64_t micro)
{
    for (int i = 0; i < t->count; i++) {
        const struct table *one = &t->list[i];
        const int64_t at = micro * t->reads;
        if (one->row == row) return (struct table_reads){one->ids + at, one->grads + at * one->width};
    }
    CHECK(false, "no place for what is read of row %d", row);
    return (struct table_reads){0};
}

/* Micro-batches go to ranks round robin. Under ZeRO 2 and 3 each rank has consecutive ones (data/load/loader.h). A
 * context-parallel rank's part of a micro-batch counts as one. */
static bool round_robin(const struct mesh *mesh)
{
    return mesh == NULL || mesh->shape.zero < 2;
}

int64_t sparse_grad_micro(const struct mesh *mesh, int64_t own, int64_t i)
{
    if (mesh == NULL) return i;
    return round_robin(mesh) ? i * mesh_dp_cp(&mesh->shape) + mesh->dp_cp_rank : mesh->dp_cp_rank * own + i;
}

/* All-gathers ids and gradients: those of other ranks go between this rank's. */
static status gather(const struct sparse_grad *t, const struct table *one, dev_stream s)
{
    struct comm *data = t->mesh ? t->mesh->dp_cp : NULL;
    if (data == NULL) return STATUS_OK;
    const int64_t each = round_robin(t->mesh) ? t->reads : t->own * t->reads,
                  ranks = mesh_dp_cp(&t->mesh->shape);
    for (int64_t at = 0; at < t->micros * t->reads; at += ranks * each) {
        const int64_t mine = at + t->mesh->dp_cp_rank * each;
        const size_t ids = (size_t)each * sizeof *one->ids,
                     grads = (size_t)(each * one->width) * sizeof *one->grads;
        TRY(comm_all_gather(data, "rows that are read", one->ids + mine, one->ids + at, ids, s));
        TRY(comm_all_gather(data, "gradients of reads", one->grads + mine * one->width,
                            one->grads + at * one->width, grads, s));
    }
    return STATUS_OK;
}

status sparse_grad_reduce(const struct sparse_grad *t, const struct params *p, const struct ops *ops,
                          dev_stream s)
{
    SCOPE("tables.collect", -1);
    const int64_t reads = t->micros * t->reads;
    for (int i = 0; i < t->count; i++) {
        const struct table *one = &t->list[i];
        TRY(gather(t, one, s));
        TRY(ops->rows_unique(&(struct rows_unique_args){.ids = one->ids,
                                                        .slots = one->ids,
                                                        .rows = one->rows,
                                                        .scratch = t->scratch,
                                                        .count = reads,
                                                        .room = one->slots,
                                                        .table_rows = p->rows[one->row].shape[0]},
                             s));
        TRY(ops->embed_bwd(&(struct embed_bwd_args){.tokens = one->ids,
                                                    .dx = one->grads,
                                                    .dtable = one->sums,
                                                    .rows = reads,
                                                    .d = one->width,
                                                    .vocab = one->slots,
                                                    .dt = DTYPE_F32},
                           s));
    }
    return STATUS_OK;
}
