/* What earlier looks at this host have left: counters, which count by their growth, and the rates of acceptances. */
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "doctor/doctor_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool state_path(char *path, size_t bytes, const char *name)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && state[0])
        snprintf(path, bytes, "%s/ingot/%s", state, name);
    else if (home && home[0])
        snprintf(path, bytes, "%s/.local/state/ingot/%s", home, name);
    else
        return false;
    return true;
}

static bool history_path(const struct doctor *d, const char *path, char *out, size_t bytes)
{
    char name[160];
    if (path) return snprintf(out, bytes, "%s", path) > 0;
    snprintf(name, sizeof name, "doctor-%s.json", d->host);
    return state_path(out, bytes, name);
}

/* Since when counters have counted: an older look tells nothing. */
static double boot_s(const struct doctor *d)
{
    double up;
    return hostfs_number(&d->fs, &up, "/proc/uptime") ? d->system.now_s - up : 0;
}

status history_open(struct doctor *d, const char *path)
{
    char at[1200];
    bool there;
    if (!history_path(d, path, at, sizeof at)) return STATUS_OK;
    const status st = io_exists(at, &there);
    if (st != STATUS_OK && path) return st;
    if (st != STATUS_OK) log_warn("%s; counters are not compared with an earlier look", status_message());
    if (!there) return STATUS_OK;
    json_t *o = json_load_file(at, 0, NULL);
    const json_t *values = json_object_get(o, "counters"), *time = json_object_get(o, "time");
    const bool whole = json_is_object(values) && json_is_number(time);
    if (whole && json_number_value(time) >= boot_s(d) && json_number_value(time) <= d->system.now_s) {
        d->before = json_deep_copy(values);
        d->before_s = json_number_value(time);
    }
    json_decref(o);
    if (whole || path == NULL) return STATUS_OK; /* our own, damaged: it is replaced */
    return FAIL(STATUS_DATA, "--state %s: not a file of `ingot doctor`; remove it, or name another", at);
}

void history_save(const struct doctor *d, const char *path)
{
    char at[1200], dir[1200];
    if (json_object_size(d->counters) == 0 || !history_path(d, path, at, sizeof at)) return;
    json_t *o = json_pack("{s:f, s:O}", "time", d->system.now_s, "counters", d->counters);
    char *text = json_dumps(o, JSON_INDENT(1));
    json_decref(o);
    CHECK(text, "the counters are not JSON");
    text_parent(dir, sizeof dir, at);
    /* A home that cannot be written is no fault of the host: the next look has no history. */
    if (io_make_dirs(dir) != STATUS_OK || io_write_file(at, text, strlen(text)) != STATUS_OK)
        log_debug("the counters are not kept: %s", status_message());
    free(text);
}

double grown(struct doctor *d, const char *entity, const char *name, double now)
{
    char key[192];
    if (!isfinite(now)) return NAN;
    snprintf(key, sizeof key, "%s.%s", entity, name);
    json_object_set_new(d->counters, key, json_real(now));
    const json_t *old = json_object_get(d->before, key);
    const double growth = json_is_number(old) ? now - json_number_value(old) : NAN;
    return growth >= 0 ? growth : NAN;
}

void rate_add(struct doctor *d, const char *what, const char *entity, double value, const char *unit)
{
    json_array_append_new(d->rates, json_pack("{s:s, s:s, s:f, s:s}", "what", what, "entity", entity, "value",
                                              value, "unit", unit));
}

bool past_path(char *path, size_t bytes)
{
    return state_path(path, bytes, "accept.json");
}

json_t *past_read(void)
{
    char path[1200];
    json_t *o = past_path(path, sizeof path) ? json_load_file(path, 0, NULL) : NULL;
    if (json_is_object(o)) return o;
    json_decref(o);
    return json_object();
}
