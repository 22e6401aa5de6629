#include "spec/keys.h"
#include "base/text.h"
#include "base/utf8.h"
#include "spec/sources_int.h"
#include "spec/synonyms.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

#define WORD(prefix, value, word) word,
#define LIST(tag, prefix)         static const char *const words_##prefix[] = {prefix##_WORDS(WORD)};
WORD_LISTS(LIST)
#undef WORD
#undef LIST

#define PLACE(field)  offsetof(struct spec, field), sizeof(((struct spec *)0)->field)
#define WORDS(prefix) words_##prefix, COUNT(words_##prefix)
static const struct key keys[] = {
#define FIELD(name, type, def, range, unit, text)                                                            \
    {"model", #name, KEY_##type, KEY_FROZEN, PLACE(model.name), range, unit, text, NULL, 0},
#define ENUM(name, list, def, text)                                                                          \
    {"model", #name, KEY_ENUM, KEY_FROZEN, PLACE(model.name), "", "", text, WORDS(list)},
#include "spec/model.def"
#undef FIELD
#undef ENUM
#define FIELD(section, name, type, def, range, unit, resume, text)                                           \
    {#section, #name, KEY_##type, KEY_##resume, PLACE(run.section##_##name), range, unit, text, NULL, 0},
#define ENUM(section, name, list, def, resume, text)                                                         \
    {#section, #name, KEY_ENUM, KEY_##resume, PLACE(run.section##_##name), "", "", text, WORDS(list)},
#include "spec/run.def"
#undef FIELD
#undef ENUM
};
_Static_assert(sizeof keys / sizeof keys[0] == KEY_AT_COUNT,
               "enum key_at and the table come from the same rows");

const struct key *key_row(int at)
{
    CHECK(at >= 0 && at < KEY_AT_COUNT, "row %d of %d", at, KEY_AT_COUNT);
    return &keys[at];
}

int key_find(const char *section, const char *name)
{
    for (int i = 0; i < KEY_AT_COUNT; i++)
        if (strcmp(keys[i].section, section) == 0 && strcmp(keys[i].name, name) == 0) return i;
    return -1;
}

int key_section(const char *section)
{
    for (int i = 0; i < KEY_AT_COUNT; i++)
        if (strcmp(keys[i].section, section) == 0) return i;
    return -1;
}

const char *key_full_name(char buf[KEY_NAME], const struct key *k)
{
    snprintf(buf, KEY_NAME, "%s.%s", k->section, k->name);
    return buf;
}

/* "warmup" for warmup_steps: a key of `section` (NULL: of any) that begins with the word. */
static const struct key *key_begins(const char *section, const char *name)
{
    size_t length = strlen(name);
    if (length < 3) return NULL;
    for (int i = 0; i < KEY_AT_COUNT; i++)
        if ((!section || strcmp(keys[i].section, section) == 0) && strncmp(keys[i].name, name, length) == 0)
            return &keys[i];
    return NULL;
}

static const char *near_in_section(char full[KEY_NAME], const char *section, const char *name)
{
    const char *names[KEY_AT_COUNT + 1];
    int count = 0;
    for (int i = 0; i < KEY_AT_COUNT; i++)
        if (strcmp(keys[i].section, section) == 0) names[count++] = keys[i].name;
    if (strcmp(section, "model") == 0) names[count++] = "preset";
    const struct key *begins = key_begins(section, name);
    const char *near = begins ? begins->name : text_nearest(name, names, count);
    if (near) snprintf(full, KEY_NAME, "%s.%s", section, near);
    return near ? full : NULL;
}

/* A section, or a key of any section. Sections come first: `train` is also the name of a key. */
static const char *near_anywhere(char full[KEY_NAME], const char *name)
{
    const char *names[2 * KEY_AT_COUNT];
    int sections = 0, count = 0;
    for (int i = 0; i < KEY_AT_COUNT; i++)
        if (i == 0 || strcmp(keys[i].section, keys[i - 1].section) != 0) names[sections++] = keys[i].section;
    count = sections;
    for (int i = 0; i < KEY_AT_COUNT; i++) names[count++] = keys[i].name;
    const char *near = text_nearest(name, names, count);
    for (int i = 0; i < sections && near; i++)
        if (strcmp(names[i], near) == 0) return near;
    const struct key *begins = key_begins(NULL, name);
    if (begins) return key_full_name(full, begins);
    for (int i = 0; i < KEY_AT_COUNT && near; i++)
        if (strcmp(keys[i].name, near) == 0) return key_full_name(full, &keys[i]);
    return NULL;
}

/* trian.steps: the nearest section, when it has the key. */
static const char *near_section(char full[KEY_NAME], const char *section, const char *name)
{
    const char *names[KEY_AT_COUNT];
    for (int i = 0; i < KEY_AT_COUNT; i++) names[i] = keys[i].section;
    const char *near = text_nearest(section, names, KEY_AT_COUNT);
    int row = near ? key_find(near, name) : -1;
    return row < 0 ? near : key_full_name(full, &keys[row]);
}

/* Not in section fp8, whose names mean something else without it: `warmup` is that of the learning rate. */
const char *key_anywhere(char full[KEY_NAME], const char *name)
{
    for (int i = 0; i < KEY_AT_COUNT; i++)
        if (strcmp(keys[i].name, name) == 0 && strcmp(keys[i].section, "fp8") != 0)
            return key_full_name(full, &keys[i]);
    return NULL;
}

const char *key_near(char full[KEY_NAME], const char *name)
{
    const char *near = near_anywhere(full, name);
    return near && strchr(near, '.') ? near : NULL;
}

/* The key that another program calls so. */
static const struct synonym *synonym_key(const char *name)
{
    for (const struct synonym *s = synonym_next(NULL, name); s; s = synonym_next(s, name))
        if (s->target[0] != '-' && !strchr(s->target, ' ')) return s;
    return NULL;
}

/* The same name in another section comes first (train.lr is optim.lr), then what other programs call so, then a mistake in this section,
 * then one anywhere. */
const char *key_suggest(char buf[KEY_HINT], const char *section, const char *name)
{
    char full[KEY_NAME];
    const struct synonym *s = NULL;
    const char *best = NULL;
    if (section && key_section(section) < 0) best = near_section(full, section, name), section = NULL;
    if (!best) best = key_anywhere(full, name);
    if (!best && (s = synonym_key(name))) best = s->target;
    if (!best && section) best = near_in_section(full, section, name);
    if (!best) best = near_anywhere(full, name);
    buf[0] = 0;
    if (best)
        snprintf(buf, KEY_HINT, " (did you mean '%s'?%s%s)", best, s && s->note[0] ? " " : "",
                 s ? s->note : "");
    return buf;
}

static void *field(const struct key *k, struct spec *s)
{
    return (char *)s + k->offset;
}
static const void *field_const(const struct key *k, const struct spec *s)
{
    return (const char *)s + k->offset;
}

static bool set_text(char *to, const char *text, char *why)
{
    size_t bytes = strlen(text);
    if (bytes >= SPEC_TEXT) {
        snprintf(why, SPEC_TEXT, "%zu bytes of text, the limit is %d", bytes, SPEC_TEXT - 1);
        return false;
    }
    if (utf8_valid(text, bytes) < bytes) {
        snprintf(why, SPEC_TEXT, "the text is not UTF-8");
        return false;
    }
    memset(to, 0, SPEC_TEXT);
    memcpy(to, text, bytes);
    return true;
}

/* A pattern unchanged; a list in canonical form. */
static bool set_sources(char *to, const char *text, char *why)
{
    memset(to, 0, SPEC_SOURCES_TEXT);
    if (!sources_is_list(text)) return set_text(to, text, why);
    struct sources *s = malloc(sizeof *s);
    MEMORY_CHECK(s, "no memory for a list of sources");
    bool good = sources_read(s, text, why);
    if (good && !sources_text(s, to)) {
        snprintf(why, SPEC_TEXT, "the list of sources is longer than %d bytes", SPEC_SOURCES_TEXT - 1);
        good = false;
    }
    free(s);
    return good;
}

static bool set_word(const struct key *k, int *to, const char *text, char *why)
{
    for (int i = 0; i < k->word_count; i++) {
        if (strcmp(k->words[i], text) != 0) continue;
        *to = i;
        return true;
    }
    const char *near = text_nearest(text, k->words, k->word_count);
    int at = snprintf(why, SPEC_TEXT, "'%.100s' is none of", text);
    for (int i = 0; i < k->word_count; i++)
        at += snprintf(why + at, (size_t)(SPEC_TEXT - at), "%s %s", i ? "," : "", k->words[i]);
    if (near) snprintf(why + at, (size_t)(SPEC_TEXT - at), " (did you mean '%s'?)", near);
    return false;
}

/* A number; a share may be given in percent. */
static bool read_real(const struct key *k, const char *text, double *out)
{
    char number[64];
    const size_t n = strlen(text);
    if (n == 0 || n >= sizeof number || text[n - 1] != '%' || strcmp(k->unit, "share") != 0)
        return text_to_real(text, out);
    memcpy(number, text, n - 1);
    number[n - 1] = 0;
    if (!text_to_real(number, out)) return false;
    *out /= 100;
    return true;
}

bool key_set(const struct key *k, struct spec *s, const char *text, char why[SPEC_TEXT])
{
    const char *want = "";
    bool good = false;
    switch (k->type) {
    case KEY_TEXT: return set_text(field(k, s), text, why);
    case KEY_SOURCES: return set_sources(field(k, s), text, why);
    case KEY_ENUM: return set_word(k, field(k, s), text, why);
    case KEY_AUTO:
        if (strcmp(text, "auto") == 0) return *(int64_t *)field(k, s) = 0, true;
        good = text_to_int(text, field(k, s)), want = "a whole number (100, 4k) or auto";
        break;
    case KEY_INT: good = text_to_int(text, field(k, s)), want = "a whole number (100, 4k, 1e6, 4Ki)"; break;
    case KEY_REAL: good = read_real(k, text, field(k, s)), want = "a number"; break;
    case KEY_BOOL: good = text_to_bool(text, field(k, s)), want = "true or false"; break;
    }
    if (!good) snprintf(why, SPEC_TEXT, "'%.100s' is not %s", text, want);
    return good;
}

static void format_real(char *buf, double v)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, KEY_FORMAT, "%.*g", digits, v);
        if (strtod(buf, NULL) == v) return;
    }
}

/* Characters that YAML prints unescaped: no controls, line separators, byte order mark or invalid characters. */
static bool readable(uint32_t c)
{
    return (c >= 0x20 && c < 0x7F) ||
           (c >= 0xA0 && c != 0x2028 && c != 0x2029 && c != 0xFEFF && c != 0xFFFE && c != 0xFFFF);
}

void key_text_clean(char *text)
{
    size_t bytes = strlen(text);
    bool good = utf8_valid(text, bytes) == bytes;
    for (const uint8_t *p = (const uint8_t *)text; *p && good; p += utf8_read(p).bytes)
        good = readable(utf8_read(p).code);
    for (char *p = text; *p && !good; p++)
        if (*p < 0x20 || *p >= 0x7F) *p = '?';
}

/* Double-quoted; both YAML and JSON read \" \\ \n \t and \uNNNN. Only what YAML calls not printable is
 * escaped. */
void key_quote(char *buf, const char *text)
{
    char *out = buf;
    *out++ = '"';
    size_t bytes = strlen(text);
    CHECK(utf8_valid(text, bytes) == bytes, "a spec holds text that is not UTF-8");
    struct utf8_char at;
    for (const uint8_t *p = (const uint8_t *)text; *p; p += at.bytes) {
        at = utf8_read(p);
        uint32_t c = at.code;
        if (readable(c) && c != '"' && c != '\\') {
            memcpy(out, p, at.bytes);
            out += at.bytes;
        } else if (c == '"' || c == '\\') {
            *out++ = '\\', *out++ = (char)c;
        } else {
            out += snprintf(out, 8, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\u%04X", c);
        }
    }
    *out++ = '"';
    *out = 0;
}

const char *key_format(const struct key *k, const struct spec *s, enum key_style style, char buf[KEY_FORMAT])
{
    const void *at = field_const(k, s);
    switch (k->type) {
    case KEY_AUTO:
        if (*(const int64_t *)at == 0) {
            snprintf(buf, KEY_FORMAT, style == KEY_JSON ? "\"auto\"" : "auto");
            break;
        }
        snprintf(buf, KEY_FORMAT, "%lld", (long long)*(const int64_t *)at);
        break;
    case KEY_INT: snprintf(buf, KEY_FORMAT, "%lld", (long long)*(const int64_t *)at); break;
    case KEY_REAL: format_real(buf, *(const double *)at); break;
    case KEY_BOOL: snprintf(buf, KEY_FORMAT, "%s", *(const bool *)at ? "true" : "false"); break;
    case KEY_TEXT: key_quote(buf, at); break;
    case KEY_SOURCES:
        if (sources_is_list(at))
            snprintf(buf, KEY_FORMAT, "%s", (const char *)at); /* valid YAML and JSON without quotes */
        else
            key_quote(buf, at);
        break;
    case KEY_ENUM: {
        int word = *(const int *)at;
        CHECK(word >= 0 && word < k->word_count, "%s.%s holds %d", k->section, k->name, word);
        snprintf(buf, KEY_FORMAT, style == KEY_JSON ? "\"%s\"" : "%s", k->words[word]);
        break;
    }
    }
    return buf;
}

bool key_equal(const struct key *k, const struct spec *a, const struct spec *b)
{
    const void *x = field_const(k, a), *y = field_const(k, b);
    return k->type == KEY_TEXT || k->type == KEY_SOURCES ? strcmp(x, y) == 0 : memcmp(x, y, k->bytes) == 0;
}

void key_copy(const struct key *k, struct spec *to, const struct spec *from)
{
    memcpy(field(k, to), field_const(k, from), k->bytes);
}

bool key_in_range(const struct key *k, const struct spec *s, char why[SPEC_TEXT])
{
    if (k->type == KEY_ENUM) {
        int word = *(const int *)field_const(k, s);
        if (word >= 0 && word < k->word_count) return true;
        snprintf(why, SPEC_TEXT, "%d stands for no word", word);
        return false;
    }
    if (k->type != KEY_INT && k->type != KEY_AUTO && k->type != KEY_REAL) return true;
    const void *at = field_const(k, s);
    double v = k->type != KEY_REAL ? (double)*(const int64_t *)at : *(const double *)at;
    bool good = isfinite(v);
    if (k->range[0]) {
        char *end; /* at ',', then at ']' or ')' */
        double low = strtod(k->range + 1, &end);
        double high = strtod(end + 1, &end);
        good = good && (k->range[0] == '(' ? v > low : v >= low) && (*end == ')' ? v < high : v <= high);
    }
    char buf[KEY_FORMAT];
    if (!good) snprintf(why, SPEC_TEXT, "%s is outside %s", key_format(k, s, KEY_YAML, buf), k->range);
    return good;
}
