/* Token shards: files of token ids, as ingot and other trainers write them. Little-endian. The format is told by
 * the file's content, byte by byte in docs/FORMATS.md:
 *
 *   llmc       llm.c v1 (u16) and v7 (u32), modded-nanogpt, ingot     1024-byte header, then ids
 *   llmq       LLMQ BIN.TOK v1 and v2                                 1024-byte header, i32 ids, perhaps a mask
 *   megatron   Megatron NAME.bin beside NAME.idx                      bare ids; lengths and type are in NAME.idx
 *   npy        numpy, one dimension                                   header in words, then ids
 *   raw        bare ids, as nanoGPT writes them                       nothing tells the type: it must be given
 *
 * Beside the shards PREFIX_train_000000.bin ... of a build stands PREFIX_manifest.json (data/shard/manifest.h): tokenizer,
 * end-of-text id and its place, counts, text bytes, checksums. Shards of other programs have none; then struct
 * shard_hints and the rules beside it say what an id means. */
#ifndef INGOT_DATA_SHARD_SHARD_H
#define INGOT_DATA_SHARD_SHARD_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHARD_FORMATS(X) X(LLMC, "llmc") X(LLMQ, "llmq") X(MEGATRON, "megatron") X(NPY, "npy") X(RAW, "raw")
enum shard_format {
#define X(value, word) SHARD_##value,
    SHARD_FORMATS(X)
#undef X
        SHARD_FORMAT_COUNT
};
const char *shard_format_word(enum shard_format f); /* "llmc" */

/* How an id is stored: name, numpy's word, type in C. */
#define SHARD_TYPES(X)                                                                                                 \
    X(U8, "uint8", uint8_t) X(I8, "int8", int8_t) X(U16, "uint16", uint16_t) X(I16, "int16", int16_t)                  \
    X(U32, "uint32", uint32_t) X(I32, "int32", int32_t) X(U64, "uint64", uint64_t) X(I64, "int64", int64_t)
enum shard_type {
    SHARD_TYPE_UNKNOWN,
#define X(value, word, ctype) SHARD_TYPE_##value,
    SHARD_TYPES(X)
#undef X
        SHARD_TYPE_COUNT
};
const char *shard_type_word(enum shard_type t);         /* "uint16" */
enum shard_type shard_type_find(const char *word);      /* UNKNOWN: no such word */

struct shard { /* an open shard: mapped, read-only */
    char *path;
    enum shard_format format;
    enum shard_type type;
    int width;          /* bytes per token, of type */
    int64_t count;      /* tokens */
    int64_t documents;  /* that begin in it, by its manifest or index (megatron: with empty ones); else 0 */
    bool indexed;       /* its manifest names an index (data/shard/corpus_index.h) with this checksum */
    uint64_t index_xxh64;
    int64_t vocab_size; /* that its header names (llmq v2); else 0 */
    const uint8_t *tokens; /* not aligned */
    const uint8_t *mask;   /* llmq: bit i % 8 of byte i / 8 is 0 when token i is no target; NULL: all are */
    const uint8_t *index;  /* megatron: the bytes of NAME.idx */
    int64_t index_bytes;
    struct shard_map { void *at; size_t bytes; } maps[2]; /* of the file and its index; unused: NULL */
};
/* Structure and sizes: STATUS_DATA with what was expected. A raw file is refused, as nothing in it could be checked. */
status shard_open(struct shard *s, const char *path) WARN_UNUSED;
/* With the type that the user says (UNKNOWN: nothing): raw files open as it; a header that contradicts it is
 * STATUS_CONFIG. */
status shard_open_as(struct shard *s, const char *path, enum shard_type type) WARN_UNUSED;
/* The same for bytes in memory, which must outlive the shard; index: of NAME.idx, NULL where there is none. */
status shard_open_memory(struct shard *s, const char *name, enum shard_type type, const void *data, int64_t bytes,
                         const void *index, int64_t index_bytes) WARN_UNUSED;
void shard_close(struct shard *s); /* a zeroed or closed shard is fine */
/* Copies tokens [at, at+n) as int32. STATUS_DATA names file and position of an id that is negative or >= vocab_size
 * (0: unknown, the limit is 2^31). */
status shard_read(const struct shard *s, int64_t at, int64_t n, int64_t vocab_size, int32_t *out) WARN_UNUSED;
/* XXH64 of the token bytes, as the manifest keeps it. */
uint64_t shard_hash(const struct shard *s);

/* Bytes per token for a vocabulary: 2 up to 65536 ids, else 4. */
int shard_width(int64_t vocab_size);

/* Writer of llmc, megatron, npy (the others are read only): temporary file, header last, fsync, rename. After an
 * error only shard_abandon may follow. */
struct shard_writer;
/* `path` ends in shard_suffix(format, 0), or in that with more behind it ("x.bin.part"); width 2 or 4. */
status shard_create(struct shard_writer **w, const char *path, enum shard_format format, int width) WARN_UNUSED;
status shard_append(struct shard_writer *w, const int32_t *ids, int64_t count) WARN_UNUSED;
/* What was appended since the last call (or the beginning) is one document, with its end-of-text token; nothing: no
 * document. Megatron's index keeps it, the other formats pass it over. Tokens behind the last call are a document,
 * too. A document that goes on in the next shard is two for Megatron, so end shards between documents there. */
status shard_document_end(struct shard_writer *w) WARN_UNUSED;
/* Also closes, whether or not it succeeds. xxh64 (may be NULL) gets the hash of the token bytes. */
status shard_commit(struct shard_writer **w, uint64_t *xxh64) WARN_UNUSED;
void shard_abandon(struct shard_writer **w);
/* For builds that go on after a kill: as shard_create, with a temporary of the caller's name, which stays when the
 * process dies (io_reopen). Goes on after `tokens` ids, which are read back (STATUS_DATA: there are fewer), and, for
 * Megatron, the documents that begin at `begins`, the last of which has ended; 0: begins. */
struct shard_resume_config {
    const char *path, *temp;
    enum shard_format format;
    int width;
    int64_t tokens, documents;
    const uint32_t *begins;
};
status shard_resume(struct shard_writer **w, const struct shard_resume_config *c) WARN_UNUSED;
status shard_sync(struct shard_writer *w) WARN_UNUSED; /* all that was appended is on disk when it returns */
void shard_leave(struct shard_writer **w);             /* closes; the temporary stays */
/* How the names of a shard's files end: ".bin", ".npy"; i = 1: ".idx" of megatron; NULL: it has no such file. */
const char *shard_suffix(enum shard_format f, int i);
/* Size of a shard's file 0, of the formats that are written. */
int64_t shard_file_bytes(enum shard_format f, int width, int64_t tokens);
/* The name of file i of the shard at `path` (file 0): "d/x.bin.part" -> "d/x.idx.part". False: no such file, or too long. */
bool shard_file(enum shard_format f, const char *path, int i, char *out, size_t size);

/* Where the end-of-text token stands. */
#define EOD_WORDS(X) X(NONE, "none") X(BEFORE, "before") X(AFTER, "after")
enum eod {
#define X(value, word) EOD_##value,
    EOD_WORDS(X)
#undef X
};

/* What the user says about shards that do not say it themselves: data.dtype, data.eot, data.eod. A hint that
 * contradicts a manifest or a header is STATUS_CONFIG. Without hints and manifest:
 *   llmc             documents begin with 50256 (u16) or 128000 (u32), as llm.c's do
 *   megatron         documents are those of the index; an eot is taken to stand after each
 *   llmq             unknown; an eot is taken to stand after each, as LLMQ writes
 *   npy, raw         unknown; an eot needs an eod, as both habits are common */
enum { EOD_AUTO = -1, EOT_AUTO = -1 };
struct shard_hints {
    enum shard_type type;
    int32_t eot; /* EOT_AUTO: not given */
    int eod;     /* enum eod, or EOD_AUTO */
};
struct run_spec;
struct shard_hints shard_hints_of(const struct run_spec *r); /* NULL: none */

/* The files that a pattern names, in natural order (x_2 before x_10). One that exists is taken literally, whatever
 * characters it has; NAME.idx and manifests that match a pattern are passed over; Megatron's users may leave ".bin" out.
 * STATUS_DATA: there are none, or it is a directory. On success: shard_names_free. */
struct shard_names {
    char **paths;
    int count;
};
status shard_match(const char *pattern, struct shard_names *out) WARN_UNUSED;
/* The files of several patterns, in this order. */
status shard_match_all(char *const *patterns, int count, struct shard_names *out) WARN_UNUSED;
void shard_names_free(struct shard_names *n);

/* All shards that match a pattern ("data/kjv_train_*.bin" or one file), as one stream of tokens, in the order of
 * shard_match. All are of one format and type. */
struct shard_set {
    struct shard *shards;
    int64_t *starts; /* [count+1]: first token of each shard in the stream; starts[count] == tokens */
    int count;
    enum shard_format format;
    bool manifest;      /* the fields below come from a manifest, not from hints and rules */
    bool mixed;         /* shards of different splits, as of train and val */
    bool masked;        /* shard_set_mask has something to say */
    bool bounded;       /* shard_set_documents can find documents */
    int64_t tokens;     /* of all */
    int64_t documents;  /* that begin in these shards; 0 unknown */
    int64_t text_bytes; /* that the tokens stand for (end-of-text tokens: 0); 0 unknown */
    int64_t vocab_size; /* 0 unknown */
    int32_t eot;        /* id of the end-of-text token; -1: there is none, or nobody knows */
    enum eod eod;       /* BEFORE: eot begins each document; AFTER: eot ends it */
    char tokenizer_dir[1024]; /* usable from the working directory; "" unknown */
    char tokenizer_hash[65];  /* "" unknown */
};
/* STATUS_DATA: nothing matches, a damaged shard, shards of different formats or tokenizers, a shard that disagrees
 * with its manifest, or a build that was interrupted. */
status shard_set_open(struct shard_set *s, const char *pattern) WARN_UNUSED; /* without hints */
status shard_set_open_as(struct shard_set *s, const char *pattern, const struct shard_hints *hints) WARN_UNUSED;
status shard_set_open_names(struct shard_set *s, const struct shard_names *names,
                            const struct shard_hints *hints) WARN_UNUSED;
void shard_set_close(struct shard_set *s);
/* Copies tokens [at, at+n) of the stream. Errors as shard_read. */
status shard_set_read(const struct shard_set *s, int64_t at, int64_t n, int64_t vocab_size,
                      int32_t *out) WARN_UNUSED;
/* Writes `ignore` over targets[i] where token at+i is no target by its shard's mask (so `at` is one more than the
 * place of the first input). Returns how many of them were not `ignore` before. 0 for a set that is not masked. */
int64_t shard_set_mask(const struct shard_set *s, int64_t at, int64_t n, int32_t ignore, int32_t *targets);
/* True when token `id`, preceded by `previous` (-1: nothing), begins a document, for sets whose eod is not NONE. */
static inline bool shard_set_document_begins(const struct shard_set *s, int32_t previous, int32_t id)
{
    return s->eod == EOD_AFTER ? previous == s->eot : s->eod == EOD_BEFORE && id == s->eot;
}

/* Documents as places in the stream, from indexes (ingot's, Megatron's), or by looking for the end-of-text token. They cover the
 * stream without gaps, so the first may be the rest of one that began in an earlier shard; none is empty. */
struct document_index {
    int64_t *starts; /* [count+1]: first token of each; starts[0] == 0, starts[count] == tokens of the set */
    int64_t count;
};
/* STATUS_DATA when the set is not bounded, or its index is damaged. Takes 8 bytes of memory per document and, without
 * an index, one pass over the tokens on all threads. On success: document_index_free. */
status shard_set_documents(const struct shard_set *s, struct document_index *out) WARN_UNUSED;
void document_index_free(struct document_index *d);
#endif
