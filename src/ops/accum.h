/* Whether a GEMM overwrites its result or adds to it. */
#ifndef INGOT_OPS_ACCUM_H
#define INGOT_OPS_ACCUM_H

enum accum { ACCUM_STORE, ACCUM_ADD };
#endif
