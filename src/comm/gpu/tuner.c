#include "comm/gpu/tuner.h"
#include "base/text.h"

#include <stdio.h>

static const char *const path_texts[] = {
#define X(name, text, blocks) text,
    PATHS(X)
#undef X
};
static const char *const op_texts[] = {
#define X(name, text) text,
    PATHS_OPS(X)
#undef X
};

int paths_blocks(enum path p)
{
    static const int counts[] = {
#define X(name, text, blocks) blocks,
        PATHS(X)
#undef X
    };
    return counts[p];
}

size_t paths_bytes(int size)
{
    return (size_t)PATHS_BYTES_MIN << 2 * size;
}

/* Nearest as a ratio: from twice a size on, the next one is nearer. */
static int nearest(size_t bytes)
{
    int size = 0;
    while (size < PATHS_SIZES - 1 && bytes >= 2 * paths_bytes(size)) size++;
    return size;
}

enum path paths_choose(const struct paths *t, enum paths_op op, size_t bytes, unsigned allowed)
{
    const double *us = t->us[op][nearest(bytes)];
    int best = -1;
    for (int p = 0; p < PATH_COUNT; p++) {
        if (!(allowed >> p & 1)) continue;
        if (best < 0 || (us[p] > 0 && (us[best] == 0 || us[p] < us[best]))) best = p;
    }
    return (enum path)best;
}

void paths_slowest(struct paths *t, const struct paths *other)
{
    for (int op = 0; op < PATHS_OP_COUNT; op++)
        for (int size = 0; size < PATHS_SIZES; size++)
            for (int p = 0; p < PATH_COUNT; p++) {
                const double us = other->us[op][size][p];
                if (us > t->us[op][size][p]) t->us[op][size][p] = us;
            }
}

void paths_text(const struct paths *t, char text[PATHS_TEXT])
{
    size_t at = 0;
    for (enum paths_op op = 0; op < PATHS_OP_COUNT; op++) {
        char bytes[32];
        at += (size_t)snprintf(text + at, PATHS_TEXT - at, "%s%s: ", op ? "; " : "", op_texts[op]);
        for (int size = 0; size < PATHS_SIZES; size++) {
            const enum path p = paths_choose(t, op, paths_bytes(size), PATHS_ALL);
            const bool last = size == PATHS_SIZES - 1;
            if (!last && paths_choose(t, op, paths_bytes(size + 1), PATHS_ALL) == p) continue;
            at += (size_t)snprintf(text + at, PATHS_TEXT - at, "%s", path_texts[p]);
            if (!last)
                at += (size_t)snprintf(text + at, PATHS_TEXT - at, " to %s, ",
                                       text_bytes(bytes, (double)paths_bytes(size)));
        }
    }
}
