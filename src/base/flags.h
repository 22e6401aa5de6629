/* The command line: verbs, their options, and what the user typed.
 *
 * Verbs and options are rows of .def files (cli/verbs.def, bench/bench.def). A verb's row is followed by its notes and
 * options. The parser, --help, man pages and completions read the same rows; cli/verbs.h lists them. */
#ifndef INGOT_BASE_FLAGS_H
#define INGOT_BASE_FLAGS_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* SWITCH has no value; OPTIONAL may have one, behind a '='; a LIST may be given many times. */
enum flag_type { FLAG_SWITCH, FLAG_OPTIONAL, FLAG_TEXT, FLAG_INT, FLAG_REAL, FLAG_LIST };
/* PLAIN: options and words. KEYS: also --section.key=value, --section.key value, section.key=value. COMMAND: what
 * begins with the first word is another verb's. GROUP: verbs of two words ("data build") follow it. */
enum verb_form { VERB_PLAIN, VERB_KEYS, VERB_COMMAND, VERB_GROUP };
enum row_kind { ROW_END, ROW_VERB, ROW_NOTE, ROW_OPTION };

struct args;
struct row {
    enum row_kind kind;
    const char *name;       /* "train", "data build"; an option without dashes; "" for a note */
    const char *arguments;  /* verb: the words behind it in a usage line; option: its value, such as N or on|off */
    const char *text;       /* for --help */
    enum verb_form form;    /* of a verb */
    status (*run)(struct args *a);
    enum flag_type type;    /* of an option */
    char letter;            /* of an option: o for -o; 0: none */
};

/* Where an option's value goes. FLAG derives the type from the pointer; it must be the row's. */
enum { FLAG_LIST_MAX = 1024 };
struct flag_list {
    const char *items[FLAG_LIST_MAX];
    int count;
};
struct flag_optional {
    bool given;
    const char *value; /* "": none */
};
struct flag {
    const char *name;
    void *to;
    enum flag_type type;
};
#define FLAG(name, to)                                                                                                 \
    {name, to, _Generic((to), bool *: FLAG_SWITCH, const char **: FLAG_TEXT, int64_t *: FLAG_INT, double *: FLAG_REAL, \
                        struct flag_optional *: FLAG_OPTIONAL, struct flag_list *: FLAG_LIST)}

struct args {
    const struct row *verb;
    int argc;               /* what stands behind the verb */
    char **argv;
    /* Writes what the user may have meant by the unknown option --name (its value or NULL) to buf, such as
     * "'--optim.lr=1e-3'"; "" when nothing is near. May be NULL. */
    void (*hint)(char *buf, size_t bytes, const struct row *verb, const char *name, const char *value);
    /* of args_parse: */
    char **words, **keys;   /* words that are no options; "--section.key=value" */
    int word_count, key_count;
    bool help;              /* --help was given and printed: the verb returns STATUS_OK */
    char **joined;          /* keys made of two words */
    int joined_count;
};

/* Sorts argv into options, words and keys. `flags` names all options of the verb's rows. A mistake is STATUS_CONFIG
 * with the nearest name. */
status args_parse(struct args *a, const struct flag *flags, int count) WARN_UNUSED;
/* STATUS_CONFIG with the usage line unless there are `min` to `max` words. */
status args_words(const struct args *a, int min, int max) WARN_UNUSED;
void args_free(struct args *a);

/* "data build INPUT... -o PREFIX [options]" in buf. Returns buf. */
const char *args_usage(char *buf, size_t bytes, const struct row *verb);
/* "usage: ingot data build ..." in lines of at most `columns`. */
void args_print_usage(FILE *out, const struct row *verb, int columns);
/* First row of the verb's options; `at` NULL: the first, else the one behind `at`. NULL: no more. */
const struct row *args_next_option(const struct row *verb, const struct row *at);
#endif
