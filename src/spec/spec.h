/* Specs: the user's configuration as plain structs. spec_load fills a spec once, spec_check checks it, and it is
 * const afterwards. model.def and run.def have one row per key; structs, parser, --help, `ingot config` and the
 * resume hash are generated from the rows. */
#ifndef INGOT_SPEC_SPEC_H
#define INGOT_SPEC_SPEC_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { SPEC_TEXT = 512, SPEC_PRESET_TEXT = 32, SPEC_SOURCES_TEXT = 16384 };
enum { SPEC_FILE_BYTES_MAX = 1 << 20 };
typedef int64_t spec_INT;
typedef int64_t spec_AUTO; /* a whole number, or the word auto (stored as 0) */
typedef double spec_REAL;
typedef bool spec_BOOL;
typedef char spec_TEXT[SPEC_TEXT];
typedef char spec_SOURCES[SPEC_SOURCES_TEXT]; /* a pattern, or a list of sources: spec/sources.h */

/* enum norm { NORM_RMSNORM, NORM_LAYERNORM }; and so on for every list of words.def. */
#include "spec/words.def"
#define WORD(prefix, value, word) prefix##_##value,
#define LIST(tag, prefix)         enum tag { prefix##_WORDS(WORD) };
WORD_LISTS(LIST)
LIST(mixer, MIXER)
LIST(ffn, FFN)
#undef WORD
#undef LIST

/* ENUM keys are stored as int: the value of the enum above. */
struct model_spec {
#define FIELD(name, type, def, range, unit, text) spec_##type name;
#define ENUM(name, list, def, text)               int name;
#include "spec/model.def"
#undef FIELD
#undef ENUM
};

/* run_spec has the keys of run.def as section_name: optim.lr is `optim_lr`. */
struct run_spec {
#define FIELD(section, name, type, def, range, unit, resume, text) spec_##type section##_##name;
#define ENUM(section, name, list, def, resume, text)               int section##_##name;
#include "spec/run.def"
#undef FIELD
#undef ENUM
};

struct spec {
    struct model_spec model;
    struct run_spec run;
};

/* Origin of each resolved value: default, preset NAME, FILE:LINE:COLUMN, command line, or derived from other keys.
 * Opaque. */
struct spec_origin;

/* Reads PATH (YAML) and overrides ("--train.steps=100", with or without the dashes), fills in defaults and presets,
 * resolves and checks.
 *
 * The YAML file has the sections model, run, data, train, fp8, optim, parallel, memory, eval, ckpt, log, attention,
 * machine. `model: {preset: small}` (or --model.preset=small) starts from a preset. Later settings win, in this order:
 * defaults, preset (of the command line, else of the file), keys of the file, keys of the command line. On the command
 * line a length (train.steps, train.tokens) or run.name replaces the file's other length or run.dir, and a
 * train.precision other than fp8 the file's section fp8.
 *
 * Any mistake is STATUS_CONFIG with file:line:column and the nearest key. `path` may be NULL: overrides only.
 * `origin` may be NULL; else the caller frees it. Both outputs are written only on success. */
status spec_load(struct spec *s, const char *path, int override_count, char **overrides,
                 struct spec_origin **origin) WARN_UNUSED;
/* The same from `bytes` of text in memory; `name` replaces the path in messages. */
status spec_load_text(struct spec *s, const char *name, const char *text, size_t bytes, int override_count,
                      char **overrides, struct spec_origin **origin) WARN_UNUSED;
/* For a plan: a run without a length gets SPEC_ENDLESS as train.steps. */
#define SPEC_ENDLESS 1000000000000
status spec_load_open(struct spec *s, const char *path, int override_count, char **overrides,
                      struct spec_origin **origin) WARN_UNUSED;
/* Whether the file or the command line sets `section.name`; else its value is a default, a preset's or derived. */
bool spec_origin_given(const struct spec_origin *o, const char *section, const char *name);
void spec_origin_free(struct spec_origin *o);

/* The step of spec_load after reading: a zero that means "the value of another key" gets that value (head_count_kv,
 * head_dim, train.sequence_length, train.batch_tokens, run.dir). vocab_size and the length of the run do not change. */
void model_spec_resolve(struct model_spec *m);
void spec_resolve(struct spec *s);
/* Optimizer steps of the run: train.steps, or train.tokens rounded up to whole steps. Needs a checked spec. */
int64_t spec_step_count(const struct spec *s);
/* Tokens that they read (train.batch_schedule: spec/ramp.h). */
double spec_token_count(const struct spec *s);

/* Prints resolved values as YAML that spec_load reads back to the same spec; with `origin` each line ends in "# from
 * ...". */
void spec_dump(const struct spec *s, const struct spec_origin *origin, FILE *out);
/* The same as a string (the caller frees it); NULL without memory. */
char *spec_dump_text(const struct spec *s);
/* Prints the model section with meanings: all keys, or those that differ from the defaults. Returns how many it left
 * out. */
int model_spec_dump(const struct model_spec *m, bool all, FILE *out);
/* The same as one JSON object of sections, or of the model section only (the caller calls free()). With `origin` a
 * value is {"value": ..., "from": "..."}. */
char *spec_dump_json(const struct spec *s, const struct spec_origin *origin);
char *model_spec_dump_json(const struct model_spec *m);

/* Makes two specs of the same model equal (canonical.c): keys without effect return to their defaults, zeros that
 * mean "the value of another key" get that value, and layers and windows get one of their equivalent forms. Needs a
 * checked spec. */
void model_spec_canonical(struct model_spec *m);

/* Checks for values and combinations that cannot work, before anything is allocated; each error is one line. Accepts
 * resolved and unresolved specs. */
status model_spec_check(const struct model_spec *m) WARN_UNUSED;
status spec_check(const struct spec *s) WARN_UNUSED;

/* Presets: model specs by name, resolved. A vocab_size of 0 is set later from the tokenizer. */
int preset_count(void);
const char *preset_name(int i);
const char *preset_text(int i); /* one-line description */
/* An unknown name is an error with the nearest name. */
status preset_find(const char *name, struct model_spec *m) WARN_UNUSED;
void model_spec_default(struct model_spec *m);
void run_spec_default(struct run_spec *r);

/* The parts of a layer. model.layers is "[ONCE;]REPEATED", both lists of [COUNT*]MIXER[/FFN]; the default FFN is mlp.
 * Needs a checked pattern. */
struct layer_spec {
    enum mixer mixer;
    enum ffn ffn;
};
struct layer_spec model_layer(const struct model_spec *m, int64_t layer);
/* Sets model.layers to its shortest form for the given layers [layer_count]. Returns false and changes nothing when
 * it is too long for a key. */
bool model_layers_set(struct model_spec *m, const struct layer_spec *layers) WARN_UNUSED;
/* The words in model.layers. */
const char *mixer_word(enum mixer mixer);
const char *ffn_word(enum ffn ffn);
/* Number of layers with this mixer or this feed-forward part, including the blocks of multi-token prediction, which
 * continue the pattern. */
int64_t model_mixer_count(const struct model_spec *m, enum mixer mixer);
int64_t model_ffn_count(const struct model_spec *m, enum ffn ffn);
/* Passes over the layers. A forward makes one pass, or several with hierarchical reasoning (see model/hrm.h).
 *
 *   model_passes     number of passes of a forward
 *   model_pass       the layers [from, to) of pass `k`
 *   model_segments   number of segments
 *   model_visits     number of passes that run a layer */
struct layer_range {
    int64_t from, to;
};
int64_t model_passes(const struct model_spec *m);
struct layer_range model_pass(const struct model_spec *m, int64_t k);
int64_t model_segments(const struct model_spec *m);
int64_t model_visits(const struct model_spec *m, int64_t layer);
/* Engram (see nn/engram.h).
 *
 *   model_layer_engram   layer i has a memory
 *   model_engram_rows    table rows that a token reads in one layer
 *   model_engram_primes  sizes of a layer's tables, which are concatenated; returns their rows in total */
enum { MODEL_ENGRAM_ROWS = 128 };
bool model_layer_engram(const struct model_spec *m, int64_t layer);
int64_t model_engram_rows(const struct model_spec *m);
/* Maximum number of rows of a layer's tables that a step reads; and whether the gradients hold these rows only
 * (optim.table_gradients): parallel/sparse_grad.h. */
int64_t spec_table_reads(const struct spec *s);
bool spec_tables_sparse(const struct spec *s);
int64_t model_engram_primes(const struct model_spec *m, int64_t layer, int32_t out[MODEL_ENGRAM_ROWS]);
/* True when layer i uses sliding-window attention. */
bool model_layer_window(const struct model_spec *m, int64_t layer);

/* FNV-1a over the canonical text of the FROZEN keys (model and data order), which must not change between save and
 * resume. Other keys may differ; spec_diff prints the differences. */
uint64_t spec_frozen_hash(const struct spec *s);
/* The same of all keys of a section. */
uint64_t spec_section_hash(const struct spec *s, const char *section);
/* Prints the keys that differ, "train.lr: 0.1 -> 0.2", one per line; frozen keys end in " (fixed once a run has
 * begun)". Returns the number of lines. */
int spec_diff(const struct spec *a, const struct spec *b, FILE *out);
/* The same without FREE keys: what a resumed run prints. */
int spec_diff_announced(const struct spec *a, const struct spec *b, FILE *out);
enum keys_form { KEYS_TEXT, KEYS_MARKDOWN, KEYS_JSON };
/* Prints one row per key: name, default, unit, range, meaning. `ingot config --keys` prints it. KEYS_MARKDOWN prints
 * a heading and a table per section, with what a resumed run may do with the key: the text of docs/CONFIG.md.
 * `section`: only its keys; NULL: all. */
void spec_keys_print(FILE *out, enum keys_form form, const char *section);
#endif
