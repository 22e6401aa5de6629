/* A stand-in for the CUDA driver library on machines without one: cuDNN compiles the kernels of a plan for a GPU that is only described,
 * but then asks the driver to load them. Here every load succeeds and there is no device, so plans can be built and nothing can run. */
typedef int driver_fn(void);

#define SUCCEEDS(name)                                                                                       \
    driver_fn name;                                                                                          \
    int name(void)                                                                                           \
    {                                                                                                        \
        return 0;                                                                                            \
    }
/* The first argument receives a handle that is not used. */
#define GIVES_HANDLE(name)                                                                                   \
    int name(void **handle);                                                                                 \
    int name(void **handle)                                                                                  \
    {                                                                                                        \
        static char thing;                                                                                   \
        *handle = &thing;                                                                                    \
        return 0;                                                                                            \
    }
#define GIVES_INT(name, value, result)                                                                       \
    int name(int *out);                                                                                      \
    int name(int *out)                                                                                       \
    {                                                                                                        \
        *out = value;                                                                                        \
        return result;                                                                                       \
    }
#define GIVES_TEXT(name)                                                                                     \
    int name(int error, const char **text);                                                                  \
    int name(int error, const char **text)                                                                   \
    {                                                                                                        \
        (void)error;                                                                                         \
        *text = "there is no driver";                                                                        \
        return 0;                                                                                            \
    }

enum { NO_DEVICE = 100, VERSION = 13000 };

int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
    (void)flags;
    return NO_DEVICE;
}

GIVES_INT(cuDriverGetVersion, VERSION, 0)
GIVES_INT(cuDeviceGetCount, 0, NO_DEVICE)
GIVES_INT(cuKernelGetAttribute, 0, 0)
GIVES_INT(cuFuncGetAttribute, 0, 0)
GIVES_TEXT(cuGetErrorString)
GIVES_TEXT(cuGetErrorName)
GIVES_HANDLE(cuLibraryLoadData)
GIVES_HANDLE(cuLibraryLoadFromFile)
GIVES_HANDLE(cuLibraryGetKernel)
GIVES_HANDLE(cuModuleLoadData)
GIVES_HANDLE(cuModuleLoadDataEx)
GIVES_HANDLE(cuModuleLoadFatBinary)
GIVES_HANDLE(cuModuleGetFunction)
GIVES_HANDLE(cuKernelGetFunction)
GIVES_HANDLE(cuCtxGetCurrent)
GIVES_HANDLE(cuDevicePrimaryCtxRetain)
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuModuleUnload)
SUCCEEDS(cuModuleGetGlobal_v2)
SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuFuncSetAttribute)
SUCCEEDS(cuLaunchKernel)
SUCCEEDS(cuLaunchKernelEx)
SUCCEEDS(cuLaunchCooperativeKernel)
SUCCEEDS(cuTensorMapEncodeTiled)
SUCCEEDS(cuLinkCreate)
SUCCEEDS(cuLinkCreate_v2)
SUCCEEDS(cuLinkAddData)
SUCCEEDS(cuLinkAddData_v2)
SUCCEEDS(cuLinkAddFile_v2)
SUCCEEDS(cuLinkComplete)
SUCCEEDS(cuLinkDestroy)
SUCCEEDS(cuDeviceGet)
SUCCEEDS(cuDeviceGetAttribute)
SUCCEEDS(cuCtxGetDevice)
SUCCEEDS(cuCtxGetLimit)
SUCCEEDS(cuCtxPushCurrent)
SUCCEEDS(cuCtxPopCurrent)
SUCCEEDS(cuStreamGetCtx)
SUCCEEDS(cuStreamSynchronize)
SUCCEEDS(cuMemcpyDtoH_v2)
SUCCEEDS(cuDevicePrimaryCtxRelease)
SUCCEEDS(cuDevicePrimaryCtxReset)
SUCCEEDS(cuOccupancyMaxPotentialClusterSize)
SUCCEEDS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
