/* Instruction sets of this architecture, from the least to the best; each includes those before it. isa_x86.c and
 * isa_arm64.c are the two tables: CMake compiles the one that fits. */
#ifndef INGOT_OPS_CPU_ISA_H
#define INGOT_OPS_CPU_ISA_H
#include "ops/ops.h"

struct cpu_isa {
    const char *name;              /* what --isa takes */
    const char *set;               /* the name of the op table */
    bool (*offered)(void);         /* by this processor and kernel, if all before it are */
    void (*overlay)(struct ops *); /* puts its ops over those of the ones before it; may be all of them */
    double (*peak)(dtype dt);      /* as cpu_peak */
};
enum { CPU_ISAS_MAX = 4 };
extern const struct cpu_isa cpu_isas[CPU_ISAS_MAX]; /* behind the last: no name */
extern const char *const cpu_isa_words;   /* the names, as an error lists them */
extern const char *const cpu_isa_lacking; /* end of "this processor lacks ...", where not even the first is offered */
#endif
