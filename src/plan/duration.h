/* duration: what a step's time makes of the whole run, as text and as JSON. */
#ifndef INGOT_PLAN_DURATION_H
#define INGOT_PLAN_DURATION_H
#include "parallel/mesh.h"
#include "spec/spec.h"

#include <jansson.h>

/* How `ingot plan` was asked. words: RUN.yaml and keys, quoted for a shell, for the command that starts the run.
 * micro_batch, recompute: the keys that it gives, which a search over meshes keeps. predicted: meshes are chosen by
 * speed alone, also those that no command starts. */
struct assume;
struct plan_command {
    char *words;
    bool micro_batch, recompute, predicted;
    const struct assume *assume; /* NULL: nothing */
    const struct past_errors *past;     /* NULL: nothing (plan/past_errors.h) */
};
/* Devices that run, per host, and what a GPU is called ("GPU", "device"). */
struct plan_devices {
    int count, host;
    const char *unit;
    bool gpu;
};
/* Prints "run  1000 steps, 2.05M tokens: 53 min, 0.9 GPU hours"; nothing when the spec has no length. */
void duration_print(const struct spec *s, double step, const struct plan_devices *d);
/* {"steps", "tokens", "seconds_per_step", "seconds", "device_hours", "command"}; what is not known is missing, and a
 * NULL command. `step` NaN: not known. */
json_t *duration_json(const struct spec *s, double step, const struct plan_devices *d, const char *command);
/* "ingot launch -n 8 -- train WORDS KEYS" in buf: the keys that `mesh`, recompute and micro-batch change in the spec.
 * Returns buf. */
enum { PLAN_COMMAND = 2048 };
const char *duration_command(char buf[PLAN_COMMAND], const struct spec *s, const struct plan_command *c,
                             const struct plan_devices *d, const struct mesh_shape *mesh, int recompute,
                             int64_t micro_batch);
/* Why no command starts this mesh: what the plan has and `ingot train` on GPUs lacks so far. NULL: it has all. Else
 * buf. */
enum { PLAN_WHY = 512 };
const char *duration_lacks(char buf[PLAN_WHY], const struct spec *s, const struct plan_devices *d,
                           const struct mesh_shape *mesh);
#endif
