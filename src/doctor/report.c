/* How checks report. */
#include "doctor/doctor_int.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

static void add(struct doctor *d, enum doctor_verdict v, const char *entity, double measured, double expected,
                const char *fmt, va_list args)
{
    if (d->count == FINDINGS_MAX) return;
    const bool network = d->check->code == STATUS_COMM && strcmp(d->check->group, "gpu") != 0;
    if (v == DOCTOR_FAIL && network && d->alone) v = DOCTOR_WARN;
    struct doctor_finding *f = &d->findings[d->count++];
    *f = (struct doctor_finding){.check = d->check, .verdict = v, .measured = measured, .expected = expected};
    snprintf(f->entity, sizeof f->entity, "%s", entity);
    vsnprintf(f->text, sizeof f->text, fmt, args);
}

void report(struct doctor *d, enum doctor_verdict v, const char *entity, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add(d, v, entity, NAN, NAN, fmt, args);
    va_end(args);
}

void report_number(struct doctor *d, enum doctor_verdict v, const char *entity, double measured,
                   double expected, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add(d, v, entity, measured, expected, fmt, args);
    va_end(args);
}

bool reported(const struct doctor *d)
{
    return d->count > 0 && d->findings[d->count - 1].check == d->check;
}

bool no_cards(struct doctor *d)
{
    if (d->cards > 0) return false;
    report(d, DOCTOR_SKIP, "", "%s", d->nvml ? "no GPU on this host" : "no NVIDIA driver on this host");
    return true;
}

const char *card_label(const struct doctor *d, int index, char text[32])
{
    (void)d;
    snprintf(text, 32, "gpu%d", index);
    return text;
}

bool card_sound(const struct doctor *d, int index)
{
    return d->card[index].code == NVML_SUCCESS;
}
