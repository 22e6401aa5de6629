/* The stand-in of NVML: nvml.h says what its script is. */
#ifndef INGOT_DEV_NVML_STANDIN_H
#define INGOT_DEV_NVML_STANDIN_H
#include "dev/nvml.h"
/* Fills the table of calls; STATUS_CONFIG names the line of the script that is wrong. */
status nvml_standin(struct nvml *n, const char *script) WARN_UNUSED;
#endif
