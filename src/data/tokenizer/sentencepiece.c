#include "data/tokenizer/sentencepiece.h"
#include "base/io.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 26, PIECES_MAX = 1 << 24, PIECE_BYTES_MAX = 1 << 16 };
enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct span {
    const char *at, *end;
};
struct field {
    uint64_t number, value; /* of a varint; bits of a float */
    enum wire wire;
    struct span bytes;
};

static bool varint(struct span *s, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 64 && s->at < s->end; shift += 7) {
        const uint64_t byte = (unsigned char)*s->at++;
        *v |= (byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

static bool fixed(struct span *s, int bytes, uint64_t *v)
{
    *v = 0;
    if (s->end - s->at < bytes) return false;
    for (int i = 0; i < bytes; i++) *v |= (uint64_t)(unsigned char)*s->at++ << (8 * i);
    return true;
}

/* The next field of a message; false: it ends within one. */
static bool next_field(struct span *s, struct field *f)
{
    uint64_t key, length;
    if (!varint(s, &key)) return false;
    f->number = key >> 3;
    f->wire = (enum wire)(key & 7);
    switch (f->wire) {
    case WIRE_VARINT: return varint(s, &f->value);
    case WIRE_64: return fixed(s, 8, &f->value);
    case WIRE_32: return fixed(s, 4, &f->value);
    case WIRE_BYTES: break;
    default: return false;
    }
    if (!varint(s, &length) || length > (uint64_t)(s->end - s->at)) return false;
    f->bytes = (struct span){s->at, s->at + length};
    s->at += length;
    return true;
}

static float float_of(uint64_t bits)
{
    const uint32_t low = (uint32_t)bits;
    float v;
    memcpy(&v, &low, sizeof v);
    return v;
}

static bool read_piece(struct sp_piece *p, struct span s)
{
    struct field f;
    *p = (struct sp_piece){.type = SP_NORMAL};
    while (s.at < s.end) {
        if (!next_field(&s, &f)) return false;
        if (f.number == 1 && f.wire == WIRE_BYTES)
            p->text = f.bytes.at, p->bytes = (size_t)(f.bytes.end - f.bytes.at);
        if (f.number == 2 && f.wire == WIRE_32) p->score = float_of(f.value);
        if (f.number == 3 && f.wire == WIRE_VARINT) p->type = f.value <= SP_BYTE ? (int32_t)f.value : 0;
    }
    return p->text && p->bytes > 0 && p->bytes <= PIECE_BYTES_MAX && isfinite(p->score) &&
           p->type >= SP_NORMAL;
}

/* Ids are written as int32: -1 has ten bytes. */
static int32_t id_of(uint64_t v)
{
    return v <= INT32_MAX ? (int32_t)v : -1;
}

static bool read_trainer(struct sentencepiece *sp, struct span s)
{
    struct field f;
    while (s.at < s.end) {
        if (!next_field(&s, &f)) return false;
        if (f.wire != WIRE_VARINT) continue;
        if (f.number == 3) sp->model = id_of(f.value);
        if (f.number == 40) sp->unk = id_of(f.value);
        if (f.number == 41) sp->bos = id_of(f.value);
        if (f.number == 42) sp->eos = id_of(f.value);
    }
    return true;
}

static bool read_normalizer(struct sentencepiece *sp, struct span s)
{
    struct field f;
    while (s.at < s.end) {
        if (!next_field(&s, &f)) return false;
        if (f.number == 2 && f.wire == WIRE_BYTES) sp->normalizes = f.bytes.end > f.bytes.at;
        if (f.number == 3 && f.wire == WIRE_VARINT) sp->dummy_prefix = f.value != 0;
        if (f.number == 4 && f.wire == WIRE_VARINT) sp->removes_blanks = f.value != 0;
    }
    return true;
}

/* Counts the pieces (list NULL), or reads all. */
static bool walk(struct sentencepiece *sp, struct span s, struct sp_piece *list)
{
    struct field f;
    sp->count = 0;
    while (s.at < s.end) {
        if (!next_field(&s, &f)) return false;
        if (f.wire != WIRE_BYTES) continue;
        if (f.number == 1) {
            if (sp->count == PIECES_MAX || (list && !read_piece(&list[sp->count], f.bytes))) return false;
            sp->count++;
        }
        if (list && f.number == 2 && !read_trainer(sp, f.bytes)) return false;
        if (list && f.number == 3 && !read_normalizer(sp, f.bytes)) return false;
    }
    return true;
}

status sentencepiece_parse(struct sentencepiece *s, const char *name, char *data, size_t bytes)
{
    *s = (struct sentencepiece){.data = data,
                                .model = SP_UNIGRAM, /* what the format means where it says nothing */
                                .unk = 0,
                                .bos = 1,
                                .eos = 2,
                                .dummy_prefix = true,
                                .removes_blanks = true};
    const struct span all = {data, data + bytes};
    bool good = walk(s, all, NULL) && s->count > 0;
    if (good) {
        s->pieces = calloc((size_t)s->count, sizeof *s->pieces);
        if (s->pieces == NULL) {
            sentencepiece_free(s);
            return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the pieces of %s", name);
        }
        good = walk(s, all, s->pieces);
    }
    if (good) return STATUS_OK;
    sentencepiece_free(s);
    return FAIL(STATUS_DATA, "%s is no tokenizer.model of SentencePiece, or a damaged one", name);
}

status sentencepiece_read(struct sentencepiece *s, const char *path)
{
    char inside[1200], *data;
    size_t bytes;
    enum io_kind kind;
    *s = (struct sentencepiece){0};
    TRY(io_kind(path, &kind));
    if (kind == IO_DIR) snprintf(inside, sizeof inside, "%.1100s/tokenizer.model", path);
    TRY(io_read_file(kind == IO_DIR ? inside : path, FILE_MAX, &data, &bytes));
    return sentencepiece_parse(s, kind == IO_DIR ? inside : path, data, bytes);
}

void sentencepiece_free(struct sentencepiece *s)
{
    free(s->data);
    free(s->pieces);
    *s = (struct sentencepiece){0};
}
