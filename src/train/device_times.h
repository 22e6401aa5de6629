/* device_times: kernel times of some steps of a traced GPU run (`--trace`), and what they add up to. */
#ifndef INGOT_TRAIN_DEVICE_TIMES_H
#define INGOT_TRAIN_DEVICE_TIMES_H
#include <stdint.h>

struct breakdown;
struct observe;
struct trainer;
void device_times_open(const struct trainer *t); /* nothing without a GPU */
/* Around each step; `steps`: of this process, done before and after it. */
void device_times_before(int64_t steps);
void device_times_after(int64_t steps);
/* Fills *b, writes it to `path` as JSON, and as facts for the report. */
void device_times_close(const struct trainer *t, struct breakdown *b, struct observe *o, const char *path);
#endif
