/* Acceptance: what earlier ones say of the same GPU, wherever it is plugged in now. */
#include "doctor/doctor_int.h"

void check_past(struct doctor *d)
{
    json_t *past = past_read(), *rate;
    size_t i;
    int compared = 0;
    json_array_foreach(d->rates, i, rate)
    {
        const char *what = json_string_value(json_object_get(rate, "what"));
        const char *entity = json_string_value(json_object_get(rate, "entity"));
        const char *unit = json_string_value(json_object_get(rate, "unit"));
        const double now = json_number_value(json_object_get(rate, "value"));
        const double best =
            json_number_value(json_object_get(json_object_get(json_object_get(past, entity), what), "best"));
        if (best <= 0) continue;
        compared++;
        if (now < 0.95 * best)
            report_number(d, now < 0.9 * best ? DOCTOR_FAIL : DOCTOR_WARN, entity, now, 0.95 * best,
                          "%s of %s: %.4g %s, it has been %.4g", what, entity, now, unit, best);
    }
    json_decref(past);
    if (reported(d)) return;
    if (compared)
        report_number(d, DOCTOR_PASS, "", compared, compared, "%d rates as good as before", compared);
    else
        report(d, DOCTOR_SKIP, "", "no earlier acceptance of these GPUs or this host");
}
