/* Thrift's compact protocol, read from memory, as far as Parquet needs it.
 *
 * A fault sticks: from then on every call gives zeros and no fields, so a parser checks `bad` once, at its end. Nothing is
 * allocated; a length is held against the bytes that are there, so work is linear in them; what is skipped may
 * nest 32 deep. */
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
    bool cut; /* it is bad because it ends: more bytes could make it good */
};
/* Fields of a struct, one after another: begin with {0}. False at the struct's end. A field that is not read must be
 * skipped. */
struct thrift_field {
    int id;
    enum thrift_type type;
};
bool thrift_next(struct thrift *t, struct thrift_field *field);
void thrift_skip(struct thrift *t, enum thrift_type type);

/* The value of a field; one of another type is a fault. */
int32_t thrift_i32(struct thrift *t, struct thrift_field field);
int64_t thrift_i64(struct thrift *t, struct thrift_field field);
struct thrift_bytes {
    const char *data;
    size_t bytes;
};
struct thrift_bytes thrift_binary(struct thrift *t, struct thrift_field field);
/* The number of elements, which follow: each is read as a field of `element`'s type. */
int64_t thrift_list(struct thrift *t, struct thrift_field field, struct thrift_field *element);
/* Whether a struct follows, whose fields come next. */
bool thrift_struct(struct thrift *t, struct thrift_field field);
#endif
