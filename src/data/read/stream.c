/* Decompression into blocks. With STREAM_AHEAD there are two blocks of 1 MiB: the stream's own thread fills
 * one while the other is read. Otherwise there is one block of 64 KiB, filled on request by the caller's
 * thread. A block carries the error that ended it: all data before a damaged place is delivered first, and
 * each later call returns the same error. */
#include "data/read/stream.h"

#include "data/read/stream_int.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 2 };
static const size_t block_bytes[] = {[STREAM_AHEAD] = 1 << 20, [STREAM_HERE] = 64 << 10};
static const int block_count[] = {[STREAM_AHEAD] = BLOCKS, [STREAM_HERE] = 1};

struct block {
    uint8_t *data;
    size_t bytes;
    int64_t consumed; /* of the source, when the block was complete */
    bool full, last;  /* last: the end, or st is the reason why there is no more */
    status st;
    char message[512];
};
struct stream {
    const struct source *source;
    struct stream_config config;
    enum stream_codec codec;
    int64_t offset; /* bytes that the caller has read */
    struct stream_input input;
    struct stream_decoder decoder;
    struct block blocks[BLOCKS];
    int current; /* the block being read */
    size_t at;   /* position in it */
    int64_t consumed;
    bool running, stop; /* the thread */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

status stream_input_fill(struct stream_input *in)
{
    int64_t left = in->source->bytes - in->at;
    size_t n = left < STREAM_IN_BYTES ? (size_t)left : STREAM_IN_BYTES;
    in->next = in->used = 0;
    if (n == 0) return STATUS_OK;
    TRY(source_read(in->source, in->buffer, n, in->at));
    in->used = n;
    in->at += (int64_t)n;
    return STATUS_OK;
}

bool stream_input_ended(const struct stream_input *in)
{
    return in->next == in->used && in->at == in->source->bytes;
}

static int64_t input_place(const struct stream_input *in)
{
    return in->at - (int64_t)(in->used - in->next);
}

status stream_input_fail(const struct stream_input *in, const char *what, const char *detail)
{
    return FAIL(STATUS_DATA, "%s: %s%s%s (byte %lld of the file)", in->source->path, what, detail ? ": " : "",
                detail ? detail : "", (long long)input_place(in));
}

enum stream_codec stream_detect(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    if (bytes >= 2 && p[0] == 0x1f && p[1] == 0x8b) return STREAM_GZIP;
    if (bytes >= 4 && memcmp(p, "\x28\xb5\x2f\xfd", 4) == 0) return STREAM_ZSTD;
    /* A skippable frame may come first (pzstd, seekable tables). */
    if (bytes >= 4 && (p[0] & 0xf0) == 0x50 && memcmp(p + 1, "\x2a\x4d\x18", 3) == 0) return STREAM_ZSTD;
    return STREAM_PLAIN;
}

static void block_fill(struct stream *s, struct block *b)
{
    size_t room = block_bytes[s->config.thread];
    b->st = s->decoder.run(s->decoder.state, &s->input, b->data, room, &b->bytes);
    b->last = b->st != STATUS_OK || b->bytes < room;
    if (b->st != STATUS_OK) snprintf(b->message, sizeof b->message, "%s", status_message());
    b->consumed = input_place(&s->input);
}

static void *run_shift_tokens(void *arg)
{
    struct stream *s = arg;
    bool last = false;
    for (int i = 0; !last; i = (i + 1) % BLOCKS) {
        struct block *b = &s->blocks[i];
        pthread_mutex_lock(&s->lock);
        while (b->full && !s->stop) pthread_cond_wait(&s->changed, &s->lock);
        bool stop = s->stop;
        pthread_mutex_unlock(&s->lock);
        if (stop) break;
        block_fill(s, b);
        last = b->last;
        pthread_mutex_lock(&s->lock);
        b->full = true;
        pthread_cond_signal(&s->changed);
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

static void thread_stop(struct stream *s)
{
    if (!s->running) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    s->running = false;
}

static void decoder_close(struct stream *s)
{
    thread_stop(s);
    if (s->decoder.close) s->decoder.close(s->decoder.state);
    s->decoder = (struct stream_decoder){0};
}

/* Restarts at the beginning of the source. */
static status decoder_open(struct stream *s)
{
    s->input.at = 0;
    s->input.next = s->input.used = 0;
    s->offset = s->consumed = 0;
    s->current = 0;
    s->at = 0;
    s->stop = false;
    for (int i = 0; i < BLOCKS; i++) {
        struct block *b = &s->blocks[i];
        b->full = b->last = false;
        b->bytes = 0;
    }
    TRY(s->codec == STREAM_GZIP ? stream_gzip_open(&s->decoder)
                                : stream_zstd_open(&s->decoder, s->config.window_log_max));
    if (s->config.thread == STREAM_HERE) return STATUS_OK;
    if (pthread_create(&s->thread, NULL, run_shift_tokens, s) != 0)
        return FAIL(STATUS_OUT_OF_MEMORY, "%s: no thread to decompress it", s->source->path);
    s->running = true;
    return STATUS_OK;
}

status stream_open(struct stream **out, const struct source *source, const struct stream_config *config)
{
    *out = NULL;
    uint8_t magic[4];
    size_t n = source->bytes < 4 ? (size_t)source->bytes : sizeof magic;
    TRY(source_read(source, magic, n, 0));
    struct stream *s = calloc(1, sizeof *s);
    MEMORY_CHECK(s, "no memory for a stream");
    s->source = source;
    s->config = *config;
    s->codec = stream_detect(magic, n);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    *out = s;
    if (s->codec == STREAM_PLAIN) return STATUS_OK;
    size_t in_bytes = source->bytes < STREAM_IN_BYTES ? (size_t)source->bytes : STREAM_IN_BYTES;
    s->input = (struct stream_input){.source = source, .buffer = malloc(in_bytes)};
    bool room = s->input.buffer;
    for (int i = 0; i < block_count[config->thread]; i++)
        room &= (s->blocks[i].data = malloc(block_bytes[config->thread])) != NULL;
    status st =
        room ? decoder_open(s) : FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory to decompress it", source->path);
    if (st != STATUS_OK) {
        stream_close(s);
        *out = NULL;
    }
    return st;
}

void stream_close(struct stream *s)
{
    if (!s) return;
    decoder_close(s);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s->input.buffer);
    for (int i = 0; i < BLOCKS; i++) free(s->blocks[i].data);
    free(s);
}

/* Waits for the block to read from; NULL at the end. */
static status block_take(struct stream *s, struct block **out)
{
    for (;;) {
        struct block *b = &s->blocks[s->current];
        if (!b->full && s->config.thread == STREAM_HERE) {
            block_fill(s, b);
            b->full = true;
        }
        pthread_mutex_lock(&s->lock);
        while (!b->full) pthread_cond_wait(&s->changed, &s->lock);
        pthread_mutex_unlock(&s->lock);
        *out = b;
        if (s->at < b->bytes) return STATUS_OK;
        *out = NULL;
        if (b->st != STATUS_OK) return FAIL(b->st, "%s", b->message);
        if (b->last) return STATUS_OK;
        s->consumed = b->consumed;
        pthread_mutex_lock(&s->lock);
        b->full = false;
        pthread_cond_signal(&s->changed);
        pthread_mutex_unlock(&s->lock);
        s->current = (s->current + 1) % block_count[s->config.thread];
        s->at = 0;
    }
}

static status read_plain(struct stream *s, void *to, size_t bytes, size_t *got)
{
    int64_t left = s->source->bytes - s->offset;
    size_t n = left < (int64_t)bytes ? (size_t)left : bytes;
    TRY(source_read(s->source, to, n, s->offset));
    s->offset += (int64_t)n;
    *got = n;
    return STATUS_OK;
}

/* `to` NULL: the bytes are skipped. */
static status read_blocks(struct stream *s, void *to, int64_t bytes, int64_t *got)
{
    *got = 0;
    while (*got < bytes) {
        struct block *b;
        TRY(block_take(s, &b));
        if (!b) break;
        int64_t left = bytes - *got;
        size_t here = b->bytes - s->at, n = left < (int64_t)here ? (size_t)left : here;
        if (to) memcpy((uint8_t *)to + *got, b->data + s->at, n);
        s->at += n;
        s->offset += (int64_t)n;
        *got += (int64_t)n;
    }
    return STATUS_OK;
}

status stream_read(struct stream *s, void *to, size_t bytes, size_t *got)
{
    *got = 0;
    if (s->codec == STREAM_PLAIN) return read_plain(s, to, bytes, got);
    int64_t n;
    status st = read_blocks(s, to, (int64_t)bytes, &n);
    *got = (size_t)n;
    return st;
}

status stream_ended(struct stream *s, bool *ended)
{
    struct block *b = NULL;
    if (s->codec == STREAM_PLAIN)
        *ended = s->offset == s->source->bytes;
    else {
        TRY(block_take(s, &b));
        *ended = !b;
    }
    return STATUS_OK;
}

status stream_seek(struct stream *s, int64_t at)
{
    int64_t reached = s->source->bytes, passed;
    if (s->codec == STREAM_PLAIN) {
        if (at <= reached) {
            s->offset = at;
            return STATUS_OK;
        }
    } else {
        if (at < s->offset) {
            decoder_close(s);
            TRY(decoder_open(s));
        }
        TRY(read_blocks(s, NULL, at - s->offset, &passed));
        if (s->offset == at) return STATUS_OK;
        reached = s->offset;
    }
    return FAIL(STATUS_DATA, "%s: it has %lld bytes of text and cannot go on at byte %lld", s->source->path,
                (long long)reached, (long long)at);
}

enum stream_codec stream_kind(const struct stream *s)
{
    return s->codec;
}

int64_t stream_offset(const struct stream *s)
{
    return s->offset;
}

int64_t stream_consumed(const struct stream *s)
{
    return s->codec == STREAM_PLAIN ? s->offset : s->consumed;
}
