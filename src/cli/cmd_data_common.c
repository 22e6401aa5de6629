/* Shared by the data verbs: a progress line for passes over shards, and the flags for shards of other
 * programs. */
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cmd_data.h"
#include "data/shard/shard.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FIRST_MS = 1000, TERMINAL_MS = 200, LINE_MS = 10000 };

static void wipe(void)
{
    fputs("\r\033[K", stderr);
}

void cmd_data_meter_begin(struct cmd_data_meter *m, const char *verb)
{
    *m = (struct cmd_data_meter){.verb = verb, .start_ns = clock_ns(), .terminal = isatty(STDERR_FILENO)};
    m->next_ns = m->start_ns + (m->terminal ? FIRST_MS : LINE_MS) * 1000000ll;
    if (m->terminal) log_before_line_set(wipe);
}

void cmd_data_meter_show(void *ctx, int64_t done, int64_t total)
{
    struct cmd_data_meter *m = ctx;
    int64_t now = clock_ns();
    if (now < m->next_ns || done == 0) return;
    m->next_ns = now + (m->terminal ? TERMINAL_MS : LINE_MS) * 1000000ll;
    double rate = (double)done / ((double)(now - m->start_ns) * 1e-9);
    char a[32], b[32], speed[32], eta[32], line[200];
    snprintf(line, sizeof line, "%s of %s %s (%d%%), %s/s, ETA %s", text_bytes(a, (double)done),
             text_bytes(b, (double)total), m->verb, (int)(100.0 * (double)done / (double)total),
             text_bytes(speed, rate), text_duration(eta, (double)(total - done) / rate));
    if (m->terminal)
        fprintf(stderr, "\r\033[K%s", line);
    else
        log_info("%s", line);
    m->shown = true;
}

void cmd_data_meter_end(struct cmd_data_meter *m)
{
    log_before_line_set(NULL);
    if (m->terminal && m->shown) wipe();
}

status cmd_data_hints(const struct cmd_data_hints *f, struct shard_hints *out)
{
    static const char *const eods[] = {
#define X(value, word) [EOD_##value] = (word),
        EOD_WORDS(X)
#undef X
    };
    *out = (struct shard_hints){SHARD_TYPE_UNKNOWN, EOT_AUTO, EOD_AUTO};
    if (f->dtype) {
        out->type = shard_type_find(f->dtype);
        if (out->type == SHARD_TYPE_UNKNOWN)
            return FAIL(STATUS_CONFIG, "--dtype %s: uint16, uint32, int32, int64 or uint8 is expected",
                        f->dtype);
    }
    if (f->eot < -1 || f->eot > INT32_MAX)
        return FAIL(STATUS_CONFIG, "--eot %lld: an id is expected", (long long)f->eot);
    out->eot = (int32_t)f->eot;
    for (int i = 0; f->eod && i < (int)(sizeof eods / sizeof eods[0]); i++)
        if (strcmp(eods[i], f->eod) == 0) out->eod = i;
    if (f->eod && out->eod == EOD_AUTO)
        return FAIL(STATUS_CONFIG, "--eod %s: before, after or none is expected", f->eod);
    return STATUS_OK;
}
