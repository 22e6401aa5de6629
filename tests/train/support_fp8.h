/* Trainers of a small model in FP8, step by step, on the CPU or on a GPU. */
#ifndef TESTS_TRAIN_SUPPORT_FP8_H
#define TESTS_TRAIN_SUPPORT_FP8_H
#include "parallel/fp8.h"
#include "train/trainer.h"

enum { FP8_WARMUP = 3 }; /* steps in bf16 */
#define FP8_WITH(...) ((const char *const[]){__VA_ARGS__, NULL})
#define FP8_SCRATCH "/tmp/ingot-fp8-XXXXXX"
/* All fail the test that calls them. `more`: keys up to a NULL, such as "train.recompute=full"; NULL: none. With
 * "train.precision=bf16" in front a run has no FP8. */
void fp8_spec(struct spec *s, const char *const *more);
void fp8_start(struct trainer *t, const char *const *more);
void fp8_go_on(struct trainer *t, const char *dir, const char *const *more);
/* The same tokens in every step, in micro-batches of this trainer's size: a run can learn them by heart. */
struct step_result fp8_step(struct trainer *t);
/* Linears that read codes. */
int fp8_count(const struct trainer *t);
int fp8_linear(const struct trainer *t, const char *name);
/* Equal weights, moments, history and scales; where both read codes, also those of the weights. */
void fp8_same_state(const struct trainer *a, const struct trainer *b, const char *what);
/* The trainer goes on to `at` and saves; one that resumes there, and again a step later, has its state and its losses. */
void fp8_resumed_at(struct trainer *whole, int64_t at, const char *const *more);
#endif
