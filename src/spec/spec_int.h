/* Private to spec/: the origin of each value of a resolved spec, and presets before they are resolved. */
#ifndef INGOT_SPEC_SPEC_INT_H
#define INGOT_SPEC_SPEC_INT_H
#include "spec/keys.h"
#include "spec/spec_yaml.h"

enum { SPEC_PATH = 1024, SPEC_ORIGIN_TEXT = SPEC_PATH + 32 };
enum spec_from { FROM_DEFAULT, FROM_PRESET, FROM_FILE, FROM_COMMAND_LINE, FROM_KEYS };

struct spec_origin {
    char path[SPEC_PATH];
    char preset[SPEC_PRESET_TEXT];
    enum spec_from from[KEY_AT_COUNT];
    struct spec_place place[KEY_AT_COUNT]; /* FROM_FILE: its position */
};

/* Writes "default", "preset small", "run.yaml:3:5", "command line" or "derived" to buf. Returns buf. */
const char *spec_origin_text(const struct spec_origin *o, int row, char buf[SPEC_ORIGIN_TEXT]);

/* Which keys do something in a precision. ops/precision.h has the rest of what a precision means. */
struct precision_keys {
    bool fp8, nvfp4;            /* the section of that name is its own */
    bool codes;                 /* fp8.wgrad and fp8.exclude: GEMMs read codes */
    bool no_masters;            /* optim.master none: weights are bf16 */
};
struct precision_keys precision_keys(enum precision precision);

/* preset_find without model_spec_resolve: keys set in addition to a preset still determine the values derived from
 * them. */
status preset_apply(const char *name, struct model_spec *m) WARN_UNUSED;

/* Checks that model.layers and model.window_layers name existing layers and parts (layers.c). */
status layers_check(const struct model_spec *m) WARN_UNUSED;
/* Lists of layers, "all" or "0-3,8": ranges_check checks the syntax, ranges_hold tests membership. */
status ranges_check(const char *key, const char *text, int64_t layer_count) WARN_UNUSED;
bool ranges_hold(const char *text, int64_t layer);
/* Checks of model.engram_* (ngram.c) and model.hrm_* (passes.c). */
status engram_check(const struct model_spec *m) WARN_UNUSED;
status hrm_check(const struct model_spec *m) WARN_UNUSED;
#endif
