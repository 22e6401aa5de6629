/* Numbers of the Engram tables: the layers that have tables, and the primes that are the table sizes. */
#include "spec/spec_int.h"

#include <string.h>

typedef long long ll;

bool model_layer_engram(const struct model_spec *m, int64_t layer)
{
    return layer < m->layer_count && m->engram_layers[0] && ranges_hold(m->engram_layers, layer);
}

static bool is_prime(int64_t n)
{
    if (n < 4) return n > 1;
    if (n % 2 == 0) return false;
    for (int64_t d = 3; d * d <= n; d += 2)
        if (n % d == 0) return false;
    return true;
}

static bool used_before(const int32_t *primes, int64_t count, int64_t n)
{
    for (int64_t i = 0; i < count; i++)
        if (primes[i] == n) return true;
    return false;
}

/* Each order starts again at the base; no prime is used twice in a model. */
int64_t model_engram_primes(const struct model_spec *m, int64_t layer, int32_t out[MODEL_ENGRAM_ROWS])
{
    enum { LAYERS = 64 };
    int32_t used[LAYERS * MODEL_ENGRAM_ROWS];
    const int64_t width = model_engram_rows(m);
    int64_t count = 0, rows = 0;
    for (int64_t l = 0; l <= layer; l++) {
        if (!model_layer_engram(m, l)) continue;
        CHECK(count + width <= LAYERS * MODEL_ENGRAM_ROWS, "more tables than model_spec_check lets pass");
        rows = 0;
        for (int64_t i = 0; i < width; i++) {
            if (i % m->engram_heads == 0)
                out[i] = (int32_t)(m->engram_base - 1);
            else
                out[i] = out[i - 1];
            do out[i]++;
            while (!is_prime(out[i]) || used_before(used, count, out[i]));
            used[count++] = out[i];
            rows += out[i];
        }
    }
    return rows;
}

int64_t model_engram_rows(const struct model_spec *m)
{
    return (m->engram_ngram - 1) * m->engram_heads;
}

int64_t spec_table_reads(const struct spec *s)
{
    return s->run.train_batch_tokens * model_engram_rows(&s->model);
}

bool spec_tables_sparse(const struct spec *s)
{
    enum { ROWS_PER_READ = 4 }; /* a read takes two slots: its addend, and the row's sum */
    const struct run_spec *r = &s->run;
    if (s->model.engram_layers[0] == 0) return false;
    if (r->optim_table_gradients != TABLE_GRADIENTS_AUTO)
        return r->optim_table_gradients == TABLE_GRADIENTS_SPARSE;
    /* Each token reads each table once. */
    return s->model.engram_base >= ROWS_PER_READ * r->train_batch_tokens && spec_table_reads(s) < INT32_MAX &&
           !r->memory_offload_optimizer && s->model.hrm_cycles == 0;
}

status engram_check(const struct model_spec *m)
{
    if (m->engram_layers[0] == 0) return STATUS_OK;
    TRY(ranges_check("model.engram_layers", m->engram_layers, m->layer_count));
    int64_t tables = 0;
    for (int64_t i = 0; i < m->layer_count; i++) tables += model_layer_engram(m, i);
    const int64_t width = model_engram_rows(m);
    if (m->engram_heads == 0)
        return FAIL(STATUS_CONFIG, "model.engram_heads is 0: each n-gram needs a table");
    if (m->engram_dim == 0 || m->engram_base == 0)
        return FAIL(STATUS_CONFIG,
                    "model.engram_layers names layers: set model.engram_dim and model.engram_base");
    if (m->engram_dim % 16 != 0)
        return FAIL(STATUS_CONFIG, "model.engram_dim %lld is not a multiple of 16", (ll)m->engram_dim);
    if (width > MODEL_ENGRAM_ROWS || tables > 64)
        return FAIL(STATUS_CONFIG,
                    "%lld layers with %lld rows per token ((model.engram_ngram - 1) x model.engram_heads): "
                    "at most 64 "
                    "layers and %d rows",
                    (ll)tables, (ll)width, MODEL_ENGRAM_ROWS);
    /* Primes are dense enough: a model's are within some thousands above the base. */
    if ((m->engram_base + 1000000) * width >= INT32_MAX)
        return FAIL(STATUS_CONFIG, "model.engram_base %lld: a table of %lld rows; at most 2^31 are possible",
                    (ll)m->engram_base, (ll)(m->engram_base * width));
    if (m->engram_pad >= m->vocab_size && m->vocab_size > 0)
        return FAIL(STATUS_CONFIG, "model.engram_pad %lld is outside the vocabulary of %lld",
                    (ll)m->engram_pad, (ll)m->vocab_size);
    return STATUS_OK;
}
