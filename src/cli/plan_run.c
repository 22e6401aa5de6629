#include "cli/plan_run.h"
#include "base/text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct plan_run plan_run_default(void)
{
    const struct outlook_args d = outlook_default();
    /* Jitter is an assumption: no published spread of single actions was found. Llama 3's throughput varied by 1 to 2 %
     * over a day (arXiv:2407.21783, section 3.3.4). */
    return (struct plan_run){.jitter = 2,
                             .mtbf = d.mtbf,
                             .detect = d.detect,
                             .restart = d.restart,
                             .stall = -1,
                             .pue = d.pue,
                             .seed = 1,
                             .purchase = {.outlook = d}};
}

/* "15T", "300B" and whatever text_to_int takes. */
static bool tokens_of(const char *text, double *out)
{
    const double most = 1e18; /* as train.tokens */
    const size_t n = strlen(text);
    char head[64];
    int64_t whole;
    if (n > 1 && n < sizeof head && strchr("Tt", text[n - 1])) {
        snprintf(head, sizeof head, "%.*s", (int)(n - 1), text);
        return text_to_real(head, out) && (*out *= 1e12) >= 1 && *out <= most;
    }
    if (!text_to_int(text, &whole)) return text_to_real(text, out) && *out >= 1 && *out <= most;
    *out = (double)whole;
    return whole >= 1 && *out <= most;
}

/* "0.1:1.15": percent of the devices, and their factor. */
static status stragglers_of(const char *text, struct simulate_spread *s)
{
    char share[32];
    const char *colon = strchr(text, ':');
    if (colon && colon - text < (ptrdiff_t)sizeof share) {
        snprintf(share, sizeof share, "%.*s", (int)(colon - text), text);
        if (text_to_real(share, &s->slow_share) && text_to_real(colon + 1, &s->slow_factor) &&
            s->slow_share >= 0 && s->slow_share <= 100 && s->slow_factor >= 1 && s->slow_factor <= 100) {
            s->slow_share /= 100;
            return STATUS_OK;
        }
    }
    return FAIL(
        STATUS_CONFIG,
        "plan: --stragglers %s: percent of the devices and how many times longer they take, such as 0.1:1.15",
        text);
}

static status check_ranges(const struct plan_run *o)
{
    const struct {
        const char *name;
        double value, low, high;
        const char *unit;
    } ranges[] = {{"jitter", o->jitter, 0, 100, "percent"},     {"mtbf", o->mtbf, 0, 1e12, "device hours"},
                  {"detect", o->detect, 0, 1e6, "seconds"},     {"restart", o->restart, 0, 1e6, "seconds"},
                  {"stall", o->stall, -1, 1e6, "seconds"},      {"storage", o->storage, 0, 1e9, "GB/s"},
                  {"interval", o->interval, 0, 1e9, "seconds"}, {"pue", o->pue, 1, 100, "times"}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (!(ranges[i].value >= ranges[i].low && ranges[i].value <= ranges[i].high))
            return FAIL(STATUS_CONFIG, "plan: --%s %g: from %g to %g %s", ranges[i].name, ranges[i].value,
                        fmax(0, ranges[i].low), ranges[i].high, ranges[i].unit);
    return STATUS_OK;
}

/* "60d", "12h", "8w", "1.5y", "90min". */
static status deadline_of(const char *text, double *seconds)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"min", 60}, {"h", 3600}, {"d", 86400}, {"w", 7 * 86400}, {"y", 365 * 86400.0}};
    char head[32];
    const size_t n = strlen(text);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        const size_t m = strlen(units[i].unit);
        if (n <= m || n - m >= sizeof head || strcmp(text + n - m, units[i].unit) != 0) continue;
        snprintf(head, sizeof head, "%.*s", (int)(n - m), text);
        if (text_to_real(head, seconds) && *seconds > 0 && *seconds < 1e6) {
            *seconds *= units[i].seconds;
            return STATUS_OK;
        }
    }
    return FAIL(STATUS_CONFIG, "plan: --deadline %s: a time with its unit, such as 60d, 12h or 8w", text);
}

/* Price of a kind in "2.5" or "h100=2.5,b200=4". *price stays 0 when it is not there. */
static status price_of(const char *text, const char *machine, double *price)
{
    char word[128], *save = NULL, copy[512];
    const char *kind =
        strrchr(machine, 'x') && isdigit((unsigned char)machine[0]) ? strrchr(machine, 'x') + 1 : machine;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        const char *equals = strchr(item, '=');
        double value;
        snprintf(word, sizeof word, "%.*s", equals ? (int)(equals - item) : 0, item);
        if (!text_to_real(equals ? equals + 1 : item, &value) || !(value > 0 && value < 1e9))
            return FAIL(STATUS_CONFIG,
                        "plan: --price %s: money per device hour, such as 2.5 or h100=2.5,b200=4.2", text);
        if (!equals || strcasecmp(word, kind) == 0) *price = value;
    }
    return STATUS_OK;
}

static status kinds_of(struct plan_run *o, const char *machine)
{
    struct purchase_args *p = &o->purchase;
    char copy[1024], *save = NULL;
    const char *text = o->compare ? o->compare : machine;
    if (text == NULL) return STATUS_OK;
    if (strlen(text) >= sizeof copy)
        return FAIL(STATUS_CONFIG, "plan: --compare: at most %d kinds", PURCHASE_KINDS);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        struct cluster c;
        if (p->count == PURCHASE_KINDS)
            return FAIL(STATUS_CONFIG, "plan: --compare: at most %d kinds", PURCHASE_KINDS);
        TRY(cluster_parse(item, &c));
        struct purchase_kind *kind = &p->kinds[p->count++];
        snprintf(kind->machine, sizeof kind->machine, "%s", item);
        if (o->price) TRY(price_of(o->price, kind->machine, &kind->price));
    }
    if (p->count > 0) return STATUS_OK;
    return FAIL(STATUS_CONFIG, "plan: --%s names no machine: a kind such as h100, or 8xh100",
                o->compare ? "compare" : "machine");
}

static bool guides(const struct plan_run *o)
{
    return o->table || o->capacity;
}

static bool buys(const struct plan_run *o)
{
    return o->deadline || o->price || (!guides(o) && (o->compare || (o->tokens && !o->simulate)));
}

bool plan_run_asked(const struct plan_run *o)
{
    return o->simulate || o->why || guides(o) || buys(o);
}

static status check_together(const struct plan_run *o, const char *machine)
{
    if (!o->simulate && o->timeline) return FAIL(STATUS_CONFIG, "plan: --timeline goes with --simulate");
    if (o->simulate && machine == NULL)
        return FAIL(STATUS_CONFIG, "plan: --simulate needs a machine, such as --machine 64xH100");
    if (o->simulate && (o->deadline || o->compare || o->price))
        return FAIL(STATUS_CONFIG,
                    "plan: --simulate is one question, --deadline, --compare and --price another");
    if (o->predicted && machine == NULL && o->compare == NULL)
        return FAIL(STATUS_CONFIG, "plan: --predicted needs a machine, such as --machine 64xH100");
    if (o->why && machine == NULL)
        return FAIL(STATUS_CONFIG, "plan: --why needs a machine, such as --machine 64xH100");
    if (o->why && (o->simulate || buys(o)))
        return FAIL(STATUS_CONFIG, "plan: --why is one question, --simulate, --tokens and prices others");
    if (guides(o) && machine == NULL)
        return FAIL(STATUS_CONFIG, "plan: --%s needs a machine, such as --machine 8xH100",
                    o->table ? "table" : "capacity");
    if (guides(o) && (o->simulate || o->why || buys(o) || (o->table && o->capacity)))
        return FAIL(STATUS_CONFIG,
                    "plan: --table, --capacity, --simulate, --why and --deadline are one question each");
    if (o->compare && guides(o) && !(o->table && strcmp(o->table, "power") == 0))
        return FAIL(STATUS_CONFIG, "plan: --compare goes with --table power, or with no table");
    if (o->html && !buys(o))
        return FAIL(STATUS_CONFIG, "plan: --html goes with --deadline, --compare, --price or --tokens");
    if (o->compare && machine && !guides(o))
        return FAIL(STATUS_CONFIG, "plan: --compare names the machines; without --machine");
    if (buys(o) && !machine && !o->compare)
        return FAIL(STATUS_CONFIG, "plan: %s needs --machine KIND, such as h100, or --compare h100,b200",
                    o->deadline ? "--deadline"
                    : o->tokens ? "--tokens"
                                : "--price");
    return STATUS_OK;
}

status plan_run_check(struct plan_run *o, const char *machine)
{
    struct purchase_args *p = &o->purchase;
    struct outlook_args *l = &p->outlook;
    TRY(check_ranges(o));
    TRY(check_together(o, machine));
    if (o->tokens && !tokens_of(o->tokens, &l->tokens))
        return FAIL(STATUS_CONFIG, "plan: --tokens %s: a number of tokens up to 1e18, such as 300B or 15T",
                    o->tokens);
    if (o->deadline) TRY(deadline_of(o->deadline, &p->deadline));
    if (buys(o)) TRY(kinds_of(o, machine));
    o->spread =
        (struct simulate_spread){.jitter = o->jitter / 100, .slow_factor = 1, .seed = (uint64_t)o->seed};
    if (o->stragglers) TRY(stragglers_of(o->stragglers, &o->spread));
    l->mtbf = o->mtbf > 0 ? o->mtbf : INFINITY;
    l->detect = o->detect, l->restart = o->restart, l->stall = o->stall, l->pue = o->pue;
    l->storage = o->storage * 1e9, l->interval = o->interval;
    return STATUS_OK;
}

status plan_run_print(struct plan_run *o, const struct spec *s, const char *machine,
                      const struct plan_command *command, bool json)
{
    o->purchase.command = *command;
    const struct guide_args guide = {.machine = machine,
                                     .compare = o->compare,
                                     .command = *command,
                                     .outlook = o->purchase.outlook,
                                     .json = json};
    if (o->table) return guide_print(s, o->table, &guide);
    if (o->capacity) return capacity_print(s, &guide);
    if (o->why) return mesh_why_print(s, machine, o->why, command, json);
    if (!o->simulate) return purchase_print(s, &o->purchase, o->html, json);
    return simulate_print(s, &(struct simulate_print_args){.machine = machine,
                                                           .command = *command,
                                                           .outlook = o->purchase.outlook,
                                                           .spread = o->spread,
                                                           .timeline = o->timeline,
                                                           .json = json});
}
