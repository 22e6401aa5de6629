/* Specs: what the user asked for, as plain structs. Filled once by spec_load, checked by spec_check, const afterwards.
 * model.def and run.def hold one row per key; struct, parser, --help, `ingot config` and the resume hash all come from the row. */
#ifndef INGOT_SPEC_SPEC_H
#define INGOT_SPEC_SPEC_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { SPEC_TEXT = 512 };
typedef int64_t spec_INT;
typedef double spec_REAL;
typedef bool spec_BOOL;
typedef char spec_TEXT[SPEC_TEXT];

#include "spec/words.def"
#define X(value, word) NORM_##value,
enum norm { NORM_WORDS(X) };
#undef X
#define X(value, word) ACT_##value,
enum activation { ACT_WORDS(X) };
#undef X
#define X(value, word) POS_##value,
enum position { POS_WORDS(X) };
#undef X
#define X(value, word) SCALING_##value,
enum scaling { SCALING_WORDS(X) };
#undef X
#define X(value, word) PACKING_##value,
enum packing { PACKING_WORDS(X) };
#undef X
#define X(value, word) PRECISION_##value,
enum precision { PRECISION_WORDS(X) };
#undef X
#define X(value, word) RECOMPUTE_##value,
enum recompute { RECOMPUTE_WORDS(X) };
#undef X
#define X(value, word) OPTIM_##value,
enum optim { OPTIM_WORDS(X) };
#undef X
#define X(value, word) SCHEDULE_##value,
enum schedule { SCHEDULE_WORDS(X) };
#undef X

/* ENUM keys are stored as int: the value of the enum above. */
struct model_spec {
#define FIELD(name, type, def, unit, text) spec_##type name;
#define ENUM(name, list, def, unit, text) int name;
#include "spec/model.def"
#undef FIELD
#undef ENUM
};

/* run_spec has the keys of run.def as section_name: optim.lr is `optim_lr`. */
struct run_spec {
#define FIELD(section, name, type, def, unit, text) spec_##type section##_##name;
#define ENUM(section, name, list, def, unit, text) int section##_##name;
#include "spec/run.def"
#undef FIELD
#undef ENUM
};

struct spec {
    struct model_spec model;
    struct run_spec run;
};

/* Reads PATH (YAML) and overrides ("--train.steps=100", without the dashes or with them), fills defaults and presets, checks.
 * Every resolved value remembers its origin: default, preset NAME, FILE:LINE:COLUMN or command line.
 * YAML: sections model, run, data, train, optim, eval, ckpt, log, machine; `model: {preset: small}` starts from a preset.
 * STATUS_CONFIG with file:line:column and the nearest key on any mistake. path may be NULL: overrides only. */
struct spec_origin;         /* opaque: where each value came from */
status spec_load(struct spec *s, const char *path, int override_count, char **overrides, struct spec_origin **origin) WARN_UNUSED;
void spec_origin_free(struct spec_origin *o);

/* Resolved values as YAML that spec_load reads back to the same spec; with `origin` each line ends in "# from ...". */
void spec_dump(const struct spec *s, const struct spec_origin *origin, FILE *out);
/* The same as one JSON object (caller frees with free()). */
char *spec_dump_json(const struct spec *s);

/* Combinations that cannot work, in one line each, before anything is allocated. */
status model_spec_check(const struct model_spec *m) WARN_UNUSED;
status spec_check(const struct spec *s) WARN_UNUSED;

/* Presets: model specs by name. */
int preset_count(void);
const char *preset_name(int i);
status preset_find(const char *name, struct model_spec *m) WARN_UNUSED;   /* unknown: nearest name */
void model_spec_default(struct model_spec *m);
void run_spec_default(struct run_spec *r);

/* True when layer i uses the sliding window. */
bool model_layer_window(const struct model_spec *m, int64_t layer);

/* Hash over what must not change between save and resume (model and data order); differing optimizer settings are allowed and
 * printed. FNV or xxh64 over the canonical text of the frozen keys. */
uint64_t spec_frozen_hash(const struct spec *s);
/* Prints the keys in which two specs differ, "train.lr: 0.1 -> 0.2", one per line. */
void spec_diff(const struct spec *a, const struct spec *b, FILE *out);
#endif
