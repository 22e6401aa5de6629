/* outlook: what a planned run needs besides its mesh: wall time with failures, checkpoints, money, energy, storage. */
#ifndef INGOT_PLAN_OUTLOOK_H
#define INGOT_PLAN_OUTLOOK_H
#include "plan/goodput.h"
#include "plan/mesh_plan.h"

/* Options of the user; outlook_default returns the defaults. */
struct outlook_args {
    double tokens;              /* of the run; 0: as train.steps or train.tokens say */
    double price;               /* per device hour, in the user's currency; 0: not known */
    double pue;                 /* energy of the site over that of the systems */
    double mtbf;                /* device hours between two failures; INFINITY: none */
    double detect, restart;     /* seconds; restart: without reading the checkpoint */
    double stall;               /* seconds that training stands still for a checkpoint; < 0: as ckpt.async says, for the
                                   copy of the state, or until it is written (train/save.h) */
    double storage;             /* bytes/s that all devices read and write; 0: OUTLOOK_STORAGE each */
    double interval;            /* seconds of work between two checkpoints; 0: the best, or a longer one that costs less
                                   than OUTLOOK_LOSS */
};
/* Llama 3: 2 TB/s for 16,384 GPUs (arXiv:2407.21783, section 3.3.1). */
#define OUTLOOK_STORAGE 0.125e9
/* Seconds; assumptions. What is published means something else: MegaScale detects and diagnoses a failure in less than
 * 10 minutes on average, and has caught up with the lost work within 15 (arXiv:2402.15627, section 6.3); FlashRecovery
 * detects within seconds and restores training on 4,800 devices in 150 s, without a checkpoint (arXiv:2509.03047). */
#define OUTLOOK_DETECT  30
#define OUTLOOK_RESTART 300
/* Saves and lost work that cost less than this share of the time may be rarer. */
#define OUTLOOK_LOSS 1e-3
struct outlook_args outlook_default(void);

struct outlook {
    double tokens, steps, step; /* step: seconds of one, without failures */
    double checkpoint_bytes, storage;
    struct goodput_job job;
    struct goodput goodput;
    double seconds;             /* of wall time */
    double device_hours, money; /* money 0: no price */
    double watts, joules;       /* watts: per device, with its part of the system; 0: not known */
    bool system;                /* watts are the system's, else the device's alone */
    double device_watts, system_watts; /* per device, of plan/power.def; 0: not known */
    double failures, checkpoints; /* checkpoints before the end */
    double storage_one;         /* bytes/s with which checkpoints and lost work cost 1 % of the time; 0: no failures */
    double kept_bytes;          /* of the checkpoints that ckpt.keep keeps, and one that is being written */
};
/* `step`: seconds, planned or simulated. STATUS_CONFIG: the run has no length. */
status outlook_of(const struct mesh_plan *p, const struct mesh_result *r, double step,
                  const struct outlook_args *a, struct outlook *out) WARN_UNUSED;
#endif
