/* Token shards: files of token ids, as ingot and other trainers write them. Little-endian. The format is detected
 * from the content of the file, byte by byte in docs/FORMATS.md:
 *
 *   llmc       llm.c v1 (u16) and v7 (u32), modded-nanogpt, ingot     1024-byte header, then ids
 *   llmq       LLMQ BIN.TOK v1 and v2                                 1024-byte header, i32 ids, optional mask
 *   megatron   Megatron NAME.bin next to NAME.idx                     bare ids; lengths and type are in NAME.idx
 *   npy        numpy, one dimension                                   header as text, then ids
 *   raw        bare ids, as nanoGPT writes them                       no type in the file: the user must give it
 *
 * The shards PREFIX_train_000000.bin ... of a build have a PREFIX_manifest.json (data/shard/manifest.h): tokenizer,
 * end-of-text id and its place, counts, text bytes, checksums. Shards of other programs have none; struct shard_hints
 * and the rules next to it then define the meaning of an id. */
#ifndef INGOT_DATA_SHARD_SHARD_H
#define INGOT_DATA_SHARD_SHARD_H
#include "base/status.h"
#include "data/shard/shard_blocks.h"
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

/* Storage types of an id: name, numpy's name, type in C. */
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
enum shard_type shard_type_find(const char *word);      /* UNKNOWN when there is no such word */

struct shard { /* an open shard: mapped, read-only */
    char *path;
    enum shard_format format;
    enum shard_type type;
    int width;          /* bytes per token */
    int64_t count;      /* tokens */
    /* documents that begin in it, from its manifest or index (megatron: including empty ones); else 0 */
    int64_t documents;
    bool indexed;       /* its manifest lists an index (data/shard/corpus_index.h) */
    uint64_t xxh64, index_xxh64; /* of its token bytes and of its index, by the manifest; else 0 */
    struct shard_blocks blocks; /* by the manifest; count 0: unknown */
    unsigned char *verified; /* [blocks.count] atomic, set by shard_read; NULL: it verifies nothing */
    int64_t vocab_size; /* from its header (llmq v2); else 0 */
    const uint8_t *tokens; /* not aligned */
    const uint8_t *mask;   /* bit i % 8 of byte i / 8 is 0 when token i is not a target; NULL: all are */
    const uint8_t *index;  /* megatron: the bytes of NAME.idx */
    int64_t index_bytes;
    struct shard_map { void *at; size_t bytes; } maps[3]; /* of the file, its index, its mask; unused: NULL */
};
/* Opens a shard and checks structure and sizes: STATUS_DATA with the expected values. A raw file is an error, because
 * nothing in it can be checked. */
status shard_open(struct shard *s, const char *path) WARN_UNUSED;
/* The same with the type given by the user (UNKNOWN: none). Raw files open with this type; a header that contradicts
 * it is STATUS_CONFIG. */
status shard_open_as(struct shard *s, const char *path, enum shard_type type) WARN_UNUSED;
/* The same for bytes in memory, which must outlive the shard; `index` is NAME.idx, or NULL. */
status shard_open_memory(struct shard *s, const char *name, enum shard_type type, const void *data, int64_t bytes,
                         const void *index, int64_t index_bytes) WARN_UNUSED;
bool shard_begins(const void *head, size_t bytes); /* is this the start of a shard with a header? 8 bytes tell */
void shard_close(struct shard *s); /* accepts a zeroed or closed shard */
/* Copies tokens [at, at+n) as int32. STATUS_DATA names file and position of an id that is negative or >= vocab_size
 * (0: unknown, the limit is 2^31). */
status shard_read(const struct shard *s, int64_t at, int64_t n, int64_t vocab_size, int32_t *out) WARN_UNUSED;
/* XXH64 of the token bytes, as in the manifest. */
uint64_t shard_hash(const struct shard *s);

int shard_width(int64_t vocab_size); /* bytes per token of a vocabulary: 2 up to 65536 ids, else 4 */

/* Writer of llmc, megatron and npy (the other formats are read only): temporary file, header last, fsync, rename.
 * After an error only shard_abandon may follow. */
struct shard_writer;
/* `path` ends in shard_suffix(format, 0), optionally followed by more ("x.bin.part"); width is 2 or 4. */
status shard_create(struct shard_writer **w, const char *path, enum shard_format format, int width) WARN_UNUSED;
status shard_append(struct shard_writer *w, const int32_t *ids, int64_t count) WARN_UNUSED;
/* Ends a document: the ids appended since the last call (or the start), with its end-of-text token. Without ids
 * nothing happens. Only Megatron's index stores documents. Ids after the last call are a document too. A document
 * that continues in the next shard is two for Megatron: end such shards between documents. */
status shard_document_end(struct shard_writer *w) WARN_UNUSED;
/* Commits, and closes on success and on failure. *sums (NULL: not wanted) gets checksums of the token bytes. */
status shard_commit(struct shard_writer **w, struct shard_sums *sums) WARN_UNUSED;
void shard_abandon(struct shard_writer **w);
/* Resumable writer: like shard_create, with a temporary of the caller's, which survives the process (io_reopen). Goes on
 * after `tokens` ids, which are read back (STATUS_DATA: there are fewer), and, for Megatron, after the `documents` that
 * begin at `begins`; all have ended. 0: starts a new shard. */
struct shard_resume_config {
    const char *path, *temp;
    enum shard_format format;
    int width;
    int64_t tokens, documents;
    const uint32_t *begins;
};
status shard_resume(struct shard_writer **w, const struct shard_resume_config *c) WARN_UNUSED;
status shard_sync(struct shard_writer *w) WARN_UNUSED; /* makes all appended ids durable */
void shard_leave(struct shard_writer **w);             /* closes and keeps the temporary */
/* Suffixes of a shard's files: ".bin", ".npy"; i = 1: ".idx" of megatron; NULL: no such file. */
const char *shard_suffix(enum shard_format f, int i);
/* Size of file 0 of a shard; written formats only. */
int64_t shard_file_bytes(enum shard_format f, int width, int64_t tokens);
/* Writes the name of file i of the shard at `path` (file 0): "d/x.bin.part" -> "d/x.idx.part". False: no such file,
 * or too long. */
bool shard_file(enum shard_format f, const char *path, int i, char *out, size_t size);

/* Position of the end-of-text token. */
#define EOD_WORDS(X) X(NONE, "none") X(BEFORE, "before") X(AFTER, "after")
enum eod {
#define X(value, word) EOD_##value,
    EOD_WORDS(X)
#undef X
};

/* User settings for shards without the information: data.dtype, data.eot, data.eod. A hint that contradicts a
 * manifest or a header is STATUS_CONFIG. Without hints and manifest:
 *   llmc             documents begin with 50256 (u16) or 128000 (u32), as in llm.c
 *   megatron         documents are those of the index; an eot is assumed after each
 *   llmq             unknown; an eot is assumed after each document, as LLMQ writes
 *   npy, raw         unknown; an eot needs an eod, because both conventions are common */
enum { EOD_AUTO = -1, EOT_AUTO = -1 };
struct shard_hints {
    enum shard_type type;
    int32_t eot; /* EOT_AUTO: not given */
    int eod;     /* enum eod, or EOD_AUTO */
};
struct run_spec;
struct shard_hints shard_hints_of(const struct run_spec *r); /* NULL: none */

/* The files that match a pattern, in natural order (x_2 before x_10). An existing file is taken literally, even with
 * wildcard characters in its name. NAME.idx and manifests that match are skipped; for Megatron ".bin" may be omitted.
 * STATUS_DATA: no match, or a directory. After success the caller calls shard_names_free. */
struct shard_names { char **paths; int count; };
status shard_match(const char *pattern, struct shard_names *out) WARN_UNUSED;
/* The same for several patterns, in their order. */
status shard_match_all(char *const *patterns, int count, struct shard_names *out) WARN_UNUSED;
void shard_names_free(struct shard_names *n);

/* All shards that match a pattern ("data/kjv_train_*.bin" or one file), as one stream of tokens in the order of
 * shard_match. All have one format and type. */
struct shard_set {
    struct shard *shards;
    int64_t *starts; /* [count+1]: first token of each shard in the stream; starts[count] == tokens */
    int count;
    enum shard_format format;
    bool manifest;      /* true: the fields below come from a manifest; false: from hints and rules */
    bool mixed;         /* shards of different splits, such as train and val */
    bool masked;        /* shard_set_mask has an effect */
    bool bounded;       /* shard_set_documents can find documents */
    int64_t tokens;     /* tokens of all shards */
    int64_t documents;  /* documents that begin in these shards; 0: unknown */
    int64_t text_bytes; /* bytes of the tokens' text (end-of-text tokens: 0); 0: unknown */
    int64_t vocab_size; /* 0: unknown */
    int32_t eot;        /* id of the end-of-text token; -1: none, or unknown */
    enum eod eod;       /* BEFORE: eot begins each document; AFTER: eot ends it */
    char tokenizer_dir[1024]; /* relative to the working directory, or absolute; "": unknown */
    char tokenizer_hash[65];  /* "": unknown */
};
/* STATUS_DATA: no match, a damaged shard, shards of different formats or tokenizers, a shard that contradicts its
 * manifest, or an interrupted build. */
status shard_set_open(struct shard_set *s, const char *pattern) WARN_UNUSED; /* without hints */
status shard_set_open_as(struct shard_set *s, const char *pattern, const struct shard_hints *hints) WARN_UNUSED;
status shard_set_open_names(struct shard_set *s, const struct shard_names *names,
                            const struct shard_hints *hints) WARN_UNUSED;
void shard_set_close(struct shard_set *s);
/* Copies tokens [at, at+n) of the stream. Errors as shard_read. */
status shard_set_read(const struct shard_set *s, int64_t at, int64_t n, int64_t vocab_size,
                      int32_t *out) WARN_UNUSED;
/* Writes `ignore` to targets[i] where the shard's mask excludes token at+i as a target (`at` is the position of the
 * first target, one more than that of the first input). Returns the number of targets newly ignored; 0 for a set
 * without masks. */
int64_t shard_set_mask(const struct shard_set *s, int64_t at, int64_t n, int32_t ignore, int32_t *targets);
/* True when token `id` after `previous` (-1: none) begins a document; for sets whose eod is not NONE. */
static inline bool shard_set_document_begins(const struct shard_set *s, int32_t previous, int32_t id)
{
    return s->eod == EOD_AFTER ? previous == s->eot : s->eod == EOD_BEFORE && id == s->eot;
}

/* Documents as positions in the stream, from indexes (ingot's, Megatron's) or by a search for the end-of-text token.
 * They cover the stream without gaps: the first may be the rest of one that began in an earlier shard. None is empty.
 */
struct document_index {
    int64_t *starts; /* [count+1]: first token of each; starts[0] == 0, starts[count] == tokens of the set */
    int64_t count;
};
/* Finds the documents. STATUS_DATA when the set is not bounded, or its index is damaged. Needs 8 bytes of memory per
 * document and, without an index, one pass over the tokens on all threads. After success the caller calls
 * document_index_free. */
status shard_set_documents(const struct shard_set *s, struct document_index *out) WARN_UNUSED;
void document_index_free(struct document_index *d);
#endif
