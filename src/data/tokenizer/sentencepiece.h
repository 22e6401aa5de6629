/* tokenizer.model of SentencePiece: a protocol buffer (sentencepiece_model.proto), of which the pieces with their scores
 * and a few settings are read. ingot does not encode with it; an export hands it on (model/gguf.h). */
#ifndef INGOT_DATA_TOKENIZER_SENTENCEPIECE_H
#define INGOT_DATA_TOKENIZER_SENTENCEPIECE_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers of the file. */
enum sp_type { SP_NORMAL = 1, SP_UNKNOWN, SP_CONTROL, SP_USER_DEFINED, SP_UNUSED, SP_BYTE };
enum sp_model { SP_UNIGRAM = 1, SP_BPE, SP_WORD, SP_CHAR };
struct sp_piece {
    const char *text; /* in sentencepiece.data */
    size_t bytes;
    float score;
    int32_t type; /* enum sp_type */
};
struct sentencepiece {
    char *data; /* the file; owned */
    struct sp_piece *pieces; /* by id; owned */
    int32_t count;
    int32_t model;           /* enum sp_model */
    int32_t unk, bos, eos;   /* -1: none */
    bool dummy_prefix;       /* a blank is put before a text */
    bool removes_blanks;     /* of several blanks one stays */
    bool normalizes;         /* it has rules for letters */
};
/* A file, or tokenizer.model in a directory. STATUS_DATA: it is no such file. */
status sentencepiece_read(struct sentencepiece *s, const char *path) WARN_UNUSED;
/* The same from memory, which `s` takes over; `name` is for messages. */
status sentencepiece_parse(struct sentencepiece *s, const char *name, char *data, size_t bytes) WARN_UNUSED;
void sentencepiece_free(struct sentencepiece *s); /* accepts a zeroed one */
#endif
