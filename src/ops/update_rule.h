/* What each rule of ops.update needs. C and CUDA. A switch without a default: a new rule does not compile before it is
 * here. */
#ifndef INGOT_OPS_UPDATE_RULE_H
#define INGOT_OPS_UPDATE_RULE_H
#include "base/rng.h"
#include "ops/ops.h"

struct update_needs {
    bool second;                /* reads and writes v, the second moment */
    bool corrections;           /* divides by scalars.correction1 and correction2 */
};
RNG_INLINE struct update_needs update_needs(enum update_rule rule)
{
    struct update_needs needs = {false, false};
    switch (rule) {
    case UPDATE_ADAMW: needs.second = needs.corrections = true; break;
    case UPDATE_LION: break;
    }
    return needs;
}
#endif
