/* The mesh that a question about a whole run is about: that of parallel.*, or the fastest that fits and that a command
 * starts; with plan_command.predicted, or where none starts, the fastest that fits. */
#ifndef INGOT_PLAN_MESH_CHOOSE_H
#define INGOT_PLAN_MESH_CHOOSE_H
#include "plan/mesh_plan.h"

/* Of a list's meshes that fit; NULL: none. */
const struct mesh_result *mesh_list_chosen(const struct mesh_list *list, bool predicted);
/* STATUS_FIT: it does not fit, or none does; *r is then the nearest. STATUS_CONFIG: none is possible. */
status mesh_choose(struct mesh_plan *p, struct mesh_result *r) WARN_UNUSED;
#endif
