/* calibrate: rates of this machine for `ingot plan --machine FILE` (plan/machine_file.h). */
#ifndef INGOT_BENCH_CALIBRATE_H
#define INGOT_BENCH_CALIBRATE_H
#include "base/status.h"
#include "dev/dev.h"

struct calibrate_machine {
    const char *path;       /* of the file; PATH.part until all is measured */
    const char *machine;    /* "8xh200": ranks between which links are measured, and the row of machine.def to start
                               from; NULL: two ranks on a host, one on a GPU, whose links are then not measured; this
                               device's row */
    enum dev_kind device;
};
/* Measures for some minutes, and prints a line for each number. What PATH.part has is not measured again.
 * STATUS_CONFIG: PATH.part is of another machine, or there is no row to start from. */
status calibrate_machine(const struct calibrate_machine *a) WARN_UNUSED;
#endif
