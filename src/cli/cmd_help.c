/* ingot help and ingot version. */
#include "cli/cli.h"
#include "cli/find.h"
#include "cli/print_json.h"
#include "cli/verbs.h"
#include "observe/env.h"
#include "spec/synonyms.h"

#include <stdio.h>
#include <string.h>

enum { WORDS = 128 };

/* "data build", "gradient accumulation": all words, with `between`. */
static const char *joined(char buf[WORDS], const struct args *a, char between)
{
    size_t used = 0;
    buf[0] = 0;
    for (int i = 0; i < a->word_count && used < WORDS - 1; i++)
        used += (size_t)snprintf(buf + used, WORDS - used, "%.*s%s", i > 0, &between, a->words[i]);
    return buf;
}

/* Whether several words are one name of another program: they are no verb, and do not begin with one that has no verbs of its own. */
static bool is_name(const struct args *a)
{
    char words[WORDS];
    const struct row *first = verb_find(a->words[0]);
    if (a->word_count < 2 || verb_find(joined(words, a, ' '))) return false;
    return first == NULL || (first->form == VERB_GROUP && synonym_next(NULL, joined(words, a, '_')));
}

status cmd_help(struct args *a)
{
    const bool own = a->argc > 0 && (strcmp(a->argv[0], "--help") == 0 || strcmp(a->argv[0], "-h") == 0);
    if (a->argc == 1 && a->argv[0][0] == '-' && !own) return find_word(a->argv[0], stdout); /* --lr */
    TRY(args_parse(a, NULL, 0));
    if (a->help) return STATUS_OK;
    if (a->word_count == 0) {
        verbs_print(stdout);
        return STATUS_OK;
    }
    if (a->word_count == 1 && !verb_find(a->words[0])) return find_word(a->words[0], stdout);
    char name[WORDS];
    if (is_name(a)) return find_word(joined(name, a, '_'), stdout);
    char help[] = "--help";
    char *words[] = {a->words[0], a->word_count > 1 ? a->words[1] : help, help};
    return verb_run(a->word_count > 1 ? 3 : 2, words);
}

status cmd_version(struct args *a)
{
    bool json = false;
    const struct flag flags[] = {FLAG("json", &json)};
    TRY(args_parse(a, flags, 1));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    if (json)
        print_json(json_pack("{s:s, s:s}", "version", INGOT_VERSION, "git", env_git()));
    else
        printf("ingot %s%s%s\n", INGOT_VERSION, env_git()[0] ? " " : "", env_git());
    return STATUS_OK;
}
