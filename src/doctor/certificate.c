/* The certificate of an acceptance. */
#include "base/io.h"
#include "base/text.h"
#include "doctor/doctor_int.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static void past_add(json_t *past, const json_t *rate, double now_s)
{
    const char *entity = json_string_value(json_object_get(rate, "entity"));
    const char *what = json_string_value(json_object_get(rate, "what"));
    const double value = json_number_value(json_object_get(rate, "value"));
    json_t *of = json_object_get(past, entity);
    if (of == NULL) json_object_set_new(past, entity, of = json_object());
    if (value <= json_number_value(json_object_get(json_object_get(of, what), "best"))) return;
    json_object_set_new(
        of, what,
        json_pack("{s:f, s:O, s:f}", "best", value, "unit", json_object_get(rate, "unit"), "time", now_s));
}

static status json_write(const json_t *o, const char *path)
{
    char *text = json_dumps(o, JSON_INDENT(2));
    CHECK(text, "%s is not JSON", path);
    status st = io_write_file(path, text, strlen(text));
    free(text);
    return st;
}

status doctor_certificate(const struct doctor *d, char *path)
{
    char at[1200], dir[1200], stamp[32];
    const time_t now = (time_t)d->system.now_s;
    struct tm tm;
    size_t i;
    json_t *rate, *past = past_read(), *o = doctor_json(d, false);
    gmtime_r(&now, &tm);
    strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", &tm);
    snprintf(path, 1024, "%s/accept-%s-%s.json", d->storage, d->host, stamp);
    status st = json_write(o, path);
    json_array_foreach(d->rates, i, rate) past_add(past, rate, d->system.now_s);
    if (st == STATUS_OK && past_path(at, sizeof at)) {
        text_parent(dir, sizeof dir, at);
        st = io_make_dirs(dir);
        if (st == STATUS_OK) st = json_write(past, at);
    }
    json_decref(past);
    json_decref(o);
    return st;
}
