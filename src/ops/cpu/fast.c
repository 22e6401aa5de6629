/* The fast CPU set: the oracle, overridden by the fast kernels of this processor. */
#include "ops/cpu/fast.h"
#include "ops/cpu/isa.h"

#include <string.h>

/* Index of the best that this machine offers to this process; -1: none. */
static int detect(void)
{
    int best = -1;
    while (best + 1 < CPU_ISAS_MAX && cpu_isas[best + 1].name && cpu_isas[best + 1].offered()) best++;
    return best;
}

const char *cpu_isa_name(int index)
{
    return index >= 0 && index < CPU_ISAS_MAX ? cpu_isas[index].name : NULL;
}

static status isa_cap(const char *isa_max, int *isa)
{
    for (int i = 0; cpu_isa_name(i); i++) {
        if (strcmp(isa_max, cpu_isas[i].name) != 0) continue;
        if (i > *isa)
            return FAIL(STATUS_CONFIG, "isa '%s' was asked for, but this machine offers only '%s'", isa_max,
                        cpu_isas[*isa].name);
        *isa = i;
        return STATUS_OK;
    }
    return FAIL(STATUS_CONFIG, "unknown isa '%s': use %s", isa_max, cpu_isa_words);
}

status ops_cpu(struct ops *o, const char *isa_max)
{
    int isa = detect();
    if (isa < 0) return FAIL(STATUS_DEVICE, "this processor lacks %s", cpu_isa_lacking);
    if (isa_max) TRY(isa_cap(isa_max, &isa));
    ops_oracle(o);
    for (int i = 0; i <= isa; i++) cpu_isas[i].overlay(o);
    o->name = cpu_isas[isa].set;
    return STATUS_OK;
}

double cpu_peak(const struct ops *o, dtype dt)
{
    for (int i = 0; cpu_isa_name(i); i++)
        if (strcmp(o->name, cpu_isas[i].set) == 0) return cpu_isas[i].peak(dt);
    CHECK(false, "%s is no set of this architecture", o->name);
    return 0;
}
