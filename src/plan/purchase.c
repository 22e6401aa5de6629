#include "plan/purchase.h"
#include "ops/precision.h"
#include "plan/mesh_choose.h"
#include "plan/mesh_plan_int.h"
#include "plan/plan.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* *fits false: the cluster cannot run it, for the reason in status_message(). */
static status offer_of(const struct spec *s, const struct purchase_args *a, const struct purchase_kind *kind,
                       const struct cluster *c, struct purchase_offer *o, bool *fits)
{
    struct mesh_plan *p;
    struct outlook_args looks = a->outlook;
    struct cluster assumed = *c;
    assumed.assume = a->command.assume;
    TRY(mesh_plan_open(&p, s, &assumed));
    p->command = a->command;
    looks.price = kind->price;
    *o = (struct purchase_offer){.cluster = *c, .device_bytes = p->bytes};
    status st = mesh_choose_beside(p, &o->mesh, &o->faster);
    *fits = st == STATUS_OK;
    if (*fits && mesh_lacks(o->lacks, p, &o->mesh.variant.mesh) == NULL) o->lacks[0] = 0;
    if (st == STATUS_OK) st = outlook_of(p, &o->mesh, o->mesh.step, &looks, &o->outlook);
    mesh_plan_close(p);
    if (*fits) TRY(st);
    o->impossible = st == STATUS_CONFIG;
    o->in_time = *fits && (a->deadline == 0 || o->outlook.seconds <= a->deadline);
    return STATUS_OK;
}

/* 1, 2, 4, ... within a node, then nodes: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ... or 1, 2, 4, ... */
static int next_count(int count, int node, bool doubles)
{
    if (count < node) return 2 * count < node ? 2 * count : node;
    const int nodes = count / node;
    int power = 1;
    while (2 * power <= nodes) power *= 2;
    if (doubles) return 2 * power * node;
    return (nodes + (power >= 4 ? power / 4 : 1)) * node;
}

/* Devices that the model's FLOPs need within the deadline at a share of the peak that nobody has reached. */
static int least_count(const struct spec *s, const struct purchase_args *a, const struct machine *m)
{
    const bool fp8 = precision_recipe(&s->run) == RECIPE_FP8;
    const double share = fp8 ? 1.2 : 0.75, peak = machine_peak(m, (enum precision)s->run.train_precision);
    const double tokens = a->outlook.tokens > 0 ? a->outlook.tokens : spec_token_count(s);
    const double flops = tokens * plan_model_flops(&s->model, s->run.train_sequence_length);
    const double least = a->deadline > 0 ? flops / (share * peak * a->deadline) : 1;
    int count = 1;
    while (count < least && count < PURCHASE_DEVICES_MAX) count = next_count(count, m->node, false);
    return count;
}

static status keep(struct purchase_answer *out, const struct purchase_offer *o)
{
    const size_t bytes = (size_t)PURCHASE_TRIED * sizeof *out->tried;
    if (out->tried == NULL) out->tried = malloc(bytes);
    if (out->tried == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d clusters", PURCHASE_TRIED);
    out->tried[out->count++] = *o;
    return STATUS_OK;
}

/* Meshes that no command starts count if they are asked for, or where there are no others. */
static void choose(struct purchase_answer *out, bool deadline, bool predicted)
{
    bool any = false;
    for (int i = 0; i < out->count; i++) any |= out->tried[i].lacks[0] == 0;
    out->best = out->nearest = -1;
    for (int i = 0; i < out->count; i++) {
        if (any && !predicted && out->tried[i].lacks[0]) continue;
        const struct outlook *l = &out->tried[i].outlook;
        if (out->nearest < 0 || l->seconds < out->tried[out->nearest].outlook.seconds) out->nearest = i;
        if (!out->tried[i].in_time) continue;
        const bool better =
            out->best >= 0 && !deadline && l->device_hours < out->tried[out->best].outlook.device_hours;
        if (out->best < 0 || better) out->best = i;
    }
}

/* Twice more devices that are no faster end the search. */
static status ascend(const struct spec *s, const struct purchase_args *a, const struct purchase_kind *kind,
                     const struct machine *m, struct purchase_answer *out)
{
    double fastest = INFINITY;
    int slower = 0, refused = 0;
    bool started = a->command.predicted; /* what no command starts does not end the search then */
    for (int count = least_count(s, a, m); count <= PURCHASE_DEVICES_MAX && out->count < PURCHASE_TRIED;
         count = next_count(count, m->node, a->deadline == 0)) {
        const struct cluster c = {.machine = m, .devices = count, .node = count < m->node ? count : m->node};
        struct purchase_offer o;
        bool fits;
        TRY(offer_of(s, a, kind, &c, &o, &fits));
        if (!fits) {
            if (out->why[0] == 0) out->impossible = o.impossible;
            if (out->why[0] == 0)
                snprintf(out->why, sizeof out->why, "%d x %s: %s", count, m->name, status_message());
            if (out->count > 0 && ++refused == 3) break;
            continue;
        }
        TRY(keep(out, &o));
        const bool starts = a->command.predicted || o.lacks[0] == 0;
        if (a->deadline > 0 && o.in_time && starts) break;
        if (started && !starts) continue;
        if (starts && !started) fastest = INFINITY, slower = 0;
        started = started || starts;
        slower = o.outlook.seconds < 0.98 * fastest ? 0 : slower + 1;
        fastest = fmin(fastest, o.outlook.seconds);
        if (slower == 2) break;
    }
    return STATUS_OK;
}

status purchase_look(const struct spec *s, const struct purchase_args *a, const struct purchase_kind *kind,
                     struct purchase_answer *out)
{
    struct cluster c;
    *out = (struct purchase_answer){.best = -1, .nearest = -1};
    if (a->outlook.tokens == 0 && s->run.train_steps == SPEC_ENDLESS)
        return FAIL(STATUS_CONFIG, "the run has no length: give --tokens, train.tokens or train.steps");
    TRY(cluster_parse(kind->machine, &c));
    status st;
    if (isdigit((unsigned char)kind->machine[0])) {
        struct purchase_offer o;
        bool fits;
        st = offer_of(s, a, kind, &c, &o, &fits);
        if (st == STATUS_OK && fits) st = keep(out, &o);
        if (st == STATUS_OK && !fits) out->impossible = o.impossible;
        if (st == STATUS_OK && !fits)
            snprintf(out->why, sizeof out->why, "%s: %s", kind->machine, status_message());
    } else {
        st = ascend(s, a, kind, c.machine, out);
    }
    choose(out, a->deadline > 0, a->command.predicted);
    if (out->count > 0) out->why[0] = 0;
    if (st != STATUS_OK) purchase_answer_free(out);
    return st;
}

void purchase_answer_free(struct purchase_answer *a)
{
    free(a->tried);
    *a = (struct purchase_answer){.best = -1, .nearest = -1};
}
