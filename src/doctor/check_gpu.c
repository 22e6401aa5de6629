/* Checks of the GPUs that only read. */
#include "base/text.h"
#include "doctor/doctor_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The GPUs that answer. */
#define EACH_CARD(d, i)                                                                                      \
    for (int i = 0; i < (d)->cards; i++)                                                                     \
        if (card_sound(d, i))

/* A line for the whole host if no GPU has had one of its own: `fine` when some GPU knew the value, else SKIP. */
static void conclude(struct doctor *d, bool known, const char *fine, const char *unknown)
{
    if (reported(d)) return;
    report(d, known ? DOCTOR_PASS : DOCTOR_SKIP, "", "%s", known ? fine : unknown);
}

void check_cards(struct doctor *d)
{
    char names[NAMES_MAX][HOSTFS_NAME], label[32];
    const int present = hostfs_list(&d->fs, names, NAMES_MAX, "/proc/driver/nvidia/gpus");
    if (d->cards == 0 && present > 0) {
        report_number(d, DOCTOR_FAIL, "", 0, present, "the kernel module has %d GPUs, and none answers: %s",
                      present,
                      d->nvml ? "NVML sees none (is the container given its devices?)" : d->nvml_why);
        return;
    }
    if (no_cards(d)) return;
    for (int i = 0; i < d->cards; i++)
        if (!card_sound(d, i))
            report_number(d, DOCTOR_FAIL, d->card[i].uuid, d->card[i].code, 0,
                          "%s does not answer (NVML error %d)", card_label(d, i, label), d->card[i].code);
    if (present > d->cards && hostfs_is_real(&d->fs) && getenv("NVIDIA_VISIBLE_DEVICES") == NULL)
        report_number(d, DOCTOR_WARN, "", d->cards, present, "%d of %d GPUs are visible", d->cards, present);
    if (!reported(d))
        report_number(d, DOCTOR_PASS, "", d->cards, d->cards, "%d x %s, driver %s", d->cards, d->card[0].name,
                      d->driver[0] ? d->driver : "not known");
}

void check_driver(struct doctor *d)
{
    char text[512];
    if (d->nvml_code == NVML_LIB_MISMATCH) {
        report(d, DOCTOR_FAIL, "", "%s", d->nvml_why);
        return;
    }
    if (no_cards(d)) return;
    if (!hostfs_read(&d->fs, text, sizeof text, "/proc/driver/nvidia/version") || d->driver[0] == 0) {
        report(d, DOCTOR_SKIP, "", "/proc/driver/nvidia/version or NVML does not say it");
        return;
    }
    text[strcspn(text, "\n")] = 0;
    if (strstr(text, d->driver))
        report(d, DOCTOR_PASS, "", "kernel module and library are %s, for CUDA up to %d.%d", d->driver,
               nvml_cuda(d->nvml) / 1000, nvml_cuda(d->nvml) % 1000 / 10);
    else
        report(d, DOCTOR_FAIL, "", "the library is %s, the kernel module says: %.120s", d->driver, text);
}

void check_alike(struct doctor *d)
{
    char label[32];
    int first = -1;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        if (first < 0) first = i;
        const struct nvml_card *c = &d->card[i], *a = &d->card[first];
        if (strcmp(c->name, a->name) != 0)
            report(d, DOCTOR_WARN, c->uuid, "%s is a %s, gpu%d a %s", card_label(d, i, label), c->name, first,
                   a->name);
        else if (strcmp(c->vbios, a->vbios) != 0)
            report(d, DOCTOR_WARN, c->uuid, "%s has VBIOS %s, gpu%d has %s", card_label(d, i, label),
                   c->vbios, first, a->vbios);
    }
    conclude(d, first >= 0, "same name and VBIOS", "no GPU answers");
}

void check_ecc(struct doctor *d)
{
    char label[32];
    bool known = false;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        const struct nvml_card *c = &d->card[i];
        const double more = grown(d, c->uuid, "ecc_uncorrected", c->ecc_uncorrected);
        known |= isfinite(c->ecc_on) || isfinite(c->ecc_uncorrected);
        card_label(d, i, label);
        if (c->ecc_on == 0)
            report_number(d, DOCTOR_WARN, c->uuid, 0, 1, "%s: ECC is off, bit errors pass unseen", label);
        if (more > 0)
            report_number(d, DOCTOR_FAIL, c->uuid, more, 0,
                          "%s: %.0f uncorrectable errors since the last look", label, more);
        else if (c->ecc_uncorrected > 0)
            report_number(d, DOCTOR_WARN, c->uuid, c->ecc_uncorrected, 0,
                          "%s: %.0f uncorrectable errors since the driver was loaded", label,
                          c->ecc_uncorrected);
    }
    conclude(d, known, "on, no uncorrectable error", "the GPUs do not say it");
}

void check_rows(struct doctor *d)
{
    char label[32];
    bool known = false;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        const struct nvml_card *c = &d->card[i];
        known |= isfinite(c->rows_pending);
        card_label(d, i, label);
        if (c->rows_failed > 0)
            report_number(d, DOCTOR_FAIL, c->uuid, 1, 0, "%s: a row of memory could not be remapped", label);
        else if (c->rows_pending > 0)
            report_number(d, DOCTOR_FAIL, c->uuid, 1, 0,
                          "%s: a row of memory waits for a reset to be remapped", label);
    }
    conclude(d, known, "none pending, none failed", "the GPUs do not remap rows");
}

void check_recovery(struct doctor *d)
{
    static const char *const actions[] = {"none", "reset the GPU", "restart the host", "drain peer copies",
                                          "drain and reset"};
    char label[32];
    bool known = false;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        const double v = d->card[i].recovery;
        known |= isfinite(v);
        if (v > 0)
            report_number(d, DOCTOR_FAIL, d->card[i].uuid, v, 0, "%s: the driver asks for: %s",
                          card_label(d, i, label), v < 5 ? actions[(int)v] : "an action that is not known");
    }
    conclude(d, known, "none asked for", "the driver does not say it");
}

/* ---- Xid */

enum xid_action { XID_IGNORE, XID_APP, XID_RESET, XID_RESTART, XID_LOOK };
static const struct xid {
    int first, last;
    const char *what, *remedy;
    enum xid_action action;
} xids[] = {
#define XID(first, last, what, remedy, action) {first, last, what, remedy, XID_##action},
#include "dev/xid.def"
};

static void xid_report(struct doctor *d, int number, const char *where)
{
    const struct xid *x = NULL;
    for (size_t i = 0; i < sizeof xids / sizeof xids[0]; i++)
        if (number >= xids[i].first && number <= xids[i].last) x = &xids[i];
    if (x == NULL)
        report_number(d, DOCTOR_WARN, where, number, 0,
                      "Xid %d on %s: not in the table; see NVIDIA's Xid catalog", number, where);
    else if (x->action != XID_IGNORE)
        report_number(d, x->action == XID_RESET || x->action == XID_RESTART ? DOCTOR_FAIL : DOCTOR_WARN,
                      where, number, 0, "Xid %d on %s: %s: %s", number, where, x->what, x->remedy);
}

/* Records of /dev/kmsg: "6,1234,MICROSECONDS,-;NVRM: Xid (PCI:0000:18:00): 79, ...". The last of a GPU counts. */
void check_xid(struct doctor *d)
{
    enum { LOG = 1 << 20 };
    double up = 0;
    if (no_cards(d)) return;
    char *log = malloc(LOG);
    CHECK(log, "out of memory");
    if (!hostfs_read(&d->fs, log, LOG, "/dev/kmsg") || log[0] == 0) {
        report(d, DOCTOR_SKIP, "", "the kernel's log is not readable here (/dev/kmsg needs root)");
        free(log);
        return;
    }
    hostfs_number(&d->fs, &up, "/proc/uptime");
    for (char *line = log, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        const char *at = strstr(line, "NVRM: Xid (PCI:"), *comma = strchr(line, ',');
        comma = comma ? strchr(comma + 1, ',') : NULL;
        if (at == NULL || comma == NULL || 1e-6 * strtod(comma + 1, NULL) < up - 86400) continue;
        char where[32];
        at += strlen("NVRM: Xid (PCI:");
        snprintf(where, sizeof where, "%.*s", (int)strcspn(at, ")"), at);
        const char *number = strstr(at, "): ");
        if (number) xid_report(d, (int)strtol(number + 3, NULL, 10), where);
    }
    free(log);
    conclude(d, true, "no Xid in the last 24 h", "");
}

/* ---- clocks, heat, power */

static bool throttle_grown(struct doctor *d, int i, const char *label)
{
    const struct nvml_card *c = &d->card[i];
    const struct {
        const char *name, *what;
        double value;
    } reasons[] = {{"sw_thermal_s", "software thermal slowdown", c->sw_thermal_s},
                   {"hw_thermal_s", "hardware thermal slowdown", c->hw_thermal_s},
                   {"power_brake_s", "power brake", c->power_brake_s}};
    const double passed = d->system.now_s - d->before_s;
    for (int k = 0; k < 3; k++) {
        const double s = grown(d, c->uuid, reasons[k].name, reasons[k].value);
        if (s > 0.01 * passed)
            report_number(d, DOCTOR_WARN, c->uuid, s, 0.01 * passed, "%s: %.1f s of %s in %.0f s", label, s,
                          reasons[k].what, passed);
    }
    return isfinite(c->reasons) || isfinite(c->hw_thermal_s);
}

void check_throttle(struct doctor *d)
{
    char label[32];
    bool known = false;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        const struct nvml_card *c = &d->card[i];
        const unsigned now = isfinite(c->reasons) ? (unsigned)c->reasons : 0;
        const char *why = now & NVML_REASON_HW_THERMAL    ? "hardware thermal slowdown"
                          : now & NVML_REASON_POWER_BRAKE ? "power brake"
                          : now & NVML_REASON_HW_SLOWDOWN ? "hardware slowdown"
                          : now & NVML_REASON_SW_THERMAL  ? "software thermal slowdown"
                                                          : NULL;
        known |= throttle_grown(d, i, card_label(d, i, label));
        if (why && !reported(d))
            report_number(d, DOCTOR_WARN, c->uuid, now, 0, "%s: %s now, %.0f MHz of %.0f", label, why,
                          c->sm_mhz, c->sm_max_mhz);
    }
    conclude(d, known,
             isfinite(d->before_s) ? "none now, none since the last look" : "none now; no history yet",
             "the GPUs do not say it");
}

void check_temperature(struct doctor *d)
{
    char label[32];
    double hottest = NAN;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        const struct nvml_card *c = &d->card[i];
        hottest = fmax(hottest, c->celsius);
        if (c->celsius > c->slowdown_celsius - 5)
            report_number(d, DOCTOR_WARN, c->uuid, c->celsius, c->slowdown_celsius - 5,
                          "%s: %.0f C, it slows down at %.0f", card_label(d, i, label), c->celsius,
                          c->slowdown_celsius);
    }
    if (!reported(d) && isfinite(hottest))
        report_number(d, DOCTOR_PASS, "", hottest, NAN, "at most %.0f C", hottest);
    conclude(d, false, "", "the GPUs do not say it");
}

void check_power(struct doctor *d)
{
    char label[32], fine[64];
    bool known = false;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        const struct nvml_card *c = &d->card[i];
        known |= isfinite(c->limit_watts) && isfinite(c->default_watts);
        if (c->limit_watts < 0.95 * c->default_watts)
            report_number(d, DOCTOR_WARN, c->uuid, c->limit_watts, c->default_watts,
                          "%s: limited to %.0f W, by default %.0f", card_label(d, i, label), c->limit_watts,
                          c->default_watts);
        snprintf(fine, sizeof fine, "limit %.0f W, the default", c->limit_watts);
    }
    conclude(d, known, fine, "the GPUs do not say it");
}

/* ---- modes and place */

/* A value that must be `want`. */
static void check_mode(struct doctor *d, size_t offset, double want, const char *wrong, const char *fine)
{
    char label[32];
    bool known = false;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        const double v = *(const double *)((const char *)&d->card[i] + offset);
        known |= isfinite(v);
        if (isfinite(v) && v != want)
            report_number(d, DOCTOR_WARN, d->card[i].uuid, v, want, "%s: %s", card_label(d, i, label), wrong);
    }
    conclude(d, known, fine, "the GPUs do not say it");
}

void check_persistence(struct doctor *d)
{
    check_mode(d, offsetof(struct nvml_card, persistence), 1, "persistence mode is off", "on");
}

void check_mig(struct doctor *d)
{
    check_mode(d, offsetof(struct nvml_card, mig), 0, "MIG is on: programs see instances, not the GPU",
               "off");
}

void check_pcie(struct doctor *d)
{
    char label[32], fine[64] = "";
    bool known = false;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        const struct nvml_card *c = &d->card[i];
        known |= isfinite(c->pcie_width) && isfinite(c->pcie_width_max);
        if (c->pcie_width < c->pcie_width_max)
            report_number(d, DOCTOR_WARN, c->uuid, c->pcie_width, c->pcie_width_max,
                          "%s: %.0f of %.0f PCIe lanes", card_label(d, i, label), c->pcie_width,
                          c->pcie_width_max);
        snprintf(fine, sizeof fine, "%.0f lanes each (the generation is read under load: --full)",
                 c->pcie_width);
    }
    conclude(d, known, fine, "the GPUs do not say it");
}

void check_free(struct doctor *d)
{
    char label[32], used[32];
    bool known = false;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        const struct nvml_card *c = &d->card[i];
        known |= isfinite(c->memory_used);
        card_label(d, i, label);
        text_bytes(used, c->memory_used);
        if (c->processes > 0)
            report_number(d, DOCTOR_WARN, c->uuid, c->processes, 0, "%s: %.0f processes, %s in use", label,
                          c->processes, used);
        else if (c->memory_used > 0.05 * c->memory_total)
            report_number(d, DOCTOR_WARN, c->uuid, c->memory_used, 0.05 * c->memory_total,
                          "%s: %s in use, and no process is seen", label, used);
    }
    conclude(d, known, "no process, memory free", "the GPUs do not say it");
}

/* ---- links */

void check_fabric(struct doctor *d)
{
    char label[32];
    bool known = false;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        const double v = d->card[i].fabric;
        known |= v > 0;
        if (v == 1 || v == 2)
            report_number(d, DOCTOR_FAIL, d->card[i].uuid, v, 3, "%s: the fabric is %s",
                          card_label(d, i, label), v == 1 ? "not started" : "still in progress");
    }
    conclude(d, known, "completed", "no NVSwitch fabric");
}

void check_nvlink(struct doctor *d)
{
    char label[32], fine[64] = "";
    bool known = false;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        const struct nvml_card *c = &d->card[i];
        const bool settled = !(c->fabric == 1 || c->fabric == 2);
        if (!(c->links > 0) || !isfinite(c->links_active) || !settled) continue;
        known = true;
        if (c->links_active < c->links)
            report_number(d, DOCTOR_FAIL, c->uuid, c->links_active, c->links,
                          "%s: %.0f of %.0f NVLinks are active", card_label(d, i, label), c->links_active,
                          c->links);
        snprintf(fine, sizeof fine, "%.0f of %.0f active", c->links_active, c->links);
    }
    conclude(d, known, fine, "no NVLink, or the fabric is not complete");
}

void check_link_errors(struct doctor *d)
{
    char label[32];
    bool known = false;
    if (no_cards(d)) return;
    EACH_CARD(d, i)
    {
        const struct nvml_card *c = &d->card[i];
        const double more = grown(d, c->uuid, "link_errors", c->link_errors);
        known |= isfinite(c->link_errors);
        if (more > 0)
            report_number(d, DOCTOR_WARN, c->uuid, more, 0, "%s: %.0f NVLink errors since the last look",
                          card_label(d, i, label), more);
    }
    conclude(d, known, isfinite(d->before_s) ? "none since the last look" : "no history yet",
             "no NVLink counters");
}
