#include "dev/hostfs.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH = 512 };

struct hostfs hostfs_here(void)
{
    const char *root = getenv("INGOT_ROOT");
    return (struct hostfs){.root = root ? root : ""};
}

bool hostfs_is_real(const struct hostfs *fs)
{
    return fs->text == NULL && fs->root[0] == 0;
}

/* The line behind `line`; NULL: none. */
static const char *line_next(const char *line)
{
    const char *end = strchr(line, '\n');
    return end && end[1] ? end + 1 : NULL;
}

static bool text_read(const char *text, const char *path, char *out, size_t size)
{
    const size_t n = strlen(path);
    const char *found = NULL;
    for (const char *line = text; line; line = line_next(line))
        if (strncmp(line, path, n) == 0 && (isspace((unsigned char)line[n]) || line[n] == 0))
            found = line + n;
    if (found == NULL || strncmp(found, " =", 2) != 0) return false;
    found += 2 + (found[2] == ' ');
    size_t used = 0;
    for (; *found && *found != '\n' && used + 1 < size; found++) {
        const bool cut = found[0] == '\\' && found[1] == 'n';
        out[used++] = cut ? '\n' : *found;
        found += cut;
    }
    out[used] = 0;
    return true;
}

/* Without waiting: /dev/kmsg has no end, and gives one record per read. */
static bool file_read(const char *path, char *out, size_t size)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    size_t used = 0;
    for (ssize_t n; used + 1 < size && (n = read(fd, out + used, size - 1 - used)) > 0;) used += (size_t)n;
    close(fd);
    out[used] = 0;
    return true;
}

static bool path_read(const struct hostfs *fs, const char *path, char *out, size_t size)
{
    char whole[PATH + 256];
    out[0] = 0;
    if (fs->text) {
        if (!text_read(fs->text, path, out, size)) return false;
    } else {
        snprintf(whole, sizeof whole, "%s%s", fs->root, path);
        if (!file_read(whole, out, size)) return false;
    }
    for (size_t n = strlen(out); n > 0 && isspace((unsigned char)out[n - 1]); n--) out[n - 1] = 0;
    return true;
}

bool hostfs_read(const struct hostfs *fs, char *out, size_t size, const char *path, ...)
{
    char name[PATH];
    va_list args;
    va_start(args, path);
    vsnprintf(name, sizeof name, path, args);
    va_end(args);
    return path_read(fs, name, out, size);
}

bool hostfs_number(const struct hostfs *fs, double *out, const char *path, ...)
{
    char name[PATH], text[64], *end;
    va_list args;
    va_start(args, path);
    vsnprintf(name, sizeof name, path, args);
    va_end(args);
    if (!path_read(fs, name, text, sizeof text)) return false;
    *out = strtod(text, &end);
    return end != text;
}

double hostfs_value(const char *text, const char *name)
{
    const size_t n = strlen(name);
    for (const char *line = text; line; line = line_next(line)) {
        if (strncmp(line, name, n) != 0 || (line[n] != ':' && !isspace((unsigned char)line[n]))) continue;
        char *end;
        const char *at = line + n + strspn(line + n, ": \t");
        const double value = strtod(at, &end);
        return end == at ? NAN : value;
    }
    return NAN;
}

static int name_compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void name_add(char (*names)[HOSTFS_NAME], int *count, int max, const char *name, size_t n)
{
    if (n == 0 || n >= HOSTFS_NAME || name[0] == '.' || *count == max) return;
    for (int i = 0; i < *count; i++)
        if (strncmp(names[i], name, n) == 0 && names[i][n] == 0) return;
    memcpy(names[*count], name, n);
    names[(*count)++][n] = 0;
}

int hostfs_list(const struct hostfs *fs, char (*names)[HOSTFS_NAME], int max, const char *path, ...)
{
    char dir[PATH], whole[PATH + 256], one[8];
    int count = 0;
    va_list args;
    va_start(args, path);
    vsnprintf(dir, sizeof dir, path, args);
    va_end(args);
    const size_t n = strlen(dir);
    for (const char *line = fs->text; line; line = line_next(line)) {
        if (strncmp(line, dir, n) != 0 || line[n] != '/') continue;
        snprintf(whole, sizeof whole, "%.*s", (int)strcspn(line, " \n"), line);
        if (text_read(fs->text, whole, one, sizeof one))
            name_add(names, &count, max, line + n + 1, strcspn(line + n + 1, "/ \n"));
    }
    if (fs->text == NULL) {
        snprintf(whole, sizeof whole, "%s%s", fs->root, dir);
        DIR *d = opendir(whole);
        for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
            name_add(names, &count, max, e->d_name, strlen(e->d_name));
        if (d) closedir(d);
    }
    qsort(names, (size_t)count, sizeof *names, name_compare);
    return count;
}
