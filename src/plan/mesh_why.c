#include "plan/mesh_why.h"
#include "base/text.h"
#include "plan/mesh_choose.h"
#include "plan/mesh_plan_int.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NEIGHBOURS_MAX = 24 };
struct neighbour {
    char key[64];
    struct mesh_result r;
};
struct why {
    struct mesh_plan *plan;
    struct mesh_result asked, best;
    bool chosen, any;       /* asked is the best; some mesh fits */
    struct neighbour *near; /* [NEIGHBOURS_MAX], owned */
    int count;
};

/* Where a step's seconds go, and the keys that move each part. */
struct step_part {
    const char *name, *keys;
    double seconds;
};
enum { PARTS = 10 };
static void parts_of(const struct mesh_result *r, struct step_part out[PARTS])
{
    const struct step_part parts[PARTS] = {
        {"GEMMs", "train.precision, train.recompute, parallel.tensor", r->compute.gemms},
        {"attention, states", "train.sequence_length, train.recompute", r->compute.mixing},
        {"memory-bound ops", "train.recompute", r->compute.memory},
        {"optimizer", "parallel.zero, optim.state", r->optim},
        {"pipeline bubble", "train.micro_batch, parallel.schedule, parallel.chunks", r->bubble},
        {"tp", "parallel.tensor", r->tp.exposed},
        {"cp", "parallel.context, parallel.context_kind", r->cp.exposed},
        {"ep", "parallel.expert", r->ep.exposed},
        {"dp", "parallel.zero, parallel.shard, train.micro_batch", r->dp.exposed},
        {"pp", "parallel.chunks, parallel.schedule", r->pp.exposed}};
    memcpy(out, parts, sizeof parts);
}

static const char *variant_of(char buf[192], const struct mesh_result *r)
{
    static const char *const schedules[] = {
#define WORD(prefix, value, word) [prefix##_##value] = (word),
        PIPELINE_WORDS(WORD)
#undef WORD
    };
    static const char *const policies[] = {
#define WORD(prefix, value, word) [prefix##_##value] = (word),
        RECOMPUTE_WORDS(WORD)
#undef WORD
    };
    const struct mesh_variant *v = &r->variant;
    char axes[MESH_AXES];
    char chunks[32] = "";
    if (v->mesh.chunks > 1) snprintf(chunks, sizeof chunks, " of %d chunks", v->mesh.chunks);
    snprintf(buf, 192, "%s, %s%s, ZeRO %d, recompute %s, %d x %lld sequences", mesh_axes(axes, &v->mesh),
             v->mesh.pp > 1 ? schedules[v->mesh.schedule] : "no pipeline", chunks, v->mesh.zero,
             policies[v->recompute], r->micros, (long long)v->micro_batch);
    return buf;
}

/* "tp4.pp2.dp8.cp2.ep4": cp and ep 0 where they are not named. */
static status read_mesh(const char *text, int devices, struct mesh_asked *m)
{
    int dp = 0;
    *m = (struct mesh_asked){.tp = 1, .pp = 1};
    for (const char *at = text;;) {
        int *to = strncmp(at, "tp", 2) == 0   ? &m->tp
                  : strncmp(at, "pp", 2) == 0 ? &m->pp
                  : strncmp(at, "dp", 2) == 0 ? &dp
                  : strncmp(at, "cp", 2) == 0 ? &m->cp
                  : strncmp(at, "ep", 2) == 0 ? &m->ep
                                              : NULL;
        char *end = NULL;
        const bool digit = to && at[2] >= '1' && at[2] <= '9';
        const long n = digit ? strtol(at + 2, &end, 10) : 0;
        if (n < 1 || n > INT32_MAX || (*end != 0 && *end != '.'))
            return FAIL(STATUS_CONFIG,
                        "plan: --why %s: \"best\", or a mesh such as tp4.pp2.dp8 (also cp, ep)", text);
        *to = (int)n;
        if (*end == 0) break;
        at = end + 1;
    }
    const int64_t product = (int64_t)m->tp * m->pp * (m->cp > 0 ? m->cp : 1);
    if (product <= devices && devices % product == 0 && (dp == 0 || dp * product == devices))
        return STATUS_OK;
    return FAIL(STATUS_CONFIG, "plan: --why %s: its axes do not multiply to the %d devices of the machine",
                text, devices);
}

static void add(struct why *w, const char *key, const struct mesh_variant *v)
{
    struct neighbour *n = &w->near[w->count];
    if (w->count == NEIGHBOURS_MAX || mesh_plan_one(w->plan, v, &n->r) != STATUS_OK) return;
    snprintf(n->key, sizeof n->key, "%s", key);
    w->count++;
}

static void add_numbers(struct why *w, const struct mesh_variant *v)
{
    char key[64];
    for (int k = 0; k < 2; k++) {
        struct mesh_variant n = *v;
        n.micro_batch = k ? v->micro_batch * 2 : v->micro_batch / 2;
        snprintf(key, sizeof key, "micro_batch %lld -> %lld", (long long)v->micro_batch,
                 (long long)n.micro_batch);
        if (n.micro_batch > 0) add(w, key, &n);
        n = *v;
        n.mesh.chunks = k ? v->mesh.chunks * 2 : v->mesh.chunks / 2;
        n.mesh.schedule = n.mesh.chunks > 1 ? PIPELINE_INTERLEAVED : PIPELINE_1F1B;
        n.mesh.layers[0] = 0;
        snprintf(key, sizeof key, "chunks %d -> %d", v->mesh.chunks, n.mesh.chunks);
        if (v->mesh.pp > 1 && n.mesh.chunks > 0) add(w, key, &n);
        for (int axis = 0; axis < 2; axis++) { /* the other axis gives what this one takes */
            n = *v;
            int *to = axis ? &n.mesh.pp : &n.mesh.tp;
            const int was = *to;
            *to = k ? 2 * was : was / 2;
            n.mesh.dp = k ? n.mesh.dp / 2 : n.mesh.dp * 2;
            n.mesh.shard = mesh_dp_cp(&n.mesh), n.mesh.layers[0] = 0;
            if (v->mesh.pp == 1) n.mesh.schedule = PIPELINE_1F1B;
            if (mesh_dp_cp(&n.mesh) == 1) n.mesh.zero = 0;
            snprintf(key, sizeof key, "%s %d -> %d, dp %d -> %d", axis ? "pipeline" : "tensor", was, *to,
                     v->mesh.dp, n.mesh.dp);
            if (*to > 0 && was % (k ? 1 : 2) == 0 && n.mesh.dp > 0 && (!k || v->mesh.dp % 2 == 0))
                add(w, key, &n);
        }
    }
}

/* ep takes ranks of dp; cp takes them from it. */
static void add_exchanges(struct why *w, const struct mesh_variant *v)
{
    char key[64];
    for (int k = 0; k < 2; k++) {
        struct mesh_variant n = *v;
        const int ep = mesh_ep(&v->mesh), cp = mesh_cp(&v->mesh);
        n.mesh.ep = k ? 2 * ep : ep / 2;
        snprintf(key, sizeof key, "expert %d -> %d", ep, n.mesh.ep);
        if (model_ffn_count(&w->plan->spec.model, FFN_MOE) > 0 && n.mesh.ep > 0 && ep % (k ? 1 : 2) == 0)
            add(w, key, &n);
        n = *v;
        n.mesh.cp = k ? 2 * cp : cp / 2;
        n.mesh.dp = k ? v->mesh.dp / 2 : 2 * v->mesh.dp;
        snprintf(key, sizeof key, "context %d -> %d, dp %d -> %d", cp, n.mesh.cp, v->mesh.dp, n.mesh.dp);
        if (n.mesh.cp > 0 && n.mesh.dp > 0 && (k ? v->mesh.dp % 2 == 0 : cp % 2 == 0)) add(w, key, &n);
    }
}

static void add_words(struct why *w, const struct mesh_variant *v)
{
    static const char *const policies[] = {"none", "selective", "full"};
    char key[64];
    for (int policy = RECOMPUTE_NONE; policy <= RECOMPUTE_FULL; policy++) {
        struct mesh_variant n = *v;
        n.recompute = (enum recompute)policy;
        snprintf(key, sizeof key, "recompute %s -> %s", policies[v->recompute], policies[policy]);
        if (n.recompute != v->recompute) add(w, key, &n);
    }
    for (int zero = 0; zero <= 3; zero++) {
        struct mesh_variant n = *v;
        n.mesh.zero = zero;
        snprintf(key, sizeof key, "zero %d -> %d", v->mesh.zero, zero);
        if (zero != v->mesh.zero && mesh_dp_cp(&v->mesh) > 1) add(w, key, &n);
    }
    if (v->mesh.pp == 1 || v->mesh.chunks > 1) return;
    struct mesh_variant n = *v;
    const bool zb = v->mesh.schedule == PIPELINE_ZB_H1;
    n.mesh.schedule = zb ? PIPELINE_1F1B : PIPELINE_ZB_H1;
    add(w, zb ? "schedule zb_h1 -> 1f1b" : "schedule 1f1b -> zb_h1", &n);
}

static int by_step(const void *a, const void *b)
{
    const double x = ((const struct neighbour *)a)->r.step, y = ((const struct neighbour *)b)->r.step;
    return (x > y) - (x < y);
}

static status look(struct why *w, const char *mesh)
{
    struct mesh_list list;
    struct mesh_asked asked;
    const bool best = strcmp(mesh, "best") == 0;
    if (!best) TRY(read_mesh(mesh, w->plan->cluster.devices, &asked));
    const status st = mesh_choose(w->plan, &w->best);
    w->any = st == STATUS_OK;
    if (st != STATUS_OK && st != STATUS_OUT_OF_MEMORY) return st;
    w->asked = w->best, w->chosen = w->any;
    if (!best) {
        const status one = mesh_plan_search_one(w->plan, &asked, &list);
        if (one == STATUS_CONFIG) return status_wrap(one, "plan: --why %s: the model cannot run so", mesh);
        TRY(one);
        w->asked = list.count > 0 ? list.best[0] : list.least;
        w->chosen = list.count > 0 && w->any && w->asked.step == w->best.step;
        mesh_list_free(&list);
    }
    add_numbers(w, &w->asked.variant);
    add_exchanges(w, &w->asked.variant);
    add_words(w, &w->asked.variant);
    qsort(w->near, (size_t)w->count, sizeof *w->near, by_step);
    return STATUS_OK;
}

static void print_difference(const struct why *w)
{
    struct step_part mine[PARTS], others[PARTS];
    char a[192], b[32];
    parts_of(&w->asked, mine);
    parts_of(&w->best, others);
    printf("chosen       %s: %s, %+.1f %%\n", variant_of(a, &w->best), text_time(b, w->best.step),
           100 * (w->best.step / w->asked.step - 1));
    printf("difference  ");
    for (int i = 0; i < PARTS; i++)
        if (fabs(mine[i].seconds - others[i].seconds) > 1e-3 * w->asked.step)
            printf(" %s %+.1f %%;", mine[i].name,
                   100 * (mine[i].seconds - others[i].seconds) / w->asked.step);
    printf(" of the step\n");
}

static void print_text(const struct why *w)
{
    struct step_part parts[PARTS];
    char a[192], b[32], c[32], d[32];
    char why[PLAN_WHY];
    printf("mesh         %s: %s, %s of %s per device%s\n", variant_of(a, &w->asked),
           text_time(b, w->asked.step), text_bytes(c, mesh_result_bytes(&w->asked)),
           text_bytes(d, w->plan->bytes), w->asked.fits ? "" : ": does not fit");
    if (mesh_lacks(why, w->plan, &w->asked.variant.mesh)) printf("start        predicted only: %s\n", why);
    if (w->chosen)
        printf("chosen       it is the fastest that fits%s\n",
               w->plan->command.predicted ? "" : " and that a command starts");
    else if (w->any)
        print_difference(w);
    else
        printf("chosen       none: no mesh fits\n");
    parts_of(&w->asked, parts);
    printf("\n  %-20s %10s %7s  moved by\n", "part of the step", "time", "");
    for (int i = 0; i < PARTS; i++)
        if (parts[i].seconds > 0)
            printf("  %-20s %10s %5.1f %%  %s\n", parts[i].name, text_time(b, parts[i].seconds),
                   100 * parts[i].seconds / w->asked.step, parts[i].keys);
    const struct mesh_memory *m = &w->asked.stages[w->asked.fullest].memory;
    printf("\nmemory       state %s, activations and scratch %s, in transit %s\n",
           text_bytes(b, m->weights + m->grads + m->optim), text_bytes(c, m->act + m->scratch),
           text_bytes(d, m->buffers));
    printf("\n  %-34s %9s %12s\n", "one key changed", "step", "memory");
    for (int i = 0; i < w->count; i++) {
        const struct mesh_result *r = &w->near[i].r;
        const double more = mesh_result_bytes(r) - mesh_result_bytes(&w->asked);
        printf("  %-34s %+7.1f %% %c%11s%s\n", w->near[i].key, 100 * (r->step / w->asked.step - 1),
               more < 0 ? '-' : '+', text_bytes(b, fabs(more)), r->fits ? "" : "  does not fit");
    }
}

static json_t *variant_json(const struct mesh_plan *p, const struct mesh_result *r)
{
    char why[PLAN_WHY];
    const struct mesh_variant *v = &r->variant;
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:f, s:f, s:b, s:b}", "dp", v->mesh.dp,
                     "ep", mesh_ep(&v->mesh), "cp", mesh_cp(&v->mesh), "tp", v->mesh.tp, "pp", v->mesh.pp,
                     "zero", v->mesh.zero, "chunks", v->mesh.chunks, "micro_batches", r->micros,
                     "micro_batch", (json_int_t)v->micro_batch, "step_seconds", r->step, "memory_bytes",
                     mesh_result_bytes(r), "fits", r->fits, "starts", mesh_lacks(why, p, &v->mesh) == NULL);
}

static void print_json(const struct why *w)
{
    struct step_part parts[PARTS];
    json_t *root = json_object(), *seconds = json_object(), *near = json_array();
    json_object_set_new(root, "mesh", variant_json(w->plan, &w->asked));
    json_object_set_new(root, "chosen", json_boolean(w->chosen));
    if (w->any) json_object_set_new(root, "best", variant_json(w->plan, &w->best));
    parts_of(&w->asked, parts);
    for (int i = 0; i < PARTS; i++) json_object_set_new(seconds, parts[i].name, json_real(parts[i].seconds));
    json_object_set_new(root, "parts_seconds", seconds);
    for (int i = 0; i < w->count; i++) {
        json_t *o = variant_json(w->plan, &w->near[i].r);
        json_object_set_new(o, "change", json_string(w->near[i].key));
        json_array_append_new(near, o);
    }
    json_object_set_new(root, "neighbours", near);
    json_dumpf(root, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(root);
}

status mesh_why_print(const struct spec *s, const char *machine, const char *mesh,
                      const struct plan_command *command, bool json)
{
    struct cluster c;
    struct why w = {0};
    TRY(cluster_parse(machine, &c));
    c.assume = command->assume;
    TRY(mesh_plan_open(&w.plan, s, &c));
    w.plan->command = *command;
    w.near = calloc(NEIGHBOURS_MAX, sizeof *w.near);
    MEMORY_CHECK(w.near, "no memory to plan with");
    const status st = look(&w, mesh);
    if (st == STATUS_OK && json) print_json(&w);
    if (st == STATUS_OK && !json) print_text(&w);
    free(w.near);
    mesh_plan_close(w.plan);
    return st;
}
