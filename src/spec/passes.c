/* The order in which a forward runs the layers: once, or repeatedly with hierarchical reasoning
 * (model/hrm.h). */
#include "spec/spec.h"
#include "spec/spec_int.h"

typedef long long ll;

static int64_t low_layers(const struct model_spec *m)
{
    return m->hrm_low_layers ? m->hrm_low_layers : m->layer_count / 2;
}

int64_t model_segments(const struct model_spec *m)
{
    return m->hrm_cycles ? m->hrm_segments : 1;
}

int64_t model_passes(const struct model_spec *m)
{
    return m->hrm_cycles ? m->hrm_segments * m->hrm_cycles * (m->hrm_steps + 1) : 1;
}

struct layer_range model_pass(const struct model_spec *m, int64_t k)
{
    if (m->hrm_cycles == 0) return (struct layer_range){0, m->layer_count};
    if (k % (m->hrm_steps + 1) == m->hrm_steps) return (struct layer_range){low_layers(m), m->layer_count};
    return (struct layer_range){0, low_layers(m)};
}

int64_t model_visits(const struct model_spec *m, int64_t layer)
{
    if (m->hrm_cycles == 0) return 1;
    return m->hrm_segments * m->hrm_cycles * (layer < low_layers(m) ? m->hrm_steps : 1);
}

status hrm_check(const struct model_spec *m)
{
    enum { PASSES_MAX = 10000 };
    if (m->hrm_cycles == 0) {
        if (!m->hrm_halt) return STATUS_OK;
        return FAIL(STATUS_CONFIG, "model.hrm_halt does nothing without model.hrm_cycles");
    }
    if (m->layer_count < 2 || m->hrm_low_layers >= m->layer_count)
        return FAIL(STATUS_CONFIG,
                    "model.hrm_low_layers %lld of model.layer_count %lld: hierarchical reasoning needs a "
                    "low-level and a high-level stack of at least one layer each",
                    (ll)m->hrm_low_layers, (ll)m->layer_count);
    if (m->hrm_steps == 0 || m->hrm_segments == 0)
        return FAIL(STATUS_CONFIG,
                    "model.hrm_cycles needs model.hrm_steps and model.hrm_segments of at least 1");
    if (m->hrm_halt && m->hrm_segments < 2)
        return FAIL(STATUS_CONFIG,
                    "model.hrm_halt needs model.hrm_segments of at least 2: there is nothing to stop before");
    if (m->mtp_depth > 0)
        return FAIL(STATUS_CONFIG,
                    "model.mtp_depth %lld: MTP modules do not go with HRM; leave out model.mtp_depth or "
                    "model.hrm_cycles",
                    (ll)m->mtp_depth);
    if (model_passes(m) > PASSES_MAX)
        return FAIL(STATUS_CONFIG,
                    "model.hrm_segments x hrm_cycles x (hrm_steps + 1) = %lld passes; at most %d",
                    (ll)model_passes(m), PASSES_MAX);
    return STATUS_OK;
}
