/* Kernels are sorted into the parts of a step by their names: names as cuBLASLt 13, cuDNN 9 and nvcc 13 give them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "observe/kernels.h"

#define UNNAMED "41_GLOBAL__N__b5cc417f_9_mangle_cu_970ebc7a"

static const struct {
    enum kernel_part part;
    const char *name, *shown; /* NULL: as it is */
} cases[] = {
    {KERNEL_GEMM, "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT", NULL},
    {KERNEL_GEMM, "nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT", NULL},
    {KERNEL_GEMM, "nvjet_tst_256x256_64x3_2x1_v_bz_NTN", NULL},
    {KERNEL_GEMM, "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn", NULL},
    {KERNEL_GEMM, "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma", NULL},
    {KERNEL_GEMM,
     "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off",
     NULL},
    {KERNEL_GEMM,
     "cutlass3x_sm100_tensorop_s128x256x32gemm_e5m2_e4m3_f32_bf16_bf16_128x256x128_0_ntn_align16_2sm", NULL},
    {KERNEL_GEMM,
     "_ZN7cutlass7Kernel2I63cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x4_nt_align2EEvNT_6ParamsE",
     "cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x4_nt_align2>"},
    {KERNEL_GEMM,
     "_ZN8cublasLt19splitKreduce_kernelILi32ELi16Ei13__nv_bfloat16S1_fS1_Lb0ES1_S1_S1_Lb1ELb0ELb0ELb0EEEvNS_"
     "18cublasSplitKParamsIT4_EEPKT2_PKT8_PT7_PT3_PKS3_SG_PKT9_S7_PSH_PvlPS3_PiSM_SM_SG_SG_SG_SG_SG_",
     "cublasLt::splitKreduce_kernel<32, 16, int, bf16, _, f32, _, false, _, _, _, true, false, false, "
     "false>"},
    {KERNEL_GEMM,
     "_Z13gemmk1_kernelIifLi256ELi5ELb0ELb0ELb0ELb0E30cublasGemvTensorStridedBatchedIK13__nv_bfloat16ES3_S0_"
     "IS1_EfLi6EEv18cublasGemmk1ParamsIT0_T7_T8_T9_T10_N8biasTypeINS8_10value_typeES9_E4typeEE",
     "gemmk1_kernel<int, f32, 256, 5, false, false, false, false, cublasGemvTensorStridedBatched<bf16>, _, "
     "_, ...>"},
    {KERNEL_ATTENTION,
     "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0",
     NULL},
    {KERNEL_ATTENTION,
     "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1_cga1x1x1_kernel0_0",
     NULL},
    {KERNEL_ATTENTION,
     "_ZN5cudnn6fusion21lean_reduction_kernelILb0ELb0ELb0EEEvPvPfS3_S3_S3_PKfS3_S3_S3_S3_S3_"
     "jjjjjjjjjjjjjjjjjjjjb",
     "cudnn::fusion::lean_reduction_kernel<false, false, false>"},
    {KERNEL_ATTENTION, "_ZN" UNNAMED "8attn_bwdINS_3polIfi13__nv_bfloat16EEEEvPT_",
     "mangle::attn_bwd<pol<f32, int, bf16>>"},
    {KERNEL_ATTENTION, "_Z14own_fwd_kernelI13__nv_bfloat16Li64EEv13attn_fwd_args9attn_docs",
     "own_fwd_kernel<bf16, 64>"}, /* a type of ours decides */
    {KERNEL_ATTENTION, "_Z12delta_kernelI13__nv_bfloat16EvPKT_S3_Pfiii", "delta_kernel<bf16>"},
    {KERNEL_ATTENTION, "_Z17hopper_dkv_kernelILi192ELi128EEvPf", "hopper_dkv_kernel<192, 128>"},
    {KERNEL_GEMM, "_ZN46_GLOBAL__N__b5cc417f_13_gemm_plain_cu_970ebc7a4gemmIffEEvPKT_S3_PT0_",
     "gemm_plain::gemm<f32, f32>"},
    {KERNEL_GEMM, "_Z17ended_gemm_kernelILi0EEvPf", "ended_gemm_kernel<0>"},
    {KERNEL_MEMORY, "_ZN12_GLOBAL__N_14copyIfEEvPT_", "copy<f32>"}, /* as g++ names it */
    {KERNEL_ATTENTION, "_Z15attention_plainPKfPf", "attention_plain"},
    {KERNEL_MEMORY, "_ZN" UNNAMED "18rmsnorm_fwd_kernelI13__nv_bfloat16Li4ELb1EEEvPKT_Pf",
     "mangle::rmsnorm_fwd_kernel<bf16, 4, true>"},
    {KERNEL_MEMORY, "_Z10swiglu_bwdPf", "swiglu_bwd"},
    {KERNEL_MEMORY, "_ZL9cast_rowsIfEvPT_i", "cast_rows<f32>"},
    {KERNEL_MEMORY, "_Z8xent_fwdPi", "xent_fwd"},
    {KERNEL_MEMORY, "_Z8rope_bwdILin1EEvPf", "rope_bwd<-1>"},
    {KERNEL_MEMORY, "bias_gelu", NULL},
    {KERNEL_OPTIMIZER, "_ZN" UNNAMED "13update_kernelEPf", "mangle::update_kernel"},
    {KERNEL_OPTIMIZER, "_ZN2my14grad_norm_partILNS_1eE1EfEEvPT0_", "my::grad_norm_part<1, f32>"},
    {KERNEL_OPTIMIZER, "_Z10adamw_stepPf", "adamw_step"},
    {KERNEL_COPY, "memcpy on the device", NULL},
    {KERNEL_COPY, "memset", NULL},
    {KERNEL_COMMUNICATION, "memcpy between GPUs", NULL},
    {KERNEL_COMMUNICATION,
     "_ZN47_GLOBAL__N__b50d5787_14_p2p_barrier_cu_7674a9f718p2p_barrier_kernelE16p2p_comm_barrier",
     "p2p_barrier::p2p_barrier_kernel"},
    {KERNEL_COMMUNICATION,
     "_ZN44_GLOBAL__N__9e523517_11_tree_sum_cu_bd0e0af310sum_kernelIdLi1ELi0EEEvNS_5termsIT_EEPS2_i",
     "tree_sum::sum_kernel<f64, 1, 0>"},
    {KERNEL_COMMUNICATION,
     "_ZN47_GLOBAL__N__7a5b0a73_14_p2p_kernels_cu_0b6ef4ad13p2p_ll_kernelE17p2p_schedule_call",
     "p2p_kernels::p2p_ll_kernel"},
    {KERNEL_COMMUNICATION, "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
     "ncclDevKernel_AllReduce_Sum_f32_RING_LL"},
    /* What is no name that we know stays as it is. */
    {KERNEL_MEMORY, "_Z", "_Z"},
    {KERNEL_MEMORY, "_Z99short", "_Z99short"},
    {KERNEL_MEMORY, "_ZN", "_ZN"},
    {KERNEL_MEMORY, "", ""},
};

static void names_tell_parts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char shown[256];
        kernel_name_short(cases[i].name, shown, sizeof shown);
        assert_string_equal(shown, cases[i].shown ? cases[i].shown : cases[i].name);
        if (kernel_part_of(cases[i].name) != cases[i].part)
            fail_msg("%s: %s", cases[i].name, kernel_part_text(kernel_part_of(cases[i].name)));
    }
}

static void a_name_is_cut_to_its_room(void **state)
{
    (void)state;
    for (size_t size = 1; size < 64; size++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            char shown[65];
            memset(shown, '#', sizeof shown);
            kernel_name_short(cases[i].name, shown, size);
            assert_true(strlen(shown) < size);
            assert_int_equal(shown[size], '#');
        }
}

/* A name may end anywhere: nothing past its end is read (the address sanitizer watches). */
static void a_torn_name_is_read_to_its_end(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t n = 0; n <= strlen(cases[i].name); n++) {
            char *torn = test_malloc(n + 1), shown[256];
            memcpy(torn, cases[i].name, n);
            torn[n] = 0;
            kernel_name_short(torn, shown, sizeof shown);
            (void)kernel_part_of(torn);
            test_free(torn);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_tell_parts),
        cmocka_unit_test(a_name_is_cut_to_its_room),
        cmocka_unit_test(a_torn_name_is_read_to_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
