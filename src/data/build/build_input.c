/* The input files and their hashes. A thread hashes them shortly after the reader (at most AHEAD_BYTES
 * before it), while they are in the page cache; the disk is therefore read once. */
#include "data/build/build_int.h"

#include "base/io.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { CHUNK_BYTES = 1 << 20, AHEAD_BYTES = 32 << 20 };

static status look(const char *path, int64_t *bytes, int64_t *mtime_ns)
{
    int fd;
    TRY(io_open(path, LINKS_FOLLOW, &fd, bytes));
    struct stat s;
    status st = STATUS_OK;
    if (fstat(fd, &s) != 0) st = FAIL(status_of_errno(errno), "cannot stat '%s': %s", path, strerror(errno));
    io_close(&fd);
    *mtime_ns = st == STATUS_OK ? s.st_mtim.tv_sec * 1000000000ll + s.st_mtim.tv_nsec : 0;
    return st;
}

static status add_file(struct build_inputs *in, int input, const char *path)
{
    struct build_input *more = realloc(in->files, (size_t)(in->count + 1) * sizeof *more);
    MEMORY_CHECK(more, "no memory for %d inputs", in->count + 1);
    in->files = more;
    struct build_input f = {.input = input};
    TRY(look(path, &f.bytes, &f.mtime_ns));
    f.path = strdup(path);
    MEMORY_CHECK(f.path, "no memory for a path");
    f.name = utf8_clean(path, strlen(path));
    in->bytes += f.bytes;
    in->files[in->count++] = f;
    return STATUS_OK;
}

static status add_input(struct build_inputs *in, const struct build_config *config, int input)
{
    const char *path = config->inputs[input];
    bool shards;
    struct shard_set set;
    bool file = !strpbrk(path, "*?[");
    if (!file) TRY(io_exists(path, &file));
    if (file) return add_file(in, input, path);
    TRY(build_source_is_shards(config, path, &shards));
    TRY(build_source_set(config, path, &set));
    status st = STATUS_OK;
    for (int i = 0; i < set.count && st == STATUS_OK; i++) st = add_file(in, input, set.shards[i].path);
    shard_set_close(&set);
    return st;
}

status build_inputs_open(struct build_inputs *in, const struct build_config *config)
{
    pthread_mutex_init(&in->lock, NULL);
    pthread_cond_init(&in->moved, NULL);
    in->opened = true;
    for (int i = 0; i < config->input_count; i++) TRY(add_input(in, config, i));
    return STATUS_OK;
}

/* Waits until the reader is near byte `at` of all inputs; false: the build ends. */
static bool may_read(struct build_inputs *in, int64_t at)
{
    pthread_mutex_lock(&in->lock);
    while (!in->quit && at > in->read_bytes + AHEAD_BYTES) pthread_cond_wait(&in->moved, &in->lock);
    bool go = !in->quit;
    pthread_mutex_unlock(&in->lock);
    return go;
}

static status hash_file(struct build_inputs *in, struct build_input *f, int64_t before, char *chunk,
                        XXH64_state_t *hash, bool *quit)
{
    int fd;
    int64_t bytes;
    TRY(io_open(f->path, LINKS_FOLLOW, &fd, &bytes));
    status st = STATUS_OK;
    XXH64_reset(hash, 0);
    if (bytes != f->bytes) st = FAIL(STATUS_DATA, "%s: changed while it was read", f->path);
    for (int64_t at = 0; st == STATUS_OK && at < f->bytes; at += CHUNK_BYTES) {
        size_t n = f->bytes - at < CHUNK_BYTES ? (size_t)(f->bytes - at) : CHUNK_BYTES;
        *quit = !may_read(in, before + at);
        if (*quit) break;
        st = io_pread(fd, f->path, chunk, n, at);
        if (st == STATUS_OK) XXH64_update(hash, chunk, n);
    }
    f->xxh64 = XXH64_digest(hash);
    io_close(&fd);
    return st;
}

static void *hash_files(void *arg)
{
    struct build_inputs *in = arg;
    char *chunk = malloc(CHUNK_BYTES);
    XXH64_state_t *hash = XXH64_createState();
    MEMORY_CHECK(chunk && hash, "no memory to hash the inputs");
    int64_t before = 0;
    int first = in->hashed;
    bool quit = false;
    for (int i = 0; i < in->count && !quit; before += in->files[i++].bytes) {
        if (i < first) continue;
        status st = hash_file(in, &in->files[i], before, chunk, hash, &quit);
        pthread_mutex_lock(&in->lock);
        if (st != STATUS_OK) {
            in->st = st;
            snprintf(in->message, sizeof in->message, "%s", status_message());
            quit = true;
        } else if (!quit) {
            in->hashed = i + 1;
        }
        pthread_mutex_unlock(&in->lock);
    }
    XXH64_freeState(hash);
    free(chunk);
    return NULL;
}

status build_inputs_hash(struct build_inputs *in, int hashed)
{
    in->hashed = hashed;
    int err = pthread_create(&in->thread, NULL, hash_files, in);
    if (err != 0) return FAIL(STATUS_OUT_OF_MEMORY, "cannot start a thread: %s", strerror(err));
    in->running = true;
    return STATUS_OK;
}

void build_inputs_follow(struct build_inputs *in, int64_t read_bytes)
{
    pthread_mutex_lock(&in->lock);
    in->read_bytes = read_bytes;
    pthread_cond_signal(&in->moved);
    pthread_mutex_unlock(&in->lock);
}

int build_inputs_hashed(struct build_inputs *in)
{
    pthread_mutex_lock(&in->lock);
    int hashed = in->hashed;
    pthread_mutex_unlock(&in->lock);
    return hashed;
}

static void join(struct build_inputs *in, bool quit)
{
    if (!in->running) return;
    pthread_mutex_lock(&in->lock);
    in->quit = quit;
    in->read_bytes = INT64_MAX / 2;
    pthread_cond_signal(&in->moved);
    pthread_mutex_unlock(&in->lock);
    pthread_join(in->thread, NULL);
    in->running = false;
}

status build_inputs_finish(struct build_inputs *in)
{
    join(in, false);
    if (in->st != STATUS_OK) return FAIL(in->st, "%s", in->message);
    for (int i = 0; i < in->count; i++) {
        const struct build_input *f = &in->files[i];
        int64_t bytes, mtime_ns;
        TRY(look(f->path, &bytes, &mtime_ns));
        if (bytes != f->bytes || mtime_ns != f->mtime_ns)
            return FAIL(STATUS_DATA, "%s: changed while it was read", f->path);
    }
    return STATUS_OK;
}

void build_inputs_close(struct build_inputs *in)
{
    if (!in->opened) return;
    join(in, true);
    for (int i = 0; i < in->count; i++) {
        free(in->files[i].path);
        free(in->files[i].name);
    }
    free(in->files);
    pthread_cond_destroy(&in->moved);
    pthread_mutex_destroy(&in->lock);
    *in = (struct build_inputs){0};
}
