/* Plans the mesh that parallel.* sets; if it sets none, the fastest mesh that fits and that a command starts. With
 * plan_command.predicted, or where no such mesh starts: the fastest that fits. */
#ifndef INGOT_PLAN_MESH_CHOOSE_H
#define INGOT_PLAN_MESH_CHOOSE_H
#include "plan/mesh_plan.h"

/* The chosen one of a list's meshes; NULL: none fits. */
const struct mesh_result *mesh_list_chosen(const struct mesh_list *list, bool predicted);
/* STATUS_OUT_OF_MEMORY: the mesh does not fit, or none fits; *r is then the nearest. STATUS_CONFIG: no mesh is
 * possible. */
status mesh_choose(struct mesh_plan *p, struct mesh_result *r) WARN_UNUSED;
/* The same. *faster: seconds per step of the fastest mesh that fits, if no command starts it and *r is another; else 0.
 */
status mesh_choose_beside(struct mesh_plan *p, struct mesh_result *r, double *faster) WARN_UNUSED;
#endif
