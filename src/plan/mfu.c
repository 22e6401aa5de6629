#include "plan/mfu.h"

#include <math.h>
#include <string.h>

double mfu_flops_full(const struct model_spec *m, int64_t sequence_length)
{
    const struct flops f = plan_training_flops(m, sequence_length);
    const double hd = (double)(m->head_dim ? m->head_dim : m->hidden_size / m->head_count);
    const double latent = (double)(m->mla_heads ? m->mla_heads : m->head_count) *
                          (double)(m->mla_nope_dim + m->mla_rope_dim + m->mla_value_dim);
    double scores = 0;
    for (int64_t i = 0; i < m->layer_count + m->mtp_depth; i++) {
        const enum mixer mixer = model_layer(m, i).mixer;
        const double times = plan_training_times(m, i) * (double)sequence_length;
        if (mixer == MIXER_GQA || mixer == MIXER_SWA) scores += times * 4 * (double)m->head_count * hd;
        if (mixer == MIXER_MLA) scores += times * 2 * latent;
    }
    return f.qkv + f.out + f.mlp + f.head + f.mtp + f.engram + scores;
}

double mfu_peak(const char *device, const char *precision)
{
    /* TFLOP/s from the makers' data sheets, without sparsity, products of 16-bit floats summed in fp32. The first
     * row whose words are in the name counts; rows of zeros keep a name from the row of a faster card. */
    static const struct {
        const char *words;
        double bf16, tf32, fp32;
    } cards[] = {
        {"Laptop", 0, 0, 0},
        {"4090 D", 0, 0, 0},
        {"H100 PCIe", 756.5, 378, 51.2},
        {"H100 NVL", 835.5, 417.5, 60},
        {"H200 NVL", 835.5, 417.5, 60},
        {"H100", 989.4, 494.7, 66.9},
        {"H200", 989.4, 494.7, 66.9},
        {"B200", 2250, 1125, 75},
        {"A100", 312, 156, 19.5},
        {"RTX 4090", 165.2, 82.6, 82.6},
        {"L40S", 362, 183, 91.6},
    };
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        if (strstr(device, cards[i].words) == NULL) continue;
        if (strcmp(precision, "bf16") == 0) return cards[i].bf16 * 1e12;
        if (strcmp(precision, "tf32") == 0) return cards[i].tf32 * 1e12;
        return strcmp(precision, "fp32") == 0 ? cards[i].fp32 * 1e12 : 0;
    }
    return 0;
}

double mfu_of(double flops_per_s, double peak)
{
    return peak > 0 ? flops_per_s / peak : NAN;
}
