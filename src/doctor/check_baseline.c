/* Rates of a stored `ingot doctor --json` beside those of now: `ingot doctor --baseline FILE`. */
#include "base/robust.h"
#include "doctor/doctor_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAME_MAX = 512 };

static bool is_text(const json_t *o, const char *key, const char *text)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s && strcmp(s, text) == 0;
}

/* The stored rate of the same thing; else the median of those of its kind, as of GPUs that have been replaced. NaN: none. */
static double stored_rate(const json_t *rates, const char *what, const char *entity, bool *same)
{
    double v[SAME_MAX];
    int count = 0;
    size_t i;
    const json_t *r;
    *same = true;
    json_array_foreach((json_t *)rates, i, r)
    {
        if (!is_text(r, "what", what)) continue;
        const double value = json_number_value(json_object_get(r, "value"));
        if (is_text(r, "entity", entity)) return value;
        if (count < SAME_MAX && value > 0) v[count++] = value;
    }
    *same = false;
    return robust_median(v, count);
}

void check_baseline(struct doctor *d)
{
    const json_t *stored = json_object_get(d->baseline, "rates");
    size_t i;
    json_t *rate;
    int compared = 0;
    json_array_foreach(d->rates, i, rate)
    {
        bool same;
        const char *what = json_string_value(json_object_get(rate, "what"));
        const char *entity = json_string_value(json_object_get(rate, "entity"));
        const char *unit = json_string_value(json_object_get(rate, "unit"));
        const double now = json_number_value(json_object_get(rate, "value"));
        const double before = stored_rate(stored, what, entity, &same);
        if (!(before > 0)) continue;
        compared++;
        if (now < (1 - d->within) * before)
            report_number(d, DOCTOR_WARN, entity, now, (1 - d->within) * before,
                          "%s of %s: %.4g %s, %s %.4g: %.0f %% less", what, entity, now, unit,
                          same ? "it was" : "the median of its kind was", before, 100 * (1 - now / before));
    }
    if (reported(d)) return;
    if (compared)
        report_number(d, DOCTOR_PASS, "", compared, compared, "%d rates within %.3g %% of the stored ones",
                      compared, 100 * d->within);
    else
        report(d, DOCTOR_SKIP, "",
               json_array_size(d->rates) ? "nothing that was measured is in the file"
                                         : "nothing was measured: add --full, --accept or --net");
}
