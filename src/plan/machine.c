#include "plan/machine.h"
#include "base/text.h"
#include "plan/machine_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct machine MACHINES[] = {
#define MACHINE(word, text, ...) {.name = #word, .words = text, __VA_ARGS__},
#include "spec/machine.def"
#undef MACHINE
};
enum { MACHINE_COUNT = sizeof MACHINES / sizeof MACHINES[0], DEVICES_MAX = 1 << 20 };

static bool can_be_named(const struct machine *m)
{
    return strcmp(m->name, "none") != 0;
}

static const struct machine *find(const char *word)
{
    for (int i = 0; i < MACHINE_COUNT; i++)
        if (can_be_named(&MACHINES[i]) && strcasecmp(MACHINES[i].name, word) == 0) return &MACHINES[i];
    return NULL;
}

static status refused(const char *text, const char *why)
{
    char words[256] = "";
    size_t used = 0;
    for (int i = 0; i < MACHINE_COUNT; i++) {
        if (!can_be_named(&MACHINES[i])) continue;
        used +=
            (size_t)snprintf(words + used, sizeof words - used, "%s%s", used ? ", " : "", MACHINES[i].name);
        CHECK(used < sizeof words, "the names of machines need more than %zu bytes", sizeof words);
    }
    return FAIL(STATUS_CONFIG,
                "--machine %.64s: %swrite COUNTxNAME or NODESxCOUNTxNAME, as 8xh200 or 2x8xh100; names: %s",
                text, why, words);
}

static status unknown(const char *text)
{
    return refused(text, "");
}

static status beyond(const char *text)
{
    char why[64];
    snprintf(why, sizeof why, "a plan is for 1 to %d devices: ", (int)DEVICES_MAX);
    return refused(text, why);
}

/* The row, or the machine of the file, which the cluster keeps. */
static status machine_named(const char *text, const char *word, struct cluster *c)
{
    *c = (struct cluster){.machine = find(word)};
    if (c->machine) return STATUS_OK;
    if (strpbrk(word, "./") == NULL) return unknown(text);
    TRY(machine_file_read(word, find, &c->own));
    snprintf(c->own_name, sizeof c->own_name, "%s", word);
    c->own.name = c->own_name;
    c->machine = &c->own;
    return STATUS_OK;
}

status cluster_parse(const char *text, struct cluster *c)
{
    char copy[MACHINE_PATH];
    int64_t numbers[2];
    int count = 0;
    if (strlen(text) >= sizeof copy) return unknown(text);
    snprintf(copy, sizeof copy, "%s", text);
    char *at = copy;
    for (size_t digits; count < 2 && (digits = strspn(at, "0123456789")) > 0; count++, at += digits + 1) {
        if (at[digits] != 'x' && at[digits] != 'X') return unknown(text);
        at[digits] = 0;
        if (!text_to_int(at, &numbers[count]) || numbers[count] < 1 || numbers[count] > DEVICES_MAX)
            return beyond(text);
    }
    TRY(machine_named(text, at, c));
    const struct machine *m = c->machine;
    const int64_t nodes = count == 2 ? numbers[0] : 1, each = count > 0 ? numbers[count - 1] : 1;
    if (nodes * each > DEVICES_MAX) return beyond(text);
    if (count == 2 && each > m->node)
        return FAIL(STATUS_CONFIG, "--machine %s: a node of %s has at most %d devices with fast links", text,
                    m->name, m->node);
    c->devices = (int)(nodes * each);
    c->node = (int)(count == 2 || each < m->node ? each : m->node);
    return STATUS_OK;
}

const char *cluster_text(char buf[64], const struct cluster *c)
{
    const int nodes = (c->devices + c->node - 1) / c->node;
    snprintf(buf, 64, "%d x %.32s in %d node%s", c->devices, c->machine->name, nodes, nodes > 1 ? "s" : "");
    return buf;
}

int cluster_host(const struct cluster *c)
{
    return c->machine->host > 0 && c->machine->host < c->node ? c->machine->host : c->node;
}

const struct machine *machine_of_gpu(const char *gpu)
{
    for (int i = 0; i < MACHINE_COUNT; i++)
        if (MACHINES[i].words[0] && strstr(gpu, MACHINES[i].words))
            return strcmp(MACHINES[i].name, "none") == 0 ? NULL : &MACHINES[i];
    return NULL;
}

double machine_host_both(const struct machine *m)
{
    const double share = 0.91; /* H200, PCIe 5, 64 MiB copies: 55.3 GB/s one way, 50.6 each of both ways */
    if (m == NULL) return 0;
    return m->host_memory_rate > 0 ? fmin(share * m->host_rate, m->host_memory_rate / 2)
                                   : share * m->host_rate;
}

double machine_peak(const struct machine *m, enum precision precision)
{
    switch (precision) {
    case PRECISION_FP8:   /* head and attention compute in bf16; GEMMs of codes: machine_fp8_rate */
    case PRECISION_MXFP8: /* emulated: GEMMs in bf16 */
    case PRECISION_NVFP4:
    case PRECISION_BF16: return m->peak_bf16;
    case PRECISION_TF32: return m->peak_tf32;
    case PRECISION_FP32: return m->peak_fp32;
    }
    return 0;
}

/* The rates of GEMMs by width, as shares of the peak. */
static const double *shares_of(const struct machine *m, enum precision precision)
{
    switch (precision) {
    case PRECISION_FP8:
    case PRECISION_MXFP8:
    case PRECISION_NVFP4:
    case PRECISION_BF16: return m->share_16;
    case PRECISION_TF32:
    case PRECISION_FP32: break;
    }
    return m->share_32;
}

static double rate_at(double peak, const double shares[MACHINE_WIDTHS], double width)
{
    const double at = log2(fmax(width, 1) / MACHINE_WIDTH_MIN);
    if (at <= 0) return peak * shares[0] * fmax(width, 1) / MACHINE_WIDTH_MIN; /* less than a tile */
    if (at >= MACHINE_WIDTHS - 1) return peak * shares[MACHINE_WIDTHS - 1];
    const int i = (int)at;
    return peak * (shares[i] + (at - i) * (shares[i + 1] - shares[i]));
}

double machine_gemm_rate(const struct machine *m, enum precision precision, double width)
{
    return rate_at(machine_peak(m, precision), shares_of(m, precision), width);
}

bool machine_has_fp8(const struct machine *m)
{
    return m->kind == DEV_CPU || m->share_8[0] > 0;
}

double machine_fp8_rate(const struct machine *m, double width, bool fast)
{
    if (m->kind == DEV_CPU) return machine_gemm_rate(m, PRECISION_BF16, width);
    return rate_at(m->peak_fp8, m->share_8, width) * (fast ? 1 : m->full_8);
}

/* Over FP8 codes with one scale per tensor. */
static double blocks_factor(const struct machine *m, enum block_format format)
{
    switch (format) {
    case BLOCKS_E4M3:
    case BLOCKS_E5M2: return m->share_8[0] > 0;
    case BLOCKS_B128: return m->block_8;
    case BLOCKS_MX: return m->mx_8;
    case BLOCKS_NV: return m->nv_4;
    case BLOCK_FORMATS: break;
    }
    return 0;
}

bool machine_has_blocks(const struct machine *m, enum block_format format)
{
    return m->kind != DEV_CPU && m->share_8[0] > 0 && blocks_factor(m, format) > 0;
}

double machine_blocks_rate(const struct machine *m, enum block_format format, double width, bool fast)
{
    const double factor = blocks_factor(m, format), rate = machine_fp8_rate(m, width, fast),
                 wide = machine_fp8_rate(m, MACHINE_WIDTH_MIN << (MACHINE_WIDTHS - 1), fast);
    if (factor <= 1) return factor * rate;
    return 1 / (1 / rate - 1 / wide + 1 / (factor * wide));
}

double machine_attention_rate(const struct machine *m, enum precision precision, int64_t head_dim,
                              int64_t tokens, bool backward)
{
    const struct machine_curve curves[][2] = {{m->narrow_forward, m->narrow_backward},
                                              {m->wide_forward, m->wide_backward},
                                              {m->latent_forward, m->latent_backward}};
    const struct machine_curve c = curves[(head_dim > 64) + (head_dim > 128)][backward];
    switch (precision) {
    case PRECISION_FP8:
    case PRECISION_MXFP8:
    case PRECISION_NVFP4:
    case PRECISION_BF16: return m->peak_bf16 * c.share * (double)tokens / ((double)tokens + c.half);
    case PRECISION_TF32:
    case PRECISION_FP32: break; /* no attention kernels on tensor cores: the GEMMs' rate at a head's width */
    }
    return machine_gemm_rate(m, precision, MACHINE_WIDTH_MIN);
}

double machine_linear_rate(const struct machine *m, enum precision precision, bool backward)
{
    return machine_peak(m, precision) * (backward ? m->linear_backward : m->linear_forward);
}
