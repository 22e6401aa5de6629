#include "data/build_int.h"

#include <stdlib.h>

status build_source_open(struct build_source **out, const struct build_config *config, int input,
                         struct reader_mark at)
{
    struct build_source *s = *out = calloc(1, sizeof *s);
    CHECK(s, "no memory for an input");
    s->users = 1;
    struct reader_config c = config->reader;
    if (c.batch_bytes == 0) c.batch_bytes = BATCH_BYTES;
    status st = reader_open(&s->reader, config->inputs[input], &c);
    if (st == STATUS_OK) st = reader_seek(s->reader, at);
    if (st == STATUS_OK) return st;
    build_source_close(s);
    *out = NULL;
    return st;
}

status build_source_next(struct build_source *s, struct reader_batch *batch, bool *more)
{
    return reader_next(s->reader, batch, more);
}

struct reader_mark build_source_mark(const struct build_source *s)
{
    return reader_mark(s->reader);
}

int64_t build_source_bytes(const struct build_source *s)
{
    return reader_bytes(s->reader);
}

int64_t build_source_done(const struct build_source *s)
{
    return reader_bytes_done(s->reader);
}

int64_t build_source_place(const struct build_source *s, const struct reader_batch *batch, int64_t i)
{
    (void)s;
    return reader_place(batch, i);
}

void build_source_close(struct build_source *s)
{
    if (!s) return;
    reader_close(s->reader);
    free(s);
}
