#include "train/footprint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

double footprint_rss(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    char text[128] = "";
    if (f == NULL) return NAN;
    char *got = fgets(text, sizeof text, f), *end;
    fclose(f);
    if (got == NULL) return NAN;
    (void)strtod(text, &end);
    return strtod(end, NULL) * (double)sysconf(_SC_PAGESIZE);
}

static size_t communication_bytes(const struct trainer *t)
{
    const struct comm_memory taken = comm_memory_used(t->mesh.world);
    return t->dev.kind == DEV_CUDA ? taken.device : taken.host;
}
size_t footprint_reserved(const struct trainer *t)
{
    size_t sum = communication_bytes(t);
#define X(field, category, text) sum += t->memory.field.size;
    MEMORY_LIST(X)
#undef X
    return sum;
}

void footprint_facts(const struct trainer *t, struct observe *o)
{
    const struct memory *m = &t->memory;
    observe_fact(o, "parameters", (double)t->decoder.params.param_count);
    observe_fact(o, "planned_bytes", (double)memory_peak(m));
    observe_fact(o, "measured_bytes", (double)footprint_reserved(t));
#define X(field, category, text)                                                                             \
    observe_fact(o, "planned_bytes." category, (double)m->field.peak);                                       \
    observe_fact(o, "measured_bytes." category, (double)m->field.size);
    MEMORY_LIST(X)
#undef X
    if (t->mesh.world) {
        observe_fact(o, "planned_bytes.communication", (double)memory_communication(m));
        observe_fact(o, "measured_bytes.communication", (double)communication_bytes(t));
    }
    if (m->host.peak == 0) return;
    observe_fact(o, "planned_bytes.host", (double)m->host.peak);
    observe_fact(o, "measured_bytes.host", (double)m->host.size);
}
