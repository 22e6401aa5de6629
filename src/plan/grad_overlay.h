/* overlay: gradients where activations were. In a step of one micro-batch a unit's gradients are formed when what blocks behind it kept
 * from forward is no longer read, and the next forward comes when the optimizer has read them all. So the flat array begins inside the
 * arena of activations, as early as every unit lies behind what is still needed when its own backward runs:
 *
 *   activations  front | block 0 | block 1 | ... | block L-1 | final sum
 *   gradients                 embedding | block 0 | block 1 | ... | block L-1 | norm and head | tables
 *
 *   the embedding behind `front`; of block l norm2 and ffn behind all of its activations, what comes before them behind those of its mixer,
 *   as the others are not read any more then; norm and head behind all
 *
 * What lies there when a backward begins is no zeros: parallel/unit_grad.h. */
#ifndef INGOT_PLAN_GRAD_OVERLAY_H
#define INGOT_PLAN_GRAD_OVERLAY_H
#include "model/decoder.h"
#include "parallel/mesh.h"

/* Why gradients have memory of their own, in a phrase, or NULL: they lie where activations were. `shape` NULL: one rank; micros: of a rank
 * in a step. */
const char *overlay_apart(const struct model_spec *m, const struct mesh_shape *shape, int64_t micros);
/* Where the array begins, in bytes of the arena, if it has to begin at `from` or later, and a unit with `before` bytes of gradients in front
 * of its own lies behind `end` bytes of activations. */
static inline double grad_overlay_from(double from, double end, double before) { return end - before > from ? end - before : from; }
/* The same for a block: bytes of activations up to its mixer's end and its own, and of gradients before its first row and before norm2. Other
 * slices' ranks may read rows of ffn's input until the block is done. */
struct grad_overlay_block { double middle, end, front, back; };
double grad_overlay_block(double from, const struct grad_overlay_block *b, int slices);
/* Takes the array, counting or real, behind activations_lay of parameters that are `overlaid`. */
void grad_overlay_lay(struct decoder *d, const struct activations *a, struct arena *act);
size_t grad_overlay_bytes(const struct params *p); /* of the array; 0: not overlaid */
#endif
