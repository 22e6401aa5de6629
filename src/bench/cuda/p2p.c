/* bench p2p: all GPUs of this host in one process. This file has GPUs, timing and tables; the measurements
 * are in p2p_links.c (copies) and p2p_collectives.c (collectives with custom kernels). */
#include "bench/cuda/p2p.h"
#include "base/text.h"
#include "dev/cuda/cuda_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

status p2p_use(struct p2p *p, int i)
{
    TRY_CUDA(cudaSetDevice(p->gpu[i].dev.index));
    return STATUS_OK;
}

status p2p_wait(struct p2p *p)
{
    for (int i = 0; i < p->gpus; i++) {
        TRY(p2p_use(p, i));
        TRY_CUDA(cudaDeviceSynchronize());
    }
    return STATUS_OK;
}

status p2p_poison(struct p2p *p, int i, size_t bytes)
{
    TRY(p2p_use(p, i));
    TRY_CUDA(cudaMemsetAsync(p->gpu[i].out, 0xFF, bytes, cuda_queue(&p->gpu[i].s)));
    return dev_sync(&p->gpu[i].s);
}

status p2p_verify(struct p2p *p, int i, const char *what, const struct p2p_check_args *a)
{
    struct p2p_gpu *c = &p->gpu[i];
    struct p2p_check_args mine = *a;
    struct p2p_wrong wrong;
    mine.x = c->out, mine.wrong = c->wrong;
    TRY(p2p_use(p, i));
    TRY(dev_zero(&c->s, c->wrong, sizeof *c->wrong));
    TRY(p2p_check(&mine, &c->s));
    TRY(dev_download(&c->s, &wrong, c->wrong, sizeof wrong));
    TRY(dev_sync(&c->s));
    if (wrong.count)
        return FAIL(STATUS_DEVICE, "%s: GPU %d has %llu wrong elements of %lld, the first is %llu", what, i,
                    wrong.count, (long long)a->count, ~wrong.first_inverse);
    return STATUS_OK;
}

/* ---- time */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double p2p_median(double *x, int64_t count)
{
    qsort(x, (size_t)count, sizeof *x, ascending);
    return x[count / 2];
}

/* One run: all participating GPUs start one after the other, which takes little of the run. */
static status run_once(struct p2p *p, const struct p2p_task *t, double *us)
{
    *us = 0;
    for (int i = 0; i < p->gpus; i++) {
        if (!(t->gpus >> i & 1)) continue;
        TRY(p2p_use(p, i));
        TRY(dev_event_record(&p->gpu[i].s, &p->gpu[i].begin));
        for (int k = 0; k < t->repeat; k++) TRY(t->queue(p, i, t));
        TRY(dev_event_record(&p->gpu[i].s, &p->gpu[i].end));
    }
    for (int i = 0; i < p->gpus; i++) {
        double ms;
        if (!(t->gpus >> i & 1)) continue;
        TRY(dev_event_ms(&p->gpu[i].dev, &p->gpu[i].begin, &p->gpu[i].end, &ms));
        if (ms * 1e3 / t->repeat > *us) *us = ms * 1e3 / t->repeat;
    }
    return STATUS_OK;
}

status p2p_time(struct p2p *p, const struct p2p_task *t, double *us)
{
    double times[P2P_RUNS_MAX];
    status st = run_once(p, t, us);
    for (int64_t k = 0; k < p->b->runs && st == STATUS_OK; k++) st = run_once(p, t, &times[k]);
    if (st != STATUS_OK) return status_wrap(st, "%s", t->what);
    *us = p2p_median(times, p->b->runs);
    return STATUS_OK;
}

/* ---- tables */

void p2p_line(struct p2p *p, const struct p2p_row *row)
{
    char verdict[TARGET_TEXT], size[32], name[64], rate[48] = "", bus[48] = "";
    p2p_report_row(&p->report, row, verdict);
    if (row->op)
        snprintf(name, sizeof name, "%s %s", row->op, row->way);
    else
        snprintf(name, sizeof name, "GPU %d", row->from);
    if (row->gbs > 0) snprintf(rate, sizeof rate, "%8.1f GB/s", row->gbs);
    if (row->bus_gbs > 0) snprintf(bus, sizeof bus, "%8.1f bus", row->bus_gbs);
    printf("  %-24s %-10s %10.2f us %13s %12s  %s\n", name, text_bytes(size, (double)row->bytes), row->us,
           rate, bus, verdict);
    fflush(stdout);
}

void p2p_matrix(struct p2p *p, const char *what, size_t bytes, enum target_unit unit,
                double x[P2P_GPUS_MAX][P2P_GPUS_MAX])
{
    char size[32], verdict[TARGET_TEXT], look[TARGET_TEXT] = "";
    int judged = 0, passed = 0;
    printf("\n%s, %s, %s (row: from, column: to)\n     ", what, unit == TARGET_GBS ? "GB/s" : "us",
           text_bytes(size, (double)bytes));
    for (int j = 0; j < p->gpus; j++) printf("%9d", j);
    for (int i = 0; i < p->gpus; i++) {
        printf("\n%5d", i);
        for (int j = 0; j < p->gpus; j++) {
            if (x[i][j] <= 0) {
                printf("%9s", "-");
                continue;
            }
            const bool rate = unit == TARGET_GBS;
            const struct p2p_row row = {.what = what,
                                        .from = i,
                                        .to = j,
                                        .gpus = 2,
                                        .bytes = bytes,
                                        .us = rate ? (double)bytes / x[i][j] * 1e-3 : x[i][j],
                                        .gbs = rate ? x[i][j] : 0};
            const enum target_verdict v = p2p_report_row(&p->report, &row, verdict);
            judged += v != TARGET_NONE, passed += v == TARGET_PASS;
            if (v == TARGET_LOOK || (v == TARGET_PASS && look[0] == 0))
                snprintf(look, sizeof look, "%s", verdict);
            printf(rate ? "%9.1f" : "%9.2f", x[i][j]);
        }
    }
    printf("\n");
    if (judged > 0) printf("  %d of %d pass: %s\n", passed, judged, look);
    fflush(stdout);
}

/* ---- GPUs */

static status gpu_setup(struct p2p *p, int i, const struct dev *first)
{
    struct p2p_gpu *c = &p->gpu[i];
    struct cudaDeviceProp prop;
    c->dev = *first, c->dev.index = i;
    TRY(p2p_use(p, i));
    TRY_CUDA(cudaGetDeviceProperties(&prop, i));
    TRY_CUDA(cudaMemGetInfo(&c->dev.bytes_free, &c->dev.bytes_total));
    c->dev.multiprocessors = prop.multiProcessorCount;
    snprintf(c->dev.name, sizeof c->dev.name, "%s", prop.name);
    TRY(dev_stream_open(&c->dev, &c->s));
    for (int j = 0; j < p->gpus; j++) TRY(dev_stream_open(&c->dev, &c->to[j]));
    TRY(dev_event_open(&c->dev, &c->begin));
    TRY(dev_event_open(&c->dev, &c->end));
    TRY(dev_arena_reserve(&c->dev, &c->memory, "bench p2p",
                          4 * p->bytes + sizeof *c->flags + ((size_t)1 << 20)));
    c->in = arena_take(&c->memory, p->bytes, "in");
    c->out = arena_take(&c->memory, p->bytes, "out");
    c->work = arena_take(&c->memory, 2 * p->bytes, "work");
    c->flags = arena_take(&c->memory, sizeof *c->flags, "flags");
    c->wrong = arena_take(&c->memory, sizeof *c->wrong, "wrong");
    c->ping = arena_take(&c->memory, sizeof *c->ping, "ping");
    c->ns = arena_take(&c->memory, sizeof *c->ns, "ns");
    TRY(dev_pinned_open(&c->dev, p->bytes, &c->pinned));
    TRY(p2p_load());
    for (int ranks = 1; ranks <= P2P_RANKS_MAX; ranks++) TRY(p2p_schedule_load(ranks));
    return p2p_fill(c->in, p->count, i, P2P_REAL, &c->s);
}

static void gpu_teardown(struct p2p *p, int i)
{
    struct p2p_gpu *c = &p->gpu[i];
    if (c->dev.driver == NULL || p2p_use(p, i) != STATUS_OK) return;
    (void)cudaDeviceSynchronize();
    dev_pinned_close(&c->dev, c->pinned);
    arena_free(&c->memory);
    dev_event_close(&c->dev, &c->begin);
    dev_event_close(&c->dev, &c->end);
    for (int j = 0; j < p->gpus; j++) dev_stream_close(&c->to[j]);
    dev_stream_close(&c->s);
}

/* Finds which GPUs have peer access and enables it. */
static status reach(struct p2p *p, int i, int j)
{
    int can = 0, native = 0;
    TRY_CUDA(cudaDeviceCanAccessPeer(&can, i, j));
    if (!can) return STATUS_OK;
    TRY(p2p_use(p, i));
    const cudaError_t err = cudaDeviceEnablePeerAccess(j, 0);
    if (err == cudaErrorPeerAccessAlreadyEnabled)
        (void)cudaGetLastError();
    else
        TRY_CUDA(err);
    TRY_CUDA(cudaDeviceGetP2PAttribute(&native, cudaDevP2PAttrNativeAtomicSupported, i, j));
    p->reach[i][j] = true, p->atomics[i][j] = native != 0;
    return STATUS_OK;
}

static status reach_all(struct p2p *p)
{
    int without = 0;
    p->all_reach = true;
    printf("\npeer access (row: who reads, column: whose memory; a: with atomics)\n     ");
    for (int j = 0; j < p->gpus; j++) printf("%9d", j);
    for (int i = 0; i < p->gpus; i++) {
        printf("\n%5d", i);
        for (int j = 0; j < p->gpus; j++) {
            if (i != j) TRY(reach(p, i, j));
            printf("%9s", i == j ? "-" : !p->reach[i][j] ? "NO" : p->atomics[i][j] ? "yes a" : "yes");
            without += i != j && !p->reach[i][j];
        }
    }
    printf("\n");
    if (without == 0) return STATUS_OK;
    p->all_reach = false, p->report.look++;
    printf("  %d pairs without: look at nvidia-smi topo -p2p r (why), nvidia-smi topo -m (which path), ACS "
           "and IOMMU of the host, "
           "nvidia-fabricmanager with NVSwitch, MIG\n",
           without);
    return STATUS_OK;
}

static status measure(struct p2p *p)
{
    static const struct {
        const char *name;
        status (*run)(struct p2p *p);
        int gpus;
    } sections[] = {{"host", cuda_p2p_host, 1},
                    {"pairs", cuda_p2p_pairs, 2},
                    {"rings", cuda_p2p_rings, 2},
                    {"collectives", cuda_p2p_collectives, 2}};
    if (p->gpus > 1)
        TRY(reach_all(p));
    else
        printf("one GPU: no pairs to measure (CUDA_VISIBLE_DEVICES may hide others)\n");
    TRY(p2p_wait(p));
    for (int k = 0; k < 4; k++) {
        if (p->b->section && strcmp(p->b->section, sections[k].name) != 0) continue;
        if (p->gpus >= sections[k].gpus) TRY(sections[k].run(p));
    }
    if (p->report.pass + p->report.look == 0)
        printf("\nnothing is expected of a %s: bench/targets.def and spec/machine.def have no row\n",
               p->report.gpu);
    else
        printf("\n%d numbers as expected, %d to look at\n", p->report.pass, p->report.look);
    return STATUS_OK;
}

status cuda_bench_p2p(const struct p2p_bench *b)
{
    struct dev first;
    struct p2p *p = calloc(1, sizeof *p);
    if (p == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the benchmark of links");
    status st = dev_open(&first, DEV_CUDA);
    if (st != STATUS_OK) goto out;
    p->b = b, p->bytes = (size_t)b->mib << 20, p->count = b->mib << 18;
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 1;
    p->gpus = count < P2P_GPUS_MAX ? count : P2P_GPUS_MAX;
    p2p_report_open(&p->report, "p2p", first.name, b->json);
    printf("%d x %s, driver %d, CUDA %d, large: %lld MiB, median of %lld, every result checked\n", count,
           first.name, first.driver_version, first.runtime_version, (long long)b->mib, (long long)b->runs);
    for (int i = 0; i < p->gpus && st == STATUS_OK; i++) st = gpu_setup(p, i, &first);
    if (st == STATUS_OK) st = measure(p);
    for (int i = 0; i < p->gpus; i++) gpu_teardown(p, i);
    st = p2p_report_close(&p->report, st);
    dev_close(&first);
out:
    free(p);
    return st;
}
