/* Goal: every op of the CUDA set is the f64 oracle's up to rounding, writes nothing else, gives the same bits again, and gives the same
 * bits as a captured graph. Method: every case of cases.h and sizes of real models, in F32 and BF16, GEMMs also in TF32, attention
 * and the delta rule with each backend; see probe.h for what one call is put through.
 *
 *     gpu_ops_ops [--filter TEXT] [--small] [--exact] [--no-fork] [--jobs N] [--list]
 *
 * Most of the time is the oracle's, on the host: N processes share the cases (default: one for four processors, at most eight).
 * One failure does not hide the next: cases run in a child process, which is started again behind a case that killed it, hung, or left
 * the GPU in an error. --small leaves out the real sizes. For a memory checker: --small --exact --no-fork. */
#include "base/parallel.h"
#include "gpu.h"
#include "ops/cuda/ops_cuda.h"
#include "probe.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <cmocka.h>

/* clang-format off */
#define LAYER(rows_, d_) \
    NORM(rmsnorm_fwd, rows_, d_, BRANCH), NORM(rmsnorm_fwd, rows_, d_, BRANCH, IN_PLACE), \
    NORM(rmsnorm_bwd, rows_, d_, DRES), NORM(rmsnorm_bwd, rows_, d_, DRES, IN_PLACE), \
    NORM(layernorm_fwd, rows_, d_, BRANCH), NORM(layernorm_bwd, rows_, d_, DRES, IN_PLACE), \
    ACT(swiglu_fwd, rows_, d_), ACT(swiglu_bwd, rows_, d_), ACT(swiglu_bwd, rows_, d_, IN_PLACE), \
    ACT(gelu_fwd, rows_, d_), ACT(gelu_bwd, rows_, d_, IN_PLACE), ROWS(split_master, rows_, d_), \
    BIAS(rows_, d_, 1)
#define REAL_PARTS(op_) \
    PART(op_, 8, 2, 128, 0, 2, 0, DOCS(2048)), PART(op_, 8, 2, 128, 0, 2, 1, DOCS(2048)), \
    PART(op_, 12, 12, 64, 0, 4, 1, DOCS(1000, 1, 535, 0, 0, 77, 0, 435)), PART(op_, 8, 2, 128, 0, 4, 3, DOCS(1000, 1, 535, 0, 0, 77, 0, 435)), \
    PART(op_, 4, 1, 128, 0, 2, 0, DOCS(1900)), PART(op_, 4, 2, 64, 0, 2, 1, DOCS(1900)), \
    PART(op_, 4, 1, 128, 77, 2, 0, DOCS(1900)), PART(op_, 4, 1, 64, 128, 4, 2, DOCS(1024, 1024)), PART(op_, 3, 3, 128, 700, 4, 0, DOCS(2040)), \
    PART(op_, 16, 2, 128, 0, 2, 1, DOCS(1024, 24, 1000), .length = 1024), PART(op_, 4, 1, 64, 40, 3, 1, DOCS(500, 10, 240, 660, 90), .length = 750), \
    PART(op_, 6, 2, 128, 0, 2, 0, DOCS(1, 63, 64, 65, 127, 128, 129, 699)), PART(op_, 16, 1, 64, 0, 2, 1, DOCS(17, 40, 23, 24, 1, 1, 150, 72)), \
    PART(op_, 4, 2, 64, 0, 8, 0, DOCS(1536)), PART(op_, 2, 2, 128, 0, 8, 7, DOCS(1536)), PART(op_, 2, 2, 192, 0, 2, 0, DOCS(700, 300), .head_dim_v = 128)
#define REAL_ATTN(op_) \
    REAL_PARTS(op_), \
    ATTN(op_, 12, 12, 64, 0, DOCS(1024, 1024), FUSED), ATTN(op_, 8, 2, 128, 0, DOCS(1024, 1024), FUSED), \
    ATTN(op_, 32, 8, 128, 0, DOCS(512, 512), FUSED), \
    ATTN(op_, 4, 2, 64, 0, DOCS(1500)), ATTN(op_, 8, 2, 64, 0, DOCS(1000, 1, 535, 0, 0, 77, 0, 0), FUSED), \
    ATTN(op_, 12, 12, 64, 256, DOCS(1024, 1024)), ATTN(op_, 8, 2, 128, 128, DOCS(700, 33, 291)), \
    ATTN(op_, 6, 2, 128, 0, DOCS(1, 63, 64, 65, 127, 128, 129, 700), FUSED), ATTN(op_, 2, 2, 128, 0, DOCS(1, 0), FUSED), \
    ATTN(op_, 3, 1, 64, 1, DOCS(1, 63, 64, 65, 191, 192, 193, 700), FUSED), ATTN(op_, 5, 5, 64, 0, DOCS(1921)), \
    ATTN(op_, 4, 1, 128, 77, DOCS(1283, 190), FUSED), \
    ATTN(op_, 16, 2, 128, 0, DOCS(5, 90, 31, 32, 33, 200, 1, 60), FUSED), ATTN(op_, 8, 1, 64, 40, DOCS(47, 49, 3, 130, 24, 25, 200, 9), FUSED), \
    ATTN(op_, 12, 2, 128, 0, DOCS(63, 0, 65, 100, 29, 150, 2, 77), FUSED), ATTN(op_, 16, 1, 64, 0, DOCS(17, 40, 23, 24, 1, 1, 150, 70)), \
    ATTN(op_, 4, 1, 64, 0, DOCS(300, 277)), ATTN(op_, 4, 1, 128, 0, DOCS(1083, 1030), FUSED), ATTN(op_, 4, 1, 128, 1100, DOCS(1500)), \
    ATTN(op_, 4, 2, 128, 30, DOCS(95, 97, 7, 192, 64, 31, 130, 1)), ATTN(op_, 4, 2, 64, 0, DOCS(95, 97, 7, 192, 64, 31, 130, 1), FUSED), \
    ATTN(op_, 4, 4, 80, 0, DOCS(512, 200)), ATTN(op_, 4, 1, 256, 0, DOCS(300)), \
    LATENT(op_, 3, 3, 192, 128, 0, DOCS(257, 64, 300)), LATENT(op_, 4, 4, 192, 128, 0, DOCS(512, 512), FUSED), \
    LATENT(op_, 4, 2, 192, 128, 130, DOCS(700, 190), FUSED), LATENT(op_, 2, 1, 192, 128, 0, DOCS(384, 384, 384)), \
    LATENT(op_, 4, 2, 192, 128, 0, DOCS(1000)), LATENT(op_, 1, 1, 192, 128, 200, DOCS(640, 640)), LATENT(op_, 2, 2, 96, 40, 0, DOCS(130, 77), GAPS)
#define REAL_GEMMS(...) /* what Hopper's tiles take: multiples of 64 */ \
    MOE(expert_gemm, 300, 8, 2, 128, .n = 320, .k = 192, __VA_ARGS__), MOE(expert_gemm, 129, 5, 3, 128, .n = 64, .k = 576, EMPTY, __VA_ARGS__), \
    MOE(expert_gemm, 900, 4, 1, 256, .n = 192, .k = 64, .capacity = 260, HOT, __VA_ARGS__), \
    MOE(expert_gemm, 700, 3, 2, 128, .n = 512, .k = 256, __VA_ARGS__)
#define REAL_GEMMS_FP8(...) /* multiples of 128, the last one not */ \
    MOE(expert_gemm, 300, 8, 2, 128, .fp8 = true, .n = 384, .k = 128, __VA_ARGS__), \
    MOE(expert_gemm, 129, 5, 3, 128, .fp8 = true, .n = 128, .k = 640, EMPTY, __VA_ARGS__), \
    MOE(expert_gemm, 900, 4, 1, 256, .fp8 = true, .n = 256, .k = 128, .capacity = 260, HOT, __VA_ARGS__), \
    MOE(expert_gemm, 700, 3, 2, 128, .fp8 = true, .n = 512, .k = 1280, __VA_ARGS__), \
    MOE(expert_gemm, 300, 8, 2, 128, .fp8 = true, .n = 192, .k = 128, __VA_ARGS__)
#define REAL_CODES(...) \
    MOE(expert_codes, 300, 8, 2, 128, .n = 512, __VA_ARGS__), MOE(expert_codes, 900, 4, 1, 256, .n = 208, .capacity = 260, HOT, __VA_ARGS__), \
    MOE(expert_codes, 129, 5, 3, 128, .n = 1040, EMPTY, __VA_ARGS__)
#define REAL_ACTS_FP8(op_, ...) \
    MOE(op_, 300, 8, 2, 128, .f = 512, .quantized = true, __VA_ARGS__), \
    MOE(op_, 900, 4, 1, 256, .f = 208, .capacity = 260, HOT, .quantized = true, __VA_ARGS__), \
    MOE(op_, 129, 5, 3, 128, .f = 1040, EMPTY, .quantized = true, __VA_ARGS__)
#define REAL_MOE(rows_, experts_, top_k_, d_, ...) \
    MOE(route_fwd, rows_, experts_, top_k_, 128, __VA_ARGS__), MOE(route_bwd, rows_, experts_, top_k_, 128, __VA_ARGS__), \
    MOE(expert_act_fwd, rows_, experts_, top_k_, 128, .f = d_, __VA_ARGS__), MOE(expert_act_bwd, rows_, experts_, top_k_, 128, .f = d_, __VA_ARGS__), \
    MOE(expert_act_bwd, rows_, experts_, top_k_, 128, .f = d_, IN_PLACE, __VA_ARGS__), \
    MOE(combine, rows_, experts_, top_k_, 128, .d = d_, __VA_ARGS__), MOE(combine, rows_, experts_, top_k_, 128, .d = d_, WITH_BASE, WIDE, __VA_ARGS__), \
    MOE(combine_gate_bwd, rows_, experts_, top_k_, 128, .d = d_, WITH_BASE, GATED, __VA_ARGS__)

#define REAL_DELTA(op_) \
    DELTA(op_, 4, 2, 128, 128, DOCS(1, 0, 63, 64, 65, 150, 3, 400), QK_NORM), DELTA(op_, 2, 2, 128, 128, DOCS(1000), QK_NORM), \
    DELTA(op_, 4, 1, 128, 128, DOCS(300, 301), QK_NORM), DELTA(op_, 2, 2, 64, 64, DOCS(257, 100), QK_NORM), \
    DELTA(op_, 2, 1, 256, 256, DOCS(130, 70), QK_NORM), DELTA(op_, 2, 2, 192, 48, DOCS(200), QK_NORM), \
    DELTA(op_, 3, 1, 96, 80, DOCS(77, 129), QK_NORM, GAPS), DELTA(op_, 2, 2, 33, 130, DOCS(131), QK_NORM), \
    DELTA(op_, 4, 1, 128, 64, DOCS(200, 1, 129), NO_DELTA), DELTA(op_, 2, 2, 16, 64, DOCS(500), NO_DELTA), \
    DELTA(op_, 2, 1, 128, 128, DOCS(100, 1500, 37), QK_NORM, SLOW), DELTA(op_, 1, 1, 128, 128, DOCS(800, 1025), NO_DELTA, SLOW), \
    DELTA(op_, 3, 1, 128, 128, DOCS(33, 777, 0, 1024), QK_NORM, SLOW)

/* Sizes of real models, and counts above 65535, where a grid's second dimension ends. */
static const struct op_case real_cases[] = {
    LAYER(4096, 768), LAYER(4096, 2048), LAYER(70000, 24),
    /* rows that take a whole block or more vectors per thread, and more rows than there are groups */
    NORM(rmsnorm_bwd, 5000, 2560, DRES), NORM(rmsnorm_bwd, 1500, 4096), NORM(rmsnorm_bwd, 1500, 6144, DRES, IN_PLACE),
    NORM(rmsnorm_bwd, 700, 10240, DRES), NORM(layernorm_bwd, 5000, 1024, DRES), NORM(layernorm_bwd, 1500, 6144, DRES, IN_PLACE),
    NORM(layernorm_bwd, 700, 10240), NORM(rmsnorm_bwd, 900, 1030, DRES),
    GEMM(4096, 2304, 768, TRANS_B, WITH_BIAS), GEMM(4096, 768, 3072, TRANS_B), GEMM(4096, 768, 3072),
    GEMM(3072, 768, 4096, TRANS_A, WIDE, ADD_TO), GEMM(3072, 768, 4096, TRANS_A, WIDE),
    GEMM(2048, 2048, 2048, TRANS_B), GEMM(70000, 24, 40, TRANS_B),
    GEMM(256, 50304, 768, TRANS_B), GEMM(256, 50257, 768, TRANS_B), GEMM(256, 768, 50257),
    GEMM(50257, 768, 256, TRANS_A, WIDE, ADD_TO),
    GEMM_FP8(32, 22016, 4096, FAST), GEMM_FP8(48, 4096, 11008, FAST, WITH_ADD), GEMM_FP8(16, 12288, 4096, FAST, WITH_BIAS),
    GEMM_FP8(32, 4096, 22016, E5M2_A), GEMM_FP8(32, 11008, 4096, E5M2_A), GEMM_FP8(2048, 768, 3072, FAST),
    GEMM_FP8(3072, 768, 4096, E5M2_A, WIDE, ADD_TO), GEMM_FP8(768, 3072, 2064, E5M2_A, WIDE),
    ROPE(rope_fwd, 4096, 12, 12, 64, 32), ROPE(rope_fwd, 4096, 32, 8, 128, 64, QK_NORM),
    ROPE(rope_fwd, 70000, 2, 1, 16, 8, IN_PLACE),
    ROPE(rope_bwd, 4096, 12, 12, 64, 32), ROPE(rope_bwd, 4096, 32, 8, 128, 64, QK_NORM),
    ROPE(rope_bwd, 70000, 2, 1, 16, 8, IN_PLACE),
    REAL_ATTN(attn_fwd), REAL_ATTN(attn_bwd),
    ATTN(attn_fwd, 4, 2, 64, 0, DOCS(1500), APART), ATTN(attn_fwd, 4, 1, 128, 0, DOCS(1024, 1024), APART),
    ATTN(attn_fwd, 4, 2, 128, 0, DOCS(1500), APART), ATTN(attn_fwd, 4, 2, 64, 0, DOCS(250, 250), APART),
    LATENT(attn_fwd, 2, 2, 192, 128, 0, DOCS(1100), APART),
    ATTN(attn_decode, 12, 12, 64, 0, DOCS(1024, 1, 1000, 17, 512, 63, 64, 65)),
    ATTN(attn_decode, 32, 8, 128, 0, DOCS(2000, 1, 333)), ATTN(attn_decode, 32, 8, 128, 512, DOCS(2000, 100)),
    EMBED(embed_fwd, 4096, 768, 50304, POSITIONS),
    EMBED(embed_bwd, 4096, 768, 50304, POSITIONS),
    EMBED(embed_bwd, 8192, 64, 2), /* thousands of tokens on one row */
    EMBED(embed_bwd, 70000, 32, 1000),
    /* n-grams: narrow rows, many of them; the last are more than the workspace can sort at once */
    EMBED(embed_fwd, 65536, 64, 30000), EMBED(embed_fwd, 70000, 16, 999),
    EMBED(embed_bwd, 65536, 64, 30000), EMBED(embed_bwd, 3000000, 16, 300000),
    NGRAM(3, 8, DOCS(4000, 1, 95), MAPPED), NGRAM(4, 8, DOCS(1, 0, 2, 3, 1000, 0, 4, 5)), NGRAM(8, 16, DOCS(600)),
    NGRAM(3, 8, DOCS(1), BEFORE, MAPPED),
    ROWS(ngram_gate_fwd, 4096, 768), ROWS(ngram_gate_fwd, 1000, 2048, IN_PLACE), ROWS(ngram_gate_fwd, 70000, 24),
    ROWS(ngram_gate_fwd, 33, 1031), ROWS(ngram_gate_bwd, 4096, 768), ROWS(ngram_gate_bwd, 1000, 2048),
    ROWS(ngram_gate_bwd, 70000, 24), ROWS(ngram_gate_bwd, 33, 1031),
    DILATE(conv_fwd, 1536, 4, 3, DOCS(1000, 1, 500)), DILATE(conv_bwd, 1536, 4, 3, DOCS(1000, 1, 500)),
    DILATE(conv_fwd, 100, 4, 4, DOCS(1, 2, 3, 4, 0, 5, 100, 17), GAPS), DILATE(conv_bwd, 100, 4, 4, DOCS(1, 2, 3, 4, 0, 5, 100, 17), GAPS),
    DILATE(conv_fwd, 64, 4, 2, DOCS(5), BEFORE), DILATE(conv_bwd, 24, 7, 8, DOCS(3000, 200)),
    DILATE(conv_bwd, 2048, 4, 3, DOCS(4096)),
    HALT(halt_fwd, 768, 0, 0, DOCS(500, 0, 1, 2, 300, 0, 0, 900)), HALT(halt_stop, 0, 0, 8, DOCS(500, 0, 1, 2, 300, 0, 33, 900)),
    HALT(halt_bwd, 768, 2, 4, DOCS(500, 0, 1, 2, 300, 0, 0, 900)), HALT(halt_bwd, 1031, 4, 4, DOCS(2, 70, 1)),
    XENT(256, 50304, 50304), XENT(256, 50304, 50257, IN_PLACE, Z_LOSS), XENT(256, 50257, 50257, IN_PLACE),
    XENT(64, 128256, 128256, IN_PLACE), XENT(70000, 24, 20), XENT(256, 50304, 50257, NO_GRAD),
    XENT(256, 50304, 50257, IN_PLACE, CAPPED), XENT(70000, 24, 20, CAPPED), ROWS(softcap, 256, 50304), ROWS(softcap, 33, 1031),
    ROWS(sum, 65536, 1), ROWS(sum, 1000, 1001),
    UPDATE(4096, 2048), UPDATE(4096, 2048, MOMENTS_BF16), UPDATE(4096, 1000, LION),
    UNIQUE(100000, 2000000, IN_PLACE), UNIQUE(120000, 40000, NO_TOKENS),
    TABLE(30000, 26000, 64, 90000, 1000), TABLE(9000, 9000, 160, 20000, 0, MOMENTS_BF16), TABLE(5000, 4000, 1024, 5000, 7, LION),
    UPDATE(20000, 64, TABLE_ROWS), UPDATE(3000, 48, TABLE_ROWS, MOMENTS_BF16), UPDATE(900, 1280, TABLE_ROWS),
    UPDATE(500, 3072, TABLE_ROWS, LION), UPDATE(40000, 16, TABLE_ROWS, LION, MOMENTS_BF16),
    UPDATE(4096, 1000, LION, MOMENTS_BF16), UPDATE(4096, 2048, MOMENTS_8), UPDATE(4096, 1000, MOMENTS_8, LION),
    REAL_DELTA(delta_fwd), REAL_DELTA(delta_bwd),
    DELTA(delta_fwd, 2, 1, 128, 128, DOCS(1, 0, 130), QK_NORM, STATE), DELTA(delta_fwd, 2, 2, 256, 64, DOCS(1), QK_NORM, STATE),
    DELTA(delta_fwd, 2, 1, 64, 96, DOCS(65, 0), NO_DELTA, STATE), DELTA(delta_fwd, 2, 2, 128, 128, DOCS(70, 1400, 0), QK_NORM, STATE, SLOW),
    CONV(conv_fwd, 1536, 4, DOCS(1000, 1, 500)), CONV(conv_bwd, 1536, 4, DOCS(1000, 1, 500)),
    CONV(conv_fwd, 100, 4, DOCS(1, 2, 3, 4, 0, 5, 100, 17), GAPS), CONV(conv_bwd, 100, 4, DOCS(1, 2, 3, 4, 0, 5, 100, 17), GAPS),
    CONV(conv_bwd, 24, 7, DOCS(3000, 200)),
    HEADS(gates_fwd, 4096, 16, 0), HEADS(gates_bwd, 4096, 16, 0), HEADS(gates_bwd, 300, 70, 0),
    HEADS(gated_norm_fwd, 2048, 8, 128), HEADS(gated_norm_bwd, 2048, 8, 128, IN_PLACE),
    HEADS(gated_norm_fwd, 300, 2, 256), HEADS(gated_norm_bwd, 300, 2, 256),
    HEADS(ssm_in_fwd, 2048, 24, 64), HEADS(ssm_in_bwd, 2048, 24, 64, WITH_SKIP), HEADS(ssm_in_bwd, 300, 70, 100, WITH_SKIP),
    HEADS(ssm_in_bwd, 300, 3, 512, WITH_SKIP), HEADS(ssm_out_fwd, 2048, 24, 64), HEADS(ssm_out_bwd, 2048, 24, 64, IN_PLACE),
    CONV(conv_bwd, 1792, 4, DOCS(700, 1, 500), WITH_BIAS),
    HEADS(gated_norm_fwd, 33, 1, 2048), HEADS(gated_norm_bwd, 333, 1, 2048), HEADS(gated_norm_bwd, 70, 3, 24),
    REAL_GEMMS_FP8(FAST), REAL_GEMMS_FP8(FAST, GATHER_A), REAL_GEMMS_FP8(), REAL_GEMMS_FP8(GATHER_A),
    REAL_GEMMS_FP8(DGRAD, E5M2, FAST), REAL_GEMMS_FP8(DGRAD, E5M2, FAST, GATHER_A), REAL_GEMMS_FP8(DGRAD, E5M2),
    REAL_GEMMS_FP8(DGRAD, E5M2, GATHER_A), REAL_GEMMS_FP8(WGRAD, E5M2), REAL_GEMMS_FP8(WGRAD, E5M2, ADD_TO),
    REAL_GEMMS_FP8(WGRAD, E5M2, GATHER_A), REAL_GEMMS_FP8(WGRAD, E5M2, GATHER_A, ADD_TO),
    REAL_GEMMS_FP8(WGRAD, E5M2, GATHER_B), REAL_GEMMS_FP8(WGRAD, E5M2, GATHER_B, ADD_TO),
    MOE(expert_gemm, 129, 2, 1, 128, .fp8 = true, .n = 256, .k = 384, HOT, WGRAD, E5M2, GATHER_A),
    MOE(expert_gemm, 7, 6, 1, 128, .fp8 = true, .n = 384, .k = 128, HOT, WGRAD, E5M2, GATHER_A),
    MOE(expert_gemm, 129, 2, 1, 128, .fp8 = true, .n = 256, .k = 384, HOT, WGRAD, E5M2, GATHER_B),
    MOE(expert_gemm, 7, 6, 1, 128, .fp8 = true, .n = 384, .k = 128, HOT, WGRAD, E5M2, GATHER_B),
    REAL_ACTS_FP8(expert_act_fwd), REAL_ACTS_FP8(expert_act_fwd, NO_TRANS, ONLY), REAL_ACTS_FP8(expert_act_bwd),
    REAL_ACTS_FP8(expert_act_bwd, ONLY), REAL_ACTS_FP8(expert_act_bwd, IN_PLACE), REAL_ACTS_FP8(expert_act_bwd, NO_TRANS, NO_AMAX),
    REAL_CODES(), REAL_CODES(E5M2, NO_CODES), REAL_CODES(NO_TRANS, NO_AMAX), REAL_CODES(NO_CODES, NO_TRANS), REAL_CODES(GATHER_A),
    REAL_GEMMS(), REAL_GEMMS(GATHER_A), REAL_GEMMS(DGRAD), REAL_GEMMS(DGRAD, GATHER_A), REAL_GEMMS(WGRAD),
    REAL_GEMMS(WGRAD, GATHER_A, ADD_TO), REAL_GEMMS(WGRAD, GATHER_B), REAL_GEMMS(WGRAD, GATHER_B, ADD_TO),
    QUANTIZE(4096, 2048, 0), QUANTIZE(4096, 768, 3, E5M2, GAPS), QUANTIZE(5000, 5504, 0, E5M2), QUANTIZE(70000, 48, 0),
    QUANTIZE(4096, 11008, 0, NO_CODES, NO_TRANS), QUANTIZE(2000, 4096, 0, NO_TRANS), QUANTIZE(4097, 1024, 0, NOT_FINITE),
    SCALES(2000, 0, 3, DELAYED), SCALES(500, 8, 6, DELAYED, E5M2), BOUND(16384),
    NORM(rmsnorm_fwd, 4096, 2048, BRANCH, QUANTIZED), NORM(rmsnorm_fwd, 4097, 768, BRANCH, QUANTIZED, ONLY),
    NORM(rmsnorm_fwd, 1500, 4096, BRANCH, IN_PLACE, QUANTIZED, ONLY), NORM(rmsnorm_fwd, 700, 10240, QUANTIZED),
    NORM(rmsnorm_bwd, 4096, 2048, DRES, IN_PLACE, QUANTIZED), NORM(rmsnorm_bwd, 5000, 2560, DRES, QUANTIZED),
    NORM(rmsnorm_bwd, 1500, 4096, QUANTIZED), NORM(rmsnorm_bwd, 1500, 6144, DRES, IN_PLACE, QUANTIZED),
    NORM(rmsnorm_bwd, 700, 10240, DRES, QUANTIZED), NORM(rmsnorm_bwd, 4097, 768, DRES, MEASURED),
    ACT(swiglu_fwd, 4096, 5504, QUANTIZED, ONLY), ACT(swiglu_fwd, 4097, 1024, QUANTIZED),
    ACT(swiglu_bwd, 4096, 5504, QUANTIZED, ONLY, IN_PLACE), ACT(swiglu_bwd, 1025, 1024, QUANTIZED),
    GEMM_FP8(4096, 2304, 768, FAST), GEMM_FP8(4096, 768, 3072, WITH_ADD, FAST), GEMM_FP8(2048, 2048, 2048, E5M2_A),
    GEMM_FP8(768, 2304, 4096, WIDE, ADD_TO, E5M2_A), GEMM_FP8(768, 2304, 4096, WIDE, E5M2_A),
    GEMM_FP8(2064, 1040, 1008, WITH_BIAS), GEMM_FP8(70000, 32, 48),
    REAL_MOE(1500, 64, 8, 1024, NORMALIZE, AUX), REAL_MOE(700, 128, 6, 768, SIGMOID, NORMALIZE, WITH_BIAS, Z_LOSS),
};
/* clang-format on */
enum { REAL_CASES = sizeof real_cases / sizeof real_cases[0] };

/* What of the set a row of results was made with. */
enum variant { AS_IT_IS, IN_TF32, WITH_CUDNN, WITH_OWN, WITH_REFERENCE, PORTABLE, VARIANTS };
static const struct {
    const char *name;
    enum cuda_math math;
    enum cuda_attention attention;
    bool portable;
} variants[VARIANTS] = {
    [AS_IT_IS] = {"", CUDA_MATH_FP32, CUDA_ATTENTION_AUTO},
    [IN_TF32] = {" tf32", CUDA_MATH_TF32, CUDA_ATTENTION_AUTO},
    [WITH_CUDNN] = {" cudnn", CUDA_MATH_FP32, CUDA_ATTENTION_CUDNN},
    [WITH_OWN] = {" own", CUDA_MATH_FP32, CUDA_ATTENTION_OWN},
    [WITH_REFERENCE] = {" reference", CUDA_MATH_FP32, CUDA_ATTENTION_REFERENCE},
    [PORTABLE] = {" portable", CUDA_MATH_FP32, CUDA_ATTENTION_AUTO, true},
};

static bool applies(enum variant v, const struct op_case *c, dtype dt)
{
    if (v == AS_IT_IS) return true;
    if (v == IN_TF32) return c->op == OP_gemm && dt == DTYPE_F32 && !c->gemm.fp8;
    if (v == PORTABLE)
        return (c->op == OP_delta_fwd || c->op == OP_delta_bwd) && dt == DTYPE_BF16 && c->delta.dk == 128 &&
               c->delta.dv == 128; /* elsewhere AS_IT_IS is no other */
    return c->op == OP_attn_fwd || c->op == OP_attn_bwd;
}

/* One row of the work: a case in a type with a variant. */
struct row {
    const struct op_case *c;
    int number; /* of the case */
    dtype dt;
    enum variant v;
    bool real;
    int shift;
};
static struct row row_at(int i)
{
    const int at = i / (2 * VARIANTS);
    return (struct row){.c = at < OP_CASES ? &op_cases[at] : &real_cases[at - OP_CASES],
                        .number = at,
                        .dt = i / VARIANTS % 2 ? DTYPE_BF16 : DTYPE_F32,
                        .v = i % VARIANTS,
                        .real = at >= OP_CASES,
                        .shift = at < OP_CASES ? at % 2 : 0}; /* every other small case without alignment */
}
static const char *row_text(const struct row *r, char text[320])
{
    char shape[256];
    snprintf(text, 320, "%s%s%s", case_text(r->c, r->dt, shape), variants[r->v].name,
             r->shift ? " shifted" : "");
    return text;
}

/* What the child tells: it lies in memory that both processes share. */
struct board {
    int next; /* row that comes next */
    int run, bad, refused;
    struct {
        int run, bad;
        double worst[2];
    } ops[OP_COUNT];
};
struct options {
    const char *filter;
    bool small, exact, no_fork, list;
    int rows;
    int jobs, job; /* this process takes every jobs-th case, from case number job on */
};

/* The set with one variant's options, on its own stream. */
struct opened {
    bool open;
    struct stream stream;
    struct ops ops;
    struct probe_device device;
};

enum { WORKSPACE_TOKENS = 1 << 17, NO_GPU = 77, BROKEN = 3, MAX_JOBS = 8 };

static int processors_of(int jobs)
{
    const int n = (int)sysconf(_SC_NPROCESSORS_ONLN) / jobs;
    return n > 1 ? n : 1;
}
static int jobs_of(int n)
{
    return n < 1 ? 1 : n > MAX_JOBS ? MAX_JOBS : n;
}

static status set_open(struct opened *s, const struct dev *dev, enum variant v, const struct options *o)
{
    const struct cuda_options options = {
        .math = variants[v].math, .attention = variants[v].attention, .delta_portable = variants[v].portable};
    TRY(dev_stream_open(dev, &s->stream));
    TRY(ops_cuda(&s->ops, &s->stream, &options));
    TRY(ops_check(&s->ops));
    TRY(probe_device_open(&s->device, &s->stream, s->ops.workspace(WORKSPACE_TOKENS)));
    s->device.set_workspace = ops_cuda_workspace;
    s->device.exact = o->exact;
    s->open = true;
    return STATUS_OK;
}

static void failed(struct board *b, const struct row *r, const char *text, const char *why)
{
    printf("FAIL %s: %s\n", text, why);
    b->bad++;
    b->ops[r->c->op].bad++;
}

/* The oracle's results for the row's case: the variants of a case share them. */
static const struct probe *wanted(const struct row *r, const struct ops *set)
{
    static struct probe want;
    static const struct op_case *of;
    if (of == r->c && want.dt == r->dt) return &want;
    struct ops oracle;
    ops_oracle(&oracle);
    probe_free(&want);
    want = (struct probe){.dt = r->dt,
                          .shift = r->shift,
                          .narrow_logits = set->logits_dt(r->dt) == r->dt,
                          .expert_align = set->expert_align};
    op_run(&oracle, r->c, &want);
    of = r->c;
    return &want;
}

/* A backend that is asked for by name may decline a shape, but not those of the models that it is there for. */
static bool may_refuse(const struct row *r)
{
    bool ragged = false;
    if (r->v != WITH_CUDNN && r->v != WITH_OWN) return false;
    const struct case_attn *c = &r->c->attn; /* by applies() */
    for (int64_t i = 1; i < c->docs.count; i++) ragged = ragged || c->docs.len[i] != c->docs.len[0];
    if (r->v == WITH_CUDNN && ((ragged && c->fused) || c->ranks > 0))
        return true; /* ops/cuda/attn.c says why */
    const int64_t head_dim = c->head_dim, head_dim_v = c->head_dim_v ? c->head_dim_v : head_dim;
    const bool usual = (head_dim == head_dim_v && (head_dim == 64 || head_dim == 128)) ||
                       (head_dim == 192 && head_dim_v == 128);
    return !(usual && r->real && r->dt == DTYPE_BF16);
}

/* False when the GPU is of no more use to this process. */
static bool run_row(struct board *b, struct opened *s, const struct row *r)
{
    char text[320];
    struct probe_diff d = {0};
    const struct probe *want = wanted(r, &s->ops);
    struct probe got = {.dt = r->dt,
                        .shift = r->shift,
                        .narrow_logits = want->narrow_logits,
                        .expert_align = want->expert_align,
                        .plain_lse = r->v == WITH_OWN || r->v == WITH_REFERENCE,
                        .tf32 = r->v == IN_TF32,
                        .device = &s->device};
    op_run(&s->ops, r->c, &got);
    row_text(r, text);
    bool useful = true;
    if (got.st != STATUS_OK) {
        useful = dev_sync(&s->stream) == STATUS_OK;
        if (useful && may_refuse(r)) {
            if (r->v == WITH_OWN || r->dt == DTYPE_BF16) printf("refused %s: %s\n", text, got.trouble);
            b->refused++;
        } else {
            failed(b, r, text, got.trouble);
        }
    } else {
        probe_diff_guards(&got, &d);
        probe_diff_close(want, &got, &d);
        if (d.bad) failed(b, r, text, d.text);
        if (got.trouble[0]) failed(b, r, text, got.trouble);
    }
    double *worst = &b->ops[r->c->op].worst[r->dt == DTYPE_BF16];
    if (d.worst > *worst && r->v != IN_TF32) *worst = d.worst;
    b->run++;
    b->ops[r->c->op].run++;
    if (useful) probe_free(&got);
    return useful;
}

static bool is_chosen(const struct options *o, const struct row *r)
{
    char text[320];
    return r->number % o->jobs == o->job && applies(r->v, r->c, r->dt) &&
           (!o->filter || strstr(row_text(r, text), o->filter));
}

static int child(struct board *b, const struct options *o)
{
    static struct opened sets[VARIANTS];
    struct dev dev;
    if (dev_open(&dev, DEV_CUDA) != STATUS_OK) {
        printf("%s\n", status_message());
        return NO_GPU;
    }
    parallel_threads_set(o->jobs > 1 ? processors_of(o->jobs) : 0);
    if (b->next == 0 && o->job == 0) printf("%s, sm_%d\n", dev.name, dev.sm);
    while (b->next < o->rows) {
        const struct row r = row_at(b->next++);
        if (!is_chosen(o, &r)) continue;
        struct opened *s = &sets[r.v];
        if (!s->open && set_open(s, &dev, r.v, o) != STATUS_OK) {
            char text[320];
            failed(b, &r, row_text(&r, text), status_message());
            return BROKEN;
        }
        if (!run_row(b, s, &r)) return BROKEN;
    }
    for (int v = 0; v < VARIANTS; v++) {
        if (!sets[v].open) continue;
        probe_device_close(&sets[v].device);
        ops_cuda_close(&sets[v].stream);
        dev_stream_close(&sets[v].stream);
    }
    dev_close(&dev);
    return 0;
}

/* Waits for the child, and ends it when it has been at one row for too long. */
static int wait_for(pid_t pid, const volatile int *next)
{
    enum { PATIENCE_S = 240 };
    int code, at = *next;
    time_t since = time(NULL);
    for (;;) {
        const pid_t got = waitpid(pid, &code, WNOHANG);
        if (got == pid) return code;
        if (at != *next) at = *next, since = time(NULL);
        if (time(NULL) - since > PATIENCE_S) {
            printf("no end in %d s: killed\n", PATIENCE_S);
            kill(pid, SIGKILL);
            since = time(NULL);
        }
        usleep(5000);
    }
}

static void summary(const struct board *b)
{
    printf("\n%-14s %6s %6s   %s\n", "op", "runs", "failed",
           "worst error over what is allowed, F32 and BF16");
    for (int op = 0; op < OP_COUNT; op++)
        if (b->ops[op].run || b->ops[op].bad)
            printf("%-14s %6d %6d   %.3f  %.3f\n", op_name((enum op_id)op), b->ops[op].run, b->ops[op].bad,
                   b->ops[op].worst[0], b->ops[op].worst[1]);
    printf("%d runs, %d failures, %d that a backend asked for by name does not serve\n", b->run, b->bad,
           b->refused);
}

static int run_all(struct board *b, const struct options *o)
{
    while (b->next < o->rows) {
        const int first = b->next;
        fflush(stdout);
        const pid_t pid = fork();
        if (pid == 0) {
            const int code = child(b, o);
            fflush(stdout);
            _exit(code);
        }
        const int code = wait_for(pid, &b->next), exited = WIFEXITED(code) ? WEXITSTATUS(code) : -1;
        if (exited == NO_GPU && first == 0) return gpu_missing();
        if (exited == 0 || exited == BROKEN) continue;
        char text[320], why[64];
        const struct row r = row_at(b->next > first ? b->next - 1 : first);
        snprintf(why, sizeof why, "the process died (%s %d)", exited < 0 ? "signal" : "exit code",
                 exited < 0 ? WTERMSIG(code) : exited);
        failed(b, &r, row_text(&r, text), why);
        if (exited == NO_GPU) break; /* it was there before */
        if (b->next == first) b->next++;
    }
    return b->bad > 0;
}

static void add_to(struct board *all, const struct board *b)
{
    all->run += b->run, all->bad += b->bad, all->refused += b->refused;
    for (int op = 0; op < OP_COUNT; op++) {
        all->ops[op].run += b->ops[op].run;
        all->ops[op].bad += b->ops[op].bad;
        for (int k = 0; k < 2; k++)
            if (b->ops[op].worst[k] > all->ops[op].worst[k]) all->ops[op].worst[k] = b->ops[op].worst[k];
    }
}

/* run_all in o->jobs processes, each with a board of its own. A job that ends badly is a failure. */
static int run_jobs(struct board *boards, const struct options *o)
{
    pid_t pids[MAX_JOBS];
    struct board all = {0};
    fflush(stdout);
    for (int job = 0; job < o->jobs; job++) {
        struct options mine = *o;
        mine.job = job;
        pids[job] = fork();
        if (pids[job] == 0) {
            const int code = run_all(&boards[job], &mine);
            fflush(stdout);
            _exit(code);
        }
        if (pids[job] < 0) printf("FAIL fork: no process for job %d\n", job), all.bad++;
    }
    bool missing = false;
    for (int job = 0; job < o->jobs; job++) {
        int code;
        if (pids[job] < 0 || waitpid(pids[job], &code, 0) != pids[job]) continue;
        const int exited = WIFEXITED(code) ? WEXITSTATUS(code) : -1;
        missing = missing || exited == NO_GPU;
        if (exited != 0 && exited != 1 && exited != NO_GPU)
            printf("FAIL job %d ended with %d\n", job, code), all.bad++;
        add_to(&all, &boards[job]);
    }
    if (missing) return NO_GPU;
    summary(&all);
    return all.bad > 0;
}

int main(int argc, char **argv)
{
    struct options o = {.jobs = jobs_of(processors_of(4))};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc)
            o.filter = argv[++i];
        else if (strcmp(argv[i], "--small") == 0)
            o.small = true;
        else if (strcmp(argv[i], "--exact") == 0)
            o.exact = true;
        else if (strcmp(argv[i], "--no-fork") == 0)
            o.no_fork = true, o.jobs = 1;
        else if (strcmp(argv[i], "--jobs") == 0 && i + 1 < argc)
            o.jobs = jobs_of((int)strtol(argv[++i], NULL, 10));
        else if (strcmp(argv[i], "--list") == 0)
            o.list = true, o.jobs = 1;
        else
            return printf("usage: %s [--filter TEXT] [--small] [--exact] [--no-fork] [--jobs N] [--list]\n",
                          argv[0]),
                   2;
    }
    o.rows = (OP_CASES + (o.small ? 0 : REAL_CASES)) * 2 * VARIANTS;
    setvbuf(stdout, NULL, _IOLBF, 0);
    char text[320];
    for (int i = 0; i < o.rows && o.list; i++) {
        const struct row r = row_at(i);
        if (is_chosen(&o, &r)) printf("%s\n", row_text(&r, text));
    }
    if (o.list) return 0;
    struct board *b =
        mmap(NULL, sizeof *b * MAX_JOBS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) return 1;
    if (!o.no_fork) return run_jobs(b, &o);
    const int code = child(b, &o);
    if (code == NO_GPU) return gpu_missing();
    summary(b);
    return code ? code : b->bad > 0;
}
