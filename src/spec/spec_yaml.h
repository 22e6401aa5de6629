/* Parses YAML text into assignments. The subset: one document, a mapping of sections, each a mapping of keys to
 * scalars. Anchors, aliases, tags, lists, deeper nesting and repeated keys are errors with file:line:column. */
#ifndef INGOT_SPEC_SPEC_YAML_H
#define INGOT_SPEC_SPEC_YAML_H
#include "spec/spec.h"

/* Position where a key was set; line 0: not set in this source. Lines and columns count from 1. */
struct spec_place {
    int line, column;
};

/* One source of settings (the file or the command line): its values, and which keys it sets. */
struct spec_layer {
    struct spec spec;              /* only fields with a place are valid */
    struct spec_place *place;      /* [KEY_AT_COUNT] */
    char preset[SPEC_PRESET_TEXT]; /* model.preset; "" when not given */
    struct spec_place preset_place;
};

/* Fills `layer` from text; the caller has zeroed the places. */
status spec_yaml_parse(struct spec_layer *layer, const char *name, const char *text,
                       size_t bytes) WARN_UNUSED;
#endif
