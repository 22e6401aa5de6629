#include "observe/bundle.h"
#include "base/io.h"
#include "base/memory.h"
#include "observe/report_int.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <zstd.h>

enum {
    BLOCK = 512,
    LEVEL = 9,
    LOG_TAIL = 256 << 10,
    RECORDS_TAIL = 2 << 20,
    HOST_TAIL = 512 << 10,
    ARCHIVE_MAX = 256 << 20,
    CHECKPOINTS = 64,
    META_MAX = 16 << 20
};

static void grow(struct bundle *b, const void *data, size_t bytes)
{
    if (b->bytes + bytes > b->room) {
        b->room = 2 * (b->bytes + bytes);
        b->data = realloc(b->data, b->room);
        MEMORY_CHECK(b->data, "no memory for an archive of %zu bytes", b->room);
    }
    if (data)
        memcpy(b->data + b->bytes, data, bytes);
    else
        memset(b->data + b->bytes, 0, bytes);
    b->bytes += bytes;
}

/* ---- tar: POSIX ustar, regular files of one directory */

static void tar_header(struct bundle *b, const char *name, size_t bytes)
{
    char h[BLOCK] = "";
    unsigned sum = 0;
    snprintf(h, 100, "%.99s", name);
    snprintf(h + 100, 8, "%07o", 0600);
    snprintf(h + 108, 8, "%07o", 0);
    snprintf(h + 116, 8, "%07o", 0);
    snprintf(h + 124, 12, "%011llo", (unsigned long long)bytes);
    snprintf(h + 136, 12, "%011llo", (unsigned long long)time(NULL));
    memset(h + 148, ' ', 8);
    h[156] = '0';
    memcpy(h + 257,
           "ustar\0"
           "00",
           8);
    for (int i = 0; i < BLOCK; i++) sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
    grow(b, h, BLOCK);
}

void bundle_text(struct bundle *b, const char *name, const char *text)
{
    if (b->count == BUNDLE_FILES_MAX) return;
    char *clean = bundle_redact(text, &b->redacted);
    const size_t bytes = strlen(clean);
    struct bundle_file *f = &b->files[b->count++];
    snprintf(f->name, sizeof f->name, "%.99s", name);
    f->bytes = bytes;
    tar_header(b, f->name, bytes);
    grow(b, clean, bytes);
    grow(b, NULL, (BLOCK - bytes % BLOCK) % BLOCK);
    free(clean);
}

/* ---- the records of a run */

static void add_file(struct bundle *b, const char *dir, const char *name, int64_t most)
{
    char path[1300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    char *text = report_file_tail(path, most);
    if (text) bundle_text(b, name, text);
    free(text);
}

/* metrics.jsonl without what the model wrote: samples. */
static void add_metrics(struct bundle *b, const char *dir)
{
    char path[1300];
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    char *text = report_file_tail(path, RECORDS_TAIL), *to = text;
    if (text == NULL) return;
    for (char *line = text, *next; *line; line = next) {
        char *end = strchr(line, '\n');
        next = end ? end + 1 : line + strlen(line);
        const size_t n = (size_t)(next - line);
        json_t *o = json_loadb(line, n, 0, NULL);
        const char *kind = json_string_value(json_object_get(o, "kind"));
        const bool keep = kind && strcmp(kind, "sample") != 0;
        json_decref(o);
        if (keep) memmove(to, line, n);
        if (keep) to += n;
    }
    *to = 0;
    bundle_text(b, "metrics.jsonl", text);
    free(text);
}

/* What a checkpoint's manifest says of the run, without its tensors, configuration and algorithms. */
static json_t *checkpoint_json(const char *dir, const char *name)
{
    char path[1400], *text;
    size_t bytes;
    snprintf(path, sizeof path, "%s/ckpt/%s/manifest.json", dir, name);
    json_t *o = json_pack("{s:s}", "name", name);
    if (io_read_file(path, META_MAX, &text, &bytes) != STATUS_OK) return o;
    json_t *all = json_loadb(text, bytes, 0, NULL), *meta = json_object_get(all, "meta");
    free(text);
    static const char *const keys[] = {"step", "tokens", "health", "data", "lineage"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (json_object_get(meta, keys[i])) json_object_set(o, keys[i], json_object_get(meta, keys[i]));
    if (json_object_get(all, "files")) json_object_set(o, "files", json_object_get(all, "files"));
    json_decref(all);
    return o;
}

static void add_checkpoints(struct bundle *b, const char *dir)
{
    char path[1300];
    struct io_list names;
    snprintf(path, sizeof path, "%s/ckpt", dir);
    if (io_list(path, &names) != STATUS_OK || names.count == 0) return;
    json_t *list = json_array();
    for (int i = names.count > CHECKPOINTS ? names.count - CHECKPOINTS : 0; i < names.count; i++)
        json_array_append_new(list, checkpoint_json(dir, names.names[i]));
    io_list_free(&names);
    char *text = json_dumps(list, JSON_INDENT(1));
    if (text) bundle_text(b, "checkpoints.json", text);
    free(text);
    json_decref(list);
}

static void add_hosts(struct bundle *b, const char *dir)
{
    struct io_list names;
    if (io_list(dir, &names) != STATUS_OK) return;
    for (int i = 0; i < names.count; i++) {
        const size_t n = strlen(names.names[i]);
        if (n > 10 && n < 100 && strncmp(names.names[i], "gpu-", 4) == 0 &&
            strcmp(names.names[i] + n - 6, ".jsonl") == 0)
            add_file(b, dir, names.names[i], HOST_TAIL);
    }
    io_list_free(&names);
}

status bundle_run(struct bundle *b, const char *run_dir)
{
    struct report_data d;
    status st = report_data_read(&d, run_dir, RECORDS_TAIL);
    if (st == STATUS_OK) {
        add_file(b, run_dir, "exit.json", 1 << 20);
        add_file(b, run_dir, "env.json", 1 << 20);
        add_file(b, run_dir, "config.yaml", 1 << 20);
        add_file(b, run_dir, "log.txt", LOG_TAIL);
        add_file(b, run_dir, "comm-flight.txt", LOG_TAIL);
        add_file(b, run_dir, "bug.txt", LOG_TAIL);
        add_file(b, run_dir, "lock", 4096);
        add_metrics(b, run_dir);
        add_file(b, run_dir, "evals.jsonl", LOG_TAIL);
        add_file(b, run_dir, "ledger.jsonl", LOG_TAIL);
        add_file(b, run_dir, "forecast.jsonl", LOG_TAIL);
        add_hosts(b, run_dir);
        add_checkpoints(b, run_dir);
    }
    report_data_free(&d);
    return st;
}

void bundle_free(struct bundle *b)
{
    free(b->data);
    *b = (struct bundle){0};
}

status bundle_write(struct bundle *b, const char *path)
{
    struct io_file f;
    grow(b, NULL, 2 * BLOCK);
    const size_t room = ZSTD_compressBound(b->bytes);
    char *packed = malloc(room);
    MEMORY_CHECK(packed, "no memory for an archive of %zu bytes", room);
    const size_t bytes = ZSTD_compress(packed, room, b->data, b->bytes, LEVEL);
    if (ZSTD_isError(bytes)) {
        free(packed);
        return FAIL(STATUS_INTERNAL, "%s: zstd: %s", path, ZSTD_getErrorName(bytes));
    }
    status st = io_create(&f, path);
    if (st == STATUS_OK && fchmod(f.fd, 0600) != 0)
        st = FAIL(status_of_errno(errno), "%s: its permissions cannot be set: %s", path, strerror(errno));
    if (st == STATUS_OK) st = io_write(&f, packed, bytes);
    if (st == STATUS_OK) st = io_commit(&f);
    if (st != STATUS_OK) io_abandon(&f);
    free(packed);
    return st;
}

/* ---- reading one */

static status unpack(const char *path, char **data, size_t *bytes)
{
    char *packed;
    size_t n;
    *data = NULL;
    TRY(io_read_file(path, ARCHIVE_MAX, &packed, &n));
    const unsigned long long size = ZSTD_getFrameContentSize(packed, n);
    if (size != ZSTD_CONTENTSIZE_ERROR && size != ZSTD_CONTENTSIZE_UNKNOWN && size <= ARCHIVE_MAX) {
        *data = malloc((size_t)size + 1);
        MEMORY_CHECK(*data, "no memory for %s", path);
        *bytes = ZSTD_decompress(*data, (size_t)size, packed, n);
    }
    free(packed);
    if (*data && !ZSTD_isError(*bytes) && *bytes == size) return STATUS_OK;
    free(*data);
    *data = NULL;
    return FAIL(STATUS_DATA, "%s: not a bundle (`ingot bundle RUN -o FILE.tar.zst` writes one)", path);
}

status bundle_read(const char *path, const char *name, char **text)
{
    char *data;
    size_t bytes = 0;
    *text = NULL;
    TRY(unpack(path, &data, &bytes));
    for (size_t at = 0; at + BLOCK <= bytes && data[at];) {
        char size_text[13] = "";
        memcpy(size_text, data + at + 124, 12);
        const size_t size = strtoull(size_text, NULL, 8);
        if (size > bytes - at - BLOCK) break;
        if (strncmp(data + at, name, 100) == 0) {
            *text = malloc(size + 1);
            MEMORY_CHECK(*text, "no memory for %s", name);
            memcpy(*text, data + at + BLOCK, size);
            (*text)[size] = 0;
            free(data);
            return STATUS_OK;
        }
        at += BLOCK + (size + BLOCK - 1) / BLOCK * BLOCK;
    }
    free(data);
    return FAIL(STATUS_DATA, "%s: there is no %s in it", path, name);
}
