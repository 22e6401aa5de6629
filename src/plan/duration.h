/* duration: from the time of a step to the time of the whole run, as text and as JSON. */
#ifndef INGOT_PLAN_DURATION_H
#define INGOT_PLAN_DURATION_H
#include "parallel/mesh.h"
#include "spec/spec.h"

#include <jansson.h>

/* The command line of `ingot plan`. words: RUN.yaml and keys, quoted for a shell, for the command that starts the run.
 * micro_batch, recompute: true if the command line sets that key; a search over meshes then keeps it. predicted:
 * --predicted, the search chooses by speed alone, also meshes that no command starts. */
struct assume;
struct plan_command {
    char *words;
    bool micro_batch, recompute, predicted;
    const struct assume *assume; /* NULL: no assumptions */
    const struct past_errors *past;     /* NULL: no earlier predictions (plan/past_errors.h) */
};
/* Number of devices: of the job, per host; and their name in texts ("GPU", "device"). */
struct plan_devices {
    int count, host;
    const char *unit;
    bool gpu;
};
/* Prints "run  1000 steps, 2.05M tokens: 53 min, 0.9 GPU hours". `step`: seconds. Prints nothing if the spec has no
 * length. */
void duration_print(const struct spec *s, double step, const struct plan_devices *d);
/* {"steps", "tokens", "seconds_per_step", "seconds", "device_hours", "command"}; unknown values, and a NULL command,
 * are left out. `step`: seconds; NaN: not known. */
json_t *duration_json(const struct spec *s, double step, const struct plan_devices *d, const char *command);
/* "ingot launch -n 8 -- train WORDS KEYS" in buf: the keys that `mesh`, recompute and micro-batch change in the spec.
 * Returns buf. */
enum { PLAN_COMMAND = 2048 };
const char *duration_command(char buf[PLAN_COMMAND], const struct spec *s, const struct plan_command *c,
                             const struct plan_devices *d, const struct mesh_shape *mesh, int recompute,
                             int64_t micro_batch);
/* The reason why no command starts this mesh: a feature that `ingot train` does not have on GPUs so far. NULL: it can
 * start. Else returns buf. */
enum { PLAN_WHY = 512 };
const char *duration_lacks(char buf[PLAN_WHY], const struct spec *s, const struct plan_devices *d,
                           const struct mesh_shape *mesh);
#endif
