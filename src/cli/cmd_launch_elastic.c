#include "cli/cmd_launch_elastic.h"
#include "base/log.h"
#include "train/checkpoint.h"

#include <stdio.h>
#include <string.h>

enum { STAYS_AWAY = 2, LIST = 160 };

static void all_start(struct elastic *e)
{
    memset(e->away, 0, sizeof e->away);
    e->mesh = (struct mesh_shrink){.ranks = e->all};
    e->ranks = e->all;
    for (int i = 0; i < e->all; i++) e->slots[i] = i;
}

void elastic_open(struct elastic *e, const struct spec *spec, int all, int least)
{
    *e = (struct elastic){.spec = spec, .all = all, .least = least, .saved = -1};
    all_start(e);
}

void elastic_begin(struct elastic *e)
{
    e->saved = -1;
    if (e->spec && checkpoint_newest(e->spec->run.run_dir, &e->saved) != STATUS_OK)
        log_warn("%s", status_message());
}

/* "2", "1, 3": the numbers that are left out; the first `most` characters of them. */
static void list_away(const struct elastic *e, char text[LIST])
{
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < e->all && n + 8 < LIST; i++)
        if (e->away[i]) n += (size_t)snprintf(text + n, LIST - n, "%s%d", n ? ", " : "", i);
}

static int count_away(const struct elastic *e)
{
    int n = 0;
    for (int i = 0; i < e->all; i++) n += e->away[i];
    return n;
}

/* The ranks of the next start are the first that did not stay away. */
static void seat(struct elastic *e)
{
    e->ranks = 0;
    for (int i = 0; i < e->all && e->ranks < e->mesh.ranks; i++)
        if (!e->away[i]) e->slots[e->ranks++] = i;
}

static status shrink(struct elastic *e)
{
    char away[LIST];
    const int left = e->all - count_away(e);
    list_away(e, away);
    const status st = left < e->least ? FAIL(STATUS_CONFIG, "fewer than --min-ranks %d are left", e->least)
                                      : mesh_shrink(e->spec, e->all, e->least, left, &e->mesh);
    if (st != STATUS_OK) {
        char why[512];
        snprintf(why, sizeof why, "%s", status_message());
        return FAIL(STATUS_COMM, "of %d ranks %s %s away: %s", e->all, away,
                    count_away(e) > 1 ? "stay" : "stays", why);
    }
    seat(e);
    const struct mesh_shape *m = &e->mesh.shape;
    log_warn(
        "rank%s %s of %d %s left out: %d go on as %d x %d x %d (parallel.pipeline x data x parallel.tensor), "
        "%s",
        count_away(e) > 1 ? "s" : "", away, e->all, count_away(e) > 1 ? "are" : "is", e->ranks, m->pp, m->dp,
        m->tp, e->mesh.same_bits ? "with the same bits" : "with another order of sums");
    return STATUS_OK;
}

status elastic_next(struct elastic *e, int first, bool absent)
{
    if (e->spec == NULL) return STATUS_OK;
    int64_t now = -1;
    const int slot = first >= 0 ? e->slots[first] : -1;
    if (checkpoint_newest(e->spec->run.run_dir, &now) != STATUS_OK) log_warn("%s", status_message());
    const bool saved = now > e->saved, whole = e->ranks == e->all;
    for (int r = 0; saved && r < e->ranks; r++) e->strikes[e->slots[r]] = 0;
    if (slot >= 0) e->strikes[slot] = absent ? STAYS_AWAY : e->strikes[slot] + 1;
    if (slot >= 0 && e->strikes[slot] >= STAYS_AWAY) e->away[slot] = true;
    if (saved && !whole) {
        /* One more end without a checkpoint, and a rank that was away is left out again. */
        for (int i = 0; i < e->all; i++)
            if (e->away[i] && i != slot) e->strikes[i] = STAYS_AWAY - 1;
        all_start(e);
        log_info("all %d ranks start again", e->all);
        return STATUS_OK;
    }
    return count_away(e) > 0 ? shrink(e) : STATUS_OK;
}
