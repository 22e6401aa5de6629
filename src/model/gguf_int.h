/* Shared by the gguf*.c files: the head of a file, grown in memory, and the list of its tensors. */
#ifndef INGOT_MODEL_GGUF_INT_H
#define INGOT_MODEL_GGUF_INT_H
#include "model/gguf.h"
#include "model/hf.h"

struct gguf_head {
    char *data;
    size_t bytes, room;
    int64_t keys;
};
/* Values, little-endian; a text has its length before it. */
void gguf_put_u32(struct gguf_head *h, uint32_t v);
void gguf_put_text(struct gguf_head *h, const char *text, size_t bytes);
/* Keys with one value. */
void gguf_key_u32(struct gguf_head *h, const char *key, uint32_t v);
void gguf_key_f32(struct gguf_head *h, const char *key, double v);
void gguf_key_bool(struct gguf_head *h, const char *key, bool v);
void gguf_key_text(struct gguf_head *h, const char *key, const char *v);
/* A key with a list: `count` values of the kind follow. */
enum gguf_kind { GGUF_KIND_U32 = 4, GGUF_KIND_I32 = 5, GGUF_KIND_F32 = 6, GGUF_KIND_BOOL = 7, GGUF_KIND_TEXT = 8,
                 GGUF_KIND_LIST = 9 };
void gguf_key_list(struct gguf_head *h, const char *key, enum gguf_kind kind, int64_t count);

/* gguf_model.c: keys of the model. gguf_tokens.c: keys of the tokenizer. */
void gguf_put_model(struct gguf_head *h, const struct gguf_source *s, const char *arch);
status gguf_put_tokenizer(struct gguf_head *h, const struct gguf_source *s) WARN_UNUSED;

/* One tensor: `pieces` tensors of Hugging Face's names, `stride` apart in their list, one below the other. */
struct gguf_tensor {
    char name[64];
    enum gguf_type type;
    int rank;
    int64_t shape[3]; /* as in a matrix: [rows, columns] or [experts, rows, columns] */
    const struct hf_tensor *first;
    int64_t pieces, stride;
    int64_t head;         /* rows of a head whose halves are interleaved for RoPE by neighbours; 0: as they are */
    const double *values; /* [shape[0]], in place of pieces */
};
struct gguf_tensors {
    struct hf_tensor *from;
    struct gguf_tensor *list;
    int count;
    double *rope; /* values of rope_freqs.weight */
};
status gguf_tensors_list(struct gguf_tensors *t, const struct gguf_source *s, const char *arch) WARN_UNUSED;
void gguf_tensors_free(struct gguf_tensors *t);

/* gguf_types.c. Bytes of `n` values; encodes them. False: a value that is not finite in this type. */
int64_t gguf_type_bytes(enum gguf_type t, int64_t n);
bool gguf_encode(enum gguf_type t, const float *in, int64_t n, void *out);
#endif
