#include "model/param_count.h"
#include "model/decoder.h"

/* Elements of a row that count: all, or those that one token uses. */
static int64_t counted(const struct param *row, const struct model_spec *m, bool active)
{
    if (row->role == ROLE_BALANCE) return 0;
    if (active && row->role == ROLE_TABLE) return 0;
    if (active && row->experts > 0) return row->count / row->experts * m->moe_top_k;
    return row->count;
}

static int64_t count(const struct model_spec *given, int64_t vocab_size, bool active)
{
    struct model_spec m = *given;
    struct decoder d;
    int64_t sum = 0;
    m.vocab_size = vocab_size > 0 ? vocab_size : 1;
    model_spec_resolve(&m);
    MEMORY_CHECK(decoder_init(&d, &m, NULL) == STATUS_OK, "no memory for a parameter table");
    for (int i = 0; i < d.params.count; i++) {
        const struct param *row = &d.params.rows[i];
        const bool vocabulary = row->role == ROLE_EMBED || row->role == ROLE_HEAD;
        if (vocab_size > 0 || !vocabulary) sum += counted(row, &m, active);
    }
    decoder_fini(&d);
    return sum;
}

int64_t model_param_count(const struct model_spec *m, int64_t vocab_size)
{
    return count(m, vocab_size, false);
}

int64_t model_active_count(const struct model_spec *m, int64_t vocab_size)
{
    return count(m, vocab_size, true);
}
