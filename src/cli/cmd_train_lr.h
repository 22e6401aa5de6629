/* ingot train --lr-find. */
#ifndef INGOT_CLI_CMD_TRAIN_LR_H
#define INGOT_CLI_CMD_TRAIN_LR_H
#include "train/lr_find.h"

/* LOW:HIGH:STEPS, LOW:HIGH or "" for what is not said: 1e-6 to 1 in 100 steps. */
status lr_find_range(const char *text, struct lr_find_options *o) WARN_UNUSED;
/* The test of a run, as the rank that `env` says; rank 0 prints the result and writes it below RUN/lr-find. */
status cmd_lr_find(const struct spec *spec, struct lr_find_options *o, const struct comm_env *env,
                   bool json) WARN_UNUSED;
#endif
