/* What env.json says about the host: kernel, limits, cgroup, network, driver, libraries, GPUs. */
#ifndef INGOT_OBSERVE_ENV_HOST_H
#define INGOT_OBSERVE_ENV_HOST_H
#include <jansson.h>
/* A new object; what is not known is left out. Opens NVML for the moment. */
json_t *env_host(void);
#endif
