#include "cli/hint.h"
#include "base/text.h"
#include "spec/keys.h"
#include "spec/synonyms.h"

#include <string.h>

static bool has_option(const struct row *verb, const char *name)
{
    for (const struct row *r = args_next_option(verb, NULL); r; r = args_next_option(verb, r))
        if (strcmp(r->name, name) == 0) return true;
    return false;
}

static const char *near_option(const struct row *verb, const char *name)
{
    enum { MAX = 64 };
    const char *names[MAX];
    int count = 0;
    for (const struct row *r = args_next_option(verb, NULL); r && count < MAX; r = args_next_option(verb, r))
        names[count++] = r->name;
    return text_nearest(name, names, count);
}

/* A target of synonyms.def that this verb has. */
static bool applies(const struct row *verb, const char *target)
{
    if (strncmp(target, "--", 2) == 0) return has_option(verb, target + 2);
    return verb->form == VERB_KEYS;
}

static bool hint_synonym(char *buf, size_t bytes, const struct row *verb, const char *name, const char *value)
{
    const struct synonym *s = synonym_next(NULL, name);
    while (s && !applies(verb, s->target)) s = synonym_next(s, name);
    if (!s) return false;
    const bool key = strncmp(s->target, "--", 2) != 0 && !strchr(s->target, ' ');
    const char *shown = !key ? "" : value && !s->note[0] ? value : "...";
    snprintf(buf, bytes, "'%s%s%s%.60s'%s%s%s", key ? "--" : "", s->target, key ? "=" : "", shown,
             s->note[0] ? " (" : "", s->note, s->note[0] ? ")" : "");
    return true;
}

void hint_option(char *buf, size_t bytes, const struct row *verb, const char *name, const char *value)
{
    char full[KEY_NAME];
    buf[0] = 0;
    if (has_option(verb, name)) { /* -resume */
        snprintf(buf, bytes, "'--%s'", name);
        return;
    }
    if (verb->form == VERB_KEYS && key_anywhere(full, name)) {
        snprintf(buf, bytes, "'--%s=%.60s'", full, value ? value : "...");
        return;
    }
    if (hint_synonym(buf, bytes, verb, name, value)) return;
    const char *near = near_option(verb, name);
    if (near)
        snprintf(buf, bytes, "'--%s'", near);
    else if (verb->form == VERB_KEYS && key_near(full, name))
        snprintf(buf, bytes, "'--%s=%.60s'", full, value ? value : "...");
}

bool hint_verb(char *buf, size_t bytes, const char *name)
{
    const struct synonym *s = synonym_next(NULL, name);
    while (s && strncmp(s->target, "ingot ", 6) != 0) s = synonym_next(s, name);
    if (s)
        snprintf(buf, bytes, "'%s'%s%s%s", s->target, s->note[0] ? " (" : "", s->note, s->note[0] ? ")" : "");
    return s != NULL;
}
