#include "ops/cuda/libs.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define STRING2(x) #x
#define STRING(x)  STRING2(x)

static struct cuda_libs loaded;
static bool is_loaded;

/* The loader's search path (LD_LIBRARY_PATH, the system's cache), then the toolkit of the build. */
static void *open_library(const char *name)
{
    char path[1024];
    void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (lib) return lib;
    snprintf(path, sizeof path, "%s/%s", INGOT_CUDA_LIBRARY_DIR, name);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static status find(void *lib, const char *library, const char *name, void *slot)
{
    void *f = dlsym(lib, name);
    if (f == NULL)
        return FAIL(STATUS_DEVICE, "%s has no %s: it is older than the one this ingot was built for", library,
                    name);
    memcpy(slot, &f, sizeof f); /* ISO C cannot convert an object pointer to a function pointer */
    return STATUS_OK;
}

static status missing(const char *name, const char *package)
{
    const char *why = dlerror();
    return FAIL(STATUS_DEVICE,
                "%s cannot be loaded (%s): install %s, or name its directory in LD_LIBRARY_PATH", name,
                why ? why : "no reason given", package);
}

status cuda_libs_open(void)
{
    const char *lt_name = "libcublasLt.so." STRING(CUBLAS_VER_MAJOR),
               *dnn_name = "libcudnn.so." STRING(CUDNN_MAJOR);
    if (is_loaded) return STATUS_OK;
    void *lt = open_library(lt_name);
    if (lt == NULL) return missing(lt_name, "cuBLAS of CUDA " STRING(CUBLAS_VER_MAJOR));
    void *dnn = open_library(dnn_name);
    if (dnn == NULL) return missing(dnn_name, "cuDNN " STRING(CUDNN_MAJOR));
#define X(f) TRY(find(lt, lt_name, #f, &loaded.f##_));
    CUDA_LIBS_LT(X)
#undef X
#define X(f) TRY(find(dnn, dnn_name, #f, &loaded.f##_));
    CUDA_LIBS_DNN(X)
#undef X
    is_loaded = true;
    return STATUS_OK;
}

const struct cuda_libs *cuda_libs(void)
{
    CHECK(is_loaded, "cuBLASLt and cuDNN are used before they were loaded");
    return &loaded;
}
