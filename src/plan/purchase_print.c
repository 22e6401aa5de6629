#include "plan/purchase.h"
#include "base/text.h"
#include "model/param_count.h"
#include "plan/amounts.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static const char *recompute_of(const struct mesh_variant *v)
{
    static const char *const words[] = {
#define WORD(prefix, value, word) [prefix##_##value] = (word),
        RECOMPUTE_WORDS(WORD)
#undef WORD
    };
    return words[v->recompute];
}

/* "dp 8 x tp 4 x pp 2, interleaved 4, ZeRO 1, recompute full". Returns buf. */
static const char *purchase_mesh(char buf[128], const struct mesh_result *r)
{
    static const char *const schedules[] = {
#define WORD(prefix, value, word) [prefix##_##value] = (word),
        PIPELINE_WORDS(WORD)
#undef WORD
    };
    const struct mesh_variant *v = &r->variant;
    char axes[MESH_AXES];
    int used = snprintf(buf, 128, "%s", mesh_axes(axes, &v->mesh));
    if (v->mesh.pp > 1)
        used += snprintf(buf + used, (size_t)(128 - used), ", %s", schedules[v->mesh.schedule]);
    if (v->mesh.chunks > 1) used += snprintf(buf + used, (size_t)(128 - used), " %d", v->mesh.chunks);
    if (v->mesh.zero > 0) used += snprintf(buf + used, (size_t)(128 - used), ", ZeRO %d", v->mesh.zero);
    if (v->recompute != RECOMPUTE_NONE)
        snprintf(buf + used, (size_t)(128 - used), ", recompute %s", recompute_of(v));
    return buf;
}

/* "3.6 GWh", "812 kWh". Returns buf. */
static const char *text_energy(char buf[32], double joules)
{
    static const char *const units[] = {"Wh", "kWh", "MWh", "GWh", "TWh"};
    double value = joules / 3600;
    int unit = 0;
    for (; value >= 1000 && unit < 4; unit++) value /= 1000;
    snprintf(buf, 32, "%.3g %s", value, units[unit]);
    return buf;
}

static const char *text_money(char buf[32], double money)
{
    return money > 0 ? amount_number(buf, money) : "-";
}

static void print_head(const struct spec *s, const struct purchase_args *a, const struct outlook *l)
{
    char b[32], c[32], d[32];
    printf("run          %s parameters, %s tokens in %.0f steps of %s",
           text_count(b, (double)model_param_count(&s->model, s->model.vocab_size)), text_count(c, l->tokens),
           l->steps, text_count(d, (double)s->run.train_batch_tokens));
    if (a->deadline > 0) printf("; within %s", text_time(b, a->deadline));
    printf("\n");
}

static void print_rows(const struct purchase_answer *x)
{
    char a[32], b[32], c[32], d[32], e[32], mesh[128];
    printf("\n  %7s  %9s %11s %10s %9s %9s %8s %7s  %s\n", "devices", "step", "wall time", "dev. hours",
           "money", "energy", "failures", "goodput", "mesh");
    for (int i = 0; i < x->count; i++) {
        const struct purchase_offer *o = &x->tried[i];
        const struct outlook *l = &o->outlook;
        printf("%c %7d  %9s %11s %10s %9s %9s %8.1f %5.1f %%  %s%s\n", i == x->best ? '*' : ' ',
               o->cluster.devices, text_time(a, l->step), text_time(b, l->seconds),
               amount_number(c, l->device_hours), text_money(d, l->money),
               l->joules > 0 ? text_energy(e, l->joules) : "-", l->failures, 100 * l->goodput.trains,
               purchase_mesh(mesh, &o->mesh), o->lacks[0] ? "; predicted only" : "");
    }
}

static void print_failures(const struct outlook *l)
{
    char a[32], b[32], failures[64], checkpoints[AMOUNT_CHECKPOINTS];
    if (isinf(l->job.mtbf)) {
        printf("  failures   none are assumed\n");
    } else {
        printf("  failures   %s, one in %s (%.0f device hours); goodput %.1f %%\n",
               amount_failures(failures, l->failures), text_time(a, l->job.mtbf / l->job.devices),
               l->job.mtbf / 3600, 100 * l->goodput.trains);
        printf("  checkpoint %s\n", amount_checkpoints(checkpoints, l));
    }
    printf("  storage    %s for the checkpoints that are kept; %s are assumed", text_bytes(a, l->kept_bytes),
           amount_rate(b, l->storage));
    if (l->storage_one > 0 && l->job.write == 0)
        printf("; %s would keep saves and lost work at 1 %%", amount_rate(b, l->storage_one));
    printf("\n");
}

static void print_start(const struct spec *s, const struct purchase_args *a, const struct purchase_offer *o)
{
    const bool gpu = o->cluster.machine->kind == DEV_CUDA;
    const struct plan_devices d = {.count = o->cluster.devices,
                                   .host = cluster_host(&o->cluster),
                                   .unit = gpu ? "GPU" : "device",
                                   .gpu = gpu};
    const struct mesh_variant *v = &o->mesh.variant;
    char command[PLAN_COMMAND];
    if (o->lacks[0]) {
        printf("  start      predicted only: %s\n", o->lacks);
        return;
    }
    printf("  start      %s",
           duration_command(command, s, &a->command, &d, &v->mesh, (int)v->recompute, v->micro_batch));
    if (a->outlook.tokens > 0) printf(" --train.tokens=%.0f", a->outlook.tokens);
    printf("\n");
}

static void print_offer(const struct spec *s, const struct purchase_args *a, const struct purchase_offer *o)
{
    const struct outlook *l = &o->outlook;
    char b[64], c[32], d[32], mesh[128];
    printf("\n%s: %s, %d micro-batch%s of %lld\n", cluster_text(b, &o->cluster),
           purchase_mesh(mesh, &o->mesh), o->mesh.micros, o->mesh.micros > 1 ? "es" : "",
           (long long)o->mesh.variant.micro_batch);
    printf("  time       %s, of which %s of training at %s per step (MFU %.1f %%)\n",
           text_time(b, l->seconds), text_time(c, l->steps * l->step), text_time(d, l->step),
           100 * o->mesh.mfu);
    printf("  memory     %s of %s on the fullest device\n", text_bytes(b, mesh_result_bytes(&o->mesh)),
           text_bytes(c, o->device_bytes));
    printf("  cost       %s device hours", amount_number(b, l->device_hours));
    if (l->money > 0) printf(": %s", amount_number(c, l->money));
    if (l->money == 0) printf("; --price X says what they cost");
    if (l->joules > 0)
        printf("; %s (%.0f W per device%s, PUE %.3g)", text_energy(d, l->joules), l->watts,
               l->system ? " with its part of the system" : " alone", a->outlook.pue);
    printf("\n");
    print_failures(l);
    print_start(s, a, o);
    if (o->faster > 0)
        printf(
            "  faster     %s per step (%+.0f %%) with a mesh that no command starts today: --predicted plans "
            "it\n",
            text_time(b, o->faster), 100 * (o->faster / l->step - 1));
}

static json_t *offer_json(const struct purchase_offer *o)
{
    const struct outlook *l = &o->outlook;
    const struct mesh_variant *v = &o->mesh.variant;
    json_t *j =
        json_pack("{s:s, s:i, s:i, s:b, s:f, s:f, s:f, s:f, s:f, s:f}", "machine", o->cluster.machine->name,
                  "devices", o->cluster.devices, "devices_per_node", o->cluster.node, "in_time", o->in_time,
                  "step_seconds", l->step, "seconds", l->seconds, "device_hours", l->device_hours,
                  "tokens_per_s", o->mesh.tokens_per_s, "mfu", o->mesh.mfu, "goodput", l->goodput.trains);
    json_object_set_new(j, "mesh",
                        json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:I}", "dp", v->mesh.dp,
                                  "ep", mesh_ep(&v->mesh), "cp", mesh_cp(&v->mesh), "tp", v->mesh.tp, "pp",
                                  v->mesh.pp, "zero", v->mesh.zero, "chunks", v->mesh.chunks, "recompute",
                                  recompute_of(v), "micro_batches", o->mesh.micros, "micro_batch",
                                  (json_int_t)v->micro_batch));
    json_object_set_new(j, "starts", json_boolean(o->lacks[0] == 0));
    if (o->faster > 0) json_object_set_new(j, "predicted_only_step_seconds", json_real(o->faster));
    if (o->lacks[0]) json_object_set_new(j, "predicted_only", json_string(o->lacks));
    json_object_set_new(j, "memory_bytes", json_real(mesh_result_bytes(&o->mesh)));
    json_object_set_new(j, "device_bytes", json_real(o->device_bytes));
    if (l->money > 0) json_object_set_new(j, "money", json_real(l->money));
    if (l->joules > 0) json_object_set_new(j, "joules", json_real(l->joules));
    json_object_set_new(j, "failures", json_real(l->failures));
    if (isfinite(l->goodput.interval))
        json_object_set_new(j, "checkpoint_interval_seconds", json_real(l->goodput.interval));
    json_object_set_new(j, "checkpoint_bytes", json_real(l->checkpoint_bytes));
    json_object_set_new(j, "storage_bytes", json_real(l->kept_bytes));
    json_object_set_new(j, "storage_bytes_per_s", json_real(l->storage));
    json_object_set_new(j, "storage_bytes_per_s_for_one_percent", json_real(l->storage_one));
    return j;
}

static void print_json(const struct purchase_args *a, const struct purchase_answer *answers)
{
    json_t *kinds = json_array(), *root = json_object();
    if (a->deadline > 0) json_object_set_new(root, "deadline_seconds", json_real(a->deadline));
    for (int k = 0; k < a->count; k++) {
        const struct purchase_answer *x = &answers[k];
        json_t *tried = json_array(), *o = json_pack("{s:s}", "asked", a->kinds[k].machine);
        for (int i = 0; i < x->count; i++) json_array_append_new(tried, offer_json(&x->tried[i]));
        json_object_set_new(o, "tried", tried);
        if (x->best >= 0) json_object_set_new(o, "best", offer_json(&x->tried[x->best]));
        if (x->nearest >= 0) json_object_set_new(o, "nearest", offer_json(&x->tried[x->nearest]));
        if (x->why[0]) json_object_set_new(o, "why", json_string(x->why));
        json_array_append_new(kinds, o);
    }
    json_object_set_new(root, "kinds", kinds);
    json_dumpf(root, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(root);
}

static void print_comparison(const struct purchase_args *a, const struct purchase_answer *answers)
{
    char b[32], c[32], d[32], e[32], f[32], mesh[128];
    printf("\n%-10s %8s %11s %10s %9s %9s %8s %6s %11s  %s\n", "kind", "devices", "wall time", "dev. hours",
           "money", "energy", "failures", "MFU", "memory", "mesh");
    for (int k = 0; k < a->count; k++) {
        const struct purchase_answer *x = &answers[k];
        if (x->count == 0) {
            printf("%-10s does not fit: %s\n", a->kinds[k].machine, x->why);
            continue;
        }
        const struct purchase_offer *o = &x->tried[x->best >= 0 ? x->best : x->nearest];
        const struct outlook *l = &o->outlook;
        printf("%-10s %8d %11s %10s %9s %9s %8.1f %6.1f %11s  %s%s\n", o->cluster.machine->name,
               o->cluster.devices, text_time(b, l->seconds), amount_number(c, l->device_hours),
               text_money(d, l->money), l->joules > 0 ? text_energy(e, l->joules) : "-", l->failures,
               100 * o->mesh.mfu, text_bytes(f, mesh_result_bytes(&o->mesh)), purchase_mesh(mesh, &o->mesh),
               o->lacks[0] ? "; predicted only" : "");
    }
}

static void print_text(const struct spec *s, const struct purchase_args *a,
                       const struct purchase_answer *answers)
{
    for (int k = 0; k < a->count; k++) {
        if (answers[k].count == 0) continue;
        print_head(s, a, &answers[k].tried[0].outlook);
        break;
    }
    if (a->count > 1) print_comparison(a, answers);
    for (int k = 0; k < a->count; k++) {
        const struct purchase_answer *x = &answers[k];
        if (a->count == 1 && x->count > 1) print_rows(x);
        if (x->best >= 0) print_offer(s, a, &x->tried[x->best]);
    }
}

/* Nothing fits, or nothing is in time. */
static status verdict(const struct purchase_args *a, const struct purchase_answer *answers)
{
    const struct purchase_offer *nearest = NULL;
    char b[32], c[32], d[32];
    for (int k = 0; k < a->count; k++) {
        const struct purchase_answer *x = &answers[k];
        if (x->best >= 0) return STATUS_OK;
        if (x->nearest < 0) continue;
        const struct purchase_offer *o = &x->tried[x->nearest];
        if (nearest == NULL || o->outlook.seconds < nearest->outlook.seconds) nearest = o;
    }
    if (nearest == NULL)
        return FAIL(answers[0].impossible ? STATUS_CONFIG : STATUS_OUT_OF_MEMORY, "plan: %s", answers[0].why);
    return FAIL(STATUS_CONFIG,
                "plan: %s of %s tokens is not met; the nearest is %d x %s in %s. A larger train.batch_tokens "
                "keeps more "
                "devices busy",
                text_time(b, a->deadline), text_count(c, nearest->outlook.tokens), nearest->cluster.devices,
                nearest->cluster.machine->name, text_time(d, nearest->outlook.seconds));
}

status purchase_print(const struct spec *s, const struct purchase_args *a, const char *html, bool json)
{
    struct purchase_answer answers[PURCHASE_KINDS] = {0};
    status st = STATUS_OK;
    int looked = 0;
    for (; looked < a->count && st == STATUS_OK; looked++)
        st = purchase_look(s, a, &a->kinds[looked], &answers[looked]);
    if (st == STATUS_OK && json) print_json(a, answers);
    if (st == STATUS_OK && !json) print_text(s, a, answers);
    if (st == STATUS_OK && html) st = purchase_page(s, a, answers, html);
    if (st == STATUS_OK) st = verdict(a, answers);
    for (int k = 0; k < looked; k++) purchase_answer_free(&answers[k]);
    return st;
}
