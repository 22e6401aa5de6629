/* Two trainers of one model side by side: gradients where activations were (plan/grad_overlay.h), and in an array of their own. */
#ifndef TESTS_TRAIN_SUPPORT_OVERLAY_H
#define TESTS_TRAIN_SUPPORT_OVERLAY_H
#include "train/trainer.h"

enum { OVERLAY_KEYS = 16, OVERLAY_FAMILIES = 8 };
struct overlay_family {
    const char *name, *keys[OVERLAY_KEYS];
};
extern const struct overlay_family overlay_families[OVERLAY_FAMILIES];
struct overlay_way {
    const char *device, *precision, *recompute, *graph; /* as keys have them */
};
/* All fail the test that calls them, with the family's name. */
void overlay_spec(struct spec *s, const struct overlay_family *f, const struct overlay_way *way);
void overlay_open(struct trainer *t, const struct spec *s, const char *name, bool overlay);
/* Some steps of both: the same losses, norms, weights, moments and gradients, bit by bit. Method: before each
 * step of the first, NaNs fill the memory of its activations and gradients. */
void overlay_train_both(const struct overlay_family *f, const struct overlay_way *way);
#endif
