/* Loads cuBLASLt and cuDNN when the op set is opened. A CUDA build therefore starts as fast as a CPU build (cuBLASLt
 * alone is half a gigabyte: 0.3 s) and runs on machines that have neither library; a missing library gives a one-line
 * error.
 *
 * Include this file instead of <cublasLt.h> and <cudnn.h>: it redirects the functions below to the loaded libraries. */
#ifndef INGOT_OPS_CUDA_LIBS_H
#define INGOT_OPS_CUDA_LIBS_H
#include "base/status.h"
#include <cublasLt.h>
#include <cudnn.h>

#define CUDA_LIBS_LT(X)                                                                                                \
    X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtGetStatusName) X(cublasLtGetStatusString) X(cublasLtGetVersion)     \
    X(cublasLtMatmul) X(cublasLtMatmulAlgoCheck) X(cublasLtMatmulAlgoConfigGetAttribute)                               \
    X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy)                         \
    X(cublasLtMatmulDescSetAttribute) X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy)             \
    X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy)
#define CUDA_LIBS_DNN(X)                                                                                               \
    X(cudnnCreate) X(cudnnDestroy) X(cudnnGetErrorString) X(cudnnGetLastErrorString) X(cudnnGetVersion)                \
    X(cudnnSetStream) X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor) X(cudnnBackendExecute)          \
    X(cudnnBackendFinalize) X(cudnnBackendGetAttribute) X(cudnnBackendSetAttribute)

struct cuda_libs {
#define X(f) __typeof__(&f) f##_;
    CUDA_LIBS_LT(X)
    CUDA_LIBS_DNN(X)
#undef X
};

/* Loads the libraries that are not loaded yet. STATUS_DEVICE names the library and the search path. Not thread-safe. */
status cuda_libs_open(void) WARN_UNUSED;
const struct cuda_libs *cuda_libs(void); /* after cuda_libs_open() */

#define cublasLtCreate(...) cuda_libs()->cublasLtCreate_(__VA_ARGS__)
#define cublasLtDestroy(...) cuda_libs()->cublasLtDestroy_(__VA_ARGS__)
#define cublasLtGetStatusName(...) cuda_libs()->cublasLtGetStatusName_(__VA_ARGS__)
#define cublasLtGetStatusString(...) cuda_libs()->cublasLtGetStatusString_(__VA_ARGS__)
#define cublasLtGetVersion() cuda_libs()->cublasLtGetVersion_()
#define cublasLtMatmul(...) cuda_libs()->cublasLtMatmul_(__VA_ARGS__)
#define cublasLtMatmulAlgoCheck(...) cuda_libs()->cublasLtMatmulAlgoCheck_(__VA_ARGS__)
#define cublasLtMatmulAlgoConfigGetAttribute(...) cuda_libs()->cublasLtMatmulAlgoConfigGetAttribute_(__VA_ARGS__)
#define cublasLtMatmulAlgoGetHeuristic(...) cuda_libs()->cublasLtMatmulAlgoGetHeuristic_(__VA_ARGS__)
#define cublasLtMatmulDescCreate(...) cuda_libs()->cublasLtMatmulDescCreate_(__VA_ARGS__)
#define cublasLtMatmulDescDestroy(...) cuda_libs()->cublasLtMatmulDescDestroy_(__VA_ARGS__)
#define cublasLtMatmulDescSetAttribute(...) cuda_libs()->cublasLtMatmulDescSetAttribute_(__VA_ARGS__)
#define cublasLtMatmulPreferenceCreate(...) cuda_libs()->cublasLtMatmulPreferenceCreate_(__VA_ARGS__)
#define cublasLtMatmulPreferenceDestroy(...) cuda_libs()->cublasLtMatmulPreferenceDestroy_(__VA_ARGS__)
#define cublasLtMatmulPreferenceSetAttribute(...) cuda_libs()->cublasLtMatmulPreferenceSetAttribute_(__VA_ARGS__)
#define cublasLtMatrixLayoutCreate(...) cuda_libs()->cublasLtMatrixLayoutCreate_(__VA_ARGS__)
#define cublasLtMatrixLayoutDestroy(...) cuda_libs()->cublasLtMatrixLayoutDestroy_(__VA_ARGS__)
#define cudnnCreate(...) cuda_libs()->cudnnCreate_(__VA_ARGS__)
#define cudnnDestroy(...) cuda_libs()->cudnnDestroy_(__VA_ARGS__)
#define cudnnGetErrorString(...) cuda_libs()->cudnnGetErrorString_(__VA_ARGS__)
#define cudnnGetLastErrorString(...) cuda_libs()->cudnnGetLastErrorString_(__VA_ARGS__)
#define cudnnGetVersion() cuda_libs()->cudnnGetVersion_()
#define cudnnSetStream(...) cuda_libs()->cudnnSetStream_(__VA_ARGS__)
#define cudnnBackendCreateDescriptor(...) cuda_libs()->cudnnBackendCreateDescriptor_(__VA_ARGS__)
#define cudnnBackendDestroyDescriptor(...) cuda_libs()->cudnnBackendDestroyDescriptor_(__VA_ARGS__)
#define cudnnBackendExecute(...) cuda_libs()->cudnnBackendExecute_(__VA_ARGS__)
#define cudnnBackendFinalize(...) cuda_libs()->cudnnBackendFinalize_(__VA_ARGS__)
#define cudnnBackendGetAttribute(...) cuda_libs()->cudnnBackendGetAttribute_(__VA_ARGS__)
#define cudnnBackendSetAttribute(...) cuda_libs()->cudnnBackendSetAttribute_(__VA_ARGS__)
#endif
