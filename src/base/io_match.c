/* Names that match a pattern. glob() of glibc 2.36 frees names twice when it gets no memory, and takes a directory that it could not
 * read for an empty one. */
#include "base/io_int.h"

#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

struct match {
    struct io_list *found;
    int room;
};

static status take(struct match *m, const char *path)
{
    struct io_list *l = m->found;
    if (l->count == m->room) {
        m->room = m->room ? 2 * m->room : 64;
        char **larger = realloc(l->names, (size_t)m->room * sizeof *larger);
        if (!larger) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d names", m->room);
        l->names = larger;
    }
    l->names[l->count] = strdup(path);
    if (!l->names[l->count]) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the name '%s'", path);
    l->count++;
    return STATUS_OK;
}

/* Links are followed; one that leads nowhere is no directory. */
static status is_directory(const char *path, bool *is)
{
    struct stat s;
    *is = false;
    if (SYS(stat(path, &s)) != 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? STATUS_OK : FAIL_ERRNO("stat", path);
    *is = S_ISDIR(s.st_mode);
    return STATUS_OK;
}

static status match_part(struct match *m, const char *dir, const char *pattern, const char *name);

/* What matches `pattern` below `dir`, which is "" or ends in a slash. */
static status match_below(struct match *m, const char *dir, const char *pattern)
{
    char part[PATH_MAX];
    const size_t n = strcspn(pattern, "/");
    snprintf(part, sizeof part, "%.*s", (int)n, pattern);
    if (part[strcspn(part, "*?[\\")] == 0) return match_part(m, dir, pattern + n, part);
    struct io_list names;
    TRY(io_list(dir[0] ? dir : ".", &names));
    status st = STATUS_OK;
    for (int i = 0; i < names.count && st == STATUS_OK; i++)
        if (fnmatch(part, names.names[i], FNM_PERIOD) == 0)
            st = match_part(m, dir, pattern + n, names.names[i]);
    io_list_free(&names);
    return st;
}

/* `name` in `dir`, with the `rest` of the pattern: "" or from a slash on. */
static status match_part(struct match *m, const char *dir, const char *rest, const char *name)
{
    char path[PATH_MAX];
    const size_t slashes = strspn(rest, "/");
    const int n = snprintf(path, sizeof path, "%s%s%.*s", dir, name, (int)slashes, rest);
    if (n >= (int)sizeof path) return FAIL(STATUS_IO, "a path of %d bytes is too long: '%.60s...'", n, path);
    bool goes_on;
    if (rest[slashes] == 0) {
        TRY(io_exists(path, &goes_on));
        return goes_on ? take(m, path) : STATUS_OK;
    }
    TRY(is_directory(path, &goes_on));
    return goes_on ? match_below(m, path, rest + slashes) : STATUS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

status io_match(const char *pattern, struct io_list *found)
{
    *found = (struct io_list){0};
    struct match m = {.found = found};
    if (strlen(pattern) >= PATH_MAX)
        return FAIL(STATUS_IO, "a path of %zu bytes is too long", strlen(pattern));
    const status st = match_below(&m, "", pattern);
    if (st != STATUS_OK)
        io_list_free(found);
    else if (found->count)
        qsort(found->names, (size_t)found->count, sizeof *found->names, by_name);
    return st;
}
