/* GPM, NVML's counters of what the units of a GPU did between two samples. */
#include "base/clock.h"
#include "dev/nvml.h"

#include <math.h>
#include <stdlib.h>

enum { VALUES = 4 };
static const unsigned ids[VALUES] = {NVML_GPM_SM, NVML_GPM_OCCUPANCY, NVML_GPM_TENSOR, NVML_GPM_DRAM};

/* One GPU: the newest sample and room for the next one. */
struct nvml_activity {
    bool refused; /* it has no GPM: it is not asked again */
    struct nvml_gpm_sample *newest, *spare;
    double begin_s; /* of the newest; 0: there is none */
    double value[VALUES];
};

static void forget(struct nvml_activity *a)
{
    a->begin_s = 0;
    for (int i = 0; i < VALUES; i++) a->value[i] = NAN;
}

/* False: this GPU has no GPM. */
static bool begin(const struct nvml *n, nvml_device d, struct nvml_activity *a)
{
    struct nvml_gpm_support support = {.version = 1};
    if (a->spare) return true;
    if (!n->nvmlGpmQueryDeviceSupport || !n->nvmlGpmSampleAlloc || !n->nvmlGpmSampleFree ||
        !n->nvmlGpmSampleGet || !n->nvmlGpmMetricsGet ||
        n->nvmlGpmQueryDeviceSupport(d, &support) != NVML_SUCCESS || !support.supported)
        return false;
    if (a->newest == NULL && n->nvmlGpmSampleAlloc(&a->newest) != NVML_SUCCESS) a->newest = NULL;
    if (a->newest == NULL || n->nvmlGpmSampleAlloc(&a->spare) != NVML_SUCCESS) a->spare = NULL;
    return a->spare != NULL;
}

/* From `newest` to the sample in `spare`. */
static void difference(const struct nvml *n, struct nvml_activity *a)
{
    struct nvml_gpm_metrics m = {.version = 1, .count = VALUES, .older = a->newest, .newer = a->spare};
    for (int i = 0; i < VALUES; i++) m.list[i] = (struct nvml_gpm_metric){.id = ids[i], .code = -1};
    const bool got = n->nvmlGpmMetricsGet(&m) == NVML_SUCCESS;
    for (int i = 0; i < VALUES; i++)
        a->value[i] =
            got && m.list[i].code == NVML_SUCCESS && m.list[i].value >= 0 ? m.list[i].value : (double)NAN;
}

static void sample(const struct nvml *n, nvml_device d, struct nvml_activity *a)
{
    const double now = clock_s();
    if (a->begin_s > 0 && now - a->begin_s < NVML_GPM_REST_S) return;
    if (n->nvmlGpmSampleGet(d, a->spare) != NVML_SUCCESS) {
        forget(a); /* no permission, or a profiler has the counters: perhaps later */
        return;
    }
    if (a->begin_s > 0) difference(n, a);
    struct nvml_gpm_sample *older = a->newest;
    a->newest = a->spare;
    a->spare = older;
    a->begin_s = now;
}

void nvml_activity(struct nvml *n, int index, struct nvml_card *c)
{
    nvml_device d;
    if (index >= NVML_GPUS_MAX) return;
    if (n->activity == NULL) {
        n->activity = calloc(NVML_GPUS_MAX, sizeof *n->activity);
        if (n->activity == NULL) return;
        for (int i = 0; i < NVML_GPUS_MAX; i++) forget(&n->activity[i]);
    }
    struct nvml_activity *a = &n->activity[index];
    if (a->refused || !n->nvmlDeviceGetHandleByIndex_v2) return;
    if (n->nvmlDeviceGetHandleByIndex_v2((unsigned)index, &d) != NVML_SUCCESS) {
        forget(a);
        return;
    }
    a->refused = !begin(n, d, a);
    if (a->refused) return;
    sample(n, d, a);
    c->sm_percent = a->value[0];
    c->occupancy_percent = a->value[1];
    c->tensor_percent = a->value[2];
    c->dram_percent = a->value[3];
}

void nvml_activity_close(struct nvml *n)
{
    for (int i = 0; n->activity && i < NVML_GPUS_MAX; i++) {
        struct nvml_activity *a = &n->activity[i];
        if (a->newest) (void)n->nvmlGpmSampleFree(a->newest);
        if (a->spare) (void)n->nvmlGpmSampleFree(a->spare);
    }
    free(n->activity);
    n->activity = NULL;
}
