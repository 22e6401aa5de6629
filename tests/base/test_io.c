/* Goal: a file appears whole or not at all, whichever system call fails or is the last of the process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/io.h"
#include "../temp.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(dir)) count++;
    closedir(dir);
    return count;
}

static int names_in_temp_dir(void)
{
    struct io_list list;
    assert_int_equal(io_list(temp_dir, &list), STATUS_OK);
    int count = list.count;
    io_list_free(&list);
    return count;
}

static void assert_holds(const char *path, const char *want)
{
    char *data;
    size_t bytes;
    assert_int_equal(io_read_file(path, 1000, &data, &bytes), STATUS_OK);
    assert_int_equal(bytes, strlen(want));
    assert_string_equal(data, want);
    free(data);
}

static void a_written_file_reads_back_and_leaves_no_temporary(void **state)
{
    (void)state;
    assert_int_equal(io_write_file(temp_path("a"), "hello", 5), STATUS_OK);
    assert_holds(temp_path("a"), "hello");
    struct io_file f;
    assert_int_equal(io_create(&f, temp_path("b")), STATUS_OK);
    assert_int_equal(io_pwrite(&f, "def", 3, 3), STATUS_OK);
    assert_int_equal(io_write(&f, "abc", 3), STATUS_OK);
    assert_false(temp_there(temp_path("b")));
    assert_int_equal(io_commit(&f), STATUS_OK);
    io_abandon(&f);
    assert_holds(temp_path("b"), "abcdef");
    assert_int_equal(names_in_temp_dir(), 2);
}

static void an_abandoned_file_leaves_nothing(void **state)
{
    (void)state;
    struct io_file f;
    assert_int_equal(io_create(&f, temp_path("a")), STATUS_OK);
    assert_int_equal(io_write(&f, "x", 1), STATUS_OK);
    assert_int_equal(names_in_temp_dir(), 1);
    io_abandon(&f);
    io_abandon(&f);
    assert_int_equal(names_in_temp_dir(), 0);
}

static const int errors[] = {ENOSPC, EDQUOT, EIO, EINTR, EAGAIN, EMFILE, EROFS, IO_FAULT_SHORT};
enum { ERROR_COUNT = sizeof errors / sizeof errors[0] };

static void every_failing_call_of_a_write_leaves_the_old_or_the_new_file_and_no_litter(void **state)
{
    (void)state;
    for (int e = 0; e < ERROR_COUNT; e++)
        for (int64_t k = 1;; k++) {
            io_fault_set(0, 0);
            assert_int_equal(io_write_file(temp_path("f"), "old", 3), STATUS_OK);
            int before = open_files();
            io_fault_set(k, errors[e]);
            status st = io_write_file(temp_path("f"), "newer", 5);
            bool past_end = io_fault_calls() < k;
            io_fault_set(0, 0);
            char *data;
            size_t bytes;
            assert_int_equal(io_read_file(temp_path("f"), 100, &data, &bytes), STATUS_OK);
            if (st == STATUS_OK)
                assert_string_equal(data, "newer");
            else {
                assert_int_equal(st, STATUS_IO);
                assert_true(strcmp(data, "old") == 0 || strcmp(data, "newer") == 0);
                assert_non_null(strstr(status_message(), temp_dir));
                assert_null(strchr(status_message(), '\n'));
            }
            if (errors[e] == EINTR || errors[e] == IO_FAULT_SHORT) assert_int_equal(st, STATUS_OK);
            free(data);
            assert_int_equal(names_in_temp_dir(), 1);
            assert_int_equal(open_files(), before);
            if (past_end) {
                assert_int_equal(st, STATUS_OK);
                assert_true(k > 5);
                break;
            }
        }
}

static void every_failing_call_of_reading_listing_and_removing_is_reported_and_leaks_nothing(void **state)
{
    (void)state;
    for (int e = 0; e < ERROR_COUNT; e++)
        for (int64_t k = 1;; k++) {
            io_fault_set(0, 0);
            assert_int_equal(io_make_dirs(temp_path("d/e")), STATUS_OK);
            assert_int_equal(io_write_file(temp_path("d/e/f"), "text", 4), STATUS_OK);
            int before = open_files(), fd = -1;
            io_fault_set(k, errors[e]);
            char *data = NULL, part[2];
            size_t bytes;
            int64_t size;
            struct io_list list = {0};
            status st = io_read_file(temp_path("d/e/f"), 100, &data, &bytes);
            if (st == STATUS_OK) st = io_list(temp_path("d/e"), &list);
            if (st == STATUS_OK) st = io_open(temp_path("d/e/f"), LINKS_REFUSE, &fd, &size);
            if (st == STATUS_OK) st = io_pread(fd, "f", part, 2, 1);
            if (st == STATUS_OK) assert_memory_equal(part, "ex", 2);
            io_close(&fd);
            if (st == STATUS_OK) st = io_make_dirs(temp_path("d/x/y"));
            if (st == STATUS_OK) st = io_rename_dir(temp_path("d/x"), temp_path("d/z"));
            if (st == STATUS_OK) st = io_remove_tree(temp_path("d"));
            bool past_end = io_fault_calls() < k;
            io_fault_set(0, 0);
            if (data) assert_string_equal(data, "text");
            free(data);
            io_list_free(&list);
            assert_true(st == STATUS_OK || st == STATUS_IO);
            assert_int_equal(open_files(), before);
            assert_int_equal(io_remove_tree(temp_path("d")), STATUS_OK);
            if (past_end) {
                assert_int_equal(st, STATUS_OK);
                break;
            }
        }
}

static void a_process_killed_at_any_call_leaves_the_old_or_the_new_file(void **state)
{
    (void)state;
    bool killed = true;
    for (int64_t k = 1; killed; k++) {
        assert_int_equal(io_write_file(temp_path("f"), "old", 3), STATUS_OK);
        pid_t child = fork();
        if (child == 0) {
            io_fault_set(k, IO_FAULT_KILL);
            _exit(io_write_file(temp_path("f"), "newer", 5) == STATUS_OK ? 0 : 1);
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        killed = WIFSIGNALED(how);
        if (killed)
            assert_int_equal(WTERMSIG(how), SIGKILL);
        else
            assert_int_equal(WEXITSTATUS(how), 0);
        char *data;
        size_t bytes;
        assert_int_equal(io_read_file(temp_path("f"), 100, &data, &bytes), STATUS_OK);
        assert_true((killed && strcmp(data, "old") == 0) || strcmp(data, "newer") == 0);
        free(data);
        assert_int_equal(io_sweep(temp_dir, SWEEP_DEAD, NULL), STATUS_OK);
        assert_int_equal(names_in_temp_dir(), 1);
    }
}

static void sweeping_spares_running_processes_and_foreign_names(void **state)
{
    (void)state;
    struct io_file f;
    assert_int_equal(io_create(&f, temp_path("mine")), STATUS_OK);
    assert_int_equal(io_write_file(temp_path("notes.tmp-old"), "", 0), STATUS_OK);
    assert_int_equal(io_write_file(temp_path("x.tmp-1-0000000"), "", 0), STATUS_OK);
    assert_int_equal(io_sweep(temp_dir, SWEEP_DEAD, NULL), STATUS_OK);
    assert_int_equal(names_in_temp_dir(), 3);
    assert_int_equal(io_sweep(temp_dir, SWEEP_OWN, NULL), STATUS_OK);
    assert_int_equal(names_in_temp_dir(), 2);
    io_close(&f.fd);
}

static void what_cannot_be_told_is_not_called_missing(void **state)
{
    (void)state;
    char longest[5000];
    bool there;
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(io_write_file(temp_path("here"), "x", 1), STATUS_OK);
    assert_int_equal(io_exists(temp_path("here"), &there), STATUS_OK);
    assert_true(there);
    const char *const missing[] = {temp_path("nowhere"), temp_path("here/below"), longest};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(io_exists(missing[i], &there), STATUS_OK);
        assert_false(there);
    }
    const int unsure[] = {EIO, EACCES, EMFILE, ENOMEM};
    for (int i = 0; i < 4; i++) {
        io_fault_set(1, unsure[i]);
        assert_int_not_equal(io_exists(temp_path("here"), &there), STATUS_OK);
        assert_false(there);
        assert_non_null(strstr(status_message(), "here"));
    }
    io_fault_set(0, 0);
}

static void links_are_not_followed_where_that_matters(void **state)
{
    (void)state;
    assert_int_equal(io_make_dirs(temp_path("keep")), STATUS_OK);
    assert_int_equal(io_write_file(temp_path("keep/file"), "x", 1), STATUS_OK);
    assert_int_equal(io_make_dirs(temp_path("tree")), STATUS_OK);
    assert_int_equal(symlink("../keep", temp_path("tree/link")), 0);
    assert_int_equal(symlink("keep/file", temp_path("direct")), 0);
    int fd;
    int64_t bytes;
    assert_int_equal(io_open(temp_path("direct"), LINKS_REFUSE, &fd, &bytes), STATUS_IO);
    assert_int_equal(io_open(temp_path("direct"), LINKS_FOLLOW, &fd, &bytes), STATUS_OK);
    assert_int_equal(bytes, 1);
    io_close(&fd);
    assert_int_equal(io_remove_tree(temp_path("tree")), STATUS_OK);
    assert_false(temp_there(temp_path("tree")));
    assert_true(temp_there(temp_path("keep/file")));
}

static void what_cannot_work_is_refused_with_a_reason(void **state)
{
    (void)state;
    char *data, long_name[2000];
    size_t bytes;
    int fd;
    int64_t size;
    struct io_file f;
    assert_int_equal(io_write_file(temp_path("f"), "0123456789", 10), STATUS_OK);
    assert_int_equal(io_read_file(temp_path("f"), 10, &data, &bytes), STATUS_OK);
    free(data);
    assert_int_equal(io_read_file(temp_path("f"), 9, &data, &bytes), STATUS_IO);
    assert_int_equal(io_read_file(temp_path("none"), 9, &data, &bytes), STATUS_IO);
    assert_non_null(strstr(status_message(), "No such file"));
    assert_int_equal(io_read_file(temp_dir, 9, &data, &bytes), STATUS_IO);
    assert_int_equal(io_open(temp_dir, LINKS_FOLLOW, &fd, &size), STATUS_IO);
    assert_int_equal(mkfifo(temp_path("pipe"), 0600), 0);
    assert_int_equal(io_open(temp_path("pipe"), LINKS_FOLLOW, &fd, &size), STATUS_IO);
    assert_int_equal(io_make_dirs(temp_path("f/below")), STATUS_IO);
    assert_int_equal(io_make_dirs(temp_path("f")), STATUS_IO);
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    assert_int_equal(io_create(&f, long_name), STATUS_IO);
    assert_int_equal(io_open(temp_path("f"), LINKS_FOLLOW, &fd, &size), STATUS_OK);
    char buffer[8];
    assert_int_equal(io_pread(fd, "f", buffer, 4, 8), STATUS_IO);
    io_close(&fd);
    assert_true(io_free_bytes(temp_dir) > 0);
    assert_int_equal(io_free_bytes(temp_path("none")), -1);
}

static void assert_matches(const char *pattern, int count, const char *first)
{
    struct io_list found;
    assert_int_equal(io_match(temp_path(pattern), &found), STATUS_OK);
    assert_int_equal(found.count, count);
    if (count > 0) assert_string_equal(found.names[0], temp_path(first));
    io_list_free(&found);
}

static void patterns_match_as_in_a_shell(void **state)
{
    (void)state;
    assert_int_equal(io_make_dirs(temp_path("a/x")), STATUS_OK);
    assert_int_equal(io_make_dirs(temp_path("b/x")), STATUS_OK);
    const char *const files[] = {"a/x/1.bin", "a/x/2.bin", "b/x/3.bin", "a/.hidden.bin", "star*.bin"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        assert_int_equal(io_write_file(temp_path(files[i]), "x", 1), STATUS_OK);
    assert_matches("*/x/*.bin", 3, "a/x/1.bin");
    assert_matches("[b]/*/?.bin", 1, "b/x/3.bin");
    assert_matches("a/*.bin", 0, NULL);
    assert_matches("a/x/1.bin/*", 0, NULL);
    assert_matches("none/*", 0, NULL);
    assert_matches("star\\*.bin", 1, "star*.bin");
    assert_matches("a/x/2.bin", 1, "a/x/2.bin");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, temp_open, temp_close)
    const struct CMUnitTest tests[] = {
        T(a_written_file_reads_back_and_leaves_no_temporary),
        T(an_abandoned_file_leaves_nothing),
        T(every_failing_call_of_a_write_leaves_the_old_or_the_new_file_and_no_litter),
        T(every_failing_call_of_reading_listing_and_removing_is_reported_and_leaks_nothing),
        T(a_process_killed_at_any_call_leaves_the_old_or_the_new_file),
        T(sweeping_spares_running_processes_and_foreign_names),
        T(what_cannot_be_told_is_not_called_missing),
        T(links_are_not_followed_where_that_matters),
        T(what_cannot_work_is_refused_with_a_reason),
        T(patterns_match_as_in_a_shell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
