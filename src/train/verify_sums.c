#include "train/verify_sums.h"
#include "base/parallel.h"
#include "base/text.h"
#include "train/state_int.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PIECE = 1 << 20 };

/* Cuts `bytes` of a row into pieces. */
static status add(struct verify_pieces *p, int row, const char *what, const void *data, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += PIECE) {
        if (p->count == p->room) {
            const int64_t room = p->room ? 2 * p->room : 256;
            struct verify_piece *list = realloc(p->list, (size_t)room * sizeof *list);
            if (list == NULL)
                return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the list of checksums (train.verify)");
            p->list = list;
            p->room = room;
        }
        const int64_t left = bytes - at;
        p->list[p->count++] =
            (struct verify_piece){(const char *)data + at, left < PIECE ? left : PIECE, row, what};
    }
    return STATUS_OK;
}

status verify_pieces_gradients(struct verify_pieces *p, const struct trainer *t)
{
    const struct params *params = &t->decoder.params;
    for (int i = 0; i < params->count; i++)
        TRY(add(p, i, "the gradient", params_grad(params, i),
                params->rows[i].count * (int64_t)dtype_bytes(dtype_acc(params->dt))));
    return STATUS_OK;
}

/* Whether ranks that share the state hold a row alike. Routers' biases move after their unit went round: ranks without
 * them keep those of the step before, and read the fp32 copies. */
static bool same_on_all(const struct params *p, int row)
{
    return p->zero == 0 || p->rows[row].role != ROLE_BALANCE;
}

static status add_weights(struct verify_pieces *p, const struct params *params, bool on_all)
{
    for (int i = 0; i < params->count; i++)
        if (same_on_all(params, i) == on_all)
            TRY(add(p, i, "the weights", params_weight(params, i),
                    params->rows[i].count * (int64_t)dtype_bytes(params->dt)));
    return STATUS_OK;
}

/* Those that are whole on every rank. */
static status add_f32(struct verify_pieces *p, const struct params *params)
{
    for (int i = 0; i < params->count && params->derived[DERIVED_F32].bytes > 0; i++)
        if (params->rows[i].derived[DERIVED_F32] && params->units[params->rows[i].unit].is_local)
            TRY(add(p, i, "the fp32 copies of weights", params_f32(params, i),
                    params->rows[i].count * (int64_t)sizeof(float)));
    return STATUS_OK;
}

/* What this rank updates of array k, but weights. */
static status add_array(struct verify_pieces *p, const struct state *s, int k)
{
    static const char *const names[STATE_ARRAYS] = {"", "the first moments", "the second moments",
                                                    "the scales of the first moments",
                                                    "the scales of the second moments"};
    const struct params *params = &s->t->decoder.params;
    for (int i = 0; i < params->count; i++) {
        const struct param_local_range held = params_local_range(params, i);
        if (!state_has_row(s, k, i)) continue;
        TRY(add(p, i, names[k], state_part(s, k, i, &held),
                state_blocks(&s->list[k], held.to - held.from) * (int64_t)dtype_bytes(s->list[k].dt)));
    }
    return STATUS_OK;
}

/* The residuals of split master weights. */
static status add_low(struct verify_pieces *p, const struct params *params)
{
    for (int i = 0; i < params->count && params->master_residual; i++) {
        const struct param_local_range held = params_local_range(params, i);
        TRY(add(p, i, "the low halves of the weights", params->master_residual + held.master,
                (held.to - held.from) * (int64_t)sizeof *params->master_residual));
    }
    return STATUS_OK;
}

status verify_pieces_state(struct verify_pieces *p, struct trainer *t)
{
    const struct params *params = &t->decoder.params;
    struct state s = {.t = t};
    state_list(&s);
    for (int k = 0; k < STATE_ARRAYS; k++) s.arrays[k] = s.list[k].device;
    TRY(add_weights(p, params, true));
    TRY(add_f32(p, params));
    p->common = p->count;
    TRY(add_weights(p, params, false));
    TRY(add_low(p, params));
    for (int k = 1; k < STATE_ARRAYS; k++) TRY(add_array(p, &s, k));
    if (params->zero == 0) p->common = p->count;
    return STATUS_OK;
}

void verify_pieces_free(struct verify_pieces *p)
{
    free(p->list);
    *p = (struct verify_pieces){0};
}

void verify_pieces_sum(const struct verify_pieces *p, uint64_t *sums)
{
    PARALLEL_CHUNKS(c, p->count)
    sums[c] = XXH3_64bits(p->list[c].data, (size_t)p->list[c].bytes);
}

int64_t verify_differ(const uint64_t *a, const uint64_t *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (a[i] != b[i]) return i;
    return -1;
}

/* ---- for tests */

static enum verify_flip flip_named(const char *name)
{
    static const char *const names[] = {"", "weight", "moment", "gradient", "unit", "update"};
    for (int i = 1; i < (int)(sizeof names / sizeof names[0]); i++)
        if (strcmp(name, names[i]) == 0) return (enum verify_flip)i;
    return FLIP_NONE;
}

status verify_fault_read(struct verify_fault *f, int rank)
{
    const char *text = getenv("INGOT_FLIP");
    char copy[64], *part[4] = {copy};
    int64_t on;
    *f = (struct verify_fault){FLIP_NONE, 0, 0};
    if (text == NULL) return STATUS_OK;
    snprintf(copy, sizeof copy, "%s", text);
    for (int i = 1; i < 4 && part[i - 1]; i++)
        if ((part[i] = strchr(part[i - 1], ':')) != NULL) *part[i]++ = 0;
    struct verify_fault read = {FLIP_NONE, -1, -1};
    const bool whole = part[1] && part[2] && part[3] && text_to_int(part[0], &on) &&
                       text_to_int(part[1], &read.step) && text_to_int(part[3], &read.bit);
    read.what = whole ? flip_named(part[2]) : FLIP_NONE;
    if (read.what == FLIP_NONE || read.step < 0 || read.bit < 0)
        return FAIL(STATUS_CONFIG, "INGOT_FLIP='%.60s' is not RANK:STEP:WHAT:BIT, as in 1:7:weight:12345",
                    text);
    if (on == rank) *f = read;
    return STATUS_OK;
}

/* Whether a piece is meant. */
static bool meant(const struct verify_fault *f, const struct verify_piece *p)
{
    const bool moment = strstr(p->what, "moments") != NULL;
    return f->what == FLIP_MOMENT ? moment : !moment;
}

void verify_fault_flip(const struct verify_fault *f, const struct verify_pieces *p)
{
    int64_t bits = 0, at;
    for (int64_t i = 0; i < p->count; i++) bits += meant(f, &p->list[i]) ? 8 * p->list[i].bytes : 0;
    at = bits > 0 ? f->bit % bits : -1;
    for (int64_t i = 0; i < p->count && at >= 0; i++) {
        const int64_t here = meant(f, &p->list[i]) ? 8 * p->list[i].bytes : 0;
        if (at < here) {
            char *byte = (char *)(uintptr_t)p->list[i].data + at / 8;
            *byte = (char)(*byte ^ 1 << at % 8);
        }
        at -= here;
    }
}
