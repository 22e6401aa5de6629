#include "spec/factors.h"
#include "base/text.h"

#include <string.h>

static status not_such(const char *key, const char *entry, const char *why)
{
    return FAIL(STATUS_CONFIG,
                "%s: '%.100s' %s; a list of names with factors, such as embedding:0.1,layers.0.*:0.5", key,
                entry, why);
}

static enum factor_group group_of(const char *word)
{
    static const char *const words[] = {
#define X(name, word, text) word,
        FACTOR_GROUPS(X)
#undef X
    };
    for (int i = 0; i < FACTOR_PATTERN; i++)
        if (strcmp(words[i], word) == 0) return (enum factor_group)i;
    return FACTOR_PATTERN;
}

/* A word without '.', '*', '?' and '[' matches no weight's name: it was meant for a group. */
static bool is_pattern(const char *text)
{
    return strpbrk(text, ".*?[") != NULL;
}

static status read_one(struct factor *e, const char *key, char *entry, bool zero)
{
    char *colon = strrchr(entry, ':');
    if (colon == NULL || colon == entry || colon - entry >= FACTOR_NAME)
        return not_such(key, entry, "is no name with a factor");
    snprintf(e->pattern, sizeof e->pattern, "%.*s", (int)(colon - entry), entry);
    if (!text_to_real(colon + 1, &e->value) || !(e->value >= 0 && e->value <= 1000) ||
        (e->value == 0 && !zero))
        return not_such(key, entry,
                        zero ? "has a factor outside of [0, 1000]" : "has a factor outside of (0, 1000]");
    e->group = group_of(e->pattern);
    if (e->group == FACTOR_PATTERN && !is_pattern(e->pattern))
        return not_such(key, e->pattern,
                        "is neither a group (embedding, head, matrices, mixers, ffn, norms, biases, tables) "
                        "nor a pattern of names");
    return STATUS_OK;
}

status factors_read(struct factors *f, const char *key, const char *text, bool zero)
{
    char copy[SPEC_TEXT], *rest = copy;
    f->count = 0;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *entry; (entry = strsep(&rest, ",")) != NULL;) {
        entry += strspn(entry, " ");
        if (entry[0] == 0) continue;
        if (f->count == FACTORS_MAX) return not_such(key, entry, "is one too many: at most 64");
        TRY(read_one(&f->entry[f->count++], key, entry, zero));
    }
    return STATUS_OK;
}

status factors_check(const struct run_spec *r)
{
    struct factors f;
    TRY(factors_read(&f, "optim.lr_scale", r->optim_lr_scale, false));
    return factors_read(&f, "optim.decay_scale", r->optim_decay_scale, true);
}
