/* The table of spec keys, generated from the rows of model.def and run.def. The code that reads, prints, checks and
 * hashes a spec iterates over it. */
#ifndef INGOT_SPEC_KEYS_H
#define INGOT_SPEC_KEYS_H
#include "spec/spec.h"

enum key_type { KEY_INT, KEY_AUTO, KEY_REAL, KEY_BOOL, KEY_TEXT, KEY_SOURCES, KEY_ENUM };
/* Whether a resumed run may change a key. FROZEN: no. ANNOUNCED: yes, and the change is printed. FREE: yes. */
enum key_resume { KEY_FROZEN, KEY_ANNOUNCED, KEY_FREE };

/* Row numbers of the table: KEY_AT_model_hidden_size, KEY_AT_train_steps, ... */
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
    const char *unit, *text;  /* for display */
    const char *const *words; /* KEY_ENUM: value -> word */
    int word_count;
};

/* Buffer size for key_format: every byte of a TEXT may become an escape; a list of sources is printed unchanged. */
enum { KEY_FORMAT = 6 * SPEC_TEXT + 3 > SPEC_SOURCES_TEXT ? 6 * SPEC_TEXT + 3 : SPEC_SOURCES_TEXT, KEY_NAME = 64,
    KEY_HINT = KEY_NAME + 192 };
/* Quoting style of text in a value. */
enum key_style { KEY_YAML, KEY_JSON };

const struct key *key_row(int at);
/* Row of section.name; -1 when it does not exist. */
int key_find(const char *section, const char *name);
/* First row of a section; -1 when it does not exist. */
int key_section(const char *section);
/* "section.name" in buf. Returns buf. */
const char *key_full_name(char buf[KEY_NAME], const struct key *k);
/* "section.name" of the first key of that name in any section but fp8, or of the nearest one, in full; NULL: none. */
const char *key_anywhere(char full[KEY_NAME], const char *name);
const char *key_near(char full[KEY_NAME], const char *name);
/* Writes " (did you mean 'x'?)" or "" for an unknown section.name (section NULL: an unknown top-level word). Returns
 * buf. */
const char *key_suggest(char buf[KEY_HINT], const char *section, const char *name);

/* Parses `text` into the field of `s`. On failure returns false and writes one phrase to `why` ("'x' is not a whole
 * number"). */
bool key_set(const struct key *k, struct spec *s, const char *text, char why[SPEC_TEXT]);
/* Formats the value as YAML or JSON. key_set reads it back to the same value, except TEXT, which is quoted. Returns
 * buf. */
const char *key_format(const struct key *k, const struct spec *s, enum key_style style, char buf[KEY_FORMAT]);
/* Quotes text in double quotes that both YAML and JSON read. buf needs 6 bytes per byte of text and 3 more. */
void key_quote(char *buf, const char *text);
/* Replaces by '?' the bytes that YAML does not allow in a comment: all except printable ASCII, unless the text is
 * UTF-8 that needs no escape. */
void key_text_clean(char *text);
/* A key with default, range and meaning, and a note ("": none), in lines of at most `columns`. */
void key_explain(FILE *out, const struct key *k, const char *note, int columns);
bool key_equal(const struct key *k, const struct spec *a, const struct spec *b);
void key_copy(const struct key *k, struct spec *to, const struct spec *from);
/* Returns false when the value is outside the row's range or not finite; `why` gets one phrase. */
bool key_in_range(const struct key *k, const struct spec *s, char why[SPEC_TEXT]);
#endif
