/* The epilogues of a set that fuses a bias and nothing else, for models that run on the oracle, which fuses the residual add. */
#ifndef INGOT_TESTS_MODEL_BIAS_ALONE_H
#define INGOT_TESTS_MODEL_BIAS_ALONE_H
#include "ops/ops.h"

static inline bool fuses_bias_alone(const struct gemm_args *g, dev_stream s)
{
    (void)s;
    return g->epilogue.kind == EPILOGUE_NONE || g->epilogue.kind == EPILOGUE_BIAS;
}
#endif
