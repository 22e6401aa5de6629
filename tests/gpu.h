/* What tests do where there is no GPU that can be used. */
#ifndef INGOT_TESTS_GPU_H
#define INGOT_TESTS_GPU_H
#include <unistd.h>

/* The exit code of a test that got no GPU: skipped where there is none, failed where there is one. */
static inline int gpu_missing(void)
{
    return access("/dev/nvidia0", F_OK) == 0 ? 1 : 77;
}
#endif
