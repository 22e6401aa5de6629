#include "data/read/thrift.h"

enum { SKIP_DEPTH_MAX = 32 };

static uint64_t fault(struct thrift *t)
{
    t->bad = true;
    t->p = t->end;
    return 0;
}

static uint64_t fault_cut(struct thrift *t)
{
    t->cut = !t->bad;
    return fault(t);
}

static uint8_t byte(struct thrift *t)
{
    if (t->p == t->end) return (uint8_t)fault_cut(t);
    return *t->p++;
}

static uint64_t varint(struct thrift *t)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t b = byte(t);
        value |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) return value;
    }
    return fault(t);
}

static int64_t zigzag(struct thrift *t)
{
    uint64_t n = varint(t);
    return (int64_t)(n >> 1 ^ (0 - (n & 1)));
}

bool thrift_next(struct thrift *t, struct thrift_field *field)
{
    uint8_t head = byte(t);
    field->type = (enum thrift_type)(head & 15);
    if (t->bad || field->type == THRIFT_STOP) {
        if (head >> 4) fault(t);
        return false;
    }
    int64_t id = head >> 4 ? field->id + (head >> 4) : zigzag(t);
    if (field->type > THRIFT_UUID || id < -INT16_MAX || id > INT16_MAX) fault(t);
    field->id = (int)id;
    return !t->bad;
}

static void advance(struct thrift *t, uint64_t bytes)
{
    if (bytes > (uint64_t)(t->end - t->p))
        fault_cut(t);
    else
        t->p += bytes;
}

static uint64_t list_head(struct thrift *t, enum thrift_type *type)
{
    uint8_t head = byte(t);
    uint64_t count = head >> 4 == 15 ? varint(t) : head >> 4;
    *type = (enum thrift_type)(head & 15);
    if (*type == THRIFT_STOP || *type > THRIFT_UUID) fault(t);
    if (count > (uint64_t)(t->end - t->p)) fault_cut(t); /* an element has at least one byte */
    return t->bad ? 0 : count;
}

static void skip(struct thrift *t, enum thrift_type type, int depth);

static void skip_map(struct thrift *t, int depth)
{
    uint64_t count = varint(t);
    if (count == 0) return;
    uint8_t types = byte(t);
    if (count > (uint64_t)(t->end - t->p)) fault_cut(t);
    for (uint64_t i = 0; i < count && !t->bad; i++) {
        enum thrift_type key = (enum thrift_type)(types >> 4), value = (enum thrift_type)(types & 15);
        skip(t, key == THRIFT_TRUE || key == THRIFT_FALSE ? THRIFT_I8 : key, depth);
        skip(t, value == THRIFT_TRUE || value == THRIFT_FALSE ? THRIFT_I8 : value, depth);
    }
}

static void skip_list(struct thrift *t, int depth)
{
    enum thrift_type type;
    uint64_t count = list_head(t, &type);
    if (type == THRIFT_TRUE || type == THRIFT_FALSE) type = THRIFT_I8; /* inside a list a bool has a byte */
    for (uint64_t i = 0; i < count && !t->bad; i++) skip(t, type, depth);
}

static void skip(struct thrift *t, enum thrift_type type, int depth)
{
    struct thrift_field field = {0, THRIFT_STOP};
    if (depth > SKIP_DEPTH_MAX) {
        fault(t);
        return;
    }
    switch (type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE: break;
    case THRIFT_I8: byte(t); break;
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64: varint(t); break;
    case THRIFT_DOUBLE: advance(t, 8); break;
    case THRIFT_BINARY: advance(t, varint(t)); break;
    case THRIFT_LIST:
    case THRIFT_SET: skip_list(t, depth + 1); break;
    case THRIFT_MAP: skip_map(t, depth + 1); break;
    case THRIFT_STRUCT:
        while (thrift_next(t, &field)) skip(t, field.type, depth + 1);
        break;
    case THRIFT_UUID: advance(t, 16); break;
    case THRIFT_STOP:
    default: fault(t); break;
    }
}

void thrift_skip(struct thrift *t, enum thrift_type type)
{
    skip(t, type, 0);
}

int64_t thrift_i64(struct thrift *t, struct thrift_field field)
{
    if (field.type != THRIFT_I16 && field.type != THRIFT_I32 && field.type != THRIFT_I64)
        return (int64_t)fault(t);
    int64_t value = zigzag(t);
    return t->bad ? 0 : value;
}

int32_t thrift_i32(struct thrift *t, struct thrift_field field)
{
    int64_t value = thrift_i64(t, field);
    if (value < INT32_MIN || value > INT32_MAX) return (int32_t)fault(t);
    return (int32_t)value;
}

struct thrift_bytes thrift_binary(struct thrift *t, struct thrift_field field)
{
    if (field.type != THRIFT_BINARY) fault(t);
    uint64_t bytes = varint(t);
    const char *data = (const char *)t->p;
    advance(t, bytes);
    return t->bad ? (struct thrift_bytes){"", 0} : (struct thrift_bytes){data, (size_t)bytes};
}

int64_t thrift_list(struct thrift *t, struct thrift_field field, struct thrift_field *element)
{
    *element = (struct thrift_field){0, THRIFT_STOP};
    if (field.type != THRIFT_LIST) return (int64_t)fault(t);
    return (int64_t)list_head(t, &element->type);
}

bool thrift_struct(struct thrift *t, struct thrift_field field)
{
    if (field.type != THRIFT_STRUCT) fault(t);
    return !t->bad;
}
