#include "cli/find.h"
#include "base/flags.h"
#include "base/text.h"
#include "cli/hint.h"
#include "cli/verbs.h"
#include "spec/keys.h"
#include "spec/synonyms.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

enum { COLUMNS = 100, INDENT = 4, OPTIONS_MOST = 12 };

/* Columns of the terminal; COLUMNS in a file. */
static int columns_of(FILE *out)
{
    return text_columns(fileno(out), COLUMNS);
}

static char plain(char c)
{
    return c == '-' || c == '_' ? ' ' : (char)tolower((unsigned char)c);
}

/* Whether `text` has `word` at the beginning of one of its words; a word of two or three letters, as one of them. */
static bool mentions(const char *text, const char *word)
{
    for (const char *at = text; *at; at++) {
        size_t same = 0;
        if (at > text && isalnum((unsigned char)at[-1])) continue;
        while (word[same] && plain(at[same]) == plain(word[same])) same++;
        if (word[same] == 0 && (strlen(word) > 3 || !isalnum((unsigned char)at[same]))) return true;
    }
    return false;
}

/* The row of "section.name"; -1: none. */
static int key_at(const char *full)
{
    char section[KEY_NAME];
    const char *dot = strchr(full, '.');
    if (dot == NULL || dot - full >= KEY_NAME) return -1;
    snprintf(section, sizeof section, "%.*s", (int)(dot - full), full);
    return key_find(section, dot + 1);
}

static void print_option(const struct row *verb, const struct row *option, FILE *out)
{
    const int at = fprintf(out, "ingot %s --%s%s%s", verb->name, option->name,
                           option->arguments[0] ? "=" : "", option->arguments);
    text_wrap(out, at, INDENT, columns_of(out), option->text);
}

/* Options of that name: `ingot launch --ranks`. */
static void print_options_named(const char *name, FILE *out)
{
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v))
        for (const struct row *r = args_next_option(v, NULL); r; r = args_next_option(v, r))
            if (strcmp(r->name, name) == 0) print_option(v, r, out);
}

/* What other programs call so. */
static int print_synonyms(const char *word, bool *shown, FILE *out)
{
    int found = 0;
    for (const struct synonym *s = synonym_next(NULL, word); s; s = synonym_next(s, word)) {
        const int at = key_at(s->target);
        if (at >= 0) {
            shown[at] = true;
            key_explain(out, key_row(at), s->note, columns_of(out));
        } else if (strncmp(s->target, "--", 2) == 0) {
            print_options_named(s->target + 2, out);
        } else {
            fprintf(out, "%s\n", s->target);
            if (s->note[0]) fprintf(out, "%*s", INDENT, "");
            if (s->note[0]) text_wrap(out, INDENT, INDENT, columns_of(out), s->note);
        }
        found++;
    }
    return found;
}

static int print_keys(const char *word, bool *shown, bool by_name, FILE *out)
{
    int found = 0;
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        char full[KEY_NAME];
        const struct key *k = key_row(i);
        if (shown[i] || !mentions(by_name ? key_full_name(full, k) : k->text, word)) continue;
        shown[i] = true;
        key_explain(out, k, "", columns_of(out));
        found++;
    }
    return found;
}

static int print_verbs(const char *word, FILE *out)
{
    int found = 0;
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v)) {
        if (!mentions(v->name, word) && !mentions(v->text, word)) continue;
        text_wrap(out, fprintf(out, "ingot %s", v->name), INDENT, columns_of(out), v->text);
        found++;
    }
    return found;
}

static int print_options(const char *word, FILE *out)
{
    int found = 0;
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v))
        for (const struct row *r = args_next_option(v, NULL); r; r = args_next_option(v, r))
            if ((mentions(r->name, word) || mentions(r->text, word)) && ++found <= OPTIONS_MOST)
                print_option(v, r, out);
    if (found > OPTIONS_MOST) fprintf(out, "and %d more options\n", found - OPTIONS_MOST);
    return found;
}

status find_word(const char *word, FILE *out)
{
    bool shown[KEY_AT_COUNT] = {false};
    word += strspn(word, "-");
    if (!word[0]) return FAIL(STATUS_CONFIG, "help: a word of dashes alone; `ingot help` lists the verbs");
    const int exact = key_at(word);
    if (exact >= 0) {
        key_explain(out, key_row(exact), "", columns_of(out));
        return STATUS_OK;
    }
    int found = print_synonyms(word, shown, out);
    found += print_keys(word, shown, true, out);
    if (found) return STATUS_OK;
    found += print_keys(word, shown, false, out);
    found += print_verbs(word, out);
    found += print_options(word, out);
    if (found) return STATUS_OK;
    char full[KEY_NAME];
    const bool near = key_near(full, word);
    return FAIL(STATUS_CONFIG,
                "help: no verb, option or key has '%s'%s%s%s; `ingot help` lists the verbs, `ingot config "
                "--keys` the keys, docs/GLOSSARY.md the words",
                word, near ? "; did you mean '" : "", near ? full : "", near ? "'" : "");
}
