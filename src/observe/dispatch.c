/* base/scope.h has one sink; a trace and the step breakdown may need it at the same time. */
#include "observe/observe_int.h"

enum { SLOTS = 4 };
/* The scope sink is process-wide, and so is the list of listeners. */
static struct slot {
    scope_sink_fn *_Atomic fn;
    void *ctx;
} slots[SLOTS];

static void to_all(const struct scope_event *event, void *ctx)
{
    (void)ctx;
    for (int i = 0; i < SLOTS; i++) {
        scope_sink_fn *fn = slots[i].fn;
        if (fn) fn(event, slots[i].ctx);
    }
}

void dispatch_add(scope_sink_fn *fn, void *ctx)
{
    int used = 0, free_slot = -1;
    for (int i = SLOTS - 1; i >= 0; i--) {
        if (slots[i].fn)
            used++;
        else
            free_slot = i;
    }
    CHECK(free_slot >= 0, "more than %d listeners for scopes", SLOTS);
    slots[free_slot].ctx = ctx;
    slots[free_slot].fn = fn;
    if (used == 0) scope_sink_set(to_all, NULL);
}

void dispatch_remove(scope_sink_fn *fn)
{
    int used = 0;
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i].fn == fn) slots[i].fn = NULL;
        if (slots[i].fn) used++;
    }
    if (used == 0) scope_sink_set(NULL, NULL);
}
