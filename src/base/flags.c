#include "base/flags.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 64, TEXT_COLUMN = 26, COLUMNS = 100 };

/* ---- rows */

const struct row *args_next_option(const struct row *verb, const struct row *at)
{
    for (at = at ? at + 1 : verb + 1; at->kind == ROW_NOTE || at->kind == ROW_OPTION; at++)
        if (at->kind == ROW_OPTION) return at;
    return NULL;
}

/* --vocab_size is --vocab-size. */
static bool same_name(const char *name, const char *word, size_t length)
{
    if (strlen(name) != length) return false;
    for (size_t i = 0; i < length; i++)
        if (name[i] != word[i] && !(name[i] == '-' && word[i] == '_')) return false;
    return true;
}

static const struct row *option_of(const struct row *verb, const char *word, size_t length)
{
    for (const struct row *r = args_next_option(verb, NULL); r; r = args_next_option(verb, r))
        if (same_name(r->name, word, length)) return r;
    return NULL;
}

static const struct row *letter_of(const struct row *verb, char letter)
{
    for (const struct row *r = args_next_option(verb, NULL); r; r = args_next_option(verb, r))
        if (r->letter == letter) return r;
    return NULL;
}

/* ---- help */

const char *args_usage(char *buf, size_t bytes, const struct row *verb)
{
    snprintf(buf, bytes, "%s%s%s%s%s", verb->name, verb->arguments[0] ? " " : "", verb->arguments,
             args_next_option(verb, NULL) ? " [options]" : "",
             verb->form == VERB_KEYS ? " [--section.key=value ...]" : "");
    return buf;
}

void args_print_usage(FILE *out, const struct row *verb, int columns)
{
    char line[512];
    const int at = fprintf(out, "usage: ingot ");
    text_wrap(out, at, at, columns, args_usage(line, sizeof line, verb));
}

static int columns_of(FILE *out)
{
    const int columns = text_columns(fileno(out), COLUMNS);
    return columns > 2 * TEXT_COLUMN ? columns : COLUMNS;
}

static void print_help(FILE *out, const struct row *verb)
{
    char line[512];
    const int columns = columns_of(out);
    args_print_usage(out, verb, columns);
    text_wrap(out, 0, 0, columns, verb->text);
    for (const struct row *r = verb + 1; r->kind == ROW_NOTE || r->kind == ROW_OPTION; r++)
        if (r->kind == ROW_NOTE) text_wrap(out, 0, 0, columns, r->text);
    for (const struct row *r = args_next_option(verb, NULL); r; r = args_next_option(verb, r)) {
        const char short_form[] = {'-', r->letter, ',', ' ', 0};
        const bool may = r->type == FLAG_OPTIONAL;
        int at = snprintf(line, sizeof line, "  %s--%s%s%s%s ", r->letter ? short_form : "", r->name,
                          may               ? "[="
                          : r->arguments[0] ? " "
                                            : "",
                          r->arguments, may ? "]" : "");
        fputs(line, out);
        text_wrap(out, at, TEXT_COLUMN, columns, r->text);
    }
}

/* ---- parsing */

static status unknown_option(const struct args *a, const char *word, const char *name, const char *value)
{
    char hint[320] = "";
    if (a->hint) a->hint(hint, sizeof hint, a->verb, name, value);
    const char *end = strchr(word, '=');
    const int length = (int)(end ? end - word : (ptrdiff_t)strlen(word));
    if (hint[0]) return FAIL(STATUS_CONFIG, "unknown option '%.*s'; did you mean %s?", length, word, hint);
    return FAIL(STATUS_CONFIG, "unknown option '%.*s'; `ingot help %s` lists the options", length, word,
                a->verb->name);
}

static status set_flag(const struct flag *f, const char *value)
{
    bool good = true;
    struct flag_list *list = f->to;
    switch (f->type) {
    case FLAG_SWITCH: good = text_to_bool(value, f->to); break;
    case FLAG_OPTIONAL: *(struct flag_optional *)f->to = (struct flag_optional){true, value}; break;
    case FLAG_TEXT: *(const char **)f->to = value; break;
    case FLAG_INT: good = text_to_int(value, f->to); break;
    case FLAG_REAL: good = text_to_real(value, f->to); break;
    case FLAG_LIST:
        if (list->count == FLAG_LIST_MAX)
            return FAIL(STATUS_CONFIG, "--%s is given more than %d times", f->name, FLAG_LIST_MAX);
        list->items[list->count++] = value;
        break;
    }
    static const char *const want[] = {[FLAG_SWITCH] = "true or false",
                                       [FLAG_OPTIONAL] = "text",
                                       [FLAG_TEXT] = "text",
                                       [FLAG_INT] = "a whole number (100, 4k, 1e6)",
                                       [FLAG_REAL] = "a number",
                                       [FLAG_LIST] = "text"};
    if (!good) return FAIL(STATUS_CONFIG, "--%s: '%s' is not %s", f->name, value, want[f->type]);
    return STATUS_OK;
}

struct parse {
    struct args *a;
    const struct flag *flags;
    int count, at; /* of argv */
};

/* The word behind --name, when it can be a value. */
static const char *next_value(struct parse *p)
{
    const struct args *a = p->a;
    if (p->at + 1 >= a->argc || strncmp(a->argv[p->at + 1], "--", 2) == 0) return NULL;
    return a->argv[++p->at];
}

static status take_option(struct parse *p, const struct row *r, const char *value)
{
    const struct flag *f = p->flags;
    while (strcmp(f->name, r->name) != 0) f++; /* args_parse has seen that it is there */
    if (!value && f->type == FLAG_SWITCH) return set_flag(f, "true");
    if (!value && f->type == FLAG_OPTIONAL) return set_flag(f, "");
    if (!value) value = next_value(p);
    if (!value)
        return FAIL(STATUS_CONFIG, "--%s has no value; write --%s=%s", f->name, f->name, r->arguments);
    return set_flag(f, value);
}

/* "--" and a key: of one word, or of two. */
static status join_key(struct args *a, const char *name, const char *between, const char *value)
{
    const size_t bytes = strlen(name) + strlen(between) + strlen(value) + 3;
    char *word = malloc(bytes);
    if (!word) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the command line");
    snprintf(word, bytes, "--%s%s%s", name, between, value);
    a->joined[a->joined_count++] = word;
    a->keys[a->key_count++] = word;
    return STATUS_OK;
}

/* train.steps=3: a section's name, a dot, a key's name. A path with such a beginning has a slash, or no '='. */
static bool is_bare_key(const char *word)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    const size_t section = strspn(word, letters);
    if (section == 0 || word[section] != '.') return false;
    const size_t name = strspn(word + section + 1, "abcdefghijklmnopqrstuvwxyz0123456789_-");
    return name > 0 && word[section + 1 + name] == '=';
}

static status take_long(struct parse *p, char *word)
{
    struct args *a = p->a;
    const char *name = word + 2, *eq = strchr(name, '=');
    const size_t length = eq ? (size_t)(eq - name) : strlen(name);
    const struct row *r = option_of(a->verb, name, length);
    if (r) return take_option(p, r, eq ? eq + 1 : NULL);
    if (memchr(name, '.', length)) {
        if (a->verb->form != VERB_KEYS)
            return FAIL(STATUS_CONFIG,
                        "ingot %s takes no keys such as '%s'; `ingot help %s` lists its options",
                        a->verb->name, word, a->verb->name);
        if (eq) {
            a->keys[a->key_count++] = word;
            return STATUS_OK;
        }
        const char *value = next_value(p);
        if (!value) return FAIL(STATUS_CONFIG, "%s has no value; write %s=VALUE", word, word);
        return join_key(a, name, "=", value);
    }
    char plain[NAME_MAX_BYTES];
    snprintf(plain, sizeof plain, "%.*s", (int)(length < NAME_MAX_BYTES ? length : NAME_MAX_BYTES - 1), name);
    const char *value = eq ? eq + 1 : NULL;
    if (!value && p->at + 1 < a->argc && a->argv[p->at + 1][0] != '-') value = a->argv[p->at + 1];
    return unknown_option(a, word, plain, value);
}

static status take_letter(struct parse *p, const char *word)
{
    const struct row *r = letter_of(p->a->verb, word[1]);
    if (!r) return unknown_option(p->a, word, word + 1, NULL);
    return take_option(p, r, word[2] == 0 ? NULL : word[2] == '=' ? word + 3 : word + 2);
}

/* One word of argv, and perhaps its value behind it. */
static status take_word(struct parse *p)
{
    struct args *a = p->a;
    char *word = a->argv[p->at];
    const bool all = strcmp(word, "--") == 0;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        print_help(stdout, a->verb);
        a->help = true;
        return STATUS_OK;
    }
    if (strncmp(word, "--", 2) == 0 && !all) return take_long(p, word);
    if (word[0] == '-' && word[1] && !all) return take_letter(p, word);
    if (a->verb->form == VERB_KEYS && is_bare_key(word)) return join_key(a, word, "", "");
    if (!all) a->words[a->word_count++] = word;
    if (all || a->verb->form == VERB_COMMAND)
        while (p->at + 1 < a->argc) a->words[a->word_count++] = a->argv[++p->at];
    return STATUS_OK;
}

/* Our own bug: an option without a place, or a place without an option. */
static void check_flags(const struct row *verb, const struct flag *flags, int count)
{
    int rows = 0;
    for (const struct row *r = args_next_option(verb, NULL); r; r = args_next_option(verb, r), rows++) {
        int at = 0;
        while (at < count && strcmp(flags[at].name, r->name) != 0) at++;
        CHECK(at < count, "ingot %s: --%s has no place", verb->name, r->name);
        CHECK(flags[at].type == r->type, "ingot %s: --%s has two types", verb->name, r->name);
    }
    CHECK(rows == count, "ingot %s: %d rows of options, %d places", verb->name, rows, count);
}

status args_parse(struct args *a, const struct flag *flags, int count)
{
    struct parse p = {.a = a, .flags = flags, .count = count};
    const size_t n = (size_t)a->argc + 1;
    check_flags(a->verb, flags, count);
    a->words = calloc(3 * n, sizeof *a->words);
    if (!a->words) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the command line");
    a->keys = a->words + n;
    a->joined = a->words + 2 * n;
    for (; p.at < a->argc && !a->help; p.at++) TRY(take_word(&p));
    return STATUS_OK;
}

status args_words(const struct args *a, int min, int max)
{
    char usage[512];
    args_usage(usage, sizeof usage, a->verb);
    if (a->word_count > max)
        return FAIL(STATUS_CONFIG, "'%s' is one too many; usage: ingot %s", a->words[max], usage);
    if (a->word_count < min) return FAIL(STATUS_CONFIG, "usage: ingot %s", usage);
    return STATUS_OK;
}

void args_free(struct args *a)
{
    for (int i = 0; i < a->joined_count; i++) free(a->joined[i]);
    free(a->words);
    a->words = a->keys = a->joined = NULL;
    a->word_count = a->key_count = a->joined_count = 0;
}
