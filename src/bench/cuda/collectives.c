/* bench collectives on GPUs: one rank per GPU, every path (collective_paths.c), queued call by call and
 * replayed from a graph. Every element of every result is checked on the GPU. A time is that of the slowest
 * rank, the median of the runs; bandwidths are those of nccl-tests. The best path of each size is compared
 * with the target of the machine. */
#include "bench/cuda/collectives.h"
#include "base/text.h"
#include "dev/cuda/cuda_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROWTH = 4, SIZES_MAX = 20, SMALL_BYTES = 1 << 20, MIDDLE_BYTES = 1 << 26 };

static const char *const op_names[] = {
#define X(name, text) #text,
    COL_OPS(X)
#undef X
};

struct best {
    size_t bytes;
    double us[2]; /* queued; from a graph */
    const struct col_path *path[2];
};

/* ---- all ranks together */

/* All ranks learn the first failure: *whole is the first such status. */
static status agree(struct col *c, status st, status *whole)
{
    struct word {
        int32_t st;
        char text[TARGET_TEXT];
    } mine = {.st = st}, *all = calloc((size_t)c->ranks, sizeof *all);
    if (all == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the words of %d ranks", c->ranks);
    if (st != STATUS_OK) snprintf(mine.text, sizeof mine.text, "%s", status_message());
    const status said = comm_all_gather(c->comm, "did it work", &mine, all, sizeof mine, NULL);
    *whole = STATUS_OK;
    for (int r = 0; r < c->ranks && said == STATUS_OK && *whole == STATUS_OK; r++)
        if (all[r].st != STATUS_OK) *whole = FAIL((status)all[r].st, "rank %d: %s", r, all[r].text);
    free(all);
    return said;
}

static status slowest(struct col *c, double mine, double *most)
{
    double all[COMM_RANKS_MAX];
    TRY(comm_all_gather(c->comm, "times", &mine, all, sizeof mine, NULL));
    *most = 0;
    for (int r = 0; r < c->ranks; r++)
        if (all[r] > *most) *most = all[r];
    return STATUS_OK;
}

/* ---- one measurement */

static bool in_place(const struct col *c, enum col_op op)
{
    return c->path->in_place && (op == COL_ALL_REDUCE || op == COL_BROADCAST);
}

static enum p2p_numbers numbers_of(const struct col *c)
{
    return c->ranks > P2P_RANKS_MAX ? P2P_WHOLE : c->path->numbers;
}

/* Results are poisoned first; in-place collectives get their input there. */
static status prepare(struct col *c, enum col_op op, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof(float);
    TRY_CUDA(cudaMemsetAsync(c->out, 0xFF, bytes, cuda_queue(&c->s)));
    if (in_place(c, op) && (op == COL_ALL_REDUCE || c->rank == 0)) TRY(dev_copy(&c->s, c->out, c->in, bytes));
    return dev_sync(&c->s);
}

static status verify(struct col *c, enum col_op op, int64_t count, bool graph)
{
    static const enum p2p_result results[] = {[COL_ALL_REDUCE] = P2P_SUMMED,
                                              [COL_ALL_GATHER] = P2P_GATHERED,
                                              [COL_REDUCE_SCATTER] = P2P_SCATTERED,
                                              [COL_ALL_TO_ALL] = P2P_EXCHANGED,
                                              [COL_BROADCAST] = P2P_COPIED};
    struct p2p_wrong wrong;
    const struct p2p_check_args a = {.x = c->out,
                                     .count = op == COL_REDUCE_SCATTER ? count / c->ranks : count,
                                     .part = count / c->ranks,
                                     .result = results[op],
                                     .numbers = numbers_of(c),
                                     .rank = c->rank,
                                     .ranks = c->ranks,
                                     .wrong = c->wrong};
    uint32_t lost = 0;
    TRY(dev_zero(&c->s, c->wrong, sizeof *c->wrong));
    TRY(p2p_check(&a, &c->s));
    TRY(dev_download(&c->s, &wrong, c->wrong, sizeof wrong));
    if (c->flags) TRY(dev_download(&c->s, &lost, &c->flags->lost, sizeof lost));
    TRY(dev_sync(&c->s));
    if (lost) return FAIL(STATUS_COMM, "rank %d waited for rank %u in vain", c->rank, lost - 1);
    if (wrong.count)
        return FAIL(STATUS_COMM,
                    "rank %d: %s by '%s'%s of %lld bytes has %llu wrong elements, the first is %llu", c->rank,
                    op_names[op], c->path->name, graph ? " from a graph" : "",
                    (long long)(count * (int64_t)sizeof(float)), wrong.count, ~wrong.first_inverse);
    return STATUS_OK;
}

static status capture(struct col *c, enum col_op op, int64_t count, int times, struct graph *g)
{
    TRY(dev_graph_begin(&c->s));
    status st = STATUS_OK;
    for (int k = 0; k < times && st == STATUS_OK; k++) st = c->path->call(c, op, count);
    const status end = dev_graph_end(&c->s, g, st == STATUS_OK);
    return st != STATUS_OK ? st : end;
}

/* One call, eager or from a graph of its own, and its result. */
static status checked(struct col *c, enum col_op op, int64_t count, bool graph)
{
    struct graph g = {0};
    TRY(prepare(c, op, count));
    TRY(comm_barrier(c->comm, "together"));
    status st = graph ? capture(c, op, count, 1, &g) : c->path->call(c, op, count);
    if (st == STATUS_OK && graph) st = dev_graph_launch(&c->s, &g);
    if (st == STATUS_OK) st = dev_sync(&c->s);
    if (st == STATUS_OK) st = verify(c, op, count, graph);
    dev_graph_close(&c->dev, &g);
    return st;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static status timed(struct col *c, enum col_op op, int64_t count, int times, const struct graph *g,
                    double *us)
{
    double ms, all[P2P_RUNS_MAX];
    for (int64_t k = -1; k < c->b->runs; k++) {
        TRY(comm_barrier(c->comm, "together"));
        TRY(dev_event_record(&c->s, &c->begin));
        if (g) TRY(dev_graph_launch(&c->s, g));
        for (int i = 0; i < times && g == NULL; i++) TRY(c->path->call(c, op, count));
        TRY(dev_event_record(&c->s, &c->end));
        TRY(dev_sync(&c->s));
        TRY(dev_event_ms(&c->dev, &c->begin, &c->end, &ms));
        TRY(slowest(c, ms * 1e3 / times, &all[k < 0 ? 0 : k]));
    }
    qsort(all, (size_t)c->b->runs, sizeof *all, ascending);
    *us = all[c->b->runs / 2];
    return STATUS_OK;
}

static status measure(struct col *c, enum col_op op, int64_t count, bool graph, double *us)
{
    const int64_t bytes = count * (int64_t)sizeof(float);
    const int times = bytes <= SMALL_BYTES ? 20 : bytes <= MIDDLE_BYTES ? 5 : 2;
    struct graph g = {0};
    TRY(checked(c, op, count, graph));
    status st = graph ? capture(c, op, count, times, &g) : STATUS_OK;
    if (st == STATUS_OK) st = timed(c, op, count, times, graph ? &g : NULL, us);
    if (st == STATUS_OK && !in_place(c, op)) st = verify(c, op, count, graph); /* what the timed calls left */
    dev_graph_close(&c->dev, &g);
    return st;
}

/* ---- tables */

static void print_row(struct col *c, enum col_op op, const struct best *b, bool graph, bool last)
{
    char size[32], verdict[TARGET_TEXT], what[48];
    const char *name = op_names[op], *kind = c->one_host ? "%s_graph" : "net_%s";
    struct target t;
    struct p2p_row row = {.what = name,
                          .op = name,
                          .way = b->path[graph]->name,
                          .from = -1,
                          .to = -1,
                          .gpus = c->ranks,
                          .bytes = b->bytes,
                          .us = b->us[graph],
                          .graph = graph,
                          .unjudged = !last};
    row.gbs = (double)b->bytes / row.us * 1e-3;
    row.bus_gbs = row.gbs * target_bus_factor(name, c->ranks);
    snprintf(what, sizeof what, kind, name);
    if (last && (!c->one_host || (graph && target_find(c->report.gpu, what, b->bytes, TARGET_US, &t))))
        row.what = what;
    p2p_report_row(&c->report, &row, verdict);
    if (c->b->json) return;
    printf("%-15s %-10s %-6s %12s %12.2f us %10.3f GB/s %10.3f GB/s  %s\n", name, row.way,
           graph ? "graph" : "queued", text_bytes(size, (double)b->bytes), row.us, row.gbs, row.bus_gbs,
           verdict);
    fflush(stdout);
}

static void print_best(struct col *c, struct best best[COL_OP_COUNT][SIZES_MAX], int sizes)
{
    if (c->rank > 0) return;
    if (!c->b->json) printf("\nthe best path of each size, and what is expected of it\n");
    for (enum col_op op = 0; op < COL_OP_COUNT; op++)
        for (int k = 0; k < sizes; k++) {
            const struct best *b = &best[op][k];
            if (b->path[0] == NULL) continue;
            print_row(c, op, b, b->us[1] < b->us[0], true);
        }
    if (c->b->json) return;
    if (c->report.pass + c->report.look == 0)
        printf("nothing is expected of %d x %s at these sizes\n", c->ranks, c->report.gpu);
    else
        printf("%d numbers as expected, %d to look at\n", c->report.pass, c->report.look);
}

/* ---- paths */

static int64_t count_of(const struct col *c, int64_t bytes)
{
    const int64_t unit = 16 * c->ranks;
    return (bytes / (int64_t)sizeof(float) + unit - 1) / unit * unit;
}

static status run_op(struct col *c, enum col_op op, struct best best[SIZES_MAX])
{
    int k = 0;
    for (int64_t bytes = c->b->bytes_min; bytes <= (int64_t)c->b->bytes_max && k < SIZES_MAX;
         bytes *= GROWTH, k++) {
        const int64_t count = count_of(c, bytes);
        if ((size_t)count * sizeof(float) > c->bytes) break;
        for (int graph = 0; graph < 2; graph++) {
            struct best one = {.bytes = (size_t)count * sizeof(float), .path = {c->path, c->path}};
            TRY(measure(c, op, count, graph, &one.us[graph]));
            if (c->rank == 0) print_row(c, op, &one, graph, false);
            best[k].bytes = one.bytes;
            if (best[k].path[graph] && best[k].us[graph] <= one.us[graph]) continue;
            best[k].path[graph] = c->path, best[k].us[graph] = one.us[graph];
        }
    }
    return STATUS_OK;
}

static void path_close(struct col *c, bool broken)
{
    c->path->close(c, broken);
    c->in = c->out = NULL, c->scratch = NULL, c->nccl_comm = NULL, c->flags = NULL;
    memset(c->windows, 0, sizeof c->windows);
    memset(c->mapped, 0, sizeof c->mapped);
    c->memory = (struct arena){0};
}

static status run_path(struct col *c, const struct col_path *path, struct best best[COL_OP_COUNT][SIZES_MAX])
{
    status whole = STATUS_OK;
    c->path = path;
    status st = agree(c, path->open(c), &whole);
    if (st == STATUS_OK && whole != STATUS_OK) {
        if (c->rank == 0) fprintf(stderr, "%s: left out: %s\n", path->name, status_message());
        (void)cudaGetLastError();
        path_close(c, false);
        return STATUS_OK;
    }
    if (st == STATUS_OK)
        st = p2p_fill(c->in, (int64_t)(c->bytes / sizeof(float)), c->rank, numbers_of(c), &c->s);
    for (enum col_op op = 0; op < COL_OP_COUNT && st == STATUS_OK; op++) {
        if (c->b->op && strcmp(c->b->op, op_names[op]) != 0) continue;
        if (path->serves(c, op)) st = run_op(c, op, best[op]);
    }
    path_close(c, st != STATUS_OK);
    return st;
}

static status run_paths(struct col *c)
{
    struct best best[COL_OP_COUNT][SIZES_MAX] = {0};
    if (c->rank == 0 && !c->b->json)
        printf("%d ranks, %s, NCCL %d, fp32, median of %lld, every element of the results checked\n%-15s "
               "%-10s %-6s "
               "%12s %15s %15s %15s\n",
               c->ranks, c->dev.name, c->nccl.version, (long long)c->b->runs, "collective", "path", "from",
               "size", "time", "algorithm", "bus");
    for (int i = 0; i < COL_PATHS; i++) {
        const struct col_path *path = cuda_col_path(i);
        if (c->b->path && strcmp(c->b->path, path->name) != 0) continue;
        TRY(run_path(c, path, best));
    }
    print_best(c, best, SIZES_MAX);
    return STATUS_OK;
}

/* ---- a rank */

static status find_hosts(struct col *c)
{
    const int32_t mine = comm_local_rank(c->comm);
    int32_t all[COMM_RANKS_MAX];
    TRY(comm_all_gather(c->comm, "places", &mine, all, sizeof mine, NULL));
    c->one_host = true;
    for (int r = 0; r < c->ranks; r++)
        c->one_host &= all[r] == r; /* the first rank of another host has local rank 0 */
    return STATUS_OK;
}

/* Two buffers and scratch of twice the size; a tenth of the memory is for NCCL and others. */
static status size_memory(struct col *c)
{
    const size_t room = c->dev.bytes_free / 10 * 9 / 4,
                 most = (size_t)count_of(c, c->b->bytes_max) * sizeof(float);
    size_t all[COMM_RANKS_MAX];
    c->bytes = most;
    TRY(comm_all_gather(c->comm, "room", &room, all, sizeof room, NULL));
    for (int r = 0; r < c->ranks; r++)
        if (all[r] < most)
            return FAIL(STATUS_OUT_OF_MEMORY,
                        "--max-bytes=%lld takes four times as much of each GPU, and rank %d has room for %zu",
                        (long long)c->b->bytes_max, r, all[r]);
    return STATUS_OK;
}

static status open_rank(struct col *c)
{
    TRY(dev_open_local(&c->dev, DEV_CUDA, comm_local_rank(c->comm)));
    TRY(dev_stream_open(&c->dev, &c->s));
    TRY(dev_event_open(&c->dev, &c->begin));
    TRY(dev_event_open(&c->dev, &c->end));
    TRY(dev_arena_reserve(&c->dev, &c->small, "bench collectives", ARENA_ALIGN));
    c->wrong = arena_take(&c->small, sizeof *c->wrong, "wrong");
    TRY(p2p_load());
    TRY(nccl_load(&c->nccl));
    TRY(comm_devices_open(c->comm, &c->s, GPU_BACKEND_AUTO));
    TRY(find_hosts(c));
    TRY(size_memory(c));
    p2p_report_open(&c->report, "collectives", c->dev.name, NULL);
    c->report.to_stdout = c->b->json && c->rank == 0;
    return STATUS_OK;
}

status cuda_bench_collectives(const struct collectives_bench *b)
{
    struct comm_env env;
    struct col *c = calloc(1, sizeof *c);
    if (c == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the benchmark of collectives");
    c->b = b;
    status st = comm_env_read(&env);
    if (st == STATUS_OK) st = comm_open(&c->comm, &env);
    c->rank = comm_rank(c->comm), c->ranks = comm_ranks(c->comm);
    if (st == STATUS_OK) st = open_rank(c);
    if (st == STATUS_OK) st = run_paths(c);
    if (c->dev.driver) {
        st = p2p_report_close(&c->report, st);
        arena_free(&c->small);
        dev_event_close(&c->dev, &c->begin);
        dev_event_close(&c->dev, &c->end);
    }
    comm_close(c->comm, st);
    if (c->dev.driver) dev_stream_close(&c->s);
    nccl_unload(&c->nccl);
    free(c);
    return st;
}
