/* The keys of a spec as one table, made from the rows of model.def and run.def; what reads, prints, checks and hashes a spec walks it. */
#ifndef INGOT_SPEC_KEYS_H
#define INGOT_SPEC_KEYS_H
#include "spec/spec.h"

enum key_type { KEY_INT, KEY_AUTO, KEY_REAL, KEY_BOOL, KEY_TEXT, KEY_SOURCES, KEY_ENUM };
/* What a resumed run may do with a key. */
enum key_resume { KEY_FROZEN, KEY_ANNOUNCED, KEY_FREE };

/* KEY_AT_model_hidden_size, KEY_AT_train_steps, ...: rows of the table. */
enum key_at {
#define FIELD(name, type, def, range, unit, text) KEY_AT_model_##name,
#define ENUM(name, list, def, text)               KEY_AT_model_##name,
#include "spec/model.def"
#undef FIELD
#undef ENUM
#define FIELD(section, name, type, def, range, unit, resume, text) KEY_AT_##section##_##name,
#define ENUM(section, name, list, def, resume, text)               KEY_AT_##section##_##name,
#include "spec/run.def"
#undef FIELD
#undef ENUM
    KEY_AT_COUNT
};

struct key {
    const char *section, *name;
    enum key_type type;
    enum key_resume resume;
    size_t offset, bytes;     /* of the value in struct spec */
    const char *range;        /* "[0, 1)", "" */
    const char *unit, *text;  /* for people */
    const char *const *words; /* KEY_ENUM: value -> word */
    int word_count;
};

/* A long enough buffer for key_format: every byte of a TEXT may become an escape; a list of sources is printed as it is. */
enum { KEY_FORMAT = 6 * SPEC_TEXT + 3 > SPEC_SOURCES_TEXT ? 6 * SPEC_TEXT + 3 : SPEC_SOURCES_TEXT, KEY_NAME = 64, KEY_HINT = KEY_NAME + 32 };
/* How text in a value is quoted. */
enum key_style { KEY_YAML, KEY_JSON };

const struct key *key_row(int at);
/* Row of section.name; -1 when there is none. */
int key_find(const char *section, const char *name);
/* First row of a section; -1 when there is no such section. */
int key_section(const char *section);
/* "section.name" in buf. Returns buf. */
const char *key_full_name(char buf[KEY_NAME], const struct key *k);
/* " (did you mean 'x'?)", or "", for a section.name that does not exist (section NULL: a word at the top). Returns buf. */
const char *key_suggest(char buf[KEY_HINT], const char *section, const char *name);

/* Stores `text` in the field of `s`. On failure returns false, with one phrase in `why` ("'x' is not a whole number"). */
bool key_set(const struct key *k, struct spec *s, const char *text, char why[SPEC_TEXT]);
/* The value as YAML or JSON. key_set reads it back to the same value, but for TEXT, which is quoted. Returns buf. */
const char *key_format(const struct key *k, const struct spec *s, enum key_style style, char buf[KEY_FORMAT]);
/* Text in double quotes, as both YAML and JSON read it; buf has room for 6 bytes per byte and 3 more. */
void key_quote(char *buf, const char *text);
/* Bytes that YAML does not take in a comment become '?': all but printable ASCII, unless the whole is UTF-8 that needs no escape. */
void key_text_clean(char *text);
bool key_equal(const struct key *k, const struct spec *a, const struct spec *b);
void key_copy(const struct key *k, struct spec *to, const struct spec *from);
/* False when the value lies outside the row's range (or is not finite); `why` gets one phrase. */
bool key_in_range(const struct key *k, const struct spec *s, char why[SPEC_TEXT]);
#endif
