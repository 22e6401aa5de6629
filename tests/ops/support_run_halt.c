/* Heads that halt: support_run.c says how cases become calls. */
#include "run.h"

RUN_CALL(halt_fwd)
RUN_CALL(halt_stop)
RUN_CALL(halt_bwd)

void run_halt_fwd(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_halt *c = &oc->halt;
    const dtype acc = dtype_acc(p->dt);
    const int32_t *cu = run_cu_seqlens(&c->docs, p);
    RUN(o, halt_fwd, .z = probe_in(p, "z", p->dt, cu[c->docs.count] * c->d, 0, 1),
        .w = probe_in(p, "w", p->dt, 2 * c->d, 0, 1), .b = probe_in(p, "b", p->dt, 2, 0, 1),
        .q = probe_out(p, "q", PROBE_OUT, acc, 2 * c->docs.count, 8 * tol_reduce(acc, c->d)),
        .cu_seqlens = cu, .docs = c->docs.count, .d = c->d, .dt = p->dt);
}

/* The step is any eight bytes of the device's memory. */
void run_halt_stop(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_halt *c = &oc->halt;
    const int32_t *cu = run_cu_seqlens(&c->docs, p);
    const int64_t rows = cu[c->docs.count];
    int32_t *targets = probe_ids(p, "targets", rows, 100);
    for (int64_t t = 0; t < rows; t += 3) targets[t] = TARGET_IGNORE;
    RUN(o, halt_stop, .q = probe_in(p, "q", dtype_acc(p->dt), 2 * c->segments * c->docs.count, 0, 1),
        .tokens = probe_ids(p, "tokens", rows, 100), .targets = targets, .cu_seqlens = cu,
        .step = (const uint64_t *)(const void *)probe_in(p, "step", DTYPE_F64, 1, 0, 1),
        .stop = probe_out_ids(p, "stop", c->docs.count),
        .masked = probe_out_ids(p, "masked", c->segments * rows), .docs = c->docs.count, .rows = rows,
        .segments = c->segments, .explore = 0.5, .dt = p->dt);
}

void run_halt_bwd(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_halt *c = &oc->halt;
    const dtype acc = dtype_acc(p->dt);
    const int32_t *cu = run_cu_seqlens(&c->docs, p);
    const int64_t rows = cu[c->docs.count];
    const double tol = 8 * tol_reduce(acc, c->docs.count);
    int32_t *targets = probe_ids(p, "targets", rows, 100),
            *stop = probe_ids(p, "stop", c->docs.count, c->segments);
    void *hits = probe_in(p, "hits", acc, rows, 0, 1);
    for (int64_t i = 0; i < c->docs.count; i++) stop[i]++;
    for (int64_t t = 0; t < rows; t++) dtype_store(hits, t, acc, t % 5 != 2);
    for (int64_t t = 0; t < rows; t += 3) targets[t] = TARGET_IGNORE;
    double *scale = probe_in(p, "scale", DTYPE_F64, 1, 0.5, 0.1);
    RUN(o, halt_bwd, .q = probe_in(p, "q", acc, 2 * c->docs.count, 0, 1),
        .q_next = probe_in(p, "q_next", acc, 2 * c->docs.count, 0, 1), .stop = stop, .targets = targets,
        .hits = hits, .z = probe_in(p, "z", p->dt, rows * c->d, 0, 1),
        .w = probe_in(p, "w", p->dt, 2 * c->d, 0, 1), .cu_seqlens = cu, .scale = scale,
        .loss_sum = probe_out(p, "loss_sum", PROBE_ACC, DTYPE_F64, 1, tol),
        .dz = probe_out(p, "dz", PROBE_ACC, p->dt, rows * c->d, 8 * tol_reduce(p->dt, 2)),
        .dw = probe_out(p, "dw", PROBE_ACC, acc, 2 * c->d, tol),
        .db = probe_out(p, "db", PROBE_ACC, acc, 2, tol), .docs = c->docs.count, .d = c->d, .m = c->m,
        .segments = c->segments, .dt = p->dt);
}
