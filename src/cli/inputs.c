#include "cli/inputs.h"
#include "base/io.h"
#include "data/build/build_source.h"
#include "data/shard/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const endings[] = {".txt",    ".text",      ".md",   ".rst",    ".jsonl",
                                      ".ndjson", ".jsonlines", ".json", ".parquet"};
static const char STANDARD[] = "/dev/stdin";

static void add(struct inputs *in, const char *path)
{
    if (in->count == in->room) {
        in->room = in->room ? 2 * in->room : 16;
        in->paths = realloc(in->paths, (size_t)in->room * sizeof *in->paths);
        in->words = realloc(in->words, (size_t)in->room * sizeof *in->words);
        MEMORY_CHECK(in->paths && in->words, "no memory for %d names", in->room);
    }
    in->words[in->count] = in->word;
    MEMORY_CHECK(in->paths[in->count++] = strdup(path), "no memory for a name");
}

static bool ends_in(const char *name, size_t bytes, const char *end)
{
    const size_t n = strlen(end);
    return bytes > n && memcmp(name + bytes - n, end, n) == 0;
}

static bool is_text(const char *name)
{
    size_t n = strlen(name);
    if (ends_in(name, n, ".gz")) n -= strlen(".gz");
    if (ends_in(name, n, ".zst")) n -= strlen(".zst");
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (ends_in(name, n, endings[i])) return true;
    return false;
}

static bool is_directory(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

/* Files of a directory; links to directories are not followed, names that begin with a dot are passed over. */
static status add_directory(struct inputs *in, const char *dir, int depth)
{
    struct io_list list;
    if (depth > 64) return FAIL(STATUS_IO, "%s: more than 64 directories deep", dir);
    TRY(io_list(dir, &list));
    status st = STATUS_OK;
    for (int i = 0; i < list.count && st == STATUS_OK; i++) {
        char path[PATH_MAX];
        enum io_kind kind;
        if (list.names[i][0] == '.') continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, list.names[i]) >= (int)sizeof path) {
            st = FAIL(STATUS_IO, "%.60s...: the path is too long", dir);
            break;
        }
        st = io_kind(path, &kind);
        if (st == STATUS_OK && kind == IO_DIR)
            st = add_directory(in, path, depth + 1);
        else if (st == STATUS_OK && is_text(path) && !is_directory(path))
            add(in, path);
    }
    io_list_free(&list);
    return st;
}

static status add_whole_directory(struct inputs *in, const char *word)
{
    char dir[PATH_MAX];
    const int before = in->count;
    snprintf(dir, sizeof dir, "%s", word);
    for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/';) dir[--n] = 0;
    TRY(add_directory(in, dir, 0));
    if (in->count > before) return STATUS_OK;
    return FAIL(STATUS_IO,
                "%s: a directory without files that end in .txt, .md, .jsonl, .json or .parquet (also .gz, "
                ".zst); name others by a pattern: '%s/*'",
                dir, dir);
}

/* A pattern of text is its files. One of shards stays: their documents may go on from one to the next. */
static status add_pattern(struct inputs *in, const char *word, bool shards)
{
    struct io_list found;
    const struct build_config plain = {.hints = {.type = SHARD_TYPE_UNKNOWN}};
    status st = io_match(word, &found);
    if (st == STATUS_OK && found.count == 0) st = FAIL(STATUS_IO, "no file matches '%s'", word);
    for (int i = 0; st == STATUS_OK && !shards && i < found.count; i++)
        if (!is_directory(found.names[i])) st = build_source_is_shards(&plain, found.names[i], &shards);
    if (st == STATUS_OK && shards) add(in, word);
    for (int i = 0; st == STATUS_OK && !shards && i < found.count; i++)
        if (!is_directory(found.names[i])) add(in, found.names[i]);
    io_list_free(&found);
    return st;
}

/* Copies standard input to an unlinked file, which takes its place: it can be read twice, and at any position. */
static status spool_standard(const char *dir)
{
    enum { CHUNK = 1 << 20 };
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return FAIL(status_of_errno(errno), "standard input cannot be kept in %s: %s", dir, strerror(errno));
    char *chunk = malloc(CHUNK);
    MEMORY_CHECK(chunk, "no memory for standard input");
    status st = STATUS_OK;
    for (ssize_t n = 1; n > 0 && st == STATUS_OK;) {
        n = read(STDIN_FILENO, chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n < 0)
            st = FAIL(status_of_errno(errno), "standard input: %s", strerror(errno));
        else
            for (ssize_t at = 0; at < n && st == STATUS_OK;) {
                const ssize_t w = write(fd, chunk + at, (size_t)(n - at));
                if (w < 0 && errno != EINTR)
                    st = FAIL(status_of_errno(errno), "standard input cannot be kept in %s: %s", dir,
                              strerror(errno));
                at += w > 0 ? w : 0;
            }
    }
    free(chunk);
    if (st == STATUS_OK && dup2(fd, STDIN_FILENO) < 0)
        st = FAIL(status_of_errno(errno), "standard input: %s", strerror(errno));
    close(fd);
    return st;
}

static status add_standard(struct inputs *in, const char *spool)
{
    struct stat s;
    if (in->standard) return FAIL(STATUS_CONFIG, "- is given twice: standard input can be read once");
    if (fstat(STDIN_FILENO, &s) != 0)
        return FAIL(status_of_errno(errno), "standard input: %s", strerror(errno));
    in->standard = true;
    if (!S_ISREG(s.st_mode)) TRY(spool_standard(spool));
    add(in, STANDARD);
    return STATUS_OK;
}

status inputs_expand(struct inputs *in, char **words, int count, const char *spool, bool shards)
{
    for (int i = 0; i < count; i++) {
        bool there = true;
        in->word = i;
        if (strpbrk(words[i], "*?[")) TRY(io_exists(words[i], &there));
        if (strcmp(words[i], "-") == 0)
            TRY(add_standard(in, spool));
        else if (is_directory(words[i]))
            TRY(add_whole_directory(in, words[i]));
        else if (!there)
            TRY(add_pattern(in, words[i], shards));
        else
            add(in, words[i]);
    }
    return STATUS_OK;
}

void inputs_free(struct inputs *in)
{
    for (int i = 0; i < in->count; i++) free(in->paths[i]);
    free(in->paths);
    free(in->words);
    *in = (struct inputs){0};
}
