/* The fixtures of tools/make_hf_fixtures.py: tiny random models of every family, with the logits, gradients and AdamW losses that
 * Hugging Face transformers computes for them. */
#ifndef INGOT_TESTS_MODEL_HF_FIXTURE_H
#define INGOT_TESTS_MODEL_HF_FIXTURE_H
#include "model/decoder.h"
#include "model/safetensors.h"

enum { HF_T = 24, HF_STEPS = 10, HF_LONG = 150, HF_FAMILIES = 17 };
extern const char *const hf_names[HF_FAMILIES];

struct hf_fixture {
    const char *name;
    char dir[512];
    struct model_spec spec;
    struct safetensors *expect;
    int32_t positions[HF_T], cu[2], targets[HF_T];
    struct batch batch; /* the row in use, in host memory */
};
void hf_fixture_open(struct hf_fixture *f, const char *name);
void hf_fixture_close(struct hf_fixture *f);
/* Row 0 has the logits and gradients, row s + 1 is what AdamW's step s sees. */
void hf_fixture_row(struct hf_fixture *f, int row);
const float *hf_expected(const struct hf_fixture *f, const char *name, int64_t count);

/* How far apart two arrays are: relative L2, and the largest difference over the largest value. */
struct hf_error {
    double l2, max;
};
/* `want`: "logits" or "long_logits" of the fixture, as many rows as its batch has. */
struct hf_error hf_logits_error(const struct hf_fixture *f, const char *want, const void *logits, dtype dt);
/* Relative error of the worst tensor, which is named; `grad`: the flat gradients of `d` in host memory, in
 * `dt`. The gradient of k's bias is rounding noise: values below k_bias_floor (L2) do not count. */
struct hf_error hf_gradient_error(const struct hf_fixture *f, const struct decoder *d, const void *grad, dtype dt,
                                  double k_bias_floor, char worst[160]);
/* Where the tests' files are: the source tree, or what INGOT_TEST_SOURCE names. */
const char *hf_source_dir(void);
#endif
