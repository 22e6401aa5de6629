/* Any bytes as a safetensors file: opened or refused, and every byte that an opened file promises can be
 * read. */
#include "model/safetensors.h"
#include "json_mutator.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char *const samples[] = {
    "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]},"
    "\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[8,16]}}",
    "{\"e\":{\"dtype\":\"U8\",\"shape\":[0,9],\"data_offsets\":[0,0]},"
    "\"f\":{\"dtype\":\"F4\",\"shape\":[2,2],\"data_offsets\":[0,2]}}",
    NULL};
static const char *const words[] = {
    "dtype", "shape",   "data_offsets", "__metadata__", "format",  "w",   "a",
    "",      "F32",     "BF16",         "F16",          "F64",     "I64", "I32",
    "I16",   "I8",      "U64",          "U32",          "U16",     "U8",  "BOOL",
    "C64",   "F8_E5M2", "F8_E4M3",      "F8_E8M0",      "F6_E2M3", "F4",  "a name that is longer than most",
    NULL};

/* Bits of an element by the number in the name of its type; 8 where there is none. */
static uint64_t bits_of(const char *type)
{
    const char *digits = strpbrk(type ? type : "", "0123456789");
    uint64_t n = digits ? strtoull(digits, NULL, 10) : 8;
    return n > 0 && n <= 64 ? n : 8;
}

/* Offsets that follow from types and shapes, so that other mutations get behind this check. */
static uint64_t lay_out(json_t *root)
{
    const char *name;
    json_t *tensor, *n;
    uint64_t at = 0;
    size_t i;
    json_object_foreach(root, name, tensor)
    {
        if (!json_is_object(tensor) || strcmp(name, "__metadata__") == 0) continue;
        uint64_t bits = bits_of(json_string_value(json_object_get(tensor, "dtype")));
        json_array_foreach(json_object_get(tensor, "shape"), i, n) bits *= (uint64_t)json_integer_value(n);
        json_object_set_new(tensor, "data_offsets",
                            json_pack("[I, I]", (json_int_t)at, (json_int_t)(at + bits / 8)));
        at += bits / 8;
    }
    return at;
}

/* The header as a tree; then offsets, length and the size of the data, each mostly right. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    struct json_mutator m = {.samples = samples, .words = words, .state = seed};
    uint64_t n = 0, want = 0;
    if (mutator_below(&m, 8) == 0 || max_size < 8) return LLVMFuzzerMutate(data, size, max_size);
    for (int i = 7; i >= 0 && size >= 8; i--) n = n << 8 | data[i];
    json_t *root = mutator_tree(&m, (const char *)data + 8, size >= 8 && n <= size - 8 ? (size_t)n : 0),
           *offset, *tensor;
    const char *name;
    if (mutator_below(&m, 4) != 0) want = lay_out(root);
    if (want == 0) json_object_foreach(root, name, tensor)
        {
            offset = json_array_get(json_object_get(tensor, "data_offsets"), 1);
            if (json_is_integer(offset) && (uint64_t)json_integer_value(offset) > want)
                want = (uint64_t)json_integer_value(offset);
        }
    n = json_dumpb(root, (char *)data + 8, max_size - 8, JSON_ENCODE_ANY | JSON_COMPACT);
    json_decref(root);
    if (n == 0 || n > max_size - 8) return LLVMFuzzerMutate(data, size, max_size);
    for (size_t pad = mutator_below(&m, 4) ? 0 : mutator_below(&m, 9); pad > 0 && n < max_size - 8; pad--)
        data[8 + n++] = ' ';
    size_t total = 8 + (size_t)n;
    if (mutator_below(&m, 16) == 0) n += mutator_below(&m, 64) - 32;
    for (int i = 0; i < 8; i++) data[i] = (uint8_t)(n >> 8 * i);
    if (mutator_below(&m, 8) == 0) want += mutator_below(&m, 16) - 8;
    for (; want > 0 && want <= max_size && total < max_size; want--) data[total++] = 7;
    return total;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct safetensors *s;
    if (safetensors_open_memory(&s, data, (int64_t)bytes, "input") != STATUS_OK) return 0;
    volatile uint8_t sum = 0;
    int64_t total = 0;
    for (int i = 0; i < safetensors_count(s); i++) {
        const struct safetensor *t = safetensors_item(s, i);
        for (int64_t b = 0; b < t->bytes; b++) sum = (uint8_t)(sum + ((const uint8_t *)t->data)[b]);
        total += t->bytes;
        CHECK(safetensors_find(s, t->name) == t, "'%s' is not found", t->name);
    }
    CHECK(total <= (int64_t)bytes, "%lld bytes of tensors in %zu", (long long)total, bytes);
    safetensors_close(s);
    return 0;
}
