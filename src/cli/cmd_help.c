/* ingot help and ingot version. */
#include "cli/cli.h"
#include "cli/find.h"
#include "cli/verbs.h"
#include "observe/env.h"

#include <stdio.h>
#include <string.h>

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
    char help[] = "--help";
    char *words[] = {a->words[0], a->word_count > 1 ? a->words[1] : help, help};
    return verb_run(a->word_count > 1 ? 3 : 2, words);
}

status cmd_version(struct args *a)
{
    TRY(args_parse(a, NULL, 0));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    printf("ingot %s%s%s\n", INGOT_VERSION, env_git()[0] ? " " : "", env_git());
    return STATUS_OK;
}
