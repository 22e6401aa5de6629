#include "comm/gpu/tuner.h"
#include "base/text.h"

#include <stdio.h>

static const char *const path_texts[] = {
#define X(name, text, blocks) text,
    TUNER_ALGOS(X)
#undef X
};
static const char *const op_texts[] = {
#define X(name, text) text,
    TUNER_OPS(X)
#undef X
};

int tuner_blocks(enum tuner_algo p)
{
    static const int counts[] = {
#define X(name, text, blocks) blocks,
        TUNER_ALGOS(X)
#undef X
    };
    return counts[p];
}

size_t tuner_bytes(int size)
{
    return (size_t)TUNER_BYTES_MIN << 2 * size;
}

/* The nearest size by ratio. */
static int nearest(size_t bytes)
{
    int size = 0;
    while (size < TUNER_SIZES - 1 && bytes >= 2 * tuner_bytes(size)) size++;
    return size;
}

enum tuner_algo tuner_choose(const struct tuner *t, enum tuner_op op, size_t bytes, unsigned allowed)
{
    const double *us = t->us[op][nearest(bytes)];
    int best = -1;
    for (int p = 0; p < TUNER_ALGO_COUNT; p++) {
        if (!(allowed >> p & 1)) continue;
        if (best < 0 || (us[p] > 0 && (us[best] == 0 || us[p] < us[best]))) best = p;
    }
    return (enum tuner_algo)best;
}

void tuner_slowest(struct tuner *t, const struct tuner *other)
{
    for (int op = 0; op < TUNER_OP_COUNT; op++)
        for (int size = 0; size < TUNER_SIZES; size++)
            for (int p = 0; p < TUNER_ALGO_COUNT; p++) {
                const double us = other->us[op][size][p];
                if (us > t->us[op][size][p]) t->us[op][size][p] = us;
            }
}

void tuner_text(const struct tuner *t, char text[TUNER_TEXT])
{
    size_t at = 0;
    for (enum tuner_op op = 0; op < TUNER_OP_COUNT; op++) {
        char bytes[32];
        at += (size_t)snprintf(text + at, TUNER_TEXT - at, "%s%s: ", op ? "; " : "", op_texts[op]);
        for (int size = 0; size < TUNER_SIZES; size++) {
            const enum tuner_algo p = tuner_choose(t, op, tuner_bytes(size), TUNER_ALL);
            const bool last = size == TUNER_SIZES - 1;
            if (!last && tuner_choose(t, op, tuner_bytes(size + 1), TUNER_ALL) == p) continue;
            at += (size_t)snprintf(text + at, TUNER_TEXT - at, "%s", path_texts[p]);
            if (!last)
                at += (size_t)snprintf(text + at, TUNER_TEXT - at, " to %s, ",
                                       text_bytes(bytes, (double)tuner_bytes(size)));
        }
    }
}
