#include "optim/saved_state.h"

bool saved_state_mine(const struct mesh *mesh)
{
    const bool experts = mesh_ep(&mesh->shape) > 1 && mesh_data_of(mesh, true).replica == 0;
    return experts || mesh_replica(mesh) == 0;
}

int64_t saved_state_masters(const struct params *p)
{
    return p->dt != DTYPE_BF16 && p->zero < 3 ? p->total : p->own;
}

size_t saved_state_bytes(const struct params *p, const struct mesh *mesh)
{
    struct arena count = {.name = "snapshot"};
    const size_t moment = dtype_bytes(p->moment_dt), scale = sizeof(float);
    const int64_t moments[] = {p->own, p->total_v};
    if (!saved_state_mine(mesh)) return 0;
    (void)arena_take(&count, (size_t)saved_state_masters(p) * sizeof(float), "master");
    for (int i = 0; i < p->moments; i++) {
        (void)arena_take(&count, (size_t)moments[i] * moment, "moment");
        if (p->moment_dt == DTYPE_U8)
            (void)arena_take(&count, (size_t)(moments[i] / PARAM_ALIGN) * scale, "scales");
    }
    return count.peak;
}
