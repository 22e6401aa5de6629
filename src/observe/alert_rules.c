#include "observe/alert_rules.h"
#include "base/memory.h"
#include "base/text.h"
#include "observe/alert_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { HOST_OVER_S = 60 };

struct alert_rules *alert_rules_open(const struct alert_setup *s)
{
    struct alert_rules *r = calloc(1, sizeof *r);
    MEMORY_CHECK(r != NULL, "no memory for the rules of alerts");
    r->sum = calloc((size_t)s->ranks, sizeof *r->sum);
    r->scratch = calloc((size_t)s->ranks, sizeof *r->scratch);
    MEMORY_CHECK(r->sum != NULL && r->scratch != NULL, "no memory for the times of %d ranks", s->ranks);
    r->setup = *s;
    r->loss.from = r->grad.from = -1;
    r->grad.in_log = true;
    r->slow_rank = -1;
    r->last_look_s = r->slow_since_s = NAN;
    r->since_s = s->start_s;
    r->xid_seen_s = s->start_s - 1e-3; /* an Xid's line has milliseconds, rounded */
    return r;
}

void alert_rules_close(struct alert_rules *r)
{
    if (r == NULL) return;
    free(r->sum);
    free(r->scratch);
    free(r);
}

/* ---- alerts that are on */

struct alert_active *alert_find(struct alert_rules *r, const char *name, const char *where)
{
    for (int i = 0; i < ALERTS_MAX; i++) {
        struct alert_active *a = &r->active[i];
        if (a->used && strcmp(a->a.name, name) == 0 && strcmp(a->a.where, where) == 0) return a;
    }
    return NULL;
}

struct alert_active *alert_begin(struct alert_rules *r, const char *name, status code, double now,
                                 int64_t step, const char *where, int rank)
{
    for (int i = 0; i < ALERTS_MAX; i++) {
        struct alert_active *a = &r->active[i];
        if (a->used) continue;
        *a = (struct alert_active){.used = true, .begin_s = now, .seen_s = now};
        a->a = (struct alert){
            .code = code, .time = now, .step = step, .rank = rank, .seconds = NAN, .share = NAN};
        snprintf(a->a.name, sizeof a->a.name, "%s", name);
        snprintf(a->a.where, sizeof a->a.where, "%s", where);
        return a;
    }
    return NULL;
}

void alert_emit(struct alert_rules *r, const struct alert_active *a)
{
    r->setup.emit(r->setup.emit_ctx, &a->a);
}

void alert_price(struct alert_rules *r, struct alert_active *a, double seconds, double now)
{
    if (!isfinite(seconds)) return;
    a->a.seconds = (isfinite(a->a.seconds) ? a->a.seconds : 0) + seconds;
    a->a.share = now > r->setup.start_s ? a->a.seconds / (now - r->setup.start_s) : (double)NAN;
}

void alert_end(struct alert_rules *r, struct alert_active *a, double now)
{
    char took[32], cost[32], before[sizeof a->a.text];
    snprintf(before, sizeof before, "%s", a->a.text);
    int n = snprintf(a->a.text, sizeof a->a.text, a->lasts ? "for %s, until the run's end" : "over after %s",
                     text_time(took, now - a->begin_s));
    if (isfinite(a->a.seconds) && isfinite(a->a.share))
        n += snprintf(a->a.text + n, sizeof a->a.text - (size_t)n, ", cost %s (%.2g %% of the run)",
                      text_time(cost, a->a.seconds), 100 * a->a.share);
    snprintf(a->a.text + n, sizeof a->a.text - (size_t)n, ": %s", before);
    a->a.over = true;
    a->a.time = now;
    if (a->a.code != STATUS_DEVICE && !a->lasts) a->a.code = STATUS_OK; /* hardware stays worth a look */
    alert_emit(r, a);
    a->used = false;
}

const char *alert_who(const struct alert_rules *r, int rank, char buf[ALERT_NAME])
{
    const struct alert_place *p = &r->setup.places[rank];
    int n = snprintf(buf, ALERT_NAME, "rank %d on %.100s", rank, p->host);
    if (p->gpu >= 0) snprintf(buf + n, ALERT_NAME - (size_t)n, ", gpu%d", p->gpu);
    return buf;
}

/* ---- spikes */

static double usual_step_s(const struct alert_rules *r)
{
    double sum = 0, steps = 0;
    for (int64_t i = r->left; i < r->buckets; i++) {
        sum += r->ring[i % ALERT_BUCKETS].step_s;
        steps += r->ring[i % ALERT_BUCKETS].steps;
    }
    return steps > 0 ? sum / steps : (double)NAN;
}

static void spike_begins(struct alert_rules *r, const struct alert_spike *k, double now, const char *name,
                         const char *what)
{
    struct alert_active *a = alert_begin(r, name, STATUS_NUMERIC, now, k->from, "", -1);
    if (a == NULL) return;
    snprintf(a->a.text, sizeof a->a.text,
             "%s up to %.4g since step %lld: z %.1f over the median %.4g of %d steps; `ingot data "
             "inspect RUN --step %lld` shows its texts",
             what, k->value, (long long)k->from, k->top, k->middle, (int)ALERTS_Z_WINDOW, (long long)k->from);
    alert_emit(r, a);
}

static void spike_look(struct alert_rules *r, struct alert_spike *k, const struct alert_step *s,
                       const char *name, const char *what, double value)
{
    const int64_t begin = r->setup.warmup > ALERTS_Z_BEGIN ? r->setup.warmup : ALERTS_Z_BEGIN;
    const enum alert_spike_says says = alert_spike_feed(k, s->step, value, begin);
    if (says == SPIKE_BEGINS) spike_begins(r, k, s->time, name, what);
    struct alert_active *a = says == SPIKE_ENDS ? alert_find(r, name, "") : NULL;
    if (a == NULL) return;
    snprintf(a->a.text, sizeof a->a.text,
             "%s up to %.4g (z %.1f) at step %lld, %lld steps until it was near again", what, k->value,
             k->top, (long long)a->a.step, (long long)k->steps);
    alert_price(r, a, (double)k->steps * usual_step_s(r), s->time);
    alert_end(r, a, s->time);
}

/* The run went back in place (train.on_spike=rewind): what later steps said no longer counts. */
static void spike_back(struct alert_rules *r, struct alert_spike *k, const struct alert_step *s,
                       const char *name)
{
    struct alert_active *a = alert_spike_back(k, s->step - 1) ? alert_find(r, name, "") : NULL;
    if (a == NULL) return;
    char before[sizeof a->a.text];
    snprintf(before, sizeof before, "%s", a->a.text);
    snprintf(a->a.text, sizeof a->a.text, "the run went back to step %lld: %.400s", (long long)s->step - 1,
             before);
    alert_end(r, a, s->time);
}

void alert_rules_step(struct alert_rules *r, const struct alert_step *s)
{
    if (r->steps > 0 && s->step <= r->step) {
        spike_back(r, &r->loss, s, "loss_spike");
        spike_back(r, &r->grad, s, "grad_spike");
    }
    spike_look(r, &r->loss, s, "loss_spike", "loss", s->loss);
    spike_look(r, &r->grad, s, "grad_spike", "gradient norm", s->grad_norm);
    alert_slow_step(r, s);
    r->step = s->step;
    r->since_s = s->time;
    r->steps++;
}

/* ---- hosts */

/* The bus number of a PCI address is all that NVML and CUDA write alike: "00000000:1B:00.0", "0000:1b:00.0". */
static bool same_pci(const char *a, const char *b)
{
    const char *x = strchr(a, ':'), *y = strchr(b, ':');
    return x && y && strtol(a, NULL, 16) == strtol(b, NULL, 16) && strcasecmp(x, y) == 0;
}

static void place_gpus(struct alert_rules *r, const struct host_lines *h)
{
    for (int i = 0; i < r->setup.ranks; i++) {
        struct alert_place *p = &r->setup.places[i];
        for (int k = 0; k < h->gpus && p->pci[0] && strcmp(p->host, h->host) == 0; k++)
            if (same_pci(p->pci, h->gpu[k].pci)) p->gpu = h->gpu[k].index;
    }
}

static int rank_of(const struct alert_rules *r, const struct host_lines *h, int gpu)
{
    for (int i = 0; i < r->setup.ranks; i++)
        if (r->setup.places[i].gpu == gpu && strcmp(r->setup.places[i].host, h->host) == 0) return i;
    return -1;
}

/* The GPU that an alert of a host (NULL: of none) is about; what its clock costs: 1 - its clock over the others'. */
static const struct gpu_lines *gpu_of(const struct host_lines *h, const struct alert *a, double *slower)
{
    char at[160];
    *slower = NAN;
    for (int i = 0; h && i < h->gpus; i++) {
        snprintf(at, sizeof at, "%s gpu%d", h->host, h->gpu[i].index);
        if (strcmp(at, a->where) != 0) continue;
        const double others = alerts_host_mhz(h);
        if (h->gpus > 1 && h->gpu[i].mhz_60 < others) *slower = 1 - h->gpu[i].mhz_60 / others;
        return &h->gpu[i];
    }
    return NULL;
}

static const char *xid_text(int number)
{
#define XID(from, to, what, todo, action)                                                                    \
    if (number >= (from) && number <= (to)) return what ": " todo;
#include "dev/xid.def"
    return "no entry in this program's list: see NVIDIA's Xid catalog";
}

static void host_sentence(struct alert_rules *r, struct alert_active *a, const struct host_lines *h,
                          const struct alert *found)
{
    char rank[64] = "", price[96] = "";
    double slower;
    const struct gpu_lines *g = gpu_of(h, found, &slower);
    a->a.rank = g ? rank_of(r, h, g->index) : -1;
    if (a->a.rank >= 0) snprintf(rank, sizeof rank, "rank %d: ", a->a.rank);
    if (slower > 0.005 && (strcmp(a->a.name, "throttle") == 0 || strcmp(a->a.name, "straggler") == 0))
        snprintf(price, sizeof price, "; costs up to %.0f %% of each step while it lasts", 100 * slower);
    snprintf(a->a.text, sizeof a->a.text, "%s%s%s", rank, found->text, price);
}

static void host_found(struct alert_rules *r, double now, const struct host_lines *h,
                       const struct alert *found)
{
    double slower;
    struct alert_active *a = alert_find(r, found->name, found->where);
    if (a == NULL) {
        a = alert_begin(r, found->name, found->code, now, r->step, found->where, -1);
        if (a == NULL) return;
        a->of_host = true;
        host_sentence(r, a, h, found);
        alert_emit(r, a);
    } else if (gpu_of(h, found, &slower) && slower > 0)
        alert_price(r, a, slower * (now - a->seen_s), now);
    a->seen_s = now;
}

/* Each happens once. */
static void xid_found(struct alert_rules *r, const struct host_lines *h, const struct xid_line *x)
{
    char where[160];
    if (x->time <= r->xid_seen_s) return;
    snprintf(where, sizeof where, "%.120s gpu%d", h->host, x->gpu);
    struct alert one = {
        .code = STATUS_DEVICE, .time = x->time, .step = r->step, .seconds = NAN, .share = NAN};
    one.rank = rank_of(r, h, x->gpu);
    snprintf(one.name, sizeof one.name, "xid");
    snprintf(one.where, sizeof one.where, "%s", where);
    const int n = one.rank >= 0 ? snprintf(one.text, sizeof one.text, "rank %d: ", one.rank) : 0;
    snprintf(one.text + n, sizeof one.text - (size_t)n, "Xid %d, %s", x->xid, xid_text(x->xid));
    r->setup.emit(r->setup.emit_ctx, &one);
}

void alert_rules_hosts(struct alert_rules *r, double now, const struct host_lines *hosts, int count,
                       double disk_free)
{
    char room[32], needs[32];
    double newest = r->xid_seen_s;
    struct alert_list found = {.count = 0};
    for (int i = 0; i < count; i++) {
        const struct host_lines *h = &hosts[i];
        place_gpus(r, h);
        found.count = 0;
        alerts_of_host(&found, h, 0); /* the disk is asked itself */
        for (int k = 0; k < found.count; k++)
            if (strcmp(found.list[k].name, "xid") != 0) host_found(r, now, h, &found.list[k]);
        for (int k = 0; k < h->xids; k++) {
            xid_found(r, h, &h->xid[k]);
            newest = fmax(newest, h->xid[k].time);
        }
    }
    r->xid_seen_s = newest;
    if (disk_free < 2 * r->setup.checkpoint_bytes) {
        found.count = 0;
        alert_add(&found, "disk", STATUS_IO, now, r->step, r->setup.places[0].host,
                  "%s are free where the run is written, a checkpoint needs %s: saves will wait or fail; "
                  "make room, or lower ckpt.keep",
                  text_bytes(room, disk_free), text_bytes(needs, r->setup.checkpoint_bytes));
        host_found(r, now, NULL, &found.list[0]);
    }
    for (int i = 0; i < ALERTS_MAX; i++)
        if (r->active[i].used && r->active[i].of_host && now - r->active[i].seen_s >= HOST_OVER_S)
            alert_end(r, &r->active[i], now);
}

/* ---- looks, and the end */

void alert_rules_look(struct alert_rules *r, double now, enum alert_work work)
{
    alert_slow_look(r, now, work);
    r->last_look_s = now;
}

void alert_rules_end(struct alert_rules *r, double now, status st, const char *message, int64_t lost_steps,
                     double lost_s)
{
    char time[32];
    for (int i = 0; i < ALERTS_MAX; i++)
        if (r->active[i].used) {
            r->active[i].lasts = r->active[i].a.code != STATUS_COMM;
            alert_end(r, &r->active[i], now);
        }
    if (st == STATUS_OK || st == STATUS_STOPPED) return;
    struct alert_active *a = alert_begin(r, "ended", st, now, r->step, "", -1);
    if (a == NULL) return;
    int n = snprintf(a->a.text, sizeof a->a.text, "the run ends with code %d after step %lld: %.260s",
                     (int)st, (long long)r->step, message);
    if (lost_steps > 0 && isfinite(lost_s)) {
        alert_price(r, a, lost_s, now);
        snprintf(a->a.text + n, sizeof a->a.text - (size_t)n, "; a resume repeats %lld step%s, %s",
                 (long long)lost_steps, lost_steps == 1 ? "" : "s", text_time(time, lost_s));
    }
    alert_emit(r, a);
    a->used = false;
}
