/* Chooses where GPU activities come from: CUPTI in a build with CUDA. */
#include "observe/kernels.h"
#include "observe/kernels_int.h"

#include <stddef.h>

status kernels_open(void)
{
#if INGOT_CUDA
    return kernels_open_source(cuda_kernel_source());
#else
    return kernels_open_source(NULL);
#endif
}
