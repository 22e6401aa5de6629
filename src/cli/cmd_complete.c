/* Completion of the command line. `ingot completion SHELL` prints a script, which asks `ingot complete WORD...` at each Tab: verbs, options
 * and keys come from the tables of this program, and runs from the directory runs/.
 *
 * `complete` gets the words behind "ingot" up to the cursor; the last one, perhaps empty, is to be completed. It prints what that word may
 * become, one candidate per line with a tab and its meaning. The last line may be :files or :dirs: the shell adds its own. A candidate that
 * ends in '=' or '.' goes on. */
#include "cli/cli.h"
#include "cli/verbs.h"
#include "spec/keys.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WORD_MAX = 1024, MEANING_MAX = 72 };

/* Prints prefix + word + suffix where it begins as `now` does. The meaning is cut at its first sentence. */
static void offer(const char *now, const char *prefix, const char *word, const char *suffix,
                  const char *meaning)
{
    char whole[WORD_MAX];
    snprintf(whole, sizeof whole, "%s%s%s", prefix, word, suffix);
    if (strncmp(whole, now, strlen(now)) != 0) return;
    const size_t sentence = strcspn(meaning, ":;\n");
    printf("%s\t%.*s\n", whole, (int)(sentence < MEANING_MAX ? sentence : MEANING_MAX), meaning);
}

static void offer_presets(const char *now, const char *prefix)
{
    for (int i = 0; i < preset_count(); i++) offer(now, prefix, preset_name(i), "", preset_text(i));
}

/* Directories of runs/ that hold a run. */
static void offer_runs(const char *now, const char *prefix)
{
    char path[WORD_MAX];
    DIR *dir = opendir("runs");
    if (!dir) return;
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "runs/%s/config.yaml", e->d_name);
        if (access(path, R_OK) != 0) continue;
        snprintf(path, sizeof path, "runs/%s", e->d_name);
        offer(now, prefix, path, "", "a run");
    }
    closedir(dir);
}

static bool begins_lower(const char *word)
{
    return islower((unsigned char)word[0]) || isdigit((unsigned char)word[0]);
}

/* What a row's value may be: words such as on|off, and FILE, DIR, RUN, CHECKPOINT, PREFIX. `kind` ends at a blank. */
static void offer_kind(const char *now, const char *prefix, const char *kind)
{
    const char *files = NULL;
    while (*kind && *kind != ' ') {
        char word[64];
        const size_t n = strcspn(kind, "| ");
        snprintf(word, sizeof word, "%.*s", (int)n, kind);
        kind += kind[n] == '|' ? n + 1 : n;
        if (begins_lower(word))
            offer(now, prefix, word, "", "");
        else if (strncmp(word, "RUN", 3) == 0 || strcmp(word, "CHECKPOINT") == 0) {
            if (strcmp(word, "CHECKPOINT") != 0) offer_runs(now, prefix);
            if (!files) files = strcmp(word, "RUN.yaml") == 0 ? ":files" : ":dirs";
        } else if (strcmp(word, "DIR") == 0 || strcmp(word, "HF_DIR") == 0)
            files = files ? files : ":dirs";
        else if (strncmp(word, "FILE", 4) == 0 || strncmp(word, "PREFIX", 6) == 0 ||
                 strncmp(word, "SHARDS", 6) == 0 || strncmp(word, "INPUT", 5) == 0 ||
                 strcmp(word, "SOURCE") == 0)
            files = ":files";
    }
    if (files) puts(files);
}

static void offer_option_value(const char *now, const char *prefix, const struct row *option)
{
    if (strcmp(option->name, "preset") == 0)
        offer_presets(now, prefix);
    else
        offer_kind(now, prefix, option->arguments);
}

/* `name`: section.key */
static void offer_key_value(const char *now, const char *prefix, const char *name)
{
    char section[KEY_NAME];
    const char *dot = strchr(name, '.');
    if (strcmp(name, "model.preset") == 0) offer_presets(now, prefix);
    if (!dot) return;
    snprintf(section, sizeof section, "%.*s", (int)(dot - name), name);
    const int row = key_find(section, dot + 1);
    if (row < 0) return;
    const struct key *k = key_row(row);
    for (int i = 0; i < k->word_count; i++) offer(now, prefix, k->words[i], "", "");
    if (k->type == KEY_AUTO) offer(now, prefix, "auto", "", "");
    if (k->type == KEY_BOOL) {
        offer(now, prefix, "true", "", "");
        offer(now, prefix, "false", "", "");
    }
    if (row == KEY_AT_data_train || row == KEY_AT_data_val) puts(":files");
    if (row == KEY_AT_data_tokenizer || row == KEY_AT_run_dir) puts(":dirs");
}

/* Sections first, then the keys of one. */
static void offer_keys(const char *now)
{
    char full[KEY_NAME];
    const bool in_section = strchr(now, '.') != NULL;
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        const struct key *k = key_row(i);
        if (in_section)
            offer(now, "--", key_full_name(full, k), "=", k->text);
        else if (i == 0 || strcmp(k->section, key_row(i - 1)->section) != 0)
            offer(now, "--", k->section, ".", "keys of this section");
    }
    if (in_section) offer(now, "--", "model.preset", "=", "start from a preset, then change keys");
}

static void offer_verbs(const char *now, const struct row *group)
{
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v)) {
        const char *name = group ? verb_of_group(v, group) : strchr(v->name, ' ') ? NULL : v->name;
        if (name) offer(now, "", name, "", v->text);
    }
}

/* The option that a word such as --out, --out=X or -o names; NULL: none. */
static const struct row *option_named(const struct row *verb, const char *word)
{
    for (const struct row *r = args_next_option(verb, NULL); r; r = args_next_option(verb, r)) {
        if (word[0] == '-' && r->letter && word[1] == r->letter && word[2] == 0) return r;
        const size_t n = strlen(r->name);
        if (strncmp(word, "--", 2) == 0 && strncmp(word + 2, r->name, n) == 0 &&
            (word[2 + n] == 0 || word[2 + n] == '='))
            return r;
    }
    return NULL;
}

static bool takes_next_word(const struct row *verb, const char *word)
{
    const struct row *r = option_named(verb, word);
    return r && r->type != FLAG_SWITCH && r->type != FLAG_OPTIONAL && !strchr(word, '=');
}

/* --name=now */
static void offer_behind_equals(const struct row *verb, const char *now)
{
    char name[WORD_MAX];
    const int n = (int)strcspn(now, "=");
    snprintf(name, sizeof name, "%.*s=", n, now);
    const struct row *option = option_named(verb, now);
    if (option) {
        offer_option_value(now, name, option);
    } else if (verb->form == VERB_KEYS) {
        char key[WORD_MAX];
        snprintf(key, sizeof key, "%.*s", n - 2, now + 2);
        offer_key_value(now, name, key);
    }
}

static void offer_dashed(const struct row *verb, const char *now)
{
    if (strncmp(now, "--", 2) == 0 && strchr(now, '=')) {
        offer_behind_equals(verb, now);
        return;
    }
    for (const struct row *r = args_next_option(verb, NULL); r; r = args_next_option(verb, r))
        offer(now, "--", r->name, "", r->text);
    offer(now, "--", "help", "", "usage and options");
    if (verb->form == VERB_KEYS) offer_keys(now);
}

static void offer_word(const struct row *verb, const char *now)
{
    if (strcmp(verb->name, "presets") == 0)
        offer_presets(now, "");
    else if (verb->form == VERB_COMMAND)
        offer_verbs(now, NULL);
    else
        offer_kind(now, "", verb->arguments[0] == '[' ? "" : verb->arguments);
}

/* Where a verb inside of a verb begins (launch -n 2 -- train ...); -1: nowhere yet. */
static int inner_verb(const struct row *verb, int at, int count, char **words)
{
    for (int i = at; i + 1 < count; i++) {
        if (strcmp(words[i], "--") == 0) return i + 1;
        if (words[i][0] != '-') return i;
        if (takes_next_word(verb, words[i])) i++;
    }
    return -1;
}

static void complete(int count, char **words)
{
    const char *now = words[count - 1], *last = count > 1 ? words[count - 2] : "";
    int at = 1;
    const struct row *verb = count > 1 ? verb_find(words[0]) : NULL;
    if (count == 1) offer_verbs(now, NULL);
    if (!verb) return;
    if (verb->form == VERB_GROUP) {
        char name[WORD_MAX];
        if (count == 2) offer_verbs(now, verb);
        snprintf(name, sizeof name, "%s %s", words[0], words[1]);
        verb = count > 2 ? verb_find(name) : NULL;
        at = 2;
        if (!verb) return;
    }
    const int inner = verb->form == VERB_COMMAND ? inner_verb(verb, at, count, words) : -1;
    if (inner >= 0)
        complete(count - inner, words + inner);
    else if (count > at + 1 && takes_next_word(verb, last))
        offer_option_value(now, "", option_named(verb, last));
    else if (count > at + 1 && verb->form == VERB_KEYS && strncmp(last, "--", 2) == 0 && strchr(last, '.') &&
             !strchr(last, '='))
        offer_key_value(now, "", last + 2);
    else if (now[0] == '-')
        offer_dashed(verb, now);
    else
        offer_word(verb, now);
}

status cmd_complete(struct args *a)
{
    if (a->argc > 0) complete(a->argc, a->argv);
    return STATUS_OK;
}

/* ---- the scripts */

static const char BASH[] =
    "# Completion of ingot in bash: eval \"$(ingot completion bash)\"\n"
    "_ingot() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} word now cut= value\n"
    "    local -a words=()\n"
    "    read -ra words <<<\"$line\"\n"
    "    [[ $line == *[[:space:]] ]] && words+=('')\n"
    "    while [[ ${#words[@]} -gt 1 && ${words[0]} != \"$1\" ]]; do words=(\"${words[@]:1}\"); done\n"
    "    now=${words[-1]} value=${words[-1]}\n"
    "    # Readline replaces what stands behind the last = or :, if it breaks words there.\n"
    "    [[ $now == *=* && $COMP_WORDBREAKS == *=* ]] && cut=${now%=*}=\n"
    "    [[ $now == *:* && $COMP_WORDBREAKS == *:* ]] && cut=${now%:*}:\n"
    "    [[ $now == --*=* ]] && value=${now#*=}\n"
    "    COMPREPLY=()\n"
    "    while IFS=$'\\t' read -r word _; do\n"
    "        case $word in\n"
    "        :files | :dirs)\n"
    "            [[ $word == :files ]] && word=-f || word=-d\n"
    "            compopt -o filenames 2>/dev/null\n"
    "            while IFS= read -r word; do\n"
    "                word=${now%\"$value\"}$word\n"
    "                COMPREPLY+=(\"${word#\"$cut\"}\")\n"
    "            done < <(compgen \"$word\" -- \"$value\")\n"
    "            ;;\n"
    "        *)\n"
    "            [[ $word == *[=.] ]] && compopt -o nospace 2>/dev/null\n"
    "            COMPREPLY+=(\"${word#\"$cut\"}\")\n"
    "            ;;\n"
    "        esac\n"
    "    done < <(\"${words[0]}\" complete \"${words[@]:1}\" 2>/dev/null)\n"
    "}\n"
    "complete -F _ingot ingot\n";

static const char ZSH[] =
    "#compdef ingot\n"
    "# Completion of ingot in zsh: a directory of $fpath has it as _ingot.\n"
    "_ingot() {\n"
    "    local line word files=\n"
    "    local -a ends end_texts open open_texts\n"
    "    for line in \"${(@f)$(\"${words[1]}\" complete \"${(@Q)words[2,CURRENT-1]}\" \"$PREFIX\" "
    "2>/dev/null)}\"; do\n"
    "        word=${line%%$'\\t'*}\n"
    "        case $word in\n"
    "        '') ;;\n"
    "        :files) files=(_files) ;;\n"
    "        :dirs) files=(_files -/) ;;\n"
    "        *[=.]) open+=(\"$word\") open_texts+=(\"$word  ${line#*$'\\t'}\") ;;\n"
    "        *) ends+=(\"$word\") end_texts+=(\"$word  ${line#*$'\\t'}\") ;;\n"
    "        esac\n"
    "    done\n"
    "    (( $#ends )) && compadd -l -d end_texts -a ends\n"
    "    (( $#open )) && compadd -l -S '' -d open_texts -a open\n"
    "    if [[ -n $files ]]; then\n"
    "        [[ $PREFIX == --*=* ]] && compset -P '*='\n"
    "        $files\n"
    "    fi\n"
    "}\n"
    "if [[ $funcstack[1] == _ingot ]]; then _ingot \"$@\"; else compdef _ingot ingot; fi\n";

static const char FISH[] =
    "# Completion of ingot in fish: ingot completion fish | source\n"
    "function __ingot_complete\n"
    "    set -l words (commandline -opc)\n"
    "    set -l now (commandline -ct)\n"
    "    for line in ($words[1] complete $words[2..-1] \"$now\" 2>/dev/null)\n"
    "        switch $line\n"
    "            case :files :dirs\n"
    "                set -l before (string match -r -- '^--[^=]*=' $now; or echo '')\n"
    "                set -l value (string replace -r -- '^--[^=]*=' '' $now)\n"
    "                set -l found (__fish_complete_path $value)\n"
    "                test $line = :dirs; and set found (__fish_complete_directories $value)\n"
    "                for path in $found\n"
    "                    echo $before$path\n"
    "                end\n"
    "            case '*'\n"
    "                echo $line\n"
    "        end\n"
    "    end\n"
    "end\n"
    "complete -c ingot -f -a '(__ingot_complete)'\n";

status cmd_completion(struct args *a)
{
    static const struct {
        const char *shell, *script;
    } scripts[] = {{"bash", BASH}, {"zsh", ZSH}, {"fish", FISH}};
    TRY(args_parse(a, NULL, 0));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, 1));
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        if (strcmp(a->words[0], scripts[i].shell) != 0) continue;
        fputs(scripts[i].script, stdout);
        return STATUS_OK;
    }
    return FAIL(STATUS_CONFIG, "no completion for '%s': bash, zsh, fish", a->words[0]);
}
