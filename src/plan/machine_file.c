#include "plan/machine_file.h"
#include "base/io.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { REAL, WHOLE, SWITCH };
struct field {
    const char *name;
    size_t at;
    enum kind kind;
    int count;
    bool needed; /* no plan without it */
};
#define ONE(name, kind, needed)                                                                              \
    {                                                                                                        \
#name, offsetof(struct machine, name), kind, 1, needed                                               \
    }
#define MANY(name, count, needed)                                                                            \
    {                                                                                                        \
#name, offsetof(struct machine, name), REAL, count, needed                                           \
    }
static const struct field FIELDS[] = {
    ONE(sm, WHOLE, true),
    ONE(multiprocessors, WHOLE, true),
    ONE(node, WHOLE, true),
    ONE(host, WHOLE, false),
    ONE(pod, WHOLE, false),
    ONE(overlap, SWITCH, false),
    ONE(rails, SWITCH, false),
    ONE(measured_8, SWITCH, false),
    ONE(memory_bytes, REAL, true),
    ONE(memory_rate, REAL, true),
    ONE(stream_rate, REAL, true),
    ONE(peak_bf16, REAL, true),
    ONE(peak_fp8, REAL, false),
    ONE(peak_tf32, REAL, false),
    ONE(peak_fp32, REAL, false),
    MANY(share_16, MACHINE_WIDTHS, true),
    MANY(share_32, MACHINE_WIDTHS, false),
    MANY(share_8, MACHINE_WIDTHS, false),
    ONE(full_8, REAL, false),
    ONE(block_8, REAL, false),
    ONE(mx_8, REAL, false),
    ONE(nv_4, REAL, false),
    ONE(round_rate, REAL, false),
    MANY(narrow_forward, 2, true),
    MANY(narrow_backward, 2, true),
    MANY(wide_forward, 2, true),
    MANY(wide_backward, 2, true),
    MANY(latent_forward, 2, true),
    MANY(latent_backward, 2, true),
    ONE(linear_forward, REAL, true),
    ONE(linear_backward, REAL, true),
    ONE(link_rate, REAL, true),
    ONE(net_rate, REAL, true),
    ONE(spine, REAL, false),
    ONE(host_rate, REAL, true),
    ONE(host_bytes, REAL, false),
    ONE(host_memory_rate, REAL, false),
    ONE(latency_base, REAL, true),
    ONE(latency_hop, REAL, true),
    ONE(latency_net, REAL, true),
    ONE(gap, REAL, false),
};
enum { FIELD_COUNT = sizeof FIELDS / sizeof FIELDS[0], FILE_BYTES_MAX = 1 << 16 };

struct reader {
    const char *path;
    int line;
    const struct machine *(*row)(const char *name);
    bool given[FIELD_COUNT], like;
};

static const struct field *field_of(const char *name)
{
    for (int i = 0; i < FIELD_COUNT; i++)
        if (strcmp(FIELDS[i].name, name) == 0) return &FIELDS[i];
    return NULL;
}

static status unknown(const struct reader *r, const char *name)
{
    const char *all[FIELD_COUNT];
    for (int i = 0; i < FIELD_COUNT; i++) all[i] = FIELDS[i].name;
    const char *near = text_nearest(name, all, FIELD_COUNT);
    return FAIL(STATUS_CONFIG, "%s:%d: a machine has no '%s'%s%s%s", r->path, r->line, name,
                near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "");
}

/* Writes the numbers of a value; a number is above 0, a switch true or false. */
static bool set(struct machine *m, const struct field *f, char *value)
{
    char *place = (char *)m + f->at, *rest = value;
    int count = 0;
    for (char *word; (word = strtok_r(rest, " \t,[]", &rest)); count++) {
        double number = 0;
        bool on = false;
        if (f->kind == SWITCH ? !text_to_bool(word, &on) : !text_to_real(word, &number) || !(number > 0))
            return false;
        if (count == f->count || (f->kind == WHOLE && (number > 1e9 || number != (int)number))) return false;
        if (f->kind == SWITCH) *(bool *)place = on;
        if (f->kind == WHOLE) *(int *)place = (int)number;
        if (f->kind == REAL) ((double *)place)[count] = number;
    }
    return count == f->count;
}

static status read_like(struct reader *r, const char *value, struct machine *m)
{
    const struct machine *row = r->row(value);
    if (row == NULL)
        return FAIL(STATUS_CONFIG, "%s:%d: like: there is no machine '%s'", r->path, r->line, value);
    for (int i = 0; i < FIELD_COUNT; i++)
        if (r->given[i])
            return FAIL(STATUS_CONFIG, "%s:%d: like comes before all other lines", r->path, r->line);
    *m = *row;
    r->like = true;
    return STATUS_OK;
}

static char *trim(char *text)
{
    text += strspn(text, " \t\r");
    for (size_t n = strlen(text); n > 0 && strchr(" \t\r", text[n - 1]);) text[--n] = 0;
    return text;
}

static status read_line(struct reader *r, char *line, struct machine *m)
{
    line[strcspn(line, "#")] = 0;
    char *name = trim(line), *colon = strchr(name, ':');
    if (name[0] == 0) return STATUS_OK;
    if (colon == NULL) return FAIL(STATUS_CONFIG, "%s:%d: write NAME: VALUE", r->path, r->line);
    *colon = 0;
    char *value = trim(colon + 1);
    name = trim(name);
    if (strcmp(name, "like") == 0) return read_like(r, value, m);
    const struct field *f = field_of(name);
    if (f == NULL) return unknown(r, name);
    if (!set(m, f, value))
        return FAIL(STATUS_CONFIG, "%s:%d: %s takes %s%s", r->path, r->line, name,
                    f->kind == SWITCH ? "true or false"
                    : f->count == 1   ? "a number above 0"
                    : f->count == 2 ? "two numbers above 0: the share of the peak, and the keys at half of it"
                                    : "six numbers above 0: shares of the peak at widths of 256 to 8192",
                    f->kind == WHOLE ? ", whole" : "");
    r->given[f - FIELDS] = true;
    return STATUS_OK;
}

static status missing(const struct reader *r, const char *name)
{
    return FAIL(STATUS_CONFIG,
                "%s: %s is missing: give it, or start from a known machine with a first line "
                "such as like: h100",
                r->path, name);
}

static status check(const struct reader *r, const struct machine *m)
{
    for (int i = 0; i < FIELD_COUNT && !r->like; i++)
        if (FIELDS[i].needed && !r->given[i]) return missing(r, FIELDS[i].name);
    if (m->peak_fp8 > 0 && m->share_8[0] > 0 && m->full_8 <= 0) return missing(r, "full_8");
    if (m->share_8[0] > 0 && m->peak_fp8 <= 0) return missing(r, "peak_fp8");
    if (m->peak_tf32 + m->peak_fp32 > 0 && m->share_32[0] <= 0) return missing(r, "share_32");
    if (m->spine > 0 && m->pod <= 0) return missing(r, "pod");
    return STATUS_OK;
}

status machine_file_read(const char *path, const struct machine *(*row)(const char *name), struct machine *m)
{
    struct reader r = {.path = path, .row = row};
    char *text, *rest;
    size_t bytes;
    status st = STATUS_OK;
    *m = (struct machine){.words = "", .kind = DEV_CUDA, .overlap = true};
    TRY(io_read_file(path, FILE_BYTES_MAX, &text, &bytes));
    rest = text;
    for (char *line; st == STATUS_OK && (line = strsep(&rest, "\n"));) {
        r.line++;
        st = read_line(&r, line, m);
    }
    free(text);
    TRY(st);
    return check(&r, m);
}
