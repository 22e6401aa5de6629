/* Any bytes as metrics.jsonl: the report is made or refused, and its numbers are numbers. */
#include "observe/observe.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One directory for all inputs of the process; its file is replaced each time. */
static char dir[64];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void remove_dir(void)
{
    char path[128];
    static const char *const names[] = {"metrics.jsonl", "report.html"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        remove(path);
    }
    remove(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[128];
    if (dir[0] == 0) {
        snprintf(dir, sizeof dir, "/tmp/ingot-fuzz-report-XXXXXX");
        if (mkdtemp(dir) == NULL) abort();
        atexit(remove_dir);
    }
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "wb");
    if (f == NULL) abort();
    fwrite(data, 1, bytes, f);
    fclose(f);
    if (report_write(dir, NULL) != STATUS_OK) abort();
    return 0;
}
