#include "spec/synonyms.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static const struct synonym synonyms[] = {
#define SYNONYM(words, target, note) {words, target, note},
#include "spec/synonyms.def"
#undef SYNONYM
    {NULL, NULL, NULL},
};

static bool has_word(const char *words, const char *word)
{
    for (const char *at = words; *at; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        size_t same = 0;
        while (same < length &&
               at[same] == (word[same] == '-' ? '_' : (char)tolower((unsigned char)word[same])))
            same++;
        if (same == length && word[same] == 0) return true;
        at += length;
    }
    return false;
}

const struct synonym *synonym_next(const struct synonym *at, const char *word)
{
    for (at = at ? at + 1 : synonyms; at->words; at++)
        if (has_word(at->words, word)) return at;
    return NULL;
}

const struct synonym *synonyms_all(void)
{
    return synonyms;
}
