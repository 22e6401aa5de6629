#include "cli/names.h"
#include "spec/keys.h"
#include "spec/synonyms.h"

#include <string.h>

enum kind { KEY, OPTION, COMMAND, KINDS };

static enum kind kind_of(const struct synonym *s)
{
    if (strncmp(s->target, "--", 2) == 0) return OPTION;
    return strchr(s->target, ' ') ? COMMAND : KEY;
}

/* Words of a row, each between `before` and `after`. */
static void print_words(FILE *out, const char *words, const char *before, const char *between)
{
    for (const char *at = words; *at; at += strspn(at, " ")) {
        const int length = (int)strcspn(at, " ");
        fprintf(out, "%s%s%.*s%s", at == words ? "" : between, before, length, at, before);
        at += length;
    }
}

void names_print_markdown(FILE *out)
{
    static const char *const heads[KINDS] = {[KEY] = "Keys", [OPTION] = "Options", [COMMAND] = "Commands"};
    for (enum kind kind = 0; kind < KINDS; kind++) {
        fprintf(out, "\n## %s\n\n| elsewhere | here | what differs |\n|---|---|---|\n", heads[kind]);
        for (const struct synonym *s = synonyms_all(); s->words; s++) {
            if (kind_of(s) != kind) continue;
            fputs("| ", out);
            print_words(out, s->words, "`", ", ");
            fprintf(out, " | `%s` | %s |\n", s->target, s->note);
        }
    }
}

void names_print_json(FILE *out)
{
    char quoted[KEY_FORMAT];
    for (const struct synonym *s = synonyms_all(); s->words; s++) {
        fprintf(out, "%s{\"words\": [", s == synonyms_all() ? "{\"names\": [\n " : ",\n ");
        print_words(out, s->words, "\"", ", ");
        fputs("], \"target\": ", out);
        key_quote(quoted, s->target);
        fprintf(out, "%s, \"note\": ", quoted);
        key_quote(quoted, s->note);
        fprintf(out, "%s}", quoted);
    }
    fputs("]}\n", out);
}
