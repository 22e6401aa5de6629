#include "train/health.h"
#include "base/robust.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KNOWN_MIN = 8 }; /* steps of a long median */

/* The values of the last HEALTH_RECENT steps; then those before them, as far as they are kept. */
struct window {
    double recent[HEALTH_RECENT], before[HEALTH_STEPS];
    int recent_count, before_count;
};
static struct window window_of(const struct health *h, const double ring[HEALTH_STEPS])
{
    struct window w = {0};
    const int64_t kept = h->steps < HEALTH_STEPS ? h->steps : HEALTH_STEPS;
    for (int64_t i = h->steps - kept; i < h->steps; i++)
        if (i < h->steps - HEALTH_RECENT)
            w.before[w.before_count++] = ring[i % HEALTH_STEPS];
        else
            w.recent[w.recent_count++] = ring[i % HEALTH_STEPS];
    return w;
}

void health_step(struct health *h, double loss, double grad_norm)
{
    if (h->steps == 0) h->first = loss, h->lowest = NAN;
    h->losses[h->steps % HEALTH_STEPS] = loss;
    h->norms[h->steps % HEALTH_STEPS] = grad_norm;
    h->steps++;
    struct window w = window_of(h, h->losses);
    if (w.before_count >= KNOWN_MIN) h->lowest = fmin(h->lowest, robust_median(w.before, w.before_count));
}

/* Standard deviation of the values around their trend, if they are normal: from the median difference of neighbours. */
static double noise_of(const double *values, int count)
{
    double steps[HEALTH_STEPS];
    for (int i = 1; i < count; i++) steps[i - 1] = fabs(values[i] - values[i - 1]);
    return 1.4826 / sqrt(2) * robust_median(steps, count - 1);
}

/* How far losses may be above the lowest long median. */
static double margin_of(const struct health *h, const struct window *losses)
{
    const double noise = noise_of(losses->before, losses->before_count);
    return fmax(fmax(6 * noise, 0.1 * fabs(h->lowest)), 0.25);
}

bool health_sound(const struct health *h, char why[HEALTH_WHY])
{
    if (h->steps == 0) return true;
    struct window losses = window_of(h, h->losses), norms = window_of(h, h->norms);
    const bool known = losses.before_count >= KNOWN_MIN;
    const double margin = known ? margin_of(h, &losses) : 0, last = losses.recent[losses.recent_count - 1],
                 loss = robust_median(losses.recent, losses.recent_count),
                 norm = robust_median(norms.recent, norms.recent_count);
    if (loss > 1.25 * h->first + 0.5 || last > 2 * h->first + 1) {
        snprintf(why, HEALTH_WHY, "the loss is %.3f, above that of the first step, %.3f", fmax(loss, last),
                 h->first);
        return false;
    }
    if (!known) return true;
    if (loss > h->lowest + margin || last > h->lowest + 3 * margin) {
        snprintf(why, HEALTH_WHY, "the loss is %.3f, it was %.3f", fmax(loss, last), h->lowest);
        return false;
    }
    const double usual = robust_median(norms.before, norms.before_count);
    if (!(norm > 10 * usual)) return true;
    snprintf(why, HEALTH_WHY, "the gradient norm is %.3g, it was %.3g", norm, usual);
    return false;
}

/* Numbers that are not finite have no form in JSON; a norm may be one where none is computed. */
static json_t *ring_json(const struct health *h, const double ring[HEALTH_STEPS])
{
    json_t *list = json_array();
    for (int64_t i = h->steps > HEALTH_STEPS ? h->steps - HEALTH_STEPS : 0; i < h->steps; i++)
        json_array_append_new(list, json_real(isfinite(ring[i % HEALTH_STEPS]) ? ring[i % HEALTH_STEPS] : 0));
    return list;
}

json_t *health_json(const struct health *h)
{
    char why[HEALTH_WHY] = "";
    const bool sound = health_sound(h, why);
    json_t *o =
        json_pack("{s:b, s:s, s:I, s:o, s:o}", "sound", sound, "why", why, "steps", (json_int_t)h->steps,
                  "losses", ring_json(h, h->losses), "grad_norms", ring_json(h, h->norms));
    if (o && h->steps > 0) json_object_set_new(o, "first", json_real(h->first));
    if (o && h->steps > 0 && !isnan(h->lowest)) json_object_set_new(o, "lowest", json_real(h->lowest));
    return o;
}

void health_read(struct health *h, const json_t *meta)
{
    const json_t *o = json_object_get(meta, "health"), *losses = json_object_get(o, "losses"),
                 *norms = json_object_get(o, "grad_norms"), *lowest = json_object_get(o, "lowest");
    const int64_t steps = json_integer_value(json_object_get(o, "steps"));
    const size_t kept = json_array_size(losses);
    *h = (struct health){0};
    if (steps <= 0 || kept != (size_t)(steps < HEALTH_STEPS ? steps : HEALTH_STEPS) ||
        json_array_size(norms) != kept)
        return;
    for (size_t i = 0; i < kept; i++) {
        const size_t at = (size_t)((steps - (int64_t)kept + (int64_t)i) % HEALTH_STEPS);
        h->losses[at] = json_number_value(json_array_get(losses, i));
        h->norms[at] = json_number_value(json_array_get(norms, i));
    }
    h->steps = steps;
    h->first = json_number_value(json_object_get(o, "first"));
    h->lowest = json_is_number(lowest) ? json_number_value(lowest) : NAN;
}

bool health_of_meta(const json_t *meta, const char **why)
{
    const json_t *o = json_object_get(meta, "health");
    const char *text = json_string_value(json_object_get(o, "why"));
    *why = text ? text : "";
    return !json_is_false(json_object_get(o, "sound"));
}
