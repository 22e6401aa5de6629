/* ckpt_manifest: the manifest of a checkpoint (docs/FORMATS.md), in memory and as text.
 *
 * The text is JSON. Its last line holds the SHA-256 of all bytes before it, so every changed byte is found before
 * anything else is read. ckpt_manifest_parse still validates everything: files may come from strangers. */
#ifndef INGOT_TRAIN_CKPT_MANIFEST_H
#define INGOT_TRAIN_CKPT_MANIFEST_H
#include "base/status.h"
#include "train/checkpoint.h"
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CKPT_VERSION = 1,
    CKPT_BYTES_MAX = 256 << 20,
    CKPT_TENSORS_MAX = 1000000,
    CKPT_FILES_MAX = 100000,
    CKPT_CHUNK_BYTES = 1 << 20, /* as written */
    CKPT_CHUNK_BYTES_MIN = 4096,
    CKPT_CHUNK_BYTES_MAX = 16 << 20,
};

struct ckpt_manifest_file {
    char name[32];          /* state-NNNNN.safetensors */
    int64_t bytes;          /* of the whole file */
    int64_t data_start;     /* where the safetensors header ends */
    uint32_t header_crc;
};
struct ckpt_manifest_tensor {
    struct ckpt_item item;  /* data NULL; with `piece`: the part that one rank has stored of a tensor */
    int file;
    int64_t offset, bytes;  /* in the file */
    uint64_t hash;          /* of the contents, independent of files and chunks' order */
    int64_t chunk_first;    /* its checksums are crcs[chunk_first ...], one per chunk_bytes begun */
};
/* A tensor as a reader sees it: a stored one, or one that is stored in pieces. */
struct ckpt_manifest_whole {
    struct ckpt_item item;
    bool in_pieces;         /* then no hash of its contents is stored */
    int first, count;       /* its parts: tensors[stored[first ...]] */
};
struct ckpt_manifest {
    char run_id[33];        /* 32 hex digits, the same for all checkpoints of a run directory */
    int64_t step;
    int64_t chunk_bytes;    /* a power of two */
    json_t *meta;           /* owned */
    struct ckpt_manifest_file *files;
    int file_count;
    struct ckpt_manifest_tensor *tensors; /* in file order, each beginning where the one before it ends */
    int tensor_count;
    struct ckpt_manifest_whole *whole;    /* in the order in which they begin in the files */
    int whole_count;
    int *stored;
    struct ckpt_piece **pieces;           /* owned: those of a manifest that was read */
    int piece_count;
    uint32_t *crcs;
    int64_t crc_count;
};

/* `text` need not be terminated. STATUS_CKPT names the fault; `what` names the file. */
status ckpt_manifest_parse(struct ckpt_manifest *m, const char *text, size_t bytes,
                           const char *what) WARN_UNUSED;
/* The complete text, malloc'd, NUL-terminated. */
status ckpt_manifest_format(const struct ckpt_manifest *m, char **text, size_t *bytes) WARN_UNUSED;
void ckpt_manifest_free(struct ckpt_manifest *m);

/* Body plus last line, malloc'd; NULL: no memory. For ckpt_manifest_format, and for tests that forge manifests. */
char *ckpt_manifest_seal(const char *body, size_t bytes, size_t *sealed_bytes);
bool ckpt_manifest_sealed(const char *text, size_t bytes); /* whether the last line fits what is before it */
/* Why no checkpoint may hold a tensor of this name ("is empty"); NULL: it may. */
const char *ckpt_manifest_name_fault(const char *name);
/* Bytes of a tensor, -1 on overflow or a negative dimension; chunks of `bytes`. */
int64_t ckpt_manifest_item_bytes(const struct ckpt_item *item);
int64_t ckpt_manifest_chunks(int64_t bytes, int64_t chunk_bytes);
#endif
