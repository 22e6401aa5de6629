/* Mutations of JSON as a tree, for fuzz targets whose inputs plain mutation of bytes does not get into: a text that is not
 * JSON becomes one of the target's samples; members are removed, copied, exchanged, renamed to known keys, and get values at
 * the borders of what numbers, strings and lists may be. One of eight mutations is one of bytes, for the syntax. */
#ifndef INGOT_TESTS_FUZZ_JSON_MUTATOR_H
#define INGOT_TESTS_FUZZ_JSON_MUTATOR_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

struct json_mutator {
    const char *const *samples; /* JSON texts, NULL-terminated */
    const char *const *words;   /* keys and strings, NULL-terminated */
    uint64_t state;
};

/* SplitMix64. */
static uint64_t mutator_next(struct json_mutator *m)
{
    uint64_t z = m->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t mutator_below(struct json_mutator *m, size_t n)
{
    return (size_t)(mutator_next(m) % n);
}

static const char *mutator_pick(struct json_mutator *m, const char *const *list)
{
    size_t n = 0;
    while (list[n]) n++;
    return list[mutator_below(m, n)];
}

static json_t *mutator_sample(struct json_mutator *m)
{
    return json_loads(mutator_pick(m, m->samples), JSON_DECODE_ANY, NULL);
}

static size_t mutator_nodes(const json_t *at)
{
    size_t n = 1, i;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)at, key, value) n += mutator_nodes(value);
    json_array_foreach(at, i, value) n += mutator_nodes(value);
    return n;
}

/* Where a value hangs: parent[key], or parent[index]; the root has no parent. */
struct mutator_place {
    json_t *parent, *value;
    const char *key;
    size_t index;
};

/* Node number *n in depth-first order. */
static bool mutator_find(struct mutator_place here, size_t *n, struct mutator_place *out)
{
    if ((*n)-- == 0) {
        *out = here;
        return true;
    }
    const char *key;
    json_t *value;
    size_t i;
    json_object_foreach(
        here.value, key,
        value) if (mutator_find((struct mutator_place){here.value, value, key, 0}, n, out)) return true;
    json_array_foreach(
        here.value, i,
        value) if (mutator_find((struct mutator_place){here.value, value, NULL, i}, n, out)) return true;
    return false;
}

static json_t *mutator_number(struct json_mutator *m, const json_t *was)
{
    static const int64_t borders[] = {0,         1,         -1,        2,         3,         7,
                                      8,         64,        255,       4095,      4096,      4097,
                                      1 << 20,   1 << 24,   INT32_MAX, INT32_MIN, 1ll << 32, 100 << 20,
                                      1ll << 62, INT64_MAX, INT64_MIN};
    int64_t n = json_is_integer(was) ? json_integer_value(was) : 0;
    switch (mutator_below(m, 6)) {
    case 0: return json_integer((json_int_t)((uint64_t)n + 1));
    case 1: return json_integer((json_int_t)((uint64_t)n - 1));
    case 2: return json_integer((json_int_t)((uint64_t)n * 2));
    case 3: return json_integer(n / 2);
    case 4: return json_real((double[]){0.5, -1, 1e-300, 1e300, 1e-5, 10000}[mutator_below(m, 6)]);
    default: return json_integer(borders[mutator_below(m, sizeof borders / sizeof *borders)]);
    }
}

static json_t *mutator_value(struct json_mutator *m, const json_t *was)
{
    switch (mutator_below(m, 8)) {
    case 0: return json_null();
    case 1: return json_boolean((int)mutator_below(m, 2));
    case 2: return json_array();
    case 3: return json_object();
    case 4:
    case 5: return json_string(mutator_pick(m, m->words));
    default: return mutator_number(m, was);
    }
}

/* Takes `value`. */
static void mutator_set(const struct mutator_place *at, json_t *value)
{
    if (at->key) json_object_set_new(at->parent, at->key, value);
    if (!at->key) json_array_set_new(at->parent, at->index, value);
}

static struct mutator_place mutator_any(struct json_mutator *m, json_t *root)
{
    struct mutator_place at = {0};
    size_t n = mutator_below(m, mutator_nodes(root));
    mutator_find((struct mutator_place){.value = root}, &n, &at);
    return at;
}

static void mutator_step(struct json_mutator *m, json_t *root)
{
    struct mutator_place at = mutator_any(m, root), other = mutator_any(m, root);
    json_t *into = json_is_object(at.value) || json_is_array(at.value) ? at.value : root;
    switch (mutator_below(m, 7)) {
    case 0: /* a known key appears, or a value at the end of a list */
        if (json_is_object(into))
            json_object_set_new(into, mutator_pick(m, m->words), mutator_value(m, NULL));
        if (json_is_array(into)) json_array_append_new(into, mutator_value(m, NULL));
        return;
    case 1: /* one that another text has */
    {
        json_t *sample = mutator_sample(m);
        struct mutator_place from = mutator_any(m, sample);
        if (from.key && json_is_object(into)) json_object_set_new(into, from.key, json_deep_copy(from.value));
        if (from.parent && json_is_array(into)) json_array_append_new(into, json_deep_copy(from.value));
        json_decref(sample);
        return;
    }
    default: break;
    }
    if (!at.parent) return;
    switch (mutator_below(m, 5)) {
    case 0:
        if (at.key) json_object_del(at.parent, at.key);
        if (!at.key) json_array_remove(at.parent, at.index);
        return;
    case 1: mutator_set(&at, json_deep_copy(other.value)); return;
    case 2: /* renamed, or once more */
        if (at.key) json_object_set_new(at.parent, mutator_pick(m, m->words), json_deep_copy(at.value));
        if (!at.key) json_array_insert_new(at.parent, at.index, json_deep_copy(at.value));
        return;
    default:
        mutator_set(&at, json_is_number(at.value) ? mutator_number(m, at.value) : mutator_value(m, at.value));
    }
}

/* The text of `json` as a tree; of anything else a sample. Mutated, except the one in four samples that stays whole. */
static json_t *mutator_tree(struct json_mutator *m, const char *text, size_t bytes)
{
    json_t *root = json_loadb(text, bytes, JSON_DECODE_ANY, NULL);
    const bool fresh = root == NULL || mutator_below(m, 64) == 0;
    if (fresh) {
        json_decref(root);
        root = mutator_sample(m);
    }
    for (size_t i = fresh && mutator_below(m, 4) == 0 ? 0 : 1 + mutator_below(m, 4); i > 0; i--)
        mutator_step(m, root);
    return root;
}
#endif
