#include "plan/mesh_choose.h"
#include "base/text.h"
#include "plan/mesh_plan_int.h"

static status does_not_fit(const char *what, const struct mesh_result *r)
{
    char bytes[32], axes[MESH_AXES];
    return FAIL(STATUS_FIT, "%s: %s needs %s per device; `ingot plan --machine` says of what", what,
                mesh_axes(axes, &r->variant.mesh), text_bytes(bytes, mesh_result_bytes(r)));
}

status mesh_choose(struct mesh_plan *p, struct mesh_result *r)
{
    if (mesh_plan_is_given(&p->spec.run)) {
        TRY(mesh_plan_given(p, r));
        return r->fits ? STATUS_OK : does_not_fit("the mesh of parallel.* does not fit", r);
    }
    struct mesh_list list;
    TRY(mesh_plan_search(p, &list));
    *r = list.count > 0 ? list.best[0] : list.least;
    const bool fits = list.count > 0;
    mesh_list_free(&list);
    return fits ? STATUS_OK : does_not_fit("no mesh fits; the nearest", r);
}
