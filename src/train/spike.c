#include "train/spike.h"
#include "base/robust.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char reason[] = "train.on_spike=rewind";

static int window_of(const struct run_spec *r)
{
    return (int)r->train_spike_window;
}

enum spike_kind spike_judge(const struct spike *s, const struct run_spec *r, int64_t step, double loss,
                            double norm, char why[SPIKE_WHY])
{
    const int n = window_of(r);
    why[0] = 0;
    if (s->count < n || step <= r->optim_warmup_steps) return SPIKE_NONE;
    const double limit = s->inside ? r->train_spike_z / 2 : r->train_spike_z,
                 of_loss = robust_z(s->losses + s->count - n, n, loss, NULL),
                 of_norm = robust_z(s->norms + s->count - n, n, norm, NULL);
    const bool by_loss = of_loss > limit;
    if (!by_loss && !(of_norm > limit)) return SPIKE_NONE;
    snprintf(why, SPIKE_WHY, "%s of step %lld is %.4g, z %.1f among %d before it",
             by_loss ? "the loss" : "the gradient norm", (long long)step, by_loss ? loss : norm,
             by_loss ? of_loss : of_norm, n);
    return s->inside ? SPIKE_LASTS : SPIKE_BEGINS;
}

static void push(double *list, int count, double value)
{
    if (count == SPIKE_WINDOW_MAX) memmove(list, list + 1, (SPIKE_WINDOW_MAX - 1) * sizeof *list);
    list[count == SPIKE_WINDOW_MAX ? count - 1 : count] = value;
}

void spike_add(struct spike *s, const struct run_spec *r, enum spike_kind kind, bool update_skipped,
               double loss, double norm)
{
    s->inside = kind != SPIKE_NONE;
    s->skipped_updates += update_skipped;
    if (update_skipped) return;
    push(s->losses, s->count, loss);
    push(s->norms, s->count, norm);
    if (s->count < SPIKE_WINDOW_MAX) s->count++;
    const int n = window_of(r);
    if (s->count <= n) return;
    memmove(s->losses, s->losses + s->count - n, (size_t)n * sizeof *s->losses);
    memmove(s->norms, s->norms + s->count - n, (size_t)n * sizeof *s->norms);
    s->count = n;
}

/* ---- checkpoints */

json_t *spike_json(const struct spike *s)
{
    json_t *losses = json_array(), *norms = json_array();
    for (int i = 0; i < s->count; i++) {
        json_array_append_new(losses, json_real(s->losses[i]));
        json_array_append_new(norms, json_real(isfinite(s->norms[i]) ? s->norms[i] : 0));
    }
    return json_pack("{s:b, s:I, s:o, s:o}", "inside", s->inside, "updates_left_out",
                     (json_int_t)s->skipped_updates, "losses", losses, "grad_norms", norms);
}

void spike_read(struct spike *s, const json_t *meta)
{
    const json_t *o = json_object_get(meta, "spikes"), *losses = json_object_get(o, "losses"),
                 *norms = json_object_get(o, "grad_norms");
    const size_t count = json_array_size(losses);
    memset(s, 0, sizeof *s);
    if (count > SPIKE_WINDOW_MAX || json_array_size(norms) != count) return;
    for (size_t i = 0; i < count; i++) {
        s->losses[i] = json_number_value(json_array_get(losses, i));
        s->norms[i] = json_number_value(json_array_get(norms, i));
    }
    s->count = (int)count;
    s->inside = json_is_true(json_object_get(o, "inside"));
    s->skipped_updates = json_integer_value(json_object_get(o, "updates_left_out"));
}

/* ---- rewind */

struct lineage_order spike_order(const struct run_spec *r, int64_t step, int64_t from, const char *why)
{
    const int64_t to = from + r->train_spike_skip;
    return (struct lineage_order){
        .rewinds = true, .rewind = from, .skip_from = from + 1, .skip_to = to > step ? to : step, .why = why};
}

int spike_rewinds(const struct lineage *l, int64_t from)
{
    int count = 0;
    size_t i;
    const json_t *event;
    json_array_foreach(l->events, i, event)
    {
        const char *why = json_string_value(json_object_get(event, "why"));
        count += why && strncmp(why, reason, sizeof reason - 1) == 0 &&
                 json_integer_value(json_object_get(event, "step")) == from;
    }
    return count;
}
