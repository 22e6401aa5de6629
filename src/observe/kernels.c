/* The recording of device times, between its source (CUPTI) and its consumers (trace, breakdown).
 *
 * The source delivers activities on its own thread, whenever a buffer is full, in any order. They are
 * queued here until the next flush, when the device is idle: the activities are then complete and belong to
 * the interval since the previous flush.
 *
 * The scope of an activity is known in two ways: by the call that queued it (link), for work queued call by
 * call; or by the node of its capture, for work that a graph replays. */
#include "observe/kernels_int.h"
#include "observe/observe_int.h"
#include "base/clock.h"
#include "base/scope.h"

#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { ACTIVITIES_MAX = 1 << 22, SLOTS = 4 * NAMES_MAX }; /* between two flushes; more are lost */

/* A hash table from calls, or graph nodes, to scopes. */
struct links {
    struct link {
        uint64_t key; /* 0: empty slot */
        int scope;
    } * slots;
    size_t used, size;
};

/* One recording per process, as there is one CUPTI. */
static struct {
    pthread_mutex_t lock;
    const struct kernel_source *source; /* NULL: not open */
    bool recording;
    int64_t window_ns; /* start of the time that the next flush closes */
    struct activity *activities;
    int64_t count, room, lost;
    struct names names, scopes;
    enum kernel_part parts[NAMES_MAX]; /* by name */
    struct links calls, nodes;
    struct breakdown_sum *sum;
} kernels = {.lock = PTHREAD_MUTEX_INITIALIZER};

int names_find(struct names *n, const char *text)
{
    if (n->slots == NULL) {
        n->slots = calloc(SLOTS, sizeof *n->slots);
        n->text = calloc(NAMES_MAX, sizeof *n->text);
        MEMORY_CHECK(n->slots != NULL && n->text != NULL, "no memory for device times");
    }
    size_t at = XXH3_64bits(text, strlen(text)) % SLOTS;
    for (; n->slots[at]; at = (at + 1) % SLOTS)
        if (strcmp(n->text[n->slots[at] - 1], text) == 0) return n->slots[at] - 1;
    if (n->count == NAMES_MAX) return -1;
    n->text[n->count] = strdup(text);
    MEMORY_CHECK(n->text[n->count] != NULL, "no memory for device times");
    n->slots[at] = ++n->count;
    return n->count - 1;
}

void names_free(struct names *n)
{
    for (int i = 0; i < n->count; i++) free(n->text[i]);
    free(n->text);
    free(n->slots);
    *n = (struct names){0};
}

/* The slot of the key, or the empty slot for it. The size is a power of two. */
static struct link *links_slot(const struct links *l, uint64_t key)
{
    size_t at = (size_t)(key * 0x9e3779b97f4a7c15u >> 32) & (l->size - 1);
    while (l->slots[at].key && l->slots[at].key != key) at = (at + 1) & (l->size - 1);
    return &l->slots[at];
}

static void links_set(struct links *l, uint64_t key, int scope)
{
    if (key == 0) return;
    if (2 * l->used >= l->size) {
        struct links old = *l;
        l->size = old.size ? 2 * old.size : 4096;
        l->slots = calloc(l->size, sizeof *l->slots);
        MEMORY_CHECK(l->slots != NULL, "no memory for device times");
        for (size_t i = 0; i < old.size; i++)
            if (old.slots[i].key) *links_slot(l, old.slots[i].key) = old.slots[i];
        free(old.slots);
    }
    struct link *slot = links_slot(l, key);
    l->used += slot->key == 0;
    *slot = (struct link){key, scope};
}

/* Returns -1 if it is not there. */
static int links_get(const struct links *l, uint64_t key)
{
    const struct link *slot = l->used && key ? links_slot(l, key) : NULL;
    return slot && slot->key ? slot->scope : -1;
}

static void links_clear(struct links *l)
{
    if (l->used) memset(l->slots, 0, l->size * sizeof *l->slots);
    l->used = 0;
}

static void lock(void)
{
    pthread_mutex_lock(&kernels.lock);
}
static void unlock(void)
{
    pthread_mutex_unlock(&kernels.lock);
}

void kernels_put(const char *name, struct activity a, int64_t offset_ns)
{
    lock();
    if (kernels.source == NULL) { /* delivered after the end */
        unlock();
        return;
    }
    if (kernels.count == kernels.room && kernels.room < ACTIVITIES_MAX) {
        kernels.room = kernels.room ? 2 * kernels.room : 8192;
        kernels.activities = realloc(kernels.activities, (size_t)kernels.room * sizeof a);
        MEMORY_CHECK(kernels.activities != NULL, "no memory for device times");
    }
    int known = kernels.names.count;
    a.name = names_find(&kernels.names, name);
    if (a.name == known) kernels.parts[known] = kernel_part_of(name);
    a.start_ns += offset_ns;
    a.end_ns += offset_ns;
    if (a.name < 0 || kernels.count == kernels.room)
        kernels.lost++;
    else
        kernels.activities[kernels.count++] = a;
    unlock();
}

void kernels_put_link(uint32_t correlation, int scope)
{
    lock();
    links_set(&kernels.calls, correlation, scope);
    unlock();
}

void kernels_put_node(uint64_t node, int scope)
{
    lock();
    if (links_get(&kernels.nodes, node) < 0) links_set(&kernels.nodes, node, scope);
    unlock();
}

void kernels_put_clone(uint64_t node, uint64_t original)
{
    lock();
    int scope = links_get(&kernels.nodes, original);
    if (scope >= 0) links_set(&kernels.nodes, node, scope);
    unlock();
}

void kernels_put_lost(int64_t count)
{
    lock();
    kernels.lost += count;
    unlock();
}

int kernels_scope(void)
{
    char path[512];
    scope_path(path, sizeof path);
    /* Drops the outermost index, the step: with it, every step's scopes would be new names. */
    char *end = strstr(path, " > "), *digits = end ? end : path + strlen(path);
    size_t tail = strlen(digits) + 1;
    while (digits > path && isdigit((unsigned char)digits[-1])) digits--;
    if (digits > path && digits[-1] == ' ' && isdigit((unsigned char)*digits)) {
        char *from = end ? end : path + strlen(path);
        memmove(digits - 1, from, tail);
    }
    lock();
    int scope = names_find(&kernels.scopes, path);
    unlock();
    return scope;
}

status kernels_open_source(const struct kernel_source *source)
{
    CHECK(kernels.source == NULL, "device times are recorded already");
    if (source == NULL) return FAIL(STATUS_DEVICE, "no device times: this ingot was built without CUDA");
    kernels.sum = calloc(1, sizeof *kernels.sum);
    if (kernels.sum == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for device times");
    kernels.source = source;
    status st = source->open();
    if (st != STATUS_OK) {
        free(kernels.sum);
        kernels.sum = NULL;
        kernels.source = NULL;
    }
    return st;
}

status kernels_record(bool on)
{
    if (kernels.source == NULL || kernels.recording == on) return STATUS_OK;
    TRY(kernels.source->record(on));
    kernels.recording = on;
    kernels.window_ns = clock_ns();
    return STATUS_OK;
}

/* Assigns each activity its scope and writes it to the trace. */
static void tell(struct activity *a)
{
    char name[256];
    if (a->node) a->scope = links_get(&kernels.nodes, a->node);
    if (a->scope < 0) a->scope = links_get(&kernels.calls, a->correlation);
    kernel_name_short(kernels.names.text[a->name], name, sizeof name);
    trace_device_event(
        &(struct trace_device_event){.name = name,
                                     .part = kernel_part_text(kernels.parts[a->name]),
                                     .scope = a->scope < 0 ? "" : kernels.scopes.text[a->scope],
                                     .start_ns = a->start_ns,
                                     .end_ns = a->end_ns,
                                     .bytes = a->link != LINK_NONE ? (int64_t)a->bytes : 0,
                                     .stream = a->stream});
}

void kernels_flush(int64_t steps)
{
    if (!kernels.recording) return;
    int64_t wall_ns = clock_ns() - kernels.window_ns;
    kernels.source->flush();
    lock();
    for (int64_t i = 0; i < kernels.count; i++) tell(&kernels.activities[i]);
    if (steps > 0) {
        breakdown_add(kernels.sum, kernels.activities, kernels.count, kernels.parts, wall_ns, steps);
        kernels.sum->lost += kernels.lost;
    }
    kernels.count = 0;
    kernels.lost = 0;
    links_clear(&kernels.calls);
    unlock();
    kernels.window_ns = clock_ns(); /* reading records is not part of a step */
}

void kernels_breakdown(struct breakdown *out)
{
    *out = (struct breakdown){0};
    if (kernels.source == NULL) return;
    lock();
    breakdown_mean(out, kernels.sum, &kernels.names, kernels.parts);
    unlock();
}

void kernels_close(void)
{
    if (kernels.source == NULL) return;
    if (kernels.recording && kernels.source->record(false) != STATUS_OK) kernels.recording = false;
    kernels.source->close();
    kernels.source = NULL;
    kernels.recording = false;
    free(kernels.activities);
    free(kernels.calls.slots);
    free(kernels.nodes.slots);
    free(kernels.sum);
    names_free(&kernels.names);
    names_free(&kernels.scopes);
    kernels.activities = NULL;
    kernels.sum = NULL;
    kernels.count = kernels.room = kernels.lost = 0;
    kernels.calls = kernels.nodes = (struct links){0};
}
