/* mesh_why: why a mesh was not chosen, and which keys would change its time and memory most. */
#ifndef INGOT_PLAN_MESH_WHY_H
#define INGOT_PLAN_MESH_WHY_H
#include "plan/duration.h"
#include "plan/mesh_plan.h"

/* `ingot plan RUN.yaml --machine NAME --why MESH`. `mesh` is "best", or axes in any order such as tp4.pp2.dp8; an axis
 * that is left out is 1, but for dp, which has the rest. Its fastest variant is compared with the fastest of all, part
 * by part; then with its neighbours, each planned in full: one key changed at a time. STATUS_CONFIG: no such mesh, or
 * the model cannot run on it (says why). A mesh that does not fit is an answer, not an error. */
status mesh_why_print(const struct spec *s, const char *machine, const char *mesh, const struct plan_command *command,
                      bool json) WARN_UNUSED;
#endif
