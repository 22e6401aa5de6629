#include "plan/mesh_choose.h"
#include "base/text.h"
#include "plan/mesh_plan_int.h"

static status does_not_fit(const char *what, const struct mesh_result *r)
{
    char bytes[32], axes[MESH_AXES];
    return FAIL(STATUS_OUT_OF_MEMORY, "%s: %s needs %s per device; `ingot plan --machine` says of what", what,
                mesh_axes(axes, &r->variant.mesh), text_bytes(bytes, mesh_result_bytes(r)));
}

struct plan_devices mesh_devices(const struct mesh_plan *p)
{
    const bool gpu = p->cluster.machine->kind == DEV_CUDA;
    return (struct plan_devices){.count = p->cluster.devices,
                                 .host = cluster_host(&p->cluster),
                                 .unit = gpu ? "GPU" : "device",
                                 .gpu = gpu};
}

const char *mesh_lacks(char buf[PLAN_WHY], const struct mesh_plan *p, const struct mesh_shape *m)
{
    const struct plan_devices d = mesh_devices(p);
    return duration_lacks(buf, &p->spec, &d, m);
}

const struct mesh_result *mesh_list_chosen(const struct mesh_list *list, bool predicted)
{
    if (list->start_count > 0 && !predicted) return &list->starts[0];
    return list->count > 0 ? &list->best[0] : NULL;
}

status mesh_choose_beside(struct mesh_plan *p, struct mesh_result *r, double *faster)
{
    char why[PLAN_WHY];
    *faster = 0;
    if (mesh_plan_is_given(&p->spec.run)) {
        TRY(mesh_plan_given(p, r));
        return r->fits ? STATUS_OK : does_not_fit("the mesh of parallel.* does not fit", r);
    }
    struct mesh_list list;
    TRY(mesh_plan_search(p, &list));
    const struct mesh_result *chosen = mesh_list_chosen(&list, p->command.predicted);
    const bool fits = chosen != NULL;
    *r = fits ? *chosen : list.least;
    if (fits && chosen != &list.best[0] && mesh_lacks(why, p, &list.best[0].variant.mesh))
        *faster = list.best[0].step;
    mesh_list_free(&list);
    return fits ? STATUS_OK : does_not_fit("no mesh fits; the nearest", r);
}

status mesh_choose(struct mesh_plan *p, struct mesh_result *r)
{
    double faster;
    return mesh_choose_beside(p, r, &faster);
}
