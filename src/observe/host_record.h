/* The host's record: one thread per host reads its GPUs (NVML) and its memory, load and disk once a second, and writes
 * RUN/gpu-HOST.jsonl, a line per GPU and one of the host for every interval: docs/FORMATS.md. It runs beside training
 * and never stops it: what cannot be read or written is missing. */
#ifndef INGOT_OBSERVE_HOST_RECORD_H
#define INGOT_OBSERVE_HOST_RECORD_H
#include "base/status.h"
#include "observe/observe.h"

struct host_record;
/* Starts it; `every_s`: interval of the lines, above 0. On failure *h is NULL, and the run goes on without. */
status host_record_start(struct host_record **h, const char *run_dir, double every_s) WARN_UNUSED;
/* Sets the gpu_* and host_* fields of the record by the last sample; NaN: not known. NULL: sets none. */
void host_record_metrics(struct host_record *h, struct metrics *m);
/* Writes what is left and ends it. Waits two seconds at most: a call of NVML may hang while a GPU dies. NULL: nothing. */
void host_record_stop(struct host_record *h);
/* Samples so far, and the CPU time that they took. */
void host_record_cost(struct host_record *h, int64_t *samples, double *cpu_s);
#endif
