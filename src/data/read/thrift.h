/* Thrift's compact protocol, read from memory, restricted to what Parquet needs.
 *
 * Errors are sticky: after one, every call returns zeros and no fields. A parser therefore checks `bad` once, at its
 * end. Nothing is allocated. Lengths are checked against the available bytes, so the work is linear in them. Skipped
 * values may nest 32 deep. */
#ifndef INGOT_DATA_READ_THRIFT_H
#define INGOT_DATA_READ_THRIFT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum thrift_type {
    THRIFT_STOP, THRIFT_TRUE, THRIFT_FALSE, THRIFT_I8, THRIFT_I16, THRIFT_I32, THRIFT_I64, THRIFT_DOUBLE,
    THRIFT_BINARY, THRIFT_LIST, THRIFT_SET, THRIFT_MAP, THRIFT_STRUCT, THRIFT_UUID
};
struct thrift {
    const uint8_t *p, *end;
    bool bad;
    bool cut; /* bad because the data ends: more bytes could complete it */
};
/* Iterates over the fields of a struct; start with {0}. Returns false at the end of the struct. A field that is not
 * read must be skipped. */
struct thrift_field {
    int id;
    enum thrift_type type;
};
bool thrift_next(struct thrift *t, struct thrift_field *field);
void thrift_skip(struct thrift *t, enum thrift_type type);

/* Reads the value of a field; another type is an error. */
int32_t thrift_i32(struct thrift *t, struct thrift_field field);
int64_t thrift_i64(struct thrift *t, struct thrift_field field);
struct thrift_bytes {
    const char *data;
    size_t bytes;
};
struct thrift_bytes thrift_binary(struct thrift *t, struct thrift_field field);
/* Returns the number of elements that follow; each is read as a field of `element`'s type. */
int64_t thrift_list(struct thrift *t, struct thrift_field field, struct thrift_field *element);
/* Returns true when a struct follows; its fields come next. */
bool thrift_struct(struct thrift *t, struct thrift_field field);
#endif
