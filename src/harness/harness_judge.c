/* From log-likelihoods to metrics. */
#include "harness/harness_int.h"

#include <math.h>
#include <string.h>

enum harness_kind harness_kind_of(const struct harness_task *t)
{
    return t->format->kind;
}

static bool in_group(const struct harness_item *item, const char *group)
{
    return group == NULL || (item->group && strcmp(item->group, group) == 0);
}

const char *harness_group(const struct harness_task *t, int i)
{
    for (int64_t k = 0; k < t->item_count; k++) {
        bool seen = t->items[k].group == NULL || (k > 0 && in_group(&t->items[k - 1], t->items[k].group));
        for (int64_t j = 0; j < k && !seen; j++) seen = in_group(&t->items[j], t->items[k].group);
        if (!seen && i-- == 0) return t->items[k].group;
    }
    return NULL;
}

/* The first of the largest, as numpy's argmax. */
static int best(const struct harness_task *t, const struct harness_item *item, bool normalized)
{
    double most = -INFINITY;
    int at = 0;
    for (int i = 0; i < (int)item->requests; i++) {
        double value = t->requests[item->first_request + i].loglik;
        if (normalized) value /= (double)t->pair[item->first_pair + i].length;
        if (value > most) {
            most = value;
            at = i;
        }
    }
    return at;
}

struct harness_verdict harness_item_judge(const struct harness_task *t, const struct harness_item *item)
{
    struct harness_verdict v = {.acc = NAN, .acc_norm = NAN};
    for (int64_t i = 0; i < item->requests; i++) v.loglik += t->requests[item->first_request + i].loglik;
    if (t->format->kind == HARNESS_CLOZE) v.acc = t->requests[item->first_request].greedy;
    if (t->format->kind == HARNESS_CHOICE) v.acc = best(t, item, false) == item->gold;
    if (t->format->normalized) v.acc_norm = best(t, item, true) == item->gold;
    return v;
}

/* A mean and its standard error, from sums. */
struct sums {
    double n, sum, squares;
};
static void sums_add(struct sums *s, double x)
{
    s->n += 1;
    s->sum += x;
    s->squares += x * x;
}
static struct harness_metric mean_of(const char *name, const struct sums *s)
{
    const double mean = s->sum / s->n, spread = s->squares - s->n * mean * mean;
    return (struct harness_metric){name, mean,
                                   s->n > 1 ? sqrt((spread > 0 ? spread : 0) / (s->n - 1) / s->n) : NAN};
}

static void judge_texts(const struct harness_task *t, const char *group, struct harness_result *r)
{
    double loglik = 0, words = 0, bytes = 0;
    for (int64_t i = 0; i < t->item_count; i++) {
        const struct harness_item *item = &t->items[i];
        if (!in_group(item, group)) continue;
        r->items++;
        loglik += harness_item_judge(t, item).loglik;
        words += (double)item->words;
        bytes += (double)item->bytes;
    }
    r->count = 3;
    r->metrics[0] = (struct harness_metric){"word_perplexity", exp(-loglik / words), NAN};
    r->metrics[1] = (struct harness_metric){"byte_perplexity", exp(-loglik / bytes), NAN};
    r->metrics[2] = (struct harness_metric){"bits_per_byte", -loglik / bytes / log(2), NAN};
}

void harness_judge(const struct harness_task *t, const char *group, struct harness_result *r)
{
    struct sums acc = {0}, acc_norm = {0}, loglik = {0};
    *r = (struct harness_result){0};
    if (t->format->kind == HARNESS_TEXT) {
        judge_texts(t, group, r);
        return;
    }
    for (int64_t i = 0; i < t->item_count; i++) {
        if (!in_group(&t->items[i], group)) continue;
        const struct harness_verdict v = harness_item_judge(t, &t->items[i]);
        r->items++;
        sums_add(&acc, v.acc);
        sums_add(&acc_norm, v.acc_norm);
        sums_add(&loglik, v.loglik);
    }
    r->metrics[r->count++] = mean_of("acc", &acc);
    if (t->format->normalized) r->metrics[r->count++] = mean_of("acc_norm", &acc_norm);
    if (t->format->kind != HARNESS_CLOZE) return;
    struct harness_metric p = mean_of("perplexity", &loglik);
    p.value = exp(-p.value);
    p.stderr_ *= p.value; /* to first order */
    r->metrics[r->count++] = p;
}
