/* Checks of several hosts at once: each rank of an MPI job or of torchrun examines its host, and all compare. */
#include "base/clock.h"
#include "comm/comm.h"
#include "doctor/doctor_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 64, TOLD = 4, ROUNDS = 9 };

/* What a host tells the others. Zeroed before it is filled: all bytes travel. */
struct told {
    char check[TEXT], text[160];
    int32_t verdict;
};
struct host_facts {
    char host[TEXT];
    char texts[6][TEXT];    /* fact_names */
    struct told told[TOLD]; /* its first failures */
    int32_t failures;
};
static const char *const fact_names[6] = {"kernel", "ingot", "GPUs", "driver", "VBIOS", "NCCL"};

static void facts_fill(struct doctor *d, struct host_facts *f)
{
    const struct nvml_card *c = &d->card[0];
    memset(f, 0, sizeof *f);
    snprintf(f->host, TEXT, "%s", d->host);
    if (!hostfs_read(&d->fs, f->texts[0], TEXT, "/proc/sys/kernel/osrelease")) f->texts[0][0] = 0;
    snprintf(f->texts[1], TEXT, "%s", INGOT_VERSION);
    if (d->cards > 0)
        snprintf(f->texts[2], TEXT, "%d x %s", d->cards, c->name);
    else
        snprintf(f->texts[2], TEXT, "none");
    snprintf(f->texts[3], TEXT, "%s", d->driver);
    snprintf(f->texts[4], TEXT, "%s", d->cards > 0 ? c->vbios : "");
    if (d->system.nccl > 0) snprintf(f->texts[5], TEXT, "%.0f", d->system.nccl);
    for (int i = 0; i < d->count; i++) {
        const struct doctor_finding *g = &d->findings[i];
        if (g->verdict != DOCTOR_FAIL) continue;
        if (f->failures < TOLD) {
            struct told *t = &f->told[f->failures];
            t->verdict = g->verdict;
            snprintf(t->check, sizeof t->check, "%s", g->check->name);
            snprintf(t->text, sizeof t->text, "%s", g->text);
        }
        f->failures++;
    }
}

/* The failures of the other ranks' hosts, and what differs from rank 0's. Every rank reports the same. */
static void compare(struct doctor *d, const struct host_facts *all, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        const struct host_facts *f = &all[r];
        for (int i = 0; i < f->failures && i < TOLD; i++)
            if (strcmp(f->host, d->host) != 0 || r != comm_rank(d->comm))
                report(d, DOCTOR_FAIL, f->host, "%s (rank %d): %s: %s", f->host, r, f->told[i].check,
                       f->told[i].text);
        for (int k = 0; k < 6; k++)
            if (strcmp(f->texts[k], all[0].texts[k]) != 0)
                report(d, DOCTOR_WARN, f->host, "%s of %s: %s; of %s: %s", fact_names[k], f->host,
                       f->texts[k][0] ? f->texts[k] : "none", all[0].host,
                       all[0].texts[k][0] ? all[0].texts[k] : "none");
    }
    if (!reported(d))
        report_number(d, DOCTOR_PASS, "", ranks, ranks, "%d hosts are alike, none has failures", ranks);
}

static bool one_host(struct doctor *d)
{
    if (d->comm) return false;
    report(d, DOCTOR_SKIP, "", "one host: mpirun or torchrun with one rank per host compares several");
    return true;
}

void check_hosts(struct doctor *d)
{
    if (one_host(d)) return;
    const int ranks = comm_ranks(d->comm);
    struct host_facts mine, *all = calloc((size_t)ranks, sizeof *all);
    CHECK(all, "out of memory for %d hosts", ranks);
    facts_fill(d, &mine);
    if (comm_all_gather(d->comm, "facts of hosts", &mine, all, sizeof mine, NULL) == STATUS_OK)
        compare(d, all, ranks);
    else
        report(d, DOCTOR_FAIL, "", "%s", status_message());
    free(all);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* After a barrier all look at their clocks: the medians of several rounds differ by the clocks' skew and by how unequally
 * the barrier lets go, which is milliseconds. */
static status clocks_read(struct doctor *d, double *skew, int ranks)
{
    double all[COMM_RANKS_MAX], round[ROUNDS][COMM_RANKS_MAX], sorted[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        TRY(comm_barrier(d->comm, "clocks of hosts"));
        const double now = clock_wall_s();
        TRY(comm_all_gather(d->comm, "clocks of hosts", &now, all, sizeof now, NULL));
        for (int r = 0; r < ranks; r++) round[i][r] = all[r] - all[0];
    }
    for (int r = 0; r < ranks; r++) {
        for (int i = 0; i < ROUNDS; i++) sorted[i] = round[i][r];
        qsort(sorted, ROUNDS, sizeof sorted[0], ascending);
        skew[r] = sorted[ROUNDS / 2];
    }
    return STATUS_OK;
}

void check_skew(struct doctor *d)
{
    double skew[COMM_RANKS_MAX], most = 0;
    if (one_host(d)) return;
    const int ranks = comm_ranks(d->comm);
    if (clocks_read(d, skew, ranks) != STATUS_OK) {
        report(d, DOCTOR_FAIL, "", "%s", status_message());
        return;
    }
    for (int r = 0; r < ranks; r++) {
        most = fmax(most, fabs(skew[r]));
        if (fabs(skew[r]) > 0.5)
            report_number(d, DOCTOR_WARN, "", skew[r], 0.5,
                          "the clock of rank %d is %.3g s off that of rank 0", r, skew[r]);
    }
    if (!reported(d)) report_number(d, DOCTOR_PASS, "", most, 0.5, "at most %.1g s off rank 0's clock", most);
}
