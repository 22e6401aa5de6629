#include "train/lineage.h"
#include "base/clock.h"
#include "base/log.h"
#include "train/checkpoint.h"

#include <string.h>

void lineage_free(struct lineage *l)
{
    json_decref(l->events);
    *l = (struct lineage){0};
}

/* ---- as a checkpoint stores it */

json_t *lineage_json(const struct lineage *l)
{
    if (l->events == NULL) return NULL;
    json_t *list = json_array();
    for (int i = 0; i < l->skips.count; i++)
        json_array_append_new(
            list, json_pack("[I, I]", (json_int_t)l->skips.list[i].from, (json_int_t)l->skips.list[i].to));
    return json_pack("{s:o, s:O}", "batches_left_out", list, "events", l->events);
}

status lineage_read(struct lineage *l, const json_t *meta, const char *path)
{
    const json_t *o = json_object_get(meta, "lineage"), *list = json_object_get(o, "batches_left_out");
    json_t *events = json_object_get(o, "events");
    lineage_free(l);
    if (o == NULL) return STATUS_OK;
    int64_t end = -1;
    bool good = json_is_array(list) && json_is_array(events) && json_array_size(list) <= SKIPS_MAX;
    for (size_t i = 0; good && i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i), *from = json_array_get(pair, 0),
                     *to = json_array_get(pair, 1);
        const struct skip s = {json_integer_value(from), json_integer_value(to)};
        good = json_is_integer(from) && json_is_integer(to) && s.from > end && s.to > s.from;
        end = s.to;
        l->skips.list[l->skips.count++] = s;
    }
    if (!good) {
        lineage_free(l);
        return FAIL(STATUS_CKPT, "%s: its manifest's lineage is not one", path);
    }
    l->events = json_deep_copy(events);
    MEMORY_CHECK(l->events, "no memory for a run's lineage");
    return STATUS_OK;
}

status lineage_of_run(struct lineage *l, const char *run_dir)
{
    struct checkpoint *c;
    bool found;
    *l = (struct lineage){0};
    TRY(checkpoint_open(&c, run_dir, &found));
    if (!found) return STATUS_OK;
    status st = lineage_read(l, checkpoint_meta(c), checkpoint_path(c));
    checkpoint_close(c);
    return st;
}

/* ---- orders */

/* What identifies an order. */
static json_t *asked_of(const struct lineage_order *o)
{
    json_t *asked = json_object();
    if (o->rewinds) json_object_set_new(asked, "rewind", json_integer(o->rewind));
    if (o->skip_from)
        json_object_set_new(asked, "skip",
                            json_pack("[I, I]", (json_int_t)o->skip_from, (json_int_t)o->skip_to));
    return asked;
}

static bool is_obeyed(const struct lineage *l, const struct lineage_order *o)
{
    bool found = false;
    json_t *asked = asked_of(o);
    for (size_t i = 0; i < json_array_size(l->events); i++)
        found = found || json_equal(json_object_get(json_array_get(l->events, i), "asked"), asked);
    json_decref(asked);
    return found;
}

status lineage_target(const char *run_dir, const struct lineage_order *o, int64_t *step, bool *done)
{
    struct lineage newest;
    *step = -1;
    TRY(lineage_of_run(&newest, run_dir));
    *done = is_obeyed(&newest, o);
    lineage_free(&newest);
    if (*done || !o->rewinds) return STATUS_OK;
    TRY(checkpoint_newest_sound_until(run_dir, o->rewind, step));
    if (*step >= 0) return STATUS_OK;
    return FAIL(STATUS_CKPT,
                "--rewind %lld: %s has no sound checkpoint of that step or before (`ingot ckpt list` shows "
                "what there "
                "is; ckpt.keep says how many stay)",
                (long long)o->rewind, run_dir);
}

status lineage_apply(struct lineage *l, const struct lineage_order *o, int64_t step, int64_t steps_total,
                     int64_t was)
{
    const int64_t first = o->skip_from - 1;
    if (o->skip_from && first < step)
        return FAIL(STATUS_CONFIG,
                    "--skip %lld:%lld: the run goes on from step %lld, so step %lld is trained already; "
                    "--rewind STEP goes "
                    "back to before it",
                    (long long)o->skip_from, (long long)o->skip_to, (long long)step, (long long)o->skip_from);
    if (o->skip_from > steps_total)
        return FAIL(STATUS_CONFIG, "--skip %lld:%lld: the run has %lld steps", (long long)o->skip_from,
                    (long long)o->skip_to, (long long)steps_total);
    json_t *event = json_pack("{s:I, s:s, s:f, s:o}", "step", (json_int_t)step, "why", o->why, "time",
                              clock_wall_s(), "asked", asked_of(o));
    MEMORY_CHECK(event, "no memory for a run's lineage");
    if (was > step) json_object_set_new(event, "was", json_integer(was));
    if (o->skip_from) {
        const int64_t from = skips_batch(&l->skips, first);
        const status st = skips_add(&l->skips, first, o->skip_to);
        if (st != STATUS_OK) {
            json_decref(event);
            return st;
        }
        json_object_set_new(event, "batches",
                            json_pack("[I, I]", (json_int_t)from, (json_int_t)skips_batch(&l->skips, first)));
        log_info("lineage   the data of steps %lld to %lld are left out: step %lld reads batch %lld",
                 (long long)o->skip_from, (long long)o->skip_to, (long long)o->skip_from,
                 (long long)skips_batch(&l->skips, first) + 1);
    }
    if (l->events == NULL) l->events = json_array();
    json_array_append_new(l->events, event);
    return STATUS_OK;
}
