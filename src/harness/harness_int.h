/* Private to the harness_*.c files. */
#ifndef INGOT_HARNESS_HARNESS_INT_H
#define INGOT_HARNESS_HARNESS_INT_H
#include "harness/harness.h"
#include <jansson.h>

/* A row of a file. The first failure is kept in `st`; after it texts are "" and numbers 0. */
struct harness_row {
    struct harness_task *task;
    json_t *json;
    const char *path, *label; /* label: of a file of labels beside it; NULL: none */
    int64_t line;
    status st;
};
struct harness_format {
    const char *name;
    enum harness_kind kind;
    bool normalized, csv, labels; /* has acc_norm; may be CSV; labels may stand in a file of their own */
    void (*row)(struct harness_row *r);
};
const struct harness_format *harness_format_find(const char *name);

/* "FILE:LINE: not a row of NAME: ..." */
void harness_row_fail(struct harness_row *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Ownership of `group` (NULL: none) goes to the item. */
struct harness_item *harness_item_add(struct harness_row *r, int gold, char *group);
/* Adds to the last item; ownership of the texts goes to it. `length`: of the choice. */
void harness_pair_add(struct harness_row *r, char *context, char *continuation, const char *choice);

/* Texts as Python sees them (harness_text.c). All results are malloc'd. */
char *harness_join(const char *fmt, ...) PRINTF_LIKE(1, 2);
char *harness_strip(const char *text);
char *harness_capitalize(const char *text); /* the first letter large, all others small */
char *harness_replace(const char *text, const char *from, const char *to);
char *harness_unbracket(const char *text);  /* re.sub(r"\[.*?\]", "", text) */
size_t harness_blank_end(const char *text); /* where the blanks at the end begin */
int64_t harness_characters(const char *text);
int64_t harness_words(const char *text);    /* len(re.split(r"\s+", text)) */
#endif
