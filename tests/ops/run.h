/* From a row of the case table to one call: what support_run*.c share. */
#ifndef INGOT_TESTS_OPS_RUN_H
#define INGOT_TESTS_OPS_RUN_H
#include "probe.h"

/* Padding holds old stack contents, possibly addresses of buffers. A device's call replaces every word of the
 * arguments that is such an address, and with it a bool next to the padding. A compiler without the builtin
 * runs only the CPU. */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define RUN_CLEAR_PADDING(p) __builtin_clear_padding(p)
#else
#define RUN_CLEAR_PADDING(p) ((void)0)
#endif

#define RUN_CALL(op)                                                                                         \
    static inline status call_##op(const struct ops *o, const void *args, dev_stream s)                      \
    {                                                                                                        \
        return o->op(args, s);                                                                               \
    }                                                                                                        \
    static inline const void *clean_##op(struct op##_args *args)                                             \
    {                                                                                                        \
        RUN_CLEAR_PADDING(args);                                                                             \
        return args;                                                                                         \
    }
/* The op of `o` on the buffers of a local `p`. */
#define RUN(o, op, ...)                                                                                      \
    probe_call(p, o, call_##op, clean_##op(&(struct op##_args){__VA_ARGS__}), sizeof(struct op##_args))
/* The oracle's, on the host wherever `p` runs: for inputs that only a forward can give. */
#define GIVEN(op, ...) oracle_call(call_##op, &(struct op##_args){__VA_ARGS__})

void oracle_call(probe_op *op, const void *args);
/* For an op that may write over an input: the output begins as a copy of that input, which the op then reads there. */
const void *run_over(bool so, const void *in, void *out, int64_t count, dtype dt);
void *run_swiglu_gu(const struct case_act *c, struct probe *p);
int32_t *run_cu_seqlens(const struct case_docs *docs, struct probe *p);
double run_tol_gemm(const struct probe *p, int64_t k); /* of a GEMM over k */

/* Tables [pos_count, half] of real angles. */
void run_angles(int64_t half, struct probe *p, int64_t pos_count, void **cosines, void **sines);

/* The arrays of an update, and a copy of them for a second run with split weights: call run_again before the
 * first run and run_same after both, which checks for the same bits. Arrays that an op lacks are NULL. */
struct run_arrays {
    float *p, *g;
    bf16 *w;
    void *m, *v;
    float *m_scale, *v_scale;
    int64_t count, g_count, v_offset; /* elements; of g; of which there is no v */
    dtype sdt;
};
struct run_again {
    struct run_arrays a;
    float *g, *joined;
    void *m, *v;
    float *m_scale, *v_scale;
    bf16 *upper;
    uint16_t *low;
};
struct run_again run_again(const struct ops *o, struct probe *p, const struct run_arrays *a);
void run_same(const struct ops *o, struct probe *p, const struct run_again *b);
/* Two more sets from weights that bf16 represents: with masters, in joined; and without, in upper. Call
 * run_rounded after a run of each: it checks that the latter equal the former, rounded by the words of their
 * positions in the chunks. */
struct run_pair { struct run_again whole, alone; };
struct run_pair run_pair(const struct ops *o, struct probe *p, const struct run_arrays *a);
void run_rounded(struct probe *p, const struct run_pair *b, const struct update_chunk *chunks, int64_t count, uint64_t seed, uint64_t step);

/* Fails unless both are equal: what the op `want`s from the plain one, and got; NULL: not written. */
void run_same_bytes(struct probe *p, const char *name, const void *want, const void *got, size_t bytes);

typedef void run_fn(const struct ops *, const struct op_case *, struct probe *);
run_fn run_conv, run_gates, run_delta, run_gated_norm, run_ssm_in, run_ssm_out, run_latent, run_kv_cache_append, run_per_head_gemm;
run_fn run_attn_fwd, run_attn_bwd, run_attn_decode;
run_fn run_route, run_expert_gemm, run_expert_act, run_combine, run_dispatch_sort, run_balance;
run_fn run_muon_normalize, run_newton_schulz_poly, run_muon_apply, run_split_master;
run_fn run_rows_unique, run_rows_update;
run_fn run_quantize, run_fp8_scales, run_fp8_bound, run_quantize_blocks, run_gemm_fp8;
run_fn run_expert_gemm_fp8, run_expert_codes, run_expert_act_fwd_fp8, run_expert_act_bwd_fp8;
run_fn run_rmsnorm_fwd_fp8, run_rmsnorm_bwd_fp8, run_swiglu_fwd_fp8, run_swiglu_bwd_fp8;
run_fn run_shift_tokens, run_ngram, run_ngram_gate, run_top1_correct, run_halt_fwd, run_halt_stop, run_halt_bwd, run_vocab_xent_partial, run_vocab_xent_finish;
#endif
