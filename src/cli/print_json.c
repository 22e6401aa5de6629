#include "cli/print_json.h"
#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void print_json(json_t *o)
{
    char *text = json_dumps(o, JSON_INDENT(2));
    CHECK(text, "the result is not JSON");
    puts(text);
    free(text);
    json_decref(o);
}

void json_set_real(json_t *o, const char *key, double value)
{
    if (isfinite(value)) json_object_set_new(o, key, json_real(value));
}
