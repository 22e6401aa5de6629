#include "train/device_times.h"
#include "base/io.h"
#include "base/log.h"
#include "dev/dev.h"
#include "observe/kernels.h"
#include "observe/observe.h"
#include "plan/machine.h"
#include "train/trainer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Device times are recorded for some steps of a traced GPU run. Recording costs time and a hundred kilobytes
 * per step; the first steps load, measure and capture. */
enum { RECORD_AFTER = 3, RECORD_STEPS = 10 };

void device_times_open(const struct trainer *t)
{
    if (t->dev.kind != DEV_CUDA) return;
    if (kernels_open() != STATUS_OK) log_warn("%s", status_message());
}

void device_times_before(int64_t steps)
{
    if (steps == RECORD_AFTER && kernels_record(true) != STATUS_OK) {
        log_warn("%s", status_message());
        kernels_close();
    }
    kernels_flush(0);
}

void device_times_after(int64_t steps)
{
    kernels_flush(1);
    if (steps != RECORD_AFTER + RECORD_STEPS) return;
    if (kernels_record(false) != STATUS_OK) log_warn("%s", status_message());
}

void device_times_close(const struct trainer *t, struct breakdown *b, struct observe *o, const char *path)
{
    kernels_breakdown(b);
    b->link_rate = machine_host_both(machine_of_gpu(t->dev.name));
    kernels_close();
    if (b->steps == 0) return;
    json_t *j = breakdown_json(b, 0);
    char *text = json_dumps(j, JSON_INDENT(1)), name[64];
    if (text && io_write_file(path, text, strlen(text)) != STATUS_OK) log_warn("%s", status_message());
    free(text);
    json_decref(j);
    for (int i = 0; i < KERNEL_PART_COUNT; i++) {
        snprintf(name, sizeof name, "step_percent.%s", kernel_part_key(i));
        observe_fact(o, name, b->parts[i].percent);
    }
}
