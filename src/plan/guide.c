#include "plan/guide.h"
#include "base/text.h"
#include "model/param_count.h"
#include "ops/precision.h"
#include "plan/mesh_choose.h"
#include "plan/mesh_plan_int.h"
#include "plan/table.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_PER_PARAMETER 20 /* Chinchilla, arXiv:2203.15556 */

static const char *const policies[] = {
#define WORD(prefix, value, word) [prefix##_##value] = (word),
    RECOMPUTE_WORDS(WORD)
#undef WORD
};

/* The dense presets of one kind of layer, from small to large. */
static const char *const sizes[] = {"gpt2-124m", "medium", "large", "llama-1b", "xl", "7b", "13b", "70b"};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* Tokens of the batch with the least loss after `tokens`, and the learning rate: Step Law (arXiv:2503.04715). */
struct guide_law {
    double batch, lr;
};
static struct guide_law guide_law(double parameters, double tokens)
{
    return (struct guide_law){.batch = 0.58 * pow(tokens, 0.571),
                              .lr = 1.79 * pow(parameters, -0.713) * pow(tokens, 0.307)};
}

static double parameters_of(const struct spec *s)
{
    return (double)model_param_count(&s->model, s->model.vocab_size);
}

/* The run with another model: a preset's. */
static status with_preset(const struct spec *run, const char *preset, struct spec *out)
{
    *out = *run;
    TRY(preset_find(preset, &out->model));
    if (out->model.vocab_size == 0) out->model.vocab_size = run->model.vocab_size;
    if (out->model.context_length < run->run.train_sequence_length)
        out->model.context_length = run->run.train_sequence_length;
    spec_resolve(out);
    return STATUS_OK;
}

static status open_plan(const struct spec *s, const struct guide_args *a, const struct cluster *c,
                        struct mesh_plan **p)
{
    struct cluster assumed = *c;
    assumed.assume = a->command.assume;
    TRY(mesh_plan_open(p, s, &assumed));
    (*p)->command = a->command;
    return STATUS_OK;
}

/* So many devices of the machine's kind. */
static struct cluster resized(const struct cluster *c, int devices)
{
    struct cluster r = *c;
    r.devices = devices;
    r.node = devices < c->machine->node ? devices : c->machine->node;
    return r;
}

/* The fastest mesh of a cluster. *fits false: the one that needs least, or, with no devices, none, for the reason in
 * status_message(). */
static status fastest(const struct spec *s, const struct guide_args *a, const struct cluster *c,
                      struct mesh_result *r, bool *fits)
{
    struct mesh_plan *p;
    *r = (struct mesh_result){0};
    TRY(open_plan(s, a, c, &p));
    const status st = mesh_choose(p, r);
    *fits = st == STATUS_OK;
    if (st == STATUS_CONFIG) *r = (struct mesh_result){0};
    mesh_plan_close(p);
    return st == STATUS_OUT_OF_MEMORY || st == STATUS_CONFIG ? STATUS_OK : st;
}

/* What does not fit has the mesh that needs least memory, and no speed. */
static void add_mesh(json_t *row, const struct mesh_result *r, bool fits)
{
    const struct mesh_variant *v = &r->variant;
    char axes[MESH_AXES], text[MESH_AXES + 32];
    json_object_set_new(row, "fits", json_string(fits ? "yes" : "no"));
    if (v->mesh.dp == 0) {
        json_object_set_new(row, "why", json_string(status_message()));
        return;
    }
    snprintf(text, sizeof text, "%s, ZeRO %d", mesh_axes(axes, &v->mesh), v->mesh.zero);
    json_object_set_new(row, "mesh", json_string(text));
    json_object_set_new(row, "recompute", json_string(policies[v->recompute]));
    json_object_set_new(row, "micro_batch", json_integer((json_int_t)v->micro_batch));
    json_object_set_new(row, "micro_batches", json_integer(r->micros));
    json_object_set_new(row, "memory_bytes", json_real(mesh_result_bytes(r)));
    if (!fits) return;
    json_object_set_new(row, "step_seconds", json_real(r->step));
    json_object_set_new(row, "tokens_per_s", json_real(r->tokens_per_s));
    json_object_set_new(row, "mfu", json_real(r->mfu));
}

/* ---- batch */

/* The nearest number of sequences that all of `devices` can share. */
static int64_t sequences_near(double tokens, int64_t length, int devices)
{
    const double shares = round(tokens / (double)length / devices);
    return devices * (shares < 1 ? 1 : (int64_t)shares);
}

static status batch_rows(const struct spec *run, const struct guide_args *a, const struct cluster *c,
                         json_t *rows)
{
    for (int i = 0; i < SIZES; i++) {
        struct spec s;
        struct mesh_result r;
        bool fits;
        TRY(with_preset(run, sizes[i], &s));
        const double n = parameters_of(&s),
                     tokens = a->outlook.tokens > 0 ? a->outlook.tokens : TOKENS_PER_PARAMETER * n;
        const struct guide_law law = guide_law(n, tokens);
        const int64_t length = s.run.train_sequence_length;
        s.run.train_batch_tokens = length * sequences_near(law.batch, length, c->devices);
        json_t *row = json_pack("{s:s, s:f, s:f, s:f, s:f, s:I}", "model", sizes[i], "parameters", n,
                                "tokens", tokens, "law_batch_tokens", law.batch, "lr", law.lr, "batch_tokens",
                                (json_int_t)s.run.train_batch_tokens);
        json_object_set_new(row, "steps", json_real(ceil(tokens / (double)s.run.train_batch_tokens)));
        json_array_append_new(rows, row);
        TRY(fastest(&s, a, c, &r, &fits));
        add_mesh(row, &r, fits);
    }
    return STATUS_OK;
}

/* ---- memory */

static const struct {
    const char *words;
    enum precision precision;
    enum optim_state state;
} kinds[] = {{"fp32", PRECISION_FP32, OPTIM_STATE_FP32},
             {"bf16", PRECISION_BF16, OPTIM_STATE_FP32},
             {"bf16, moments bf16", PRECISION_BF16, OPTIM_STATE_BF16},
             {"bf16, moments int8", PRECISION_BF16, OPTIM_STATE_INT8},
             {"fp8", PRECISION_FP8, OPTIM_STATE_FP32}};

static status memory_row(const struct spec *s, const struct guide_args *a, const struct cluster *c,
                         json_t *row)
{
    static const char *const keys[] = {"none_bytes", "selective_bytes", "full_bytes"};
    struct mesh_plan *p;
    struct mesh_result r;
    TRY(open_plan(s, a, c, &p));
    status st = STATUS_OK;
    for (int policy = RECOMPUTE_NONE; st == STATUS_OK && policy <= RECOMPUTE_FULL; policy++) {
        const struct mesh_variant v = {
            .mesh = {.pp = 1, .dp = c->devices, .tp = 1, .chunks = 1, .shard = c->devices},
            .recompute = (enum recompute)policy,
            .micro_batch = 1};
        struct mesh_variant shared = v;
        shared.mesh.zero = c->devices == 1 ? 0 : 3;
        st = mesh_plan_one(p, &shared, &r);
        if (st == STATUS_OK) st = mesh_plan_layout(p, &r);
        const struct mesh_memory *m = &r.stages[0].memory;
        if (st == STATUS_OK) json_object_set_new(row, keys[policy], json_real(mesh_result_bytes(&r)));
        if (st == STATUS_OK && policy == RECOMPUTE_NONE)
            json_object_set_new(row, "state_bytes", json_real(m->weights + m->grads + m->optim));
        if (st == STATUS_OK && r.fits && json_object_get(row, "least") == NULL) {
            json_object_set_new(row, "least", json_string(policies[policy]));
        }
    }
    if (json_object_get(row, "least") == NULL) json_object_set_new(row, "least", json_string("does not fit"));
    mesh_plan_close(p);
    return st;
}

static status memory_rows(const struct spec *run, const struct guide_args *a, const struct cluster *c,
                          json_t *rows)
{
    for (int i = 0; i < SIZES; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            struct spec s;
            TRY(with_preset(run, sizes[i], &s));
            s.run.train_precision = (int)kinds[k].precision, s.run.optim_state = (int)kinds[k].state;
            s.run.train_micro_batch = 1, s.run.train_gradient_groups = 0;
            s.run.train_batch_tokens =
                2 * c->devices * s.run.train_sequence_length; /* gradients have a place of their own */
            json_t *row = json_pack("{s:s, s:f, s:s}", "model", sizes[i], "parameters", parameters_of(&s),
                                    "precision", kinds[k].words);
            const status st = memory_row(&s, a, c, row);
            if (st == STATUS_OK)
                json_array_append_new(rows, row);
            else
                json_decref(row);
            if (st != STATUS_OK && st != STATUS_CONFIG)
                return st; /* a machine without this precision has no row */
        }
    return STATUS_OK;
}

/* ---- speed */

static status speed_rows(const struct spec *s, const struct guide_args *a, const struct cluster *c,
                         json_t *rows)
{
    enum { FIRST = 8, LAST = 16384 };
    double one = 0;
    for (int devices = FIRST; devices <= LAST; devices *= 2) {
        const struct cluster many = resized(c, devices);
        struct mesh_result r;
        bool fits;
        TRY(fastest(s, a, &many, &r, &fits));
        json_t *row = json_pack("{s:i}", "devices", devices);
        json_array_append_new(rows, row);
        add_mesh(row, &r, fits);
        if (!fits) continue;
        const double each = r.tokens_per_s / devices;
        if (one == 0) one = each;
        json_object_set_new(row, "tokens_per_s_device", json_real(each));
        json_object_set_new(row, "days_per_1t_tokens", json_real(1e12 / r.tokens_per_s / 86400));
        json_object_set_new(row, "scaling", json_real(each / one));
    }
    return STATUS_OK;
}

/* ---- power */

/* Watts of each device, alone or with its share of the system, and what that makes of a run; nothing where they are not
 * known. The site's share (--pue) is on top of the system's. */
static void add_watts(json_t *row, const char *of, double watts, const struct outlook *o,
                      const struct cluster *c)
{
    char key[32];
    if (watts <= 0) return;
    snprintf(key, sizeof key, "%s_watts", of);
    json_object_set_new(row, key, json_real(watts));
    snprintf(key, sizeof key, "%s_mwh", of);
    json_object_set_new(row, key, json_real(watts * c->devices * o->seconds / 3.6e9));
}

static status power_row(const struct spec *s, const struct guide_args *a, const struct cluster *c,
                        json_t *rows)
{
    struct mesh_plan *p;
    struct mesh_result r = {0};
    struct outlook o;
    struct outlook_args looks = a->outlook;
    looks.tokens = looks.tokens > 0 ? looks.tokens : 1e12;
    TRY(open_plan(s, a, c, &p));
    status st = mesh_choose(p, &r);
    const bool fits = st == STATUS_OK, refused = st == STATUS_CONFIG;
    if (fits) st = outlook_of(p, &r, r.step, &looks, &o);
    mesh_plan_close(p);
    if (fits || (st != STATUS_OUT_OF_MEMORY && st != STATUS_CONFIG)) TRY(st);
    if (refused) r = (struct mesh_result){0};
    json_t *row = json_pack("{s:s, s:i}", "machine", c->machine->name, "devices", c->devices);
    json_array_append_new(rows, row);
    add_mesh(row, &r, fits);
    if (!fits) return STATUS_OK;
    json_object_set_new(row, "watts", json_real(o.watts));
    json_object_set_new(row, "power_of", json_string(o.system ? "system" : "device"));
    json_object_set_new(row, "joules_per_token",
                        json_real(o.watts * a->outlook.pue * c->devices / r.tokens_per_s));
    json_object_set_new(row, "mwh", json_real(o.joules / 3.6e9));
    add_watts(row, "device", o.device_watts, &o, c);
    add_watts(row, "system", o.system_watts, &o, c);
    json_object_set_new(row, "seconds", json_real(o.seconds));
    return STATUS_OK;
}

static status power_rows(const struct spec *s, const struct guide_args *a, const struct cluster *c,
                         json_t *rows)
{
    static const char known[] =
#define POWER(name, device, system) #name ","
#include "plan/power.def"
#undef POWER
        "";
    char copy[1024], *save = NULL;
    snprintf(copy, sizeof copy, "%s", a->compare ? a->compare : known);
    for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        struct cluster one, many;
        TRY(cluster_parse(item, &one));
        many = resized(&one, isdigit((unsigned char)item[0]) ? one.devices : c->devices);
        const status st = power_row(s, a, &many, rows);
        if (st != STATUS_OK && st != STATUS_CONFIG) return st;
    }
    return STATUS_OK;
}

/* ---- which table */

static const struct table_column batch_columns[] = {{"model", "model", TABLE_TEXT},
                                                    {"parameters", "parameters", TABLE_COUNT},
                                                    {"tokens", "tokens", TABLE_COUNT},
                                                    {"law_batch_tokens", "best batch", TABLE_COUNT},
                                                    {"batch_tokens", "batch", TABLE_COUNT},
                                                    {"steps", "steps", TABLE_COUNT},
                                                    {"lr", "lr", TABLE_NUMBER},
                                                    {"fits", "fits", TABLE_TEXT},
                                                    {"mesh", "mesh", TABLE_TEXT},
                                                    {"micro_batch", "micro", TABLE_WHOLE},
                                                    {"micro_batches", "m", TABLE_WHOLE},
                                                    {"recompute", "recompute", TABLE_TEXT},
                                                    {"memory_bytes", "memory", TABLE_BYTES},
                                                    {"tokens_per_s", "tokens/s", TABLE_COUNT}};
static const struct table_column memory_columns[] = {
    {"model", "model", TABLE_TEXT},         {"parameters", "parameters", TABLE_COUNT},
    {"precision", "precision", TABLE_TEXT}, {"state_bytes", "state", TABLE_BYTES},
    {"none_bytes", "all", TABLE_BYTES},     {"selective_bytes", "selective", TABLE_BYTES},
    {"full_bytes", "full", TABLE_BYTES},    {"least", "train.recompute", TABLE_TEXT}};
static const struct table_column speed_columns[] = {{"devices", "devices", TABLE_WHOLE},
                                                    {"fits", "fits", TABLE_TEXT},
                                                    {"tokens_per_s", "tokens/s", TABLE_COUNT},
                                                    {"tokens_per_s_device", "each", TABLE_COUNT},
                                                    {"mfu", "MFU", TABLE_PERCENT},
                                                    {"scaling", "scaling", TABLE_PERCENT},
                                                    {"days_per_1t_tokens", "days/1T", TABLE_NUMBER},
                                                    {"step_seconds", "step", TABLE_TIME},
                                                    {"memory_bytes", "memory", TABLE_BYTES},
                                                    {"micro_batch", "micro", TABLE_WHOLE},
                                                    {"micro_batches", "m", TABLE_WHOLE},
                                                    {"recompute", "recompute", TABLE_TEXT},
                                                    {"mesh", "mesh", TABLE_TEXT},
                                                    {"why", "why not", TABLE_TEXT}};
static const struct table_column power_columns[] = {{"machine", "machine", TABLE_TEXT},
                                                    {"devices", "devices", TABLE_WHOLE},
                                                    {"fits", "fits", TABLE_TEXT},
                                                    {"device_watts", "device W", TABLE_WHOLE},
                                                    {"system_watts", "system W", TABLE_WHOLE},
                                                    {"tokens_per_s", "tokens/s", TABLE_COUNT},
                                                    {"mfu", "MFU", TABLE_PERCENT},
                                                    {"joules_per_token", "J/token", TABLE_NUMBER},
                                                    {"device_mwh", "device MWh", TABLE_NUMBER},
                                                    {"system_mwh", "system MWh", TABLE_NUMBER},
                                                    {"mwh", "MWh", TABLE_NUMBER},
                                                    {"seconds", "time", TABLE_TIME},
                                                    {"mesh", "mesh", TABLE_TEXT},
                                                    {"why", "why not", TABLE_TEXT}};

struct guide {
    const char *name;
    status (*rows)(const struct spec *s, const struct guide_args *a, const struct cluster *c, json_t *rows);
    const struct table_column *columns;
    int count;
    const char *words; /* what the columns mean */
};
#define COLUMNS(list) list, (int)(sizeof list / sizeof list[0])
static const struct guide guides[] = {
    {"batch", batch_rows, COLUMNS(batch_columns),
     "best batch, lr: Step Law (arXiv:2503.04715), of --tokens or 20 "
     "tokens per parameter; batch: the nearest that "
     "the devices share; mesh: the fastest that fits"},
    {"memory", memory_rows, COLUMNS(memory_columns),
     "per device, one sequence at once: state, and all of it by "
     "train.recompute none, selective, full; on several "
     "devices the state is sharded (ZeRO 3)"},
    {"speed", speed_rows, COLUMNS(speed_columns),
     "each: tokens/s per device; scaling: of each against the first row; "
     "the step's tokens are train.batch_tokens in "
     "every row"},
    {"power", power_rows, COLUMNS(power_columns),
     "W: the maker's per device: of the device alone, and of the system with its "
     "share of hosts and switches; J/token and MWh: of the system where it is "
     "known, else of the device, with the site's share (--pue); time: of --tokens or 1T, "
     "with failures and checkpoints"}};

static status print_rows(const struct guide *g, const struct spec *s, const struct guide_args *a,
                         const struct cluster *c)
{
    char text[64];
    json_t *rows = json_array();
    status st = g->rows(s, a, c, rows);
    if (st == STATUS_OK && a->json) {
        json_t *root = json_pack("{s:s, s:s, s:i, s:O}", "table", g->name, "machine", c->machine->name,
                                 "devices", c->devices, "rows", rows);
        json_dumpf(root, stdout, JSON_INDENT(2));
        printf("\n");
        json_decref(root);
    } else if (st == STATUS_OK) {
        printf("machine      %s, sequences of %lld\n\n", cluster_text(text, c),
               (long long)s->run.train_sequence_length);
        table_print(g->columns, g->count, rows);
        printf("\n");
        text_wrap(stdout, 0, 0, 100, g->words);
    }
    json_decref(rows);
    return st;
}

status guide_print(const struct spec *s, const char *which, const struct guide_args *a)
{
    struct cluster c;
    for (size_t i = 0; i < sizeof guides / sizeof guides[0]; i++) {
        if (strcmp(guides[i].name, which) != 0) continue;
        TRY(cluster_parse(a->machine, &c));
        return print_rows(&guides[i], s, a, &c);
    }
    return FAIL(STATUS_CONFIG, "plan: --table %s: the tables are batch, memory, speed, power", which);
}

/* ---- capacity */

static const struct table_column capacity_columns[] = {{"model", "model", TABLE_TEXT},
                                                       {"parameters", "parameters", TABLE_COUNT},
                                                       {"fits", "fits", TABLE_TEXT},
                                                       {"memory_bytes", "memory", TABLE_BYTES},
                                                       {"tokens_per_s", "tokens/s", TABLE_COUNT},
                                                       {"mfu", "MFU", TABLE_PERCENT},
                                                       {"micro_batch", "micro", TABLE_WHOLE},
                                                       {"recompute", "recompute", TABLE_TEXT},
                                                       {"mesh", "mesh", TABLE_TEXT},
                                                       {"why", "why not", TABLE_TEXT}};

static status capacity_row(const char *name, const struct spec *s, const struct guide_args *a,
                           const struct cluster *c, json_t *rows, bool *fits)
{
    struct mesh_result r;
    TRY(fastest(s, a, c, &r, fits));
    json_t *row = json_pack("{s:s, s:f}", "model", name, "parameters", parameters_of(s));
    json_array_append_new(rows, row);
    add_mesh(row, &r, *fits);
    return STATUS_OK;
}

/* A model of the 70B's proportions with so many blocks of 8 layers: width 102.4 per layer, heads of 128. */
static struct spec scaled(const struct spec *run, int64_t eighths)
{
    struct spec s = *run;
    if (preset_find("70b", &s.model) != STATUS_OK) CHECK(false, "the preset 70b");
    s.model.layer_count = 8 * eighths;
    s.model.head_count = (int64_t)(0.8 * 8 * (double)eighths + 7) / 8 * 8;
    s.model.head_count_kv = 8;
    s.model.hidden_size = 128 * s.model.head_count;
    s.model.ffn_size = s.model.hidden_size * 7 / 2;
    s.model.layers[0] = 0;
    snprintf(s.model.layers, sizeof s.model.layers, "gqa");
    if (s.model.context_length < s.run.train_sequence_length)
        s.model.context_length = s.run.train_sequence_length;
    spec_resolve(&s);
    return s;
}

/* Doubles, then halves: more layers need more memory. */
static status add_largest(const struct spec *run, const struct guide_args *a, const struct cluster *c,
                          json_t *rows)
{
    enum { EIGHTHS_MAX = 128 };
    struct mesh_result r;
    int64_t low = 0, high = 1;
    bool fits = true;
    while (fits && high <= EIGHTHS_MAX) {
        const struct spec s = scaled(run, high);
        TRY(fastest(&s, a, c, &r, &fits));
        if (fits) low = high, high *= 2;
    }
    while (high - low > 1 && low > 0) {
        const int64_t middle = (low + high) / 2;
        const struct spec s = scaled(run, middle);
        TRY(fastest(&s, a, c, &r, &fits));
        *(fits ? &low : &high) = middle;
    }
    if (low == 0) return STATUS_OK;
    char name[64];
    const struct spec s = scaled(run, low);
    snprintf(name, sizeof name, "the largest: %lld layers of %lld", (long long)s.model.layer_count,
             (long long)s.model.hidden_size);
    return capacity_row(name, &s, a, c, rows, &fits);
}

static status capacity_rows(const struct spec *run, const struct guide_args *a, const struct cluster *c,
                            json_t *rows, int *fit)
{
    bool fits;
    TRY(capacity_row("this run's", run, a, c, rows, &fits));
    *fit = fits;
    for (int i = 0; i < preset_count(); i++) {
        struct spec s;
        if (with_preset(run, preset_name(i), &s) != STATUS_OK || s.model.vocab_size == 0) continue;
        TRY(capacity_row(preset_name(i), &s, a, c, rows, &fits));
        *fit += fits;
    }
    return add_largest(run, a, c, rows);
}

status capacity_print(const struct spec *s, const struct guide_args *a)
{
    struct cluster c;
    char text[64], tokens[32];
    json_t *rows = json_array();
    int fit = 0;
    status st = cluster_parse(a->machine, &c);
    if (st == STATUS_OK) st = capacity_rows(s, a, &c, rows, &fit);
    if (st == STATUS_OK && a->json) {
        json_t *root = json_pack("{s:s, s:i, s:i, s:O}", "machine", c.machine->name, "devices", c.devices,
                                 "fit", fit, "models", rows);
        json_dumpf(root, stdout, JSON_INDENT(2));
        printf("\n");
        json_decref(root);
    } else if (st == STATUS_OK) {
        printf("machine      %s, %s tokens per step in sequences of %lld\n\n", cluster_text(text, &c),
               text_count(tokens, (double)s->run.train_batch_tokens),
               (long long)s->run.train_sequence_length);
        table_print(capacity_columns, (int)(sizeof capacity_columns / sizeof capacity_columns[0]), rows);
        printf("\nthe largest: of the 70b's proportions, in steps of 8 layers\n");
    }
    json_decref(rows);
    if (st == STATUS_OK && fit == 0)
        return FAIL(STATUS_OUT_OF_MEMORY,
                    "no preset fits %s: take more devices, or shorten train.sequence_length",
                    cluster_text(text, &c));
    return st;
}
