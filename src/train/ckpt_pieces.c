#include "train/ckpt_pieces.h"

#include <stdlib.h>
#include <string.h>

/* ---- runs ---- */

status ckpt_runs_add(struct ckpt_run_list *l, int64_t begin, int64_t length)
{
    struct ckpt_run *last = l->count > 0 ? &l->runs[l->count - 1] : NULL;
    if (last && last->times == 1 && begin == last->begin + last->length) {
        last->length += length;
        last->stride = last->length;
        return STATUS_OK;
    }
    if (last && length == last->length && last->times == 1) last->stride = begin - last->begin;
    if (last && length == last->length && begin == last->begin + last->times * last->stride) {
        last->times++;
        return STATUS_OK;
    }
    if (l->count == l->room) {
        const int room = l->room ? 2 * l->room : 4;
        struct ckpt_run *more = realloc(l->runs, (size_t)room * sizeof *more);
        if (more == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the places of a tensor's piece");
        l->runs = more, l->room = room;
    }
    l->runs[l->count++] = (struct ckpt_run){begin, length, length, 1};
    return STATUS_OK;
}

void ckpt_runs_free(struct ckpt_run_list *l)
{
    free(l->runs);
    *l = (struct ckpt_run_list){0};
}

bool ckpt_runs_valid(const struct ckpt_run *runs, int count, int64_t elements, int64_t *sum)
{
    int64_t at = 0; /* where the run before this one ends */
    *sum = 0;
    for (int i = 0; i < count; i++) {
        const struct ckpt_run *r = &runs[i];
        if (r->begin < at || r->begin >= elements || r->length < 1 || r->length > elements - r->begin ||
            r->times < 1 || r->stride < r->length)
            return false;
        if (r->times - 1 > (elements - r->begin - r->length) / r->stride) return false;
        at = r->begin + (r->times - 1) * r->stride + r->length;
        *sum += r->times * r->length; /* at most `elements` */
    }
    return count > 0;
}

bool ckpt_piece_walk(const struct ckpt_piece *p, int64_t begin, int64_t end, ckpt_stretch_fn *visit,
                     void *ctx)
{
    int64_t first = 0; /* of the run, in the piece */
    for (int i = 0; i < p->run_count && first < end; i++) {
        const struct ckpt_run *r = &p->runs[i];
        const int64_t next = first + r->times * r->length;
        for (int64_t at = begin > first ? begin : first, n; at < next && at < end; at += n) {
            const int64_t k = (at - first) / r->length, into = (at - first) % r->length;
            n = r->length - into < end - at ? r->length - into : end - at;
            if (visit(ctx, at, r->begin + k * r->stride + into, n)) return true;
        }
        first = next;
    }
    return false;
}

/* ---- the tensors as a reader sees them ---- */

static const char *name_of(const struct ckpt_manifest_tensor *t)
{
    return t->item.piece ? t->item.piece->of : t->item.name;
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const struct ckpt_manifest_tensor *t = tensors;
    const int x = *(const int *)a, y = *(const int *)b, order = strcmp(name_of(&t[x]), name_of(&t[y]));
    return order ? order : (x > y) - (x < y);
}

static int by_first(const void *a, const void *b, void *order)
{
    const struct ckpt_manifest_whole *x = a, *y = b;
    const int *of = order;
    return (of[x->first] > of[y->first]) - (of[x->first] < of[y->first]);
}

/* Where a piece is being read: its next stretch. */
struct cursor {
    int run;
    int64_t k; /* stretches of the run that are behind */
};

/* Whether the pieces cover the tensor: at each place exactly one goes on. Pieces often take turns, so that the search
 * begins behind the last one. *budget: stretches that may still be looked at. */
static bool covered(const struct ckpt_manifest *m, const struct ckpt_manifest_whole *w, int64_t elements,
                    struct cursor *at, int64_t *budget)
{
    const int *which = m->stored + w->first;
    int i = 0;
    for (int64_t place = 0; place < elements;) {
        int tried = 0;
        for (; tried < w->count; tried++, i = (i + 1) % w->count) {
            const struct ckpt_piece *p = m->tensors[which[i]].item.piece;
            if (--*budget < 0) return false;
            if (at[i].run == p->run_count) continue;
            const struct ckpt_run *r = &p->runs[at[i].run];
            if (r->begin + at[i].k * r->stride == place) break;
        }
        if (tried == w->count) return false;
        const struct ckpt_run *r = &m->tensors[which[i]].item.piece->runs[at[i].run];
        place += r->length;
        if (++at[i].k == r->times) at[i].run++, at[i].k = 0;
    }
    return true;
}

static bool same_tensor(const struct ckpt_manifest_tensor *a, const struct ckpt_manifest_tensor *b)
{
    const struct ckpt_piece *x = a->item.piece, *y = b->item.piece;
    return x && y && a->item.dt == b->item.dt && x->rank == y->rank &&
           memcmp(x->shape, y->shape, sizeof x->shape) == 0;
}

/* The tensor whose parts are stored[first, first + count). */
static status make_whole(struct ckpt_manifest *m, struct ckpt_manifest_whole *w, int64_t *budget,
                         const char *what)
{
    const int *which = m->stored + w->first;
    const struct ckpt_manifest_tensor *t = &m->tensors[which[0]];
    const struct ckpt_piece *p = t->item.piece;
    w->item = t->item;
    w->item.piece = NULL;
    w->in_pieces = p != NULL;
    if (p == NULL && w->count == 1) return STATUS_OK;
    for (int i = 1; i < w->count; i++)
        if (!same_tensor(t, &m->tensors[which[i]]))
            return FAIL(STATUS_CKPT, "%s: the pieces of tensor '%s' are not of one tensor", what, name_of(t));
    snprintf(w->item.name, sizeof w->item.name, "%s", p->of);
    w->item.rank = p->rank;
    memcpy(w->item.shape, p->shape, sizeof p->shape);
    int64_t sum = 0;
    const int64_t elements = ckpt_manifest_item_bytes(&w->item) / (int64_t)dtype_bytes(w->item.dt);
    for (int i = 0; i < w->count; i++) {
        const int64_t more = m->tensors[which[i]].item.shape[0];
        sum = more > elements - sum ? -1 : sum + more;
        if (sum < 0) break;
    }
    struct cursor *at = calloc((size_t)w->count, sizeof *at);
    if (at == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory for %d pieces", what, w->count);
    const bool whole = sum == elements && covered(m, w, elements, at, budget);
    free(at);
    if (*budget < 0)
        return FAIL(STATUS_CKPT, "%s: the pieces of its tensors have more than %d stretches", what,
                    CKPT_STRETCHES_MAX);
    return whole ? STATUS_OK
                 : FAIL(STATUS_CKPT, "%s: the pieces of tensor '%s' do not cover it exactly once", what,
                        name_of(t));
}

status ckpt_pieces_index(struct ckpt_manifest *m, const char *what)
{
    int64_t budget = CKPT_STRETCHES_MAX;
    m->stored = malloc(((size_t)m->tensor_count + 1) * sizeof *m->stored);
    m->whole = calloc((size_t)m->tensor_count + 1, sizeof *m->whole);
    if (m->stored == NULL || m->whole == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory for %d tensors", what, m->tensor_count);
    for (int i = 0; i < m->tensor_count; i++) m->stored[i] = i;
    qsort_r(m->stored, (size_t)m->tensor_count, sizeof *m->stored, by_name, m->tensors);
    m->whole_count = 0;
    for (int i = 0, end; i < m->tensor_count; i = end) {
        const char *name = name_of(&m->tensors[m->stored[i]]);
        for (end = i + 1; end < m->tensor_count; end++)
            if (strcmp(name, name_of(&m->tensors[m->stored[end]])) != 0) break;
        struct ckpt_manifest_whole *w = &m->whole[m->whole_count++];
        w->first = i, w->count = end - i;
        TRY(make_whole(m, w, &budget, what));
    }
    qsort_r(m->whole, (size_t)m->whole_count, sizeof *m->whole, by_first, m->stored);
    return STATUS_OK;
}
