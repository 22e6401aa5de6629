/* Families of cases, and their fields by name. */
#include "probe.h"
#include <stdio.h>

/* clang-format off */
enum case_family case_family(enum op_id op)
{
    switch (op) { /* an op that has no family does not compile */
    case OP_gemm: case OP_bias_bwd: return CASE_gemm;
    case OP_embed_fwd: case OP_embed_bwd: return CASE_embed;
    case OP_rmsnorm_fwd: case OP_rmsnorm_bwd: case OP_layernorm_fwd: case OP_layernorm_bwd: return CASE_norm;
    case OP_swiglu_fwd: case OP_swiglu_bwd: case OP_gelu_fwd: case OP_gelu_bwd: case OP_gate_fwd:
    case OP_gate_bwd: return CASE_act;
    case OP_sum: case OP_softcap: case OP_normal: case OP_split_master: case OP_accumulate_tree: case OP_muon_normalize: case OP_newton_schulz_poly:
    case OP_muon_apply: case OP_ngram_gate_fwd: case OP_ngram_gate_bwd: return CASE_rows;
    case OP_rope_fwd: case OP_rope_bwd: return CASE_rope;
    case OP_mla_rope_fwd: case OP_mla_rope_bwd: case OP_per_head_gemm: return CASE_latent;
    case OP_attn_fwd: case OP_attn_bwd: case OP_attn_decode: case OP_kv_cache_append: return CASE_attn;
    case OP_xent: case OP_top1_correct: return CASE_xent;
    case OP_vocab_xent_partial: case OP_vocab_xent_finish: return CASE_slice;
    case OP_shift_tokens: return CASE_shift_tokens;
    case OP_ngram: return CASE_ngram;
    case OP_halt_fwd: case OP_halt_stop: case OP_halt_bwd: return CASE_halt;
    case OP_conv_fwd: case OP_conv_bwd: return CASE_conv;
    case OP_gates_fwd: case OP_gates_bwd: case OP_gated_norm_fwd: case OP_gated_norm_bwd: case OP_ssm_in_fwd:
    case OP_ssm_in_bwd: case OP_ssm_out_fwd: case OP_ssm_out_bwd: return CASE_heads;
    case OP_delta_fwd: case OP_delta_bwd: return CASE_delta;
    case OP_route_fwd: case OP_route_bwd: case OP_expert_gemm: case OP_expert_codes: case OP_expert_act_fwd: case OP_expert_act_bwd:
    case OP_combine: case OP_combine_gate_bwd: return CASE_moe;
    case OP_dispatch_sort: return CASE_dispatch;
    case OP_balance: return CASE_balance;
    case OP_update: return CASE_update;
    case OP_rows_unique: return CASE_unique;
    case OP_rows_update: return CASE_table;
    case OP_quantize: return CASE_quantize;
    case OP_fp8_scales: return CASE_scales;
    case OP_fp8_bound: return CASE_bound;
    case OP_quantize_blocks: return CASE_blocks;
    case OP_COUNT: break;
    }
    return CASE_FAMILIES;
}

#define NUMBER(family, field) {CASE_##family, #field, offsetof(struct op_case, family.field), false}
#define FLAG(family, field) {CASE_##family, #field, offsetof(struct op_case, family.field), true}
/* Every field of cases.h, for texts and case_flag. */
static const struct {
    enum case_family family;
    const char *name;
    size_t at;
    bool flag; /* a bool; else an int64_t */
} fields[] = {
    NUMBER(gemm, m), NUMBER(gemm, n), NUMBER(gemm, k), FLAG(gemm, trans_a), FLAG(gemm, trans_b), FLAG(gemm, with_bias),
    FLAG(gemm, add_to), FLAG(gemm, wide), FLAG(gemm, fp8), NUMBER(gemm, exp), FLAG(gemm, e5m2_a), FLAG(gemm, e5m2_b),
    FLAG(gemm, with_add), FLAG(gemm, fast), FLAG(gemm, zeros), FLAG(gemm, subnormal),
    NUMBER(embed, rows), NUMBER(embed, d), NUMBER(embed, vocab), NUMBER(embed, first), NUMBER(embed, ids), FLAG(embed, positions),
    FLAG(embed, no_tokens),
    NUMBER(norm, rows), NUMBER(norm, d), FLAG(norm, branch), FLAG(norm, dres), FLAG(norm, no_stats), FLAG(norm, shift),
    FLAG(norm, in_place), FLAG(norm, in_place_2), FLAG(norm, gaps), FLAG(norm, quantized), FLAG(norm, only),
    FLAG(norm, no_trans), FLAG(norm, measured),
    NUMBER(act, rows), NUMBER(act, d), FLAG(act, recompute), FLAG(act, in_place), FLAG(act, in_place_2), FLAG(act, gaps),
    FLAG(act, quantized), FLAG(act, only), FLAG(act, no_trans), FLAG(act, measured),
    NUMBER(rows, rows), NUMBER(rows, d), FLAG(rows, not_finite), FLAG(rows, in_place),
    NUMBER(rope, rows), NUMBER(rope, heads), NUMBER(rope, heads_kv), NUMBER(rope, head_dim), NUMBER(rope, half), FLAG(rope, qk_norm),
    FLAG(rope, shift), FLAG(rope, in_place), FLAG(rope, gaps),
    NUMBER(latent, rows), NUMBER(latent, heads), NUMBER(latent, nope), NUMBER(latent, half), FLAG(latent, q_only),
    FLAG(latent, k_only), FLAG(latent, gaps),
    NUMBER(attn, heads), NUMBER(attn, heads_kv), NUMBER(attn, head_dim), NUMBER(attn, head_dim_v), NUMBER(attn, window),
    NUMBER(attn, docs.count), NUMBER(attn, ranks), NUMBER(attn, rank), NUMBER(attn, length),
    FLAG(attn, fused), FLAG(attn, apart), FLAG(attn, no_stats), FLAG(attn, gaps),
    NUMBER(xent, rows), NUMBER(xent, vocab), NUMBER(xent, used), FLAG(xent, z_loss), FLAG(xent, cap), FLAG(xent, no_grad), FLAG(xent, in_place),
    NUMBER(slice, rows), NUMBER(slice, vocab), NUMBER(slice, slices), NUMBER(slice, slice), FLAG(slice, z_loss), FLAG(slice, cap),
    FLAG(slice, no_grad), FLAG(slice, in_place),
    NUMBER(shift_tokens, k), NUMBER(shift_tokens, docs.count),
    NUMBER(ngram, order), NUMBER(ngram, heads), NUMBER(ngram, docs.count), FLAG(ngram, mapped), FLAG(ngram, before),
    NUMBER(halt, d), NUMBER(halt, m), NUMBER(halt, segments), NUMBER(halt, docs.count),
    NUMBER(conv, channels), NUMBER(conv, width), NUMBER(conv, dilation), NUMBER(conv, docs.count), FLAG(conv, with_bias),
    FLAG(conv, before), FLAG(conv, gaps),
    NUMBER(heads, rows), NUMBER(heads, heads), NUMBER(heads, d), FLAG(heads, with_skip), FLAG(heads, in_place), FLAG(heads, gaps),
    NUMBER(delta, heads), NUMBER(delta, heads_k), NUMBER(delta, dk), NUMBER(delta, dv), NUMBER(delta, docs.count),
    FLAG(delta, qk_norm), FLAG(delta, no_delta), FLAG(delta, slow), FLAG(delta, state), FLAG(delta, gaps),
    NUMBER(moe, rows), NUMBER(moe, experts), NUMBER(moe, top_k), NUMBER(moe, align), NUMBER(moe, groups),
    NUMBER(moe, groups_kept), NUMBER(moe, capacity), NUMBER(moe, n), NUMBER(moe, k), NUMBER(moe, f), NUMBER(moe, d),
    NUMBER(moe, docs.count), NUMBER(moe, ranks), NUMBER(moe, rank), NUMBER(moe, length), FLAG(moe, sigmoid), FLAG(moe, with_bias), FLAG(moe, normalize), FLAG(moe, aux), FLAG(moe, sequence),
    FLAG(moe, z_loss), FLAG(moe, no_stats), FLAG(moe, hot), FLAG(moe, empty), FLAG(moe, dgrad), FLAG(moe, wgrad),
    FLAG(moe, gather_a), FLAG(moe, gather_b), FLAG(moe, add_to), FLAG(moe, with_base), FLAG(moe, wide), FLAG(moe, gated),
    FLAG(moe, in_place), FLAG(moe, fp8), FLAG(moe, e5m2), FLAG(moe, fast), FLAG(moe, no_codes), FLAG(moe, no_trans),
    FLAG(moe, no_amax), FLAG(moe, quantized), FLAG(moe, only),
    NUMBER(dispatch, ranks), NUMBER(dispatch, rank), NUMBER(dispatch, experts), NUMBER(dispatch, top_k), NUMBER(dispatch, most),
    NUMBER(dispatch, align),
    NUMBER(balance, routers), NUMBER(balance, experts), FLAG(balance, not_finite),
    NUMBER(update, rows), NUMBER(update, d), FLAG(update, lion), FLAG(update, moments_bf16), FLAG(update, moments_8),
    FLAG(update, no_clip), FLAG(update, table_rows),
    NUMBER(unique, count), NUMBER(unique, vocab), FLAG(unique, no_tokens), FLAG(unique, in_place),
    NUMBER(table, slots), NUMBER(table, used), NUMBER(table, d), NUMBER(table, vocab), NUMBER(table, first), FLAG(table, lion),
    FLAG(table, moments_bf16), FLAG(table, not_finite),
    NUMBER(quantize, rows), NUMBER(quantize, n), NUMBER(quantize, exp), FLAG(quantize, e5m2), FLAG(quantize, no_codes),
    FLAG(quantize, no_trans), FLAG(quantize, no_amax), FLAG(quantize, before), FLAG(quantize, zeros), FLAG(quantize, outlier),
    FLAG(quantize, subnormal), FLAG(quantize, saturated), FLAG(quantize, not_finite), FLAG(quantize, infinite),
    FLAG(quantize, gaps),
    NUMBER(scales, count), NUMBER(scales, ranks), NUMBER(scales, margin), FLAG(scales, delayed), FLAG(scales, e5m2),
    FLAG(scales, not_finite), FLAG(scales, zeros),
    NUMBER(bound, d), FLAG(bound, with_bias), FLAG(bound, shift), FLAG(bound, e5m2), FLAG(bound, zeros), FLAG(bound, not_finite),
    NUMBER(blocks, rows), NUMBER(blocks, n), NUMBER(blocks, format), FLAG(blocks, columns), FLAG(blocks, square),
    FLAG(blocks, hadamard), FLAG(blocks, stochastic), FLAG(blocks, exact), FLAG(blocks, no_codes), FLAG(blocks, no_values), FLAG(blocks, zeros),
    FLAG(blocks, not_finite),
};
/* clang-format on */
enum { FIELDS = sizeof fields / sizeof fields[0] };

bool *case_flag(struct op_case *c, const char *name)
{
    for (size_t i = 0; i < FIELDS; i++)
        if (fields[i].flag && fields[i].family == case_family(c->op) && strcmp(fields[i].name, name) == 0)
            return (bool *)((char *)c + fields[i].at);
    return NULL;
}

const char *op_name(enum op_id op)
{
    static const char *const names[] = {
#define X(op) #op,
        OPS(X)
#undef X
    };
    return names[op];
}

const char *case_text(const struct op_case *c, dtype dt, char buf[256])
{
    int used = snprintf(buf, 256, "%s %s", op_name(c->op), dtype_name(dt));
    for (size_t i = 0; i < FIELDS && used < 256; i++) {
        if (fields[i].family != case_family(c->op)) continue;
        const char *at = (const char *)c + fields[i].at;
        int64_t value = 0;
        if (fields[i].flag)
            value = *(const bool *)at;
        else
            memcpy(&value, at, sizeof value);
        if (value == 0) continue;
        used += snprintf(buf + used, (size_t)(256 - used), " %s", fields[i].name);
        if (!fields[i].flag && used < 256)
            used += snprintf(buf + used, (size_t)(256 - used), " %lld", (long long)value);
    }
    return buf;
}
