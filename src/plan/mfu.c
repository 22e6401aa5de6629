#include "plan/mfu.h"
#include "plan/machine.h"
#include "spec/layer_traits.h"

#include <math.h>

double mfu_flops_full(const struct model_spec *m, int64_t sequence_length)
{
    const struct flops f = plan_training_flops(m, sequence_length);
    double scores = 0;
    for (int64_t i = 0; i < m->layer_count + m->mtp_depth; i++) {
        const struct layer_traits *t = mixer_traits(model_layer(m, i).mixer);
        scores += plan_training_times(m, i) * t->square_flops(m, sequence_length);
    }
    return f.qkv + f.out + f.mlp + f.head + f.mtp + f.engram + scores;
}

double mfu_peak(const char *device, enum precision precision)
{
    const struct machine *m = machine_of_gpu(device);
    return m ? machine_peak(m, precision) : 0;
}

double mfu_of(double flops_per_s, double peak)
{
    return peak > 0 ? flops_per_s / peak : NAN;
}
