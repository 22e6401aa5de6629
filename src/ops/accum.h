/* Whether a GEMM's result replaces what lies there or is added to it. */
#ifndef INGOT_OPS_ACCUM_H
#define INGOT_OPS_ACCUM_H

enum accum { ACCUM_STORE, ACCUM_ADD };
#endif
