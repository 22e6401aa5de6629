/* cuBLASLt and cuDNN, loaded when the op set is opened and not before: a program built with CUDA starts as fast as one without (cuBLASLt
 * alone is half a gigabyte: 0.3 s), runs on machines that have neither, and says in one line what is missing.
 *
 * Included instead of <cublasLt.h> and <cudnn.h>: it redirects the functions below to what was loaded. */
#ifndef INGOT_OPS_CUDA_CUDA_LIBS_H
#define INGOT_OPS_CUDA_CUDA_LIBS_H
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
#define X(f) __typeof__(&f) f;
    CUDA_LIBS_LT(X)
    CUDA_LIBS_DNN(X)
#undef X
};

/* Loads what is not loaded yet. STATUS_DEVICE names the library and the search path. Not for two threads at once. */
status cuda_libs_open(void) WARN_UNUSED;
const struct cuda_libs *cuda_libs(void); /* after cuda_libs_open() */

/* A function-like macro does not expand inside itself: the name behind -> is the member's. */
#define cublasLtCreate(...) cuda_libs()->cublasLtCreate(__VA_ARGS__)
#define cublasLtDestroy(...) cuda_libs()->cublasLtDestroy(__VA_ARGS__)
#define cublasLtGetStatusName(...) cuda_libs()->cublasLtGetStatusName(__VA_ARGS__)
#define cublasLtGetStatusString(...) cuda_libs()->cublasLtGetStatusString(__VA_ARGS__)
#define cublasLtGetVersion() cuda_libs()->cublasLtGetVersion()
#define cublasLtMatmul(...) cuda_libs()->cublasLtMatmul(__VA_ARGS__)
#define cublasLtMatmulAlgoCheck(...) cuda_libs()->cublasLtMatmulAlgoCheck(__VA_ARGS__)
#define cublasLtMatmulAlgoConfigGetAttribute(...) cuda_libs()->cublasLtMatmulAlgoConfigGetAttribute(__VA_ARGS__)
#define cublasLtMatmulAlgoGetHeuristic(...) cuda_libs()->cublasLtMatmulAlgoGetHeuristic(__VA_ARGS__)
#define cublasLtMatmulDescCreate(...) cuda_libs()->cublasLtMatmulDescCreate(__VA_ARGS__)
#define cublasLtMatmulDescDestroy(...) cuda_libs()->cublasLtMatmulDescDestroy(__VA_ARGS__)
#define cublasLtMatmulDescSetAttribute(...) cuda_libs()->cublasLtMatmulDescSetAttribute(__VA_ARGS__)
#define cublasLtMatmulPreferenceCreate(...) cuda_libs()->cublasLtMatmulPreferenceCreate(__VA_ARGS__)
#define cublasLtMatmulPreferenceDestroy(...) cuda_libs()->cublasLtMatmulPreferenceDestroy(__VA_ARGS__)
#define cublasLtMatmulPreferenceSetAttribute(...) cuda_libs()->cublasLtMatmulPreferenceSetAttribute(__VA_ARGS__)
#define cublasLtMatrixLayoutCreate(...) cuda_libs()->cublasLtMatrixLayoutCreate(__VA_ARGS__)
#define cublasLtMatrixLayoutDestroy(...) cuda_libs()->cublasLtMatrixLayoutDestroy(__VA_ARGS__)
#define cudnnCreate(...) cuda_libs()->cudnnCreate(__VA_ARGS__)
#define cudnnDestroy(...) cuda_libs()->cudnnDestroy(__VA_ARGS__)
#define cudnnGetErrorString(...) cuda_libs()->cudnnGetErrorString(__VA_ARGS__)
#define cudnnGetLastErrorString(...) cuda_libs()->cudnnGetLastErrorString(__VA_ARGS__)
#define cudnnGetVersion() cuda_libs()->cudnnGetVersion()
#define cudnnSetStream(...) cuda_libs()->cudnnSetStream(__VA_ARGS__)
#define cudnnBackendCreateDescriptor(...) cuda_libs()->cudnnBackendCreateDescriptor(__VA_ARGS__)
#define cudnnBackendDestroyDescriptor(...) cuda_libs()->cudnnBackendDestroyDescriptor(__VA_ARGS__)
#define cudnnBackendExecute(...) cuda_libs()->cudnnBackendExecute(__VA_ARGS__)
#define cudnnBackendFinalize(...) cuda_libs()->cudnnBackendFinalize(__VA_ARGS__)
#define cudnnBackendGetAttribute(...) cuda_libs()->cudnnBackendGetAttribute(__VA_ARGS__)
#define cudnnBackendSetAttribute(...) cuda_libs()->cudnnBackendSetAttribute(__VA_ARGS__)
#endif
