/* The validation part of a small corpus: a part of the documents, chosen by a hash, may be none of them. */
#include "data/build/build_val.h"

#include "data/build/build_int.h"

#include <string.h>
#include <xxhash.h>

bool build_val_by_hash(const void *data, size_t bytes, double fraction)
{
    return (double)(XXH64(data, bytes, 0) >> 11) * 0x1p-53 < fraction;
}

struct look {
    int64_t documents, before; /* bytes of the inputs before this one */
    bool hit;
    /* of the last document: */
    bool plain;
    int64_t begins,
        breaks; /* bytes of all inputs: where it begins; its last line that has text behind it; -1: none */
};

static void remember(struct look *l, const struct build_source *s, const struct reader_batch *batch,
                     int64_t i, const struct reader_document *d)
{
    const int64_t place = build_source_place(s, batch, i);
    l->plain = batch->format == READER_PLAIN && d->text && d->bytes > 0 && place >= 0;
    if (!l->plain) return;
    const char *line = memrchr(d->text, '\n', d->bytes - 1);
    l->begins = l->before + place;
    l->breaks = line ? l->begins + (line - d->text) : -1;
}

/* Until a document falls into the validation part. What cannot be read is the build's to say. */
static status look_at_input(const struct build_config *c, int input, struct look *l)
{
    struct build_source *s;
    struct reader_batch batch;
    bool more = true;
    TRY(build_source_open(&s, c, input, (struct reader_mark){0}));
    status st = STATUS_OK;
    while (st == STATUS_OK && !l->hit) {
        st = build_source_next(s, &batch, &more);
        if (st != STATUS_OK || !more) break;
        for (int64_t i = 0; i < batch.count && !l->hit; i++, l->documents++) {
            struct reader_document d;
            if (build_source_document(s, &batch, i, &d) != STATUS_OK) continue;
            const void *data = d.text ? (const void *)d.text : d.ids;
            const size_t bytes = d.text ? d.bytes : (size_t)d.id_count * sizeof *d.ids;
            l->hit = bytes > 0 && build_val_by_hash(data, bytes, c->val_fraction);
            if (i == batch.count - 1) remember(l, s, &batch, i, &d);
            reader_document_free(&d);
        }
    }
    l->before += build_source_bytes(s);
    build_source_close(s);
    return st;
}

void build_val_choose(struct build_config *c, int64_t *documents)
{
    struct look l = {.begins = -1, .breaks = -1};
    *documents = 0;
    if (c->val != BUILD_VAL_HASH) return;
    for (int i = 0; i < c->input_count && !l.hit; i++)
        if (look_at_input(c, i, &l) != STATUS_OK) return; /* the build meets it, too */
    if (l.hit) return;
    *documents = l.documents;
    const int64_t tail = l.before - (int64_t)(c->val_fraction * (double)l.before);
    if (l.plain && ((l.documents > 1 && l.begins >= tail) || l.breaks >= tail)) {
        c->val = BUILD_VAL_TAIL;
    } else if (l.documents > 1) {
        c->val = BUILD_VAL_EVERY;
        c->val_every = l.documents;
    }
}
