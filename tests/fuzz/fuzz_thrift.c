/* Any bytes as a Thrift struct, read field by field: nothing beyond the end, and a fault stays one. */
#include "data/read/thrift.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static unsigned touch(struct thrift_bytes b)
{
    unsigned sum = 0;
    for (size_t i = 0; i < b.bytes; i++) sum += (unsigned char)b.data[i];
    return sum;
}

static unsigned read_struct(struct thrift *t, int depth)
{
    struct thrift_field f = {0, THRIFT_STOP}, e;
    unsigned sum = 0;
    while (thrift_next(t, &f)) {
        const uint8_t *before = t->p;
        if (f.type == THRIFT_BINARY && f.id % 2)
            sum += touch(thrift_binary(t, f));
        else if (f.type == THRIFT_STRUCT && depth < 8)
            sum += read_struct(t, depth + 1);
        else if (f.type == THRIFT_LIST && depth < 8) {
            int64_t count = thrift_list(t, f, &e);
            if (count > t->end - before) abort();
            for (int64_t i = 0; i < count && !t->bad; i++) thrift_skip(t, e.type);
        } else if (f.type >= THRIFT_I16 && f.type <= THRIFT_I64)
            sum += (unsigned)(f.id % 2 ? thrift_i32(t, f) : thrift_i64(t, f));
        else
            thrift_skip(t, f.type);
        if (t->p < before || t->p > t->end) abort();
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct thrift t = {.p = data, .end = data + bytes};
    volatile unsigned sum = read_struct(&t, 0);
    (void)sum;
    if (t.bad && (t.p != t.end || thrift_struct(&t, (struct thrift_field){1, THRIFT_STRUCT}))) abort();
    return 0;
}
