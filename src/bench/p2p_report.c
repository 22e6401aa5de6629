#include "bench/p2p_report.h"
#include "base/io.h"
#include "base/memory.h"

#include <stdlib.h>

void p2p_report_open(struct p2p_report *r, const char *bench, const char *gpu, const char *path)
{
    *r = (struct p2p_report){.bench = bench, .gpu = gpu, .path = path};
    if (path) r->lines = memory_stream(&r->text, &r->text_bytes);
}

static void write_line(FILE *f, const struct p2p_report *r, const struct p2p_row *row, enum target_verdict v,
                       double target)
{
    fprintf(f, "{\"bench\":\"%s\",\"device\":\"%s\",\"what\":\"%s\"", r->bench, r->gpu, row->what);
    if (row->op) fprintf(f, ",\"op\":\"%s\"", row->op);
    if (row->way) fprintf(f, ",\"way\":\"%s\"", row->way);
    if (row->from >= 0) fprintf(f, ",\"from\":%d", row->from);
    if (row->to >= 0) fprintf(f, ",\"to\":%d", row->to);
    fprintf(f, ",\"gpus\":%d,\"bytes\":%zu,\"graph\":%s", row->gpus, row->bytes,
            row->graph ? "true" : "false");
    if (row->us > 0) fprintf(f, ",\"us\":%.3f", row->us);
    if (row->gbs > 0) fprintf(f, ",\"algorithm_gbs\":%.4f", row->gbs);
    if (row->bus_gbs > 0) fprintf(f, ",\"bus_gbs\":%.4f", row->bus_gbs);
    if (v != TARGET_NONE) fprintf(f, ",\"expected\":%.4g", target);
    fprintf(f, ",\"verdict\":\"%s\",\"checked\":true}\n", target_verdict_text(v));
}

enum target_verdict p2p_report_row(struct p2p_report *r, const struct p2p_row *row, char text[TARGET_TEXT])
{
    enum target_verdict v = TARGET_NONE;
    struct target t = {0};
    text[0] = 0;
    const double rate = row->bus_gbs > 0 ? row->bus_gbs : row->gbs;
    if (!row->unjudged && rate > 0 && target_find(r->gpu, row->what, row->bytes, TARGET_GBS, &t))
        v = target_judge(&t, row->what, rate, row->gpus, text);
    else if (!row->unjudged && row->us > 0 && target_find(r->gpu, row->what, row->bytes, TARGET_US, &t))
        v = target_judge(&t, row->what, row->us, row->gpus, text);
    r->pass += v == TARGET_PASS, r->look += v == TARGET_LOOK;
    if (r->lines) write_line(r->lines, r, row, v, t.value);
    if (r->to_stdout) {
        write_line(stdout, r, row, v, t.value);
        fflush(stdout);
    }
    return v;
}

status p2p_report_close(struct p2p_report *r, status st)
{
    if (r->lines) memory_stream_close(r->lines);
    if (r->lines && st == STATUS_OK) st = io_write_file(r->path, r->text, r->text_bytes);
    free(r->text);
    r->lines = NULL, r->text = NULL;
    return st;
}
