#include "doctor/doctor.h"
#include "base/clock.h"
#include "doctor/doctor_int.h"

#include <stdlib.h>
#include <string.h>

static const struct row {
    struct doctor_check check;
    void (*run)(struct doctor *d);
} rows[] = {
#define CHECKUP(name, group, level, code, reads, limit, remedy)                                              \
    {{#name, #group, DOCTOR_##level, STATUS_##code, reads, limit, remedy}, check_##name},
#include "doctor/doctor.def"
};
enum { ROWS = sizeof rows / sizeof rows[0] };

const struct doctor_check *doctor_check(int index)
{
    return index >= 0 && index < ROWS ? &rows[index].check : NULL;
}

const char *doctor_verdict_text(enum doctor_verdict v)
{
    static const char *const texts[] = {"pass", "skip", "warn", "fail"};
    return texts[v];
}

/* Some checks are only made when somebody asks for them. */
static bool is_asked(const struct doctor *d, const struct doctor_check *c)
{
    if (strcmp(c->group, "run") == 0) return d->spec != NULL;
    if (strcmp(c->name, "messages") == 0) return d->net;
    if (strcmp(c->name, "baseline") == 0) return d->baseline != NULL;
    return c->level <= d->level;
}

status doctor_run(struct doctor **out, const struct doctor_how *how)
{
    struct doctor *d = *out = calloc(1, sizeof *d);
    if (d == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the doctor");
    d->begin_s = clock_s();
    status st = facts_read(d, how);
    if (st != STATUS_OK) {
        doctor_close(d);
        *out = NULL;
        return st;
    }
    for (int i = 0; i < ROWS; i++) {
        if (!is_asked(d, &rows[i].check)) continue;
        const double begin = clock_s();
        d->check = &rows[i].check;
        rows[i].run(d);
        CHECK(reported(d), "the check '%s' reported nothing", d->check->name);
        d->findings[d->count - 1].seconds = clock_s() - begin;
    }
    if (how->script == NULL && !how->fresh) history_save(d, how->state);
    d->seconds = clock_s() - d->begin_s;
    return STATUS_OK;
}

void doctor_close(struct doctor *d)
{
    if (d == NULL) return;
    nvml_close(d->nvml);
    json_decref(d->before);
    json_decref(d->counters);
    json_decref(d->rates);
    json_decref(d->baseline);
    json_decref(d->replayed);
    free((char *)d->fs.text); /* of a script: ours */
    free(d);
}

int doctor_count(const struct doctor *d)
{
    return d->count;
}

const struct doctor_finding *doctor_finding(const struct doctor *d, int index)
{
    return &d->findings[index];
}

enum doctor_verdict doctor_verdict(const struct doctor *d)
{
    enum doctor_verdict worst = DOCTOR_PASS;
    for (int i = 0; i < d->count; i++)
        if (d->findings[i].verdict > worst) worst = d->findings[i].verdict;
    return worst == DOCTOR_SKIP ? DOCTOR_PASS : worst;
}

status doctor_exit(const struct doctor *d, bool strict)
{
    static const status order[] = {STATUS_DEVICE,        STATUS_COMM, STATUS_IO,
                                   STATUS_OUT_OF_MEMORY, STATUS_DATA, STATUS_CONFIG};
    const enum doctor_verdict least = strict ? DOCTOR_WARN : DOCTOR_FAIL;
    for (size_t k = 0; k < sizeof order / sizeof order[0]; k++)
        for (int i = 0; i < d->count; i++)
            if (d->findings[i].verdict >= least && d->findings[i].check->code == order[k]) return order[k];
    return STATUS_OK;
}
