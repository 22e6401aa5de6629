/* What checkpoints that are written beside training take in the host's memory. */
#include "optim/saved_state.h"
#include "plan/mesh_plan_int.h"

#include <math.h>

/* Of one rank's masters and moments. */
static status copy_of(const struct mesh_plan *p, const struct mesh_result *r, int rank, int64_t *bytes)
{
    struct spec copy = p->spec;
    struct decoder d;
    struct rank_state state;
    struct activations a = {0};
    struct memory m = {0};
    const struct mesh_variant *v = &r->variant;
    const struct mesh mesh = mesh_place(&v->mesh, rank);
    if (!saved_state_mine(&mesh)) return STATUS_OK;
    copy.run.train_micro_batch = v->micro_batch, copy.run.train_recompute = (int)v->recompute;
    struct plan_layout_args args = plan_args(&copy, &mesh);
    args.ops = &p->ops, args.kind = p->cluster.machine->kind, args.state_alone = true;
    if (v->mesh.zero >= 2) args.gradient_groups = plan_micro_count(&copy);
    TRY(decoder_init(&d, &copy.model, &mesh));
    const status st = plan_layout(&m, &d, &state, &a, &args);
    if (st == STATUS_OK) *bytes = (int64_t)saved_state_bytes(&d.params, &mesh);
    activations_fini(&a);
    decoder_fini(&d);
    return st;
}

/* Ranks of one host. */
static int host_ranks(const struct mesh_plan *p)
{
    return p->cluster.machine->kind == DEV_CUDA ? cluster_host(&p->cluster) : p->cluster.node;
}

/* Whether the run allocates them: a GPU's are pinned from the start on, if a save comes before the last one. */
static bool copies(const struct mesh_plan *p)
{
    const struct run_spec *run = &p->spec.run;
    const bool endless = run->train_steps == SPEC_ENDLESS;
    if (!run->ckpt_async) return false;
    if (p->cluster.machine->kind != DEV_CUDA) return true;
    return run->ckpt_every > 0 && (endless || (spec_step_count(&p->spec) - 1) / run->ckpt_every > 0);
}

/* Of the ranks first to first + count - 1, which share a host. Ranks of one host's job share one piece of memory, in
 * pages, with a mark for each (train/save_ranks.c); of several hosts' each has its own (train/save_memory.c). */
static status host_copies(const struct mesh_plan *p, const struct mesh_result *r, int first, int count,
                          double *bytes)
{
    const int ranks = mesh_ranks(&r->variant.mesh);
    const bool shared = ranks > 1 && ranks <= host_ranks(p);
    int64_t sum = shared ? saved_state_pages((int64_t)SAVED_STATE_MARK * ranks) : 0;
    for (int i = first; i < first + count && i < ranks; i++) {
        int64_t one = 0;
        TRY(copy_of(p, r, i, &one));
        sum += shared ? saved_state_pages(one) : one;
    }
    *bytes = (double)sum;
    return STATUS_OK;
}

status mesh_save_copies(const struct mesh_plan *p, const struct mesh_result *r, double *bytes)
{
    const int host = host_ranks(p), ranks = mesh_ranks(&r->variant.mesh), stage = ranks / r->variant.mesh.pp;
    double one = 0;
    *bytes = 0;
    if (!copies(p)) return STATUS_OK;
    /* Of a stage's hosts none holds more than the first: shards are alike, and the first replica saves. */
    for (int i = 0, behind = 0; i < ranks; i += stage) {
        const int first = i / host * host;
        if (first < behind) continue; /* stages of one host */
        behind = first + host;
        TRY(host_copies(p, r, first, host, &one));
        *bytes = fmax(*bytes, one);
    }
    return STATUS_OK;
}

double mesh_save_misses(const struct mesh_plan *p, const struct mesh_result *r, double copies)
{
    const bool gpu = p->cluster.machine->kind == DEV_CUDA;
    const double ranks = fmin(mesh_ranks(&r->variant.mesh), host_ranks(p)),
                 have = ranks * (gpu ? mesh_host_max(p) : p->bytes),
                 taken = ranks * (gpu ? mesh_host_bytes(p, r) : mesh_result_bytes(r));
    return copies > 0 ? fmax(0, copies + taken - have) : 0;
}
