/* One line of JSON, and its checksum on a second line: a journal damaged by a failing disk counts as
 * missing. */
#include "data/build/build_journal.h"

#include "base/io.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { VERSION = 2, JOURNAL_BYTES_MAX = 256 << 20, SUM_BYTES = 18 /* newline, 16 digits, newline */ };

static void sum_text(const char *data, size_t bytes, char out[SUM_BYTES + 1])
{
    snprintf(out, SUM_BYTES + 1, "\n%016llx\n", (unsigned long long)XXH64(data, bytes, 0));
}

void build_journal_free(struct build_journal *j)
{
    free(j->settings);
    free(j->mtimes_ns);
    corpus_state_free(&j->state);
    *j = (struct build_journal){0};
}

static status want(const char *path, const json_t *o, const char *key, int64_t least, int64_t most,
                   int64_t *out)
{
    const json_t *v = json_object_get(o, key);
    *out = json_integer_value(v);
    if (!json_is_integer(v) || *out < least || *out > most)
        return FAIL(STATUS_DATA, "%s: '%s' is missing or not a number from %lld to %lld", path, key,
                    (long long)least, (long long)most);
    return STATUS_OK;
}

static status read_mtimes(struct build_journal *j, const char *path, const json_t *root)
{
    const json_t *list = json_object_get(root, "mtimes_ns");
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n != (size_t)j->state.rows.input_count)
        return FAIL(STATUS_DATA, "%s: 'mtimes_ns' has not one number for each of %d inputs", path,
                    j->state.rows.input_count);
    j->mtimes_ns = calloc(n + 1, sizeof *j->mtimes_ns);
    MEMORY_CHECK(j->mtimes_ns, "no memory for %zu inputs", n);
    for (size_t i = 0; i < n; i++) j->mtimes_ns[i] = json_integer_value(json_array_get(list, i));
    return STATUS_OK;
}

static status read_root(struct build_journal *j, const char *path, const json_t *root)
{
    int64_t n;
    const char *format = json_string_value(json_object_get(root, "format")),
               *settings = json_string_value(json_object_get(root, "settings"));
    if (!format || strcmp(format, "ingot-build") != 0 || !settings)
        return FAIL(STATUS_DATA, "%s: not a journal of a build", path);
    TRY(want(path, root, "version", VERSION, VERSION, &n));
    TRY(manifest_from_json(&j->state.rows, path, json_object_get(root, "corpus")));
    MEMORY_CHECK(j->settings = strdup(settings), "no memory for a journal");
    for (int split = 0; split < CORPUS_COUNT; split++)
        j->state.open[split] = json_is_true(json_array_get(json_object_get(root, "open"), (size_t)split));
    TRY(read_mtimes(j, path, root));
    const json_t *mark = json_object_get(root, "mark");
    TRY(want(path, mark, "input", 0, INT_MAX, &n));
    j->mark.input = (int)n;
    if (j->mark.input >= j->state.rows.input_count)
        return FAIL(STATUS_DATA, "%s: input %d of %d", path, j->mark.input, j->state.rows.input_count);
    TRY(want(path, mark, "at", 0, INT64_MAX, &j->mark.at.at));
    TRY(want(path, mark, "row", 0, INT64_MAX, &j->mark.at.row));
    TRY(want(path, mark, "records", 0, INT64_MAX, &j->mark.records));
    const json_t *word = json_object_get(root, "word");
    TRY(want(path, word, "read", 0, INT64_MAX, &j->tally.read));
    TRY(want(path, word, "skipped", 0, INT64_MAX, &j->tally.skipped));
    TRY(want(path, root, "hashed", 0, j->state.rows.input_count, &n));
    j->hashed = (int)n;
    TRY(want(path, root, "bytes_done", 0, INT64_MAX, &j->bytes_done));
    TRY(want(path, root, "hashes", 0, INT64_MAX / 1024, &j->hashes));
    return want(path, root, "sketches", 0, INT64_MAX / 1024, &j->sketches);
}

status build_journal_parse(struct build_journal *j, const char *path, const char *data, size_t bytes)
{
    *j = (struct build_journal){0};
    char sum[SUM_BYTES + 1];
    if (bytes < SUM_BYTES) return FAIL(STATUS_DATA, "%s: not a journal of a build", path);
    bytes -= SUM_BYTES;
    sum_text(data, bytes, sum);
    if (memcmp(data + bytes, sum, SUM_BYTES) != 0)
        return FAIL(STATUS_DATA, "%s: its checksum is wrong: the file is damaged", path);
    json_error_t where;
    json_t *root = json_loadb(data, bytes, JSON_REJECT_DUPLICATES, &where);
    status st = root ? read_root(j, path, root)
                     : FAIL(STATUS_DATA, "%s:%d:%d: %s", path, where.line, where.column, where.text);
    json_decref(root);
    if (st != STATUS_OK) build_journal_free(j);
    return st;
}

status build_journal_read(struct build_journal *j, const char *path)
{
    *j = (struct build_journal){0};
    char *data;
    size_t bytes;
    TRY(io_read_file(path, JOURNAL_BYTES_MAX, &data, &bytes));
    status st = build_journal_parse(j, path, data, bytes);
    free(data);
    return st;
}

status build_journal_write(const struct build_journal *j, const char *path)
{
    json_t *mtimes = json_array(), *corpus = manifest_to_json(&j->state.rows);
    for (int i = 0; i < j->state.rows.input_count; i++)
        json_array_append_new(mtimes, json_integer(j->mtimes_ns[i]));
    json_t *root = json_pack(
        "{s:s, s:i, s:s, s:o, s:i, s:{s:i, s:I, s:I, s:I}, s:{s:I, s:I}, s:I, s:I, s:I, s:[b, b], s:o}",
        "format", "ingot-build", "version", VERSION, "settings", j->settings, "mtimes_ns", mtimes, "hashed",
        j->hashed, "mark", "input", j->mark.input, "at", (json_int_t)j->mark.at.at, "row",
        (json_int_t)j->mark.at.row, "records", (json_int_t)j->mark.records, "word", "read",
        (json_int_t)j->tally.read, "skipped", (json_int_t)j->tally.skipped, "bytes_done",
        (json_int_t)j->bytes_done, "hashes", (json_int_t)j->hashes, "sketches", (json_int_t)j->sketches,
        "open", j->state.open[CORPUS_TRAIN], j->state.open[CORPUS_VAL], "corpus", corpus);
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(root);
    if (!text) return FAIL(STATUS_CONFIG, "%s: a name or a separator is not UTF-8", path);
    size_t bytes = strlen(text);
    char *whole = realloc(text, bytes + SUM_BYTES + 1);
    MEMORY_CHECK(whole, "no memory for a journal");
    sum_text(whole, bytes, whole + bytes);
    status st = io_write_file(path, whole, bytes + SUM_BYTES);
    free(whole);
    return st;
}

/* --- the lock ------------------------------------------------------------------------------------------- */

/* The lock belongs to the open file; the kernel drops it when its holder dies. If the file was removed while
 * we waited, its lock protects nothing: try the next one. */
static status lock_path(const char *path, int *fd, bool *again)
{
    struct stat held, there;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    *again = false;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*fd < 0)
        return FAIL(STATUS_IO, "cannot open '%s': %s; check owner and permissions", path,
                    strerrordesc_np(errno));
    if (fcntl(*fd, F_OFD_SETLK, &lock) != 0) {
        if (errno == EAGAIN || errno == EACCES) {
            io_close(fd);
            return FAIL(STATUS_CONFIG, "another build writes this prefix now: it holds %s", path);
        }
        log_warn("'%s' cannot be locked (%s): make sure yourself that no other build uses this prefix", path,
                 strerrordesc_np(errno));
        return STATUS_OK;
    }
    *again = fstat(*fd, &held) != 0 || stat(path, &there) != 0 || held.st_ino != there.st_ino;
    if (*again) io_close(fd);
    return STATUS_OK;
}

status build_journal_lock(const char *prefix, int *fd)
{
    char path[PATH_MAX];
    const char *slash = strrchr(prefix, '/');
    if (slash && slash > prefix) {
        snprintf(path, sizeof path, "%.*s", (int)(slash - prefix), prefix);
        TRY(io_make_dirs(path));
    }
    snprintf(path, sizeof path, "%s_build.lock", prefix);
    bool again = true;
    while (again) TRY(lock_path(path, fd, &again));
    return STATUS_OK;
}

void build_journal_unlock(const char *prefix, int *fd)
{
    char path[PATH_MAX];
    if (*fd < 0) return;
    snprintf(path, sizeof path, "%s_build.lock", prefix);
    (void)unlink(path);
    io_close(fd);
}
