/* ingot man: manual pages in roff, made of the rows that --help prints and of the table of keys.
 *
 *     ingot.1        the verbs, exit codes
 *     ingot-VERB.1   a verb with its options; of a group ("data"), all of its verbs
 *     ingot-keys.5   the keys of a RUN.yaml */
#include "cli/cli.h"
#include "cli/verbs.h"
#include "spec/keys.h"

#include <stdio.h>
#include <string.h>

/* Plain text for roff: a minus is no hyphen, a line does not begin with a request, `words` are bold. */
static void put(const char *text)
{
    bool code = false, begin = true;
    for (const char *p = text; *p; begin = *p == '\n', p++) {
        if (begin && (*p == '.' || *p == '\'')) fputs("\\&", stdout);
        switch (*p) {
        case '\\': fputs("\\e", stdout); break;
        case '-': fputs("\\-", stdout); break;
        case '~': fputs("\\(ti", stdout); break;
        case '^': fputs("\\(ha", stdout); break;
        case '\'': fputs("\\(aq", stdout); break;
        case '`':
            code = !code;
            fputs(code ? "\\fB" : "\\fR", stdout);
            break;
        default: putchar(*p);
        }
    }
    if (code) fputs("\\fR", stdout);
}

/* Pieces of text, each in a font: B, I or R. */
static void put_in(char font, const char *text)
{
    printf("\\f%c", font);
    put(text);
    fputs("\\fR", stdout);
}

static void put_paragraph(const char *text)
{
    puts(".PP");
    put(text);
    putchar('\n');
}

static void put_capitals(const char *text)
{
    for (const char *p = text; *p; p++) putchar(*p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p);
}

static void put_head(const char *name, char section, const char *meaning)
{
    char first[256];
    fputs(".TH \"", stdout);
    put_capitals(name);
    printf("\" %c \"\" \"ingot %s\" \"ingot\"\n.nh\n.ad l\n.SH NAME\n", section, INGOT_VERSION);
    put(name);
    fputs(" \\- ", stdout);
    snprintf(first, sizeof first, "%.*s", (int)strcspn(meaning, ":;"), meaning); /* what whatis(1) shows */
    put(first);
    putchar('\n');
}

/* A usage line: the verb and options in bold, what stands for something else (in capitals) in italics. */
static void put_usage(const struct row *verb)
{
    char line[512];
    puts(".HP");
    fputs("\\fBingot ", stdout);
    args_usage(line, sizeof line, verb);
    const size_t name = strlen(verb->name);
    printf("%.*s\\fR", (int)name, line);
    put(line + name);
    puts("\n.br");
}

static void put_option(const struct row *r)
{
    const char letter[] = {'-', r->letter, 0};
    puts(".TP");
    if (r->letter) {
        put_in('B', letter);
        fputs(", ", stdout);
    }
    put_in('B', "--");
    put_in('B', r->name);
    if (r->arguments[0]) {
        fputs(r->type == FLAG_OPTIONAL ? "[=" : " ", stdout);
        put_in('I', r->arguments);
        if (r->type == FLAG_OPTIONAL) putchar(']');
    }
    putchar('\n');
    put(r->text);
    putchar('\n');
}

/* Notes, then options. */
static void put_rows(const struct row *verb)
{
    for (const struct row *r = verb + 1; r->kind == ROW_NOTE || r->kind == ROW_OPTION; r++)
        if (r->kind == ROW_NOTE) put_paragraph(r->text);
    for (const struct row *r = args_next_option(verb, NULL); r; r = args_next_option(verb, r)) put_option(r);
}

static void put_exit_status(void)
{
    puts(".SH EXIT STATUS");
#define X(name, code, text) printf(".TP\n\\fB%d\\fR\n%s\n", code, text);
    STATUS_LIST(X)
#undef X
    puts(".TP\n\\fB130\\fR\nsecond Ctrl\\-C: ended at once");
}

static void put_see_also(void)
{
    puts(".SH SEE ALSO\n\\fBingot\\fR(1), \\fBingot\\-keys\\fR(5)");
}

static void put_group(const struct row *group)
{
    puts(".SH SYNOPSIS");
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v))
        if (verb_of_group(v, group)) put_usage(v);
    puts(".SH DESCRIPTION");
    put(group->text);
    putchar('\n');
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v)) {
        if (!verb_of_group(v, group)) continue;
        fputs(".SS ingot ", stdout);
        put(v->name);
        putchar('\n');
        put(v->text);
        putchar('\n');
        put_rows(v);
    }
}

static void put_verb(const struct row *verb)
{
    char name[64];
    snprintf(name, sizeof name, "ingot-%s", verb->name);
    put_head(name, '1', verb->text);
    if (verb->form == VERB_GROUP) {
        put_group(verb);
    } else {
        puts(".SH SYNOPSIS");
        put_usage(verb);
        puts(".SH DESCRIPTION");
        put(verb->text);
        putchar('\n');
        put_rows(verb);
    }
    if (verb->form == VERB_KEYS) {
        puts(".SH KEYS");
        put("Each key of a RUN.yaml may be set on the command line as --section.key=value: ingot-keys(5).");
        putchar('\n');
    }
    put_exit_status();
    put_see_also();
}

static bool is_first_word(const struct row *verb)
{
    return !strchr(verb->name, ' ');
}

static void put_program(void)
{
    put_head("ingot", '1', "pre-training of language models as one program");
    puts(".SH SYNOPSIS\n\\fBingot\\fR \\fIVERB\\fR [\\fIarguments\\fR]\n.SH DESCRIPTION");
    put("ingot makes a trained and evaluated language model out of text: tokenizer, token shards, planning, "
        "training on one or many CPUs or GPUs, evaluation, generation, export. Each verb has a page of its "
        "own, "
        "ingot-VERB(1); `ingot help VERB` prints the same in short.");
    puts("\n.SH VERBS");
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v)) {
        if (!is_first_word(v)) continue;
        puts(".TP");
        put_in('B', v->name);
        putchar('\n');
        put(v->text);
        putchar('\n');
    }
    put_exit_status();
    puts(".SH SEE ALSO");
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v))
        if (is_first_word(v)) printf("\\fBingot\\-%s\\fR(1),\n", v->name);
    puts("\\fBingot\\-keys\\fR(5)");
}

static void put_key(const struct key *k, const struct spec *defaults)
{
    static const char *const resume[] = {[KEY_FROZEN] = "Fixed once a run has begun.",
                                         [KEY_ANNOUNCED] = "A resumed run may change it, and says so.",
                                         [KEY_FREE] = "A resumed run may change it."};
    char full[KEY_NAME], value[KEY_FORMAT];
    puts(".TP");
    put_in('B', key_full_name(full, k));
    fputs(" (", stdout);
    put(key_format(k, defaults, KEY_YAML, value));
    if (k->unit[0] && strcmp(k->unit, "1") != 0) printf(" %s", k->unit);
    puts(")");
    put(k->text);
    puts(".");
    if (k->range[0]) {
        fputs("Range: ", stdout);
        put(k->range);
        puts(".");
    }
    puts(resume[k->resume]);
}

static void put_keys(void)
{
    struct spec s;
    model_spec_default(&s.model);
    run_spec_default(&s.run);
    put_head("ingot-keys", '5', "the keys of a run's configuration");
    puts(".SH DESCRIPTION");
    put("A RUN.yaml has sections, and keys in them; the command line sets each as --section.key=value, and "
        "wins. "
        "Defaults are in parentheses; a preset (model.preset, `ingot presets`) replaces those of the model. "
        "`ingot config RUN.yaml` prints every value with its origin.");
    puts("\n.PP\n.nf\nmodel:\n  preset: nano\ntrain:\n  steps: 600\n.fi");
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        const struct key *k = key_row(i);
        if (i == 0 || strcmp(k->section, key_row(i - 1)->section) != 0) {
            printf(".SH ");
            put_capitals(k->section);
            putchar('\n');
        }
        if (i == 0)
            puts(".TP\n\\fBmodel.preset\\fR\nstart from a preset (\\fBingot presets\\fR), then change keys.");
        put_key(k, &s);
    }
    puts(".SH SEE ALSO\n\\fBingot\\fR(1), \\fBingot\\-config\\fR(1), \\fBingot\\-presets\\fR(1)");
}

static void list_pages(void)
{
    puts("ingot.1");
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v))
        if (is_first_word(v)) printf("ingot-%s.1\n", v->name);
    puts("ingot-keys.5");
}

status cmd_man(struct args *a)
{
    TRY(args_parse(a, NULL, 0));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 1));
    if (a->word_count == 0) {
        list_pages();
        return STATUS_OK;
    }
    const char *page = a->words[0];
    char name[80];
    if (strcmp(page, "ingot.1") == 0) return put_program(), STATUS_OK;
    if (strcmp(page, "ingot-keys.5") == 0) return put_keys(), STATUS_OK;
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v)) {
        snprintf(name, sizeof name, "ingot-%s.1", v->name);
        if (is_first_word(v) && strcmp(page, name) == 0) return put_verb(v), STATUS_OK;
    }
    return FAIL(STATUS_CONFIG, "no page '%s'; `ingot man` lists them", page);
}
