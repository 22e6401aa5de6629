#include "data/tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdio.h>

/* A text, or an object with the text as "content". */
static int32_t named_token(const json_t *config, const char *key, const struct tokenizer *t)
{
    const json_t *named = json_object_get(config, key);
    if (json_is_object(named)) named = json_object_get(named, "content");
    return json_is_string(named) ? tokenizer_special(t, json_string_value(named)) : -1;
}

struct tokenizer_ends tokenizer_ends_of(const struct tokenizer *t, const char *dir)
{
    char path[1100];
    snprintf(path, sizeof path, "%.1000s/tokenizer_config.json", dir);
    json_t *config = json_load_file(path, 0, NULL);
    struct tokenizer_ends e = {.bos = named_token(config, "bos_token", t),
                               .eos = named_token(config, "eos_token", t)};
    if (e.eos < 0) e.eos = tokenizer_eot(t);
    json_decref(config);
    return e;
}
