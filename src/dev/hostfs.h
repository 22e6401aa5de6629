/* Files of /proc and /sys, read through one root, so that a recorded tree stands in for a machine: the directory of
 * INGOT_ROOT, or a text in memory. */
#ifndef INGOT_DEV_HOSTFS_H
#define INGOT_DEV_HOSTFS_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

struct hostfs {
    const char *root; /* before every path; "": this machine */
    /* NULL, or the whole tree: a line "/PATH = CONTENT" for each file, where \n is a line break. The last line of a
     * path counts, and one without "=" removes the file. */
    const char *text;
};
struct hostfs hostfs_here(void); /* the root of INGOT_ROOT; it refers to the environment */
bool hostfs_is_real(const struct hostfs *fs);
/* Reads a file, at most size - 1 bytes of it, and removes white space at its end. False: not there or not readable. */
bool hostfs_read(const struct hostfs *fs, char *out, size_t size, const char *path, ...) PRINTF_LIKE(4, 5);
/* The number that a file begins with; false: none. */
bool hostfs_number(const struct hostfs *fs, double *out, const char *path, ...) PRINTF_LIKE(3, 4);
/* The number behind `name` and white space or ":" in a text such as that of /proc/meminfo; NaN: none. */
double hostfs_value(const char *text, const char *name);
/* Sorted names in a directory, without those that begin with a dot; returns their number, at most `max`. */
enum { HOSTFS_NAME = 64 };
int hostfs_list(const struct hostfs *fs, char (*names)[HOSTFS_NAME], int max, const char *path, ...) PRINTF_LIKE(4, 5);
#endif
