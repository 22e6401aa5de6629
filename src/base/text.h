/* Small text helpers that several modules need. */
#ifndef INGOT_BASE_TEXT_H
#define INGOT_BASE_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
/* Returns the candidate nearest to `word` by edit distance (insert, delete, replace, swap) if it is near enough for a
 * typing error; else NULL. */
const char *text_nearest(const char *word, const char *const *candidates, int count);
/* Whole-string numbers: no locale, no trailing characters. text_to_int also accepts 1e6, 4k, 2M, 1B (powers of ten, k
 * = 1000) and 4Ki, 2Mi, 1Gi. */
bool text_to_int(const char *s, int64_t *out);
bool text_to_real(const char *s, double *out);
bool text_to_bool(const char *s, bool *out);               /* true, false */
/* Bytes for display: "1.23 GiB", "512 B". Returns buf. */
const char *text_bytes(char buf[32], double bytes);
/* A count for display: "12.3M", "1.5B". Returns buf. */
const char *text_count(char buf[32], double n);
/* A duration for display: "1h02m", "3m10s", "12s". Returns buf. */
const char *text_duration(char buf[32], double seconds);
/* The same as people say it, with two digits or two units: "350 us", "3.2 s", "12 min 5 s", "4 d 3 h". Returns buf. */
const char *text_time(char buf[32], double seconds);
/* Prints text in lines of at most `columns`, each from column `indent` on, with a newline at the end. The cursor stands
 * in column `at`; when that is beyond `indent`, the text begins on a new line. */
void text_wrap(FILE *out, int at, int indent, int columns, const char *text);
/* Columns of the terminal that a file descriptor is; `otherwise` when it is none, or says fewer than 20. */
int text_columns(int fd, int otherwise);
/* A word as a POSIX shell takes it: as it is, or in single quotes. malloc'd; NULL without memory. */
char *text_shell_word(const char *word);
/* The directory that holds a path, without looking at the disk: "runs" of "runs/a/", "." of "a". Returns buf. */
const char *text_parent(char *buf, size_t size, const char *path);
#endif
