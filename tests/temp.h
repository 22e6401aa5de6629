/* A temporary directory per test program, removed at its end; injected faults end with it. */
#ifndef INGOT_TESTS_TEMP_H
#define INGOT_TESTS_TEMP_H
#include "base/io.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char temp_dir[512];
static char temp_paths[8][1024];
static int temp_next;

static int temp_open(void **state)
{
    (void)state;
    /* In memory if there is space: these tests sync a lot. */
    const char *base = getenv("TMPDIR");
    if (!base) base = io_free_bytes("/dev/shm") > 256 << 20 ? "/dev/shm" : "/tmp";
    snprintf(temp_dir, sizeof temp_dir, "%s/ingot-test-XXXXXX", base);
    return mkdtemp(temp_dir) ? 0 : -1;
}

static int temp_close(void **state)
{
    (void)state;
    io_fault_set(0, 0);
    return io_remove_tree(temp_dir) == STATUS_OK ? 0 : -1;
}

/* The path of a file in it; the last 8 results stay valid. */
static inline const char *temp_path(const char *name)
{
    char *out = temp_paths[temp_next++ % 8];
    snprintf(out, sizeof temp_paths[0], "%s/%s", temp_dir, name);
    return out;
}

static inline bool temp_there(const char *path)
{
    bool there = false;
    return io_exists(path, &there) == STATUS_OK && there;
}

static inline void temp_write(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

/* Files in the directory whose names contain `part`. */
static inline int temp_count(const char *part)
{
    struct io_list list;
    int n = 0;
    assert_int_equal(io_list(temp_dir, &list), STATUS_OK);
    for (int i = 0; i < list.count; i++) n += strstr(list.names[i], part) != NULL;
    io_list_free(&list);
    return n;
}

static inline void temp_clear(void)
{
    assert_int_equal(io_remove_tree(temp_dir), STATUS_OK);
    assert_int_equal(io_make_dirs(temp_dir), STATUS_OK);
}
#endif
