/* overlay: gradients reuse the memory of activations. In a step of one micro-batch, the gradients of a unit are
 * computed after backward has read the activations of the later blocks. The next forward starts after the optimizer
 * has read all gradients. The flat gradient array therefore begins inside the activation arena, at the lowest offset
 * where every unit's gradients are after the activations that its own backward still needs:
 *
 *   activations  front | block 0 | block 1 | ... | block L-1 | final sum
 *   gradients                 embedding | block 0 | block 1 | ... | block L-1 | norm and head | tables
 *
 *   The embedding's gradients are after `front`. In block l, those of norm2 and ffn are after all activations of the
 *   block; those of earlier rows are after the mixer's activations, because the others have been read by then. Norm
 *   and head are after everything.
 *
 * A backward finds arbitrary values in this memory, not zeros: parallel/unit_grad.h. */
#ifndef INGOT_PLAN_GRAD_OVERLAY_H
#define INGOT_PLAN_GRAD_OVERLAY_H
#include "model/decoder.h"
#include "parallel/mesh.h"

/* The reason why gradients need their own memory, as a phrase; NULL: they can reuse the memory of activations.
 * `shape` NULL: one rank; micros: micro-batches of a rank per step. */
const char *overlay_apart(const struct model_spec *m, const struct mesh_shape *shape, int64_t micros);
/* The start of the array, in bytes of the arena: at least `from`, and such that a unit with `before` bytes of
 * gradients in front of it is after `end` bytes of activations. */
static inline double grad_overlay_from(double from, double end, double before)
{
    return end - before > from ? end - before : from;
}
/* The same for a block. middle, end: bytes of activations up to the end of its mixer and of the block; front, back:
 * bytes of gradients before its first row and before norm2. Tensor-parallel ranks may read rows of ffn's input until
 * the block is done. */
struct grad_overlay_block { double middle, end, front, back; };
double grad_overlay_block(double from, const struct grad_overlay_block *b, int slices);
/* Allocates the array (counting or real) after activations_layout, for parameters that are `overlaid`. */
void grad_overlay_layout(struct decoder *d, const struct activations *a, struct arena *act);
size_t grad_overlay_bytes(const struct params *p); /* size of the array; 0: not overlaid */
#endif
