/* Prints a plan for many devices as text and JSON. */
#include "model/param_count.h"
#include "base/text.h"
#include "ops/precision.h"
#include "plan/mesh_plan_int.h"
#include "plan/grad_overlay.h"
#include "plan/mesh_choose.h"
#include "plan/past_errors.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 10 };

static const char *schedule_word(const struct mesh_variant *v)
{
    static const char *const words[] = {[PIPELINE_GPIPE] = "gpipe",
                                        [PIPELINE_1F1B] = "1f1b",
                                        [PIPELINE_INTERLEAVED] = "interleaved",
                                        [PIPELINE_ZB_H1] = "zb_h1"};
    return v->mesh.pp > 1 ? words[v->mesh.schedule] : "";
}

static const char *recompute_word(enum recompute policy)
{
    static const char *const words[] = {
        [RECOMPUTE_NONE] = "none", [RECOMPUTE_SELECTIVE] = "selective", [RECOMPUTE_FULL] = "full"};
    return words[policy];
}

/* "dp 8 x tp 1 x pp 1, ZeRO 1 over 8, recompute none, 16 micro-batches of 4". Returns buf. */
static const char *variant_text(char buf[192], const struct mesh_result *r)
{
    const struct mesh_variant *v = &r->variant;
    char axes[MESH_AXES];
    int used = snprintf(buf, 192, "%s", mesh_axes(axes, &v->mesh));
    if (v->mesh.pp > 1) used += snprintf(buf + used, (size_t)(192 - used), ", %s", schedule_word(v));
    if (v->mesh.chunks > 1)
        used += snprintf(buf + used, (size_t)(192 - used), " of %d chunks", v->mesh.chunks);
    if (v->mesh.zero > 0)
        used += snprintf(buf + used, (size_t)(192 - used), ", ZeRO %d over %d", v->mesh.zero, v->mesh.shard);
    snprintf(buf + used, (size_t)(192 - used), ", recompute %s, %d micro-batch%s of %lld",
             recompute_word(v->recompute), r->micros, r->micros > 1 ? "es" : "", (long long)v->micro_batch);
    return buf;
}

static bool is_fp8(const struct mesh_plan *p)
{
    return precision_recipe(&p->spec.run) == RECIPE_FP8;
}

static bool is_current(const struct mesh_plan *p)
{
    return precision_recipe(&p->spec.run) == RECIPE_CURRENT;
}

/* RECIPE_CURRENT: whether this machine's GEMMs read the codes. */
static bool reads_codes(const struct mesh_plan *p)
{
    return machine_has_blocks(p->cluster.machine, precision_current(&p->spec.run).x);
}

static void print_current(const struct mesh_plan *p)
{
    char name[64];
    printf("note         %s: %s\n", precision_codes_name(&p->spec.run, name),
           reads_codes(p)
               ? "each GEMM costs a pass over both operands; rates of such GEMMs were not measured "
                 "here (spec/machine.def)"
               : "the machine has no GEMMs of these codes: operands are rounded, decoded and "
                 "multiplied in bf16, slower than train.precision bf16");
}

/* Where a step's seconds go. */
#define STEP_PARTS(X)                                                                                        \
    X(gemms, "GEMMs", r->compute.gemms)                                                                      \
    X(mixing, "attention, states", r->compute.mixing)                                                        \
    X(memory, "memory-bound ops", r->compute.memory)                                                         \
    X(optimizer, "optimizer", r->optim)                                                                      \
    X(bubble, "pipeline bubble", r->bubble)                                                                  \
    X(tp, "tp, what it costs", r->tp.exposed)                                                                \
    X(cp, "cp, what it costs", r->cp.exposed)                                                                \
    X(ep, "ep, what it costs", r->ep.exposed)                                                                \
    X(dp, "dp, what it costs", r->dp.exposed)                                                                \
    X(pp, "pp, what it costs", r->pp.exposed)

static void print_head(const struct mesh_plan *p)
{
    const struct machine *m = p->cluster.machine;
    const struct spec *s = &p->spec;
    char a[64], b[32], c[32];
    char fp8[32] = "", host[64] = "", assumed[ASSUME_TEXT];
    if (m->host_bytes > 0)
        snprintf(host, sizeof host, "; host memory %s, %.0f GB/s", text_bytes(c, m->host_bytes),
                 m->host_memory_rate * 1e-9);
    if (m->peak_fp8 > 0) snprintf(fp8, sizeof fp8, " (fp8 %.0f)", m->peak_fp8 * 1e-12);
    printf("machine      %s: %.4g TFLOP/s%s, %s, %.0f GB/s; links %.0f, network %.0f, host %.0f GB/s per "
           "device%s\n",
           cluster_text(a, &p->cluster), p->peak * 1e-12, fp8, text_bytes(b, m->memory_bytes),
           m->memory_rate * 1e-9, m->link_rate * 1e-9, m->net_rate * 1e-9, m->host_rate * 1e-9, host);
    printf("model        %s parameters, %lld layers, width %lld\n",
           text_count(b, (double)model_param_count(&s->model, s->model.vocab_size)),
           (long long)s->model.layer_count, (long long)s->model.hidden_size);
    printf("step         %s tokens: %lld sequences of %lld\n",
           text_count(c, (double)s->run.train_batch_tokens),
           (long long)(s->run.train_batch_tokens / s->run.train_sequence_length),
           (long long)s->run.train_sequence_length);
    if (assume_text(assumed, &p->assume)[0]) printf("assumed      %s\n", assumed);
    if (is_fp8(p) && m->kind == DEV_CUDA && !m->measured_8)
        printf("note         rates of FP8 GEMMs are not measured on this GPU: the H200's share of the FP8 "
               "peak\n");
    if (is_current(p)) print_current(p);
    if (!p->own_layout)
        printf("note         this build has no CUDA: activations are laid out as the CPU lays them out\n");
}

/* What the table shows: meshes that a command starts, and behind them those that are predicted only, half of each where
 * there are enough; with plan_command.predicted the fastest of all. */
struct shown {
    struct mesh_result *row[ROWS];
    int count;
    bool started[ROWS];
    char why[ROWS][PLAN_WHY]; /* why no command starts it */
};

static void show(const struct mesh_plan *p, struct mesh_result *r, struct shown *s)
{
    s->row[s->count] = r;
    s->started[s->count] = mesh_lacks(s->why[s->count], p, &r->variant.mesh) == NULL;
    s->count++;
}

static void shown_of(const struct mesh_plan *p, const struct mesh_list *list, struct shown *s)
{
    const bool apart = !p->command.predicted;
    char why[PLAN_WHY];
    int others = 0;
    for (int i = 0; i < list->count; i++) others += mesh_lacks(why, p, &list->best[i].variant.mesh) != NULL;
    const int first = others < ROWS / 2 ? ROWS - others : ROWS / 2;
    s->count = 0;
    for (int i = 0; apart && i < list->start_count && i < first; i++) show(p, &list->starts[i], s);
    for (int i = 0; i < list->count && s->count < ROWS; i++)
        if (!apart || mesh_lacks(why, p, &list->best[i].variant.mesh)) show(p, &list->best[i], s);
}

/* Which columns of the table are needed beside dp, tp and pp. */
struct columns {
    bool cp, ep;
};
static struct columns columns_of(const struct shown *s)
{
    struct columns c = {0};
    for (int i = 0; i < s->count; i++) {
        c.cp |= mesh_cp(&s->row[i]->variant.mesh) > 1;
        c.ep |= mesh_ep(&s->row[i]->variant.mesh) > 1;
    }
    return c;
}

static void print_row(const struct mesh_result *r, struct columns c, bool started)
{
    const struct mesh_variant *v = &r->variant;
    char a[32], b[32], time[32], schedule[32], zero[32];
    snprintf(zero, sizeof zero, v->mesh.shard < mesh_dp_cp(&v->mesh) ? "%d/%d" : "%d", v->mesh.zero,
             v->mesh.shard);
    if (v->mesh.chunks > 1)
        snprintf(schedule, sizeof schedule, "%s %d", schedule_word(v), v->mesh.chunks);
    else
        snprintf(schedule, sizeof schedule, "%s%s", schedule_word(v), v->mesh.layers[0] ? " uneven" : "");
    printf("%5d", v->mesh.dp);
    if (c.ep) printf(" %3d", mesh_ep(&v->mesh));
    if (c.cp) printf(" %3d", mesh_cp(&v->mesh));
    printf(" %3d %3d %5s  %-14s %-9s %5lld x %-5d %10s %10s %9s %5.1f %6.1f %5.1f %5.1f %5.1f", v->mesh.tp,
           v->mesh.pp, zero, schedule, recompute_word(v->recompute), (long long)v->micro_batch, r->micros,
           text_bytes(a, mesh_result_bytes(r)), text_time(time, r->step), text_count(b, r->tokens_per_s),
           100 * r->mfu, 100 * r->bubble / r->step, 100 * r->tp.exposed / r->step,
           100 * r->dp.exposed / r->step, 100 * r->pp.exposed / r->step);
    if (c.ep) printf(" %5.1f", 100 * r->ep.exposed / r->step);
    if (c.cp) printf(" %5.1f", 100 * r->cp.exposed / r->step);
    printf(started ? "\n" : "  predicted only\n");
}

/* Each reason once, without the row's own numbers. */
static void print_reasons(const struct shown *s)
{
    bool any = false;
    for (int i = 0; i < s->count; i++) {
        if (s->started[i]) continue;
        const int length = (int)strcspn(s->why[i], ":");
        bool said = false;
        for (int k = 0; k < i && !said; k++)
            said = !s->started[k] && (int)strcspn(s->why[k], ":") == length &&
                   strncmp(s->why[k], s->why[i], (size_t)length) == 0;
        if (!said)
            printf("%s%.*s", any ? "; " : "predicted only: no command starts these: ", length, s->why[i]);
        any = true;
    }
    if (any) printf("\n");
}

static void print_table(const struct mesh_plan *p, const struct mesh_list *list)
{
    char a[32];
    struct shown s;
    shown_of(p, list, &s);
    const struct columns c = columns_of(&s);
    printf("meshes       %d variants of dp x cp x tp x pp looked at, %d fit in %s; the fastest of each mesh, "
           "predicted:\n\n",
           list->legal, list->fit, text_bytes(a, p->bytes));
    printf("%5s%s%s %3s %3s %5s  %-14s %-9s %5s x %-5s %10s %10s %9s %5s %6s %5s %5s %5s%s%s\n", "dp",
           c.ep ? "  ep" : "", c.cp ? "  cp" : "", "tp", "pp", "zero", "schedule", "recompute", "micro", "m",
           "memory", "step", "tokens/s", "MFU", "bubble", "tp", "dp", "pp", c.ep ? "    ep" : "",
           c.cp ? "    cp" : "");
    for (int i = 0; i < s.count; i++) print_row(s.row[i], c, s.started[i]);
    printf("%93s\n", "(last columns: % of the step; tp, dp, pp ...: what communication costs)");
    printf("%93s\n", "(zero 3/8: the state is sharded over groups of 8 ranks: parallel.shard)");
    print_reasons(&s);
}

static void print_stages(const struct mesh_plan *p, const struct mesh_result *r)
{
    char a[32], b[32];
    printf("\nmemory per rank, of %s\n  %-5s %6s %10s", text_bytes(a, p->bytes), "stage", "layers",
           "parameters");
#define X(name, text) printf(" %12s", text);
    MESH_MEMORY(X)
#undef X
    printf(" %12s\n", "sum");
    for (int i = 0; i < r->variant.mesh.pp; i++) {
        const struct mesh_stage *s = &r->stages[i];
        printf("  %-5d %6d %10s", i, s->layers, text_count(a, s->count));
#define X(name, text) printf(" %12s", text_bytes(b, s->memory.name));
        MESH_MEMORY(X)
#undef X
        printf(" %12s\n", text_bytes(b, mesh_memory_sum(&s->memory)));
    }
    double codes = 0;
    for (int i = 0; i < r->variant.mesh.pp; i++) codes = fmax(codes, r->stages[i].codes);
    if (codes > 0)
        printf("  weights hold up to %s of FP8 codes%s\n", text_bytes(a, codes),
               r->variant.mesh.zero == 3 ? " of this rank's shards, and of norms that are whole beside them"
                                         : " and their transposes: 2 bytes per parameter of a linear");
    if (overlay_apart(&p->spec.model, &r->variant.mesh, r->micros) == NULL)
        printf("  gradients lie among the activations, where those of blocks behind were\n");
}

static void print_uneven(const struct mesh_shape *m, const char *rest)
{
    if (m->layers[0] == 0) return;
    printf("stages       parallel.stages=");
    for (int i = 0; i < m->pp * m->chunks; i++) printf(i ? ",%d" : "%d", m->layers[i]);
    printf("%s\n", rest);
}

/* copies: mesh_save_copies. */
static void print_copies(const struct mesh_plan *p, const struct mesh_result *r, double copies)
{
    const bool gpu = p->cluster.machine->kind == DEV_CUDA, known = !gpu || p->cluster.machine->host_bytes > 0;
    const double misses = mesh_save_misses(p, r, copies);
    char a[32];
    if (copies == 0) return;
    printf(
        "host memory  %s%s of the host: copies of the state while a checkpoint is written (ckpt.async)%s\n",
        text_bytes(a, copies), gpu ? " pinned," : "",
        known ? "" : "; a host that does not hold them waits for its saves");
    if (misses > 0)
        printf(
            "warning      the host has %s too few for them: training waits while a checkpoint is written\n",
            text_bytes(a, misses));
}

static void print_host(const struct mesh_plan *p, const struct mesh_result *r)
{
    char a[32], b[32];
    double most = 0, sum = 0;
    for (int i = 0; i < r->variant.mesh.pp; i++) {
        most = fmax(most, r->stages[i].host);
        sum += r->stages[i].host * mesh_dp_cp(&r->variant.mesh) * r->variant.mesh.tp;
    }
    if (sum > 0)
        printf("host memory  %s per rank at most, %s of all: master weights and moments, once up and back "
               "per step\n",
               text_bytes(a, most), text_bytes(b, sum));
    if (p->cluster.machine->kind == DEV_CUDA && r->comm_memory.host > 0)
        printf("host memory  %s per rank at most: communication\n",
               text_bytes(a, (double)r->comm_memory.host));
    if (mesh_copies_bytes(p) > 0)
        printf("host memory  %s per rank, %s of all: two copies of the state (ckpt.memory_every)\n",
               text_bytes(a, mesh_copies_bytes(p)),
               text_bytes(b, mesh_copies_bytes(p) * mesh_ranks(&r->variant.mesh)));
}

static const char *start_command(char buf[PLAN_COMMAND], const struct mesh_plan *p,
                                 const struct mesh_result *r)
{
    const struct plan_devices d = mesh_devices(p);
    return duration_command(buf, &p->spec, &p->command, &d, &r->variant.mesh, (int)r->variant.recompute,
                            r->variant.micro_batch);
}

/* The command that starts the mesh, or why none does. */
static void print_start(const struct mesh_plan *p, const struct mesh_result *r)
{
    char command[PLAN_COMMAND], why[PLAN_WHY];
    if (mesh_lacks(why, p, &r->variant.mesh))
        printf("start        predicted only: %s\n", why);
    else
        printf("start        %s\n", start_command(command, p, r));
}

/* Behind the chosen mesh: behind one that is predicted only the next that starts; else a faster one that is. */
static void print_other(const struct mesh_plan *p, const struct mesh_list *list)
{
    char text[192], command[PLAN_COMMAND];
    if (list->start_count == 0) return;
    const struct mesh_result *first = &list->best[0], *start = &list->starts[0];
    if (mesh_lacks(command, p, &first->variant.mesh) == NULL) return;
    if (p->command.predicted)
        printf("instead      %s: %+.1f %%\n             %s\n", variant_text(text, start),
               100 * (start->step / first->step - 1), start_command(command, p, start));
    else
        printf("faster       %s: %+.1f %%, predicted only (--predicted plans it)\n",
               variant_text(text, first), 100 * (first->step / start->step - 1));
}

/* list: of the search that found r; NULL: the run gave it. */
static json_t *run_json(const struct mesh_plan *p, const struct mesh_result *r, const struct mesh_list *list)
{
    const struct plan_devices d = mesh_devices(p);
    char command[PLAN_COMMAND], why[PLAN_WHY];
    if (mesh_lacks(why, p, &r->variant.mesh) == NULL)
        return duration_json(&p->spec, r->step, &d, start_command(command, p, r));
    json_t *o = duration_json(&p->spec, r->step, &d, NULL);
    json_object_set_new(o, "predicted_only", json_string(why));
    const struct mesh_result *other = list && list->start_count > 0 ? &list->starts[0] : NULL;
    if (other) json_object_set_new(o, "instead", json_string(start_command(command, p, other)));
    return o;
}

/* What earlier predictions for this machine came to. */
static void set_past(json_t *root, const struct mesh_plan *p, const struct mesh_result *r)
{
    json_t *past = past_errors_json(p->command.past, p->cluster.machine->name, true, r->step);
    if (past) json_object_set_new(root, "past", past);
}

static status print_details(const struct mesh_plan *p, const struct mesh_result *r)
{
    double copies;
    TRY(mesh_save_copies(p, r, &copies));
    char text[192], a[32], b[32], c[32];
    const char *limit = "", *second = "";
    double most = -1, next = -1;
    printf("\n%s\n", variant_text(text, r));
    print_uneven(&r->variant.mesh, "");
    print_stages(p, r);
    print_host(p, r);
    print_copies(p, r, copies);
    printf("\nstep         %s, %s tokens/s, MFU %.1f %%%s\n", text_time(b, r->step),
           text_count(a, r->tokens_per_s), 100 * r->mfu,
           is_fp8(p) || is_current(p) ? " of the bf16 peak" : "");
#define X(name, text, seconds)                                                                               \
    if ((seconds) > most)                                                                                    \
        next = most, second = limit, most = (seconds), limit = text;                                         \
    else if ((seconds) > next)                                                                               \
        next = (seconds), second = text;                                                                     \
    if ((seconds) > 0)                                                                                       \
        printf("  %-20s %12s %6.1f %%\n", text, text_time(b, seconds), 100 * (seconds) / r->step);
    STEP_PARTS(X)
#undef X
    const struct {
        const char *name;
        int ranks;
        const struct mesh_traffic *t;
    } axes[] = {{"tp", r->variant.mesh.tp, &r->tp},
                {"cp", mesh_cp(&r->variant.mesh), &r->cp},
                {"ep", mesh_ep(&r->variant.mesh), &r->ep},
                {"dp", mesh_dp_cp(&r->variant.mesh), &r->dp},
                {"pp", r->variant.mesh.pp, &r->pp}};
    printf("\nsent         per rank and step; cost: what is not behind compute, and what it slows there\n");
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++)
        if (axes[i].ranks > 1)
            printf("  %-4s %4d ranks %12s %12s, costs %10s\n", axes[i].name, axes[i].ranks,
                   text_bytes(a, axes[i].t->bytes), text_time(b, axes[i].t->seconds),
                   text_time(c, axes[i].t->exposed));
    printf("\nlimit        %s: %.1f %% of the step; then %s: %.1f %%\n", limit, 100 * most / r->step, second,
           100 * next / r->step);
    if (!r->fits) return STATUS_OK;
    const struct plan_devices d = mesh_devices(p);
    past_errors_print(p->command.past, p->cluster.machine->name, true, r->step);
    duration_print(&p->spec, r->step, &d);
    print_start(p, r);
    return STATUS_OK;
}

static json_t *traffic_json(const struct mesh_traffic *t)
{
    return json_pack("{s:f, s:f, s:f}", "bytes", t->bytes, "seconds", t->seconds, "exposed_seconds",
                     t->exposed);
}

/* With "starts": whether a command starts it, and "predicted_only": why none does. */
static json_t *result_json(const struct mesh_plan *p, const struct mesh_result *r)
{
    char why[PLAN_WHY];
    const struct mesh_variant *v = &r->variant;
    json_t *stages = json_array(), *parts = json_object();
    for (int i = 0; i < v->mesh.pp; i++) {
        const struct mesh_stage *s = &r->stages[i];
        json_t *memory = json_object();
#define X(name, text) json_object_set_new(memory, #name, json_real(s->memory.name));
        MESH_MEMORY(X)
#undef X
        if (s->codes > 0) json_object_set_new(memory, "fp8_codes_in_weights", json_real(s->codes));
        json_array_append_new(stages,
                              json_pack("{s:i, s:i, s:f, s:f, s:o, s:f, s:f, s:f, s:f}", "layers", s->layers,
                                        "slots", s->slots, "parameters", s->count, "host_bytes", s->host,
                                        "memory_bytes", memory, "memory_bytes_sum",
                                        mesh_memory_sum(&s->memory), "first_rank_bytes", s->first_bytes,
                                        "forward_seconds", s->forward, "backward_seconds", s->backward));
    }
#define X(name, text, seconds) json_object_set_new(parts, #name, json_real(seconds));
    STEP_PARTS(X)
#undef X
    json_t *o = json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:s, s:I, s:i, s:b, s:f, s:I, s:f, s:f, s:f, s:o, "
        "s:o, s:o, s:o, s:o, s:o, s:o}",
        "dp", v->mesh.dp, "ep", mesh_ep(&v->mesh), "cp", mesh_cp(&v->mesh), "tp", v->mesh.tp, "pp",
        v->mesh.pp, "zero", v->mesh.zero, "shard", v->mesh.shard, "schedule", schedule_word(v), "chunks",
        v->mesh.chunks, "recompute", recompute_word(v->recompute), "micro_batch", (json_int_t)v->micro_batch,
        "micro_batches", r->micros, "fits", r->fits, "memory_bytes_max", mesh_result_bytes(r),
        "communication_host_bytes", (json_int_t)r->comm_memory.host, "step_seconds", r->step, "tokens_per_s",
        r->tokens_per_s, "mfu", r->mfu, "step_parts_seconds", parts, "sent_tp", traffic_json(&r->tp),
        "sent_cp", traffic_json(&r->cp), "sent_ep", traffic_json(&r->ep), "sent_dp", traffic_json(&r->dp),
        "sent_pp", traffic_json(&r->pp), "stages", stages);
    const bool starts = mesh_lacks(why, p, &v->mesh) == NULL;
    json_object_set_new(o, "starts", json_boolean(starts));
    if (!starts) json_object_set_new(o, "predicted_only", json_string(why));
    return o;
}

static json_t *machine_json(const struct mesh_plan *p)
{
    json_t *o = json_pack("{s:s, s:i, s:i, s:f, s:f, s:b}", "machine", p->cluster.machine->name, "devices",
                          p->cluster.devices, "devices_per_node", p->cluster.node, "device_bytes", p->bytes,
                          "peak_flops_per_s", p->peak, "own_layout", p->own_layout);
    char assumed[ASSUME_TEXT];
    json_object_set_new(o, "assumed", json_string(assume_text(assumed, &p->assume)));
    if (is_fp8(p)) json_object_set_new(o, "fp8_rates_measured", json_boolean(p->cluster.machine->measured_8));
    if (is_current(p)) json_object_set_new(o, "gemms_read_codes", json_boolean(reads_codes(p)));
    return o;
}

static void set_copies(json_t *root, const struct mesh_plan *p, const struct mesh_result *r, double copies)
{
    json_object_set_new(root, "checkpoint_copies_bytes_per_host", json_real(copies));
    json_object_set_new(root, "checkpoint_copies_missing_bytes", json_real(mesh_save_misses(p, r, copies)));
}

static int by_step(const void *a, const void *b)
{
    const double x = (*(struct mesh_result *const *)a)->step, y = (*(struct mesh_result *const *)b)->step;
    return (x > y) - (x < y);
}

static status print_json(const struct mesh_plan *p, const struct mesh_list *list)
{
    struct shown s;
    shown_of(p, list, &s);
    qsort(s.row, (size_t)s.count, sizeof s.row[0], by_step);
    for (int i = 0; i < s.count; i++) TRY(mesh_plan_layout(p, s.row[i]));
    const struct mesh_result *chosen = mesh_list_chosen(list, p->command.predicted);
    double copies = 0;
    if (chosen) TRY(mesh_save_copies(p, chosen, &copies));
    json_t *best = json_array(), *root = machine_json(p);
    for (int i = 0; i < s.count; i++) json_array_append_new(best, result_json(p, s.row[i]));
    json_object_set_new(root, "variants", json_integer(list->legal));
    json_object_set_new(root, "variants_that_fit", json_integer(list->fit));
    json_object_set_new(root, "meshes", best);
    json_object_set_new(root, "least_memory", result_json(p, &list->least));
    if (chosen) json_object_set_new(root, "mesh", result_json(p, chosen));
    if (chosen) json_object_set_new(root, "run", run_json(p, chosen, list));
    if (chosen) set_past(root, p, chosen);
    if (mesh_copies_bytes(p) > 0)
        json_object_set_new(root, "memory_copies_bytes", json_real(mesh_copies_bytes(p)));
    if (chosen) set_copies(root, p, chosen, copies);
    json_dumpf(root, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(root);
    return STATUS_OK;
}

/* Says what would make the nearest candidate fit. */
static status miss(const struct mesh_plan *p, const struct mesh_result *r, const char *what)
{
    char text[192], a[32], b[32], c[32];
    const struct mesh_memory *m = &r->stages[r->fullest].memory;
    if (mesh_result_bytes(r) <= p->bytes && p->cluster.machine->kind == DEV_CPU)
        return FAIL(STATUS_OUT_OF_MEMORY,
                    "%s: %s needs %s, and two copies of its state %s (ckpt.memory_every), of %s per device: "
                    "leave the key out, or take optim.state=int8",
                    what, variant_text(text, r), text_bytes(a, mesh_result_bytes(r)),
                    text_bytes(b, mesh_copies_bytes(p)), text_bytes(c, p->bytes));
    if (mesh_result_bytes(r) <= p->bytes)
        return FAIL(
            STATUS_OUT_OF_MEMORY,
            "%s: %s needs %s of the host's memory per device, which has %s for it: take more devices, "
            "parallel.zero, or memory.offload_optimizer=false",
            what, variant_text(text, r), text_bytes(a, mesh_host_bytes(p, r)),
            text_bytes(b, mesh_host_max(p)));
    const double state = m->weights + m->grads + m->optim, act = m->act + m->scratch + m->buffers;
    return FAIL(STATUS_OUT_OF_MEMORY, "%s: %s needs %s of %s per device, %.0f %% of it %s", what,
                variant_text(text, r), text_bytes(a, mesh_result_bytes(r)), text_bytes(b, p->bytes),
                100 * fmax(state, act) / mesh_result_bytes(r),
                state > act
                    ? "weights, gradients and moments: take more devices, parallel.zero, or a smaller "
                      "optim.state"
                    : "activations: shorten train.sequence_length, or take train.recompute=full, a "
                      "smaller train.micro_batch or more devices");
}

static status print_search(struct mesh_plan *p, bool json)
{
    struct mesh_list list;
    status st = STATUS_OK;
    TRY(mesh_plan_search(p, &list));
    if (json) {
        st = print_json(p, &list);
    } else {
        print_head(p);
        if (list.count > 0) print_table(p, &list);
        const struct mesh_result *chosen = mesh_list_chosen(&list, p->command.predicted);
        st = print_details(p, chosen ? chosen : &list.least);
        print_other(p, &list);
    }
    if (st == STATUS_OK && list.count == 0) st = miss(p, &list.least, "no mesh fits; the nearest");
    mesh_list_free(&list);
    return st;
}

/* Reports a faster uneven split, if there is one. */
static status print_faster(struct mesh_plan *p, const struct mesh_result *r)
{
    struct mesh_variant v = r->variant;
    struct mesh_result uneven;
    char text[64];
    if (v.mesh.pp == 1 || v.mesh.chunks > 1 || v.mesh.layers[0] > 0) return STATUS_OK;
    TRY(mesh_plan_balance(p, &v));
    TRY(mesh_plan_one(p, &v, &uneven));
    if (uneven.step > 0.99 * r->step || uneven.fits < r->fits) return STATUS_OK;
    char time[32];
    snprintf(text, sizeof text, " would take %s", text_time(time, uneven.step));
    print_uneven(&v.mesh, text);
    return STATUS_OK;
}

static status print_given(struct mesh_plan *p, bool json)
{
    struct mesh_result r;
    double copies;
    TRY(mesh_plan_given(p, &r));
    TRY(mesh_save_copies(p, &r, &copies));
    if (json) {
        json_t *root = machine_json(p);
        json_object_set_new(root, "mesh", result_json(p, &r));
        set_copies(root, p, &r, copies);
        if (r.fits) json_object_set_new(root, "run", run_json(p, &r, NULL));
        set_past(root, p, &r);
        json_dumpf(root, stdout, JSON_INDENT(2));
        printf("\n");
        json_decref(root);
    } else {
        print_head(p);
        TRY(print_details(p, &r));
        TRY(print_faster(p, &r));
    }
    return r.fits ? STATUS_OK : miss(p, &r, "the mesh of parallel.* does not fit");
}

status mesh_plan_print(const struct spec *s, const char *machine, const struct plan_command *command,
                       bool json)
{
    struct cluster c;
    struct mesh_plan *p;
    TRY(cluster_parse(machine, &c));
    c.assume = command->assume;
    TRY(mesh_plan_open(&p, s, &c));
    p->command = *command;
    status st = mesh_plan_is_given(&s->run) ? print_given(p, json) : print_search(p, json);
    mesh_plan_close(p);
    return st;
}
