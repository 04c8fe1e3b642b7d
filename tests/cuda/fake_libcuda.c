/* fake_libcuda.c - a libcuda.so.1 for machines without a driver: it accepts compiled kernels, so
 * that cuDNN can make plans for a GPU that is not there. Nothing can run on it.
 */

int cuLibraryLoadData(void **library, const void *code, void *options, void *values, unsigned n,
                      void *library_options, void *library_values, unsigned m);
int cuLibraryUnload(void *library);
int cuLibraryGetKernel(void **kernel, void *library, const char *name);
int cuLibraryGetKernelCount(unsigned *n, void *library);
int cuKernelSetAttribute(int attribute, int value, void *kernel, int device);
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device);
int cuGetErrorString(int error, const char **text);
int cuGetErrorName(int error, const char **name);
int cuDriverGetVersion(int *version);

static int a_library, a_kernel;

int cuLibraryLoadData(void **library, const void *code, void *options, void *values, unsigned n,
                      void *library_options, void *library_values, unsigned m)
{
    (void)code, (void)options, (void)values, (void)n;
    (void)library_options, (void)library_values, (void)m;
    *library = &a_library;
    return 0;
}

int cuLibraryUnload(void *library)
{
    (void)library;
    return 0;
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    (void)library, (void)name;
    *kernel = &a_kernel;
    return 0;
}

int cuLibraryGetKernelCount(unsigned *n, void *library)
{
    (void)library;
    *n = 1;
    return 0;
}

int cuKernelSetAttribute(int attribute, int value, void *kernel, int device)
{
    (void)attribute, (void)value, (void)kernel, (void)device;
    return 0;
}

int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device)
{
    (void)attribute, (void)kernel, (void)device;
    *value = 0;
    return 0;
}

int cuGetErrorString(int error, const char **text)
{
    (void)error;
    *text = "there is no GPU";
    return 0;
}

int cuGetErrorName(int error, const char **name) { return cuGetErrorString(error, name); }

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

/* What cuDNN wants to find, and calls only to run something: 34, a library that is no driver. */
#define WITHOUT_A_GPU(name) \
    int name(void);         \
    int name(void) { return 34; }
WITHOUT_A_GPU(cuCtxGetCurrent)
WITHOUT_A_GPU(cuCtxGetLimit)
WITHOUT_A_GPU(cuCtxPopCurrent)
WITHOUT_A_GPU(cuCtxPushCurrent)
WITHOUT_A_GPU(cuDeviceGet)
WITHOUT_A_GPU(cuDeviceGetCount)
WITHOUT_A_GPU(cuLaunchCooperativeKernel)
WITHOUT_A_GPU(cuLaunchKernel)
WITHOUT_A_GPU(cuLaunchKernelEx)
WITHOUT_A_GPU(cuLibraryLoadFromFile)
WITHOUT_A_GPU(cuLinkAddData)
WITHOUT_A_GPU(cuLinkComplete)
WITHOUT_A_GPU(cuLinkCreate)
WITHOUT_A_GPU(cuLinkDestroy)
WITHOUT_A_GPU(cuOccupancyMaxPotentialClusterSize)
WITHOUT_A_GPU(cuStreamGetCtx)
WITHOUT_A_GPU(cuKernelGetFunction) /* cuDNN 9.25 */
WITHOUT_A_GPU(cuModuleGetFunction) /* cuDNN 9.28 */
WITHOUT_A_GPU(cuModuleLoadData)
WITHOUT_A_GPU(cuModuleUnload)
WITHOUT_A_GPU(cuTensorMapEncodeIm2col)
WITHOUT_A_GPU(cuTensorMapEncodeTiled)
