/* A directory that a test fills, and whole-file helpers. */
#ifndef INGOT_TESTS_OBSERVE_SCRATCH_H
#define INGOT_TESTS_OBSERVE_SCRATCH_H
#include "base/io.h"
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct scratch {
    char dir[512];
};

static inline struct scratch scratch_make(void)
{
    struct scratch s;
    const char *tmp = getenv("TMPDIR");
    snprintf(s.dir, sizeof s.dir, "%s/ingot-test-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    assert_non_null(mkdtemp(s.dir));
    return s;
}
static inline void scratch_remove(const struct scratch *s)
{
    assert_int_equal(io_remove_tree(s->dir), STATUS_OK);
}

/* DIR/NAME in one of a few rotating buffers. */
static inline const char *scratch_path(const struct scratch *s, const char *name)
{
    static char paths[4][1024];
    static int next;
    char *p = paths[next++ % 4];
    snprintf(p, sizeof paths[0], "%s/%s", s->dir, name);
    return p;
}
static inline bool scratch_there(const char *path)
{
    bool there = false;
    return io_exists(path, &there) == STATUS_OK && there;
}

static inline void scratch_write(const struct scratch *s, const char *name, const char *text)
{
    FILE *f = fopen(scratch_path(s, name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}
/* malloc'd and NUL-terminated. */
static inline char *scratch_read(const struct scratch *s, const char *name, size_t *bytes)
{
    char *data;
    size_t n;
    assert_int_equal(io_read_file(scratch_path(s, name), 1u << 26, &data, &n), STATUS_OK);
    if (bytes) *bytes = n;
    return data;
}
/* The k-th file, in order of name, whose name contains `part`; its name, and how many there are. */
static inline int scratch_find(const struct scratch *s, const char *part, int k, char name[256])
{
    struct dirent **list;
    int n = scandir(s->dir, &list, NULL, alphasort), found = 0;
    assert_true(n >= 0);
    for (int i = 0; i < n; i++) {
        if (strstr(list[i]->d_name, part) && found++ == k) snprintf(name, 256, "%s", list[i]->d_name);
        free(list[i]);
    }
    free(list);
    return found;
}
/* Files of this process may not grow beyond this; RLIM_INFINITY: they may. */
static inline void file_size_limit(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}
#endif
