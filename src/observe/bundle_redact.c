/* What looks like a secret. A rule that is too strict hides a word from a colleague; one that is too lax gives a key
 * away: the rules are strict. */
#include "observe/bundle.h"
#include "base/memory.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

extern char **environ;

static const char mark[] = "[redacted]";
enum { WORTH = 6 }; /* bytes of a value from which on it may be a secret */

struct out {
    char *text;
    size_t used, room;
};

static void put(struct out *o, const char *text, size_t bytes)
{
    if (o->used + bytes + 1 > o->room) {
        o->room = 2 * (o->used + bytes + 1);
        o->text = realloc(o->text, o->room);
        MEMORY_CHECK(o->text, "no memory for %zu bytes of text", o->room);
    }
    memcpy(o->text + o->used, text, bytes);
    o->used += bytes;
    o->text[o->used] = 0;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Whether a name says that its value is secret: API_KEY, hf-token, password. "tokens", "tokenizer" and "keys" do not. A
 * prompt of the user's is nobody else's, too. */
static bool secret_name(const char *name, size_t n)
{
    static const char *const parts[] = {"secret",  "passw",         "apikey",      "api_key",
                                        "api-key", "access_key",    "private_key", "credential",
                                        "bearer",  "authorization", "cookie",      "sample_prompt"};
    char low[128] = "";
    if (n >= sizeof low) return false;
    for (size_t i = 0; i < n; i++) low[i] = (char)tolower((unsigned char)name[i]);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strstr(low, parts[i])) return true;
    static const char *const ends[] = {"token", "_key", "-key", "_auth", "_pat", "passwd", "pwd"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t m = strlen(ends[i]);
        if (n >= m && strcmp(low + n - m, ends[i]) == 0) {
            const bool begins =
                n == m || !isalpha((unsigned char)low[n - m - 1]) || ends[i][0] == '_' || ends[i][0] == '-';
            if (begins) return true;
        }
    }
    return false;
}

/* Forms that their makers chose to be found. */
static bool secret_form(const char *word, size_t n)
{
    static const struct {
        const char *begin;
        size_t least;
    } forms[] = {{"hf_", 20},         {"sk-", 20},    {"ghp_", 20},   {"gho_", 20}, {"ghs_", 20},
                 {"github_pat_", 20}, {"glpat-", 16}, {"AKIA", 16},   {"ASIA", 16}, {"xoxb-", 16},
                 {"xoxp-", 16},       {"xoxa-", 16},  {"eyJ", 40},    {"AIza", 30}, {"nvapi-", 20},
                 {"-----BEGIN", 10},  {"npm_", 20},   {"dop_v1_", 20}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        if (n >= forms[i].least && strncmp(word, forms[i].begin, strlen(forms[i].begin)) == 0) return true;
    return false;
}

/* The value at `p` of one of this process's secret variables; 0: none. */
static size_t secret_variable(const char *p)
{
    for (char **e = environ; *e; e++) {
        const char *is = strchr(*e, '=');
        if (is == NULL || !secret_name(*e, (size_t)(is - *e))) continue;
        const size_t n = strlen(is + 1);
        if (n >= WORTH && strncmp(p, is + 1, n) == 0) return n;
    }
    return 0;
}

/* Bytes of a word: what stands between white space, quotes and separators of lists. */
static size_t word_bytes(const char *p)
{
    size_t n = 0;
    while (p[n] && !isspace((unsigned char)p[n]) && !strchr("\"'`,;<>(){}[]|\\", p[n])) n++;
    return n;
}

static bool is_number(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr("0123456789+-.eE", p[i])) return false;
    return true;
}

/* Behind a secret name at `p` of n bytes: where its value begins; 0: no value. */
static size_t value_at(const char *p, size_t n)
{
    size_t at = n;
    if (p[at] == '"' || p[at] == '\'') at++;
    while (p[at] == ' ') at++;
    if (p[at] != '=' && p[at] != ':' && !(at > n && strncasecmp(p, "bearer", 6) == 0)) return 0;
    if (p[at] == '=' || p[at] == ':') at++;
    while (p[at] == ' ') at++;
    return at;
}

/* Bytes of a value: to its closing quote, else to the end of the line or of the quotes around all of it. */
static size_t value_bytes(const char *p)
{
    size_t n = 0;
    const char quote = *p == '"' || *p == '\'' ? *p : 0;
    if (quote) {
        for (n = 1; p[n] && p[n] != quote && p[n] != '\n'; n++)
            if (p[n] == '\\' && p[n + 1]) n++;
        return n + (p[n] == quote);
    }
    return strcspn(p, "\n\"'");
}

/* "pad_token: 5", "password: null" tell nothing. */
static bool is_harmless(const char *name, size_t name_bytes, const char *value, size_t n)
{
    static const char *const words[] = {"null", "\"\"", "''", "true", "false", "off"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (n == strlen(words[i]) && strncmp(value, words[i], n) == 0) return true;
    if (n == 0) return true;
    const size_t word = strcspn(value, " ,}\n");
    return name_bytes >= 5 && strncasecmp(name + name_bytes - 5, "token", 5) == 0 &&
           is_number(value, word < n ? word : n);
}

/* A URL's user and password, "//USER:PASSWORD@": their bytes behind "//"; 0: none. */
static size_t url_user(const char *p)
{
    if (strncmp(p, "//", 2) != 0) return 0;
    const size_t n = strcspn(p + 2, "/@ \t\n\"'");
    return p[2 + n] == '@' && memchr(p + 2, ':', n) ? n : 0;
}

static void redact(struct out *o, int64_t *count)
{
    put(o, mark, sizeof mark - 1);
    (*count)++;
}

char *bundle_redact(const char *text, int64_t *count)
{
    struct out o = {0};
    put(&o, "", 0);
    for (const char *p = text; *p;) {
        const bool begins = p == text || !is_word(p[-1]);
        size_t n, name = 0, value = 0;
        if ((n = secret_variable(p)) > 0 || (begins && secret_form(p, n = word_bytes(p)))) {
            redact(&o, count);
            p += n;
            continue;
        }
        if ((n = url_user(p)) > 0) {
            put(&o, p, 2);
            redact(&o, count);
            p += 2 + n;
            continue;
        }
        while (begins && (is_word(p[name]) || p[name] == '-' || p[name] == '.')) name++;
        if (name && secret_name(p, name) && (value = value_at(p, name)) > 0) {
            n = value_bytes(p + value);
            const bool quoted =
                n > 1 && (p[value] == '"' || p[value] == '\'') && p[value + n - 1] == p[value];
            if (!is_harmless(p, name, p + value, n)) {
                put(&o, p, value + quoted);
                redact(&o, count);
                p += value + n - quoted;
                continue;
            }
        }
        put(&o, p++, 1); /* one by one: a variable's value may begin inside of a word */
    }
    return o.text;
}
