/* cudnn_numbers.cc - kernels/cuda/cudnn_numbers.def and the functions that are declared there,
 * compared with cuDNN's own header by the compiler.
 */
#include <cudnn.h>

#include <type_traits>

#include "cudnn_api.h"

#define UL_CUDNN(name, value) static_assert((int)CUDNN_##name == (value), #name);
#include "cudnn_numbers.def"

/* As many arguments, each as wide as the header's; the backend's descriptors and handles are
 * pointers, its enumerations int. */
template <class A, class B> struct alike {
    static const bool value =
        sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value;
};
template <class R, class... A, class S, class... B> struct alike<R (*)(A...), S (*)(B...)> {
    static const bool value = (alike<A, B>::value && ... && (sizeof...(A) == sizeof...(B)));
};
template <> struct alike<void, void> {
    static const bool value = true;
};

#define UL_CUDNN_ALIKE(type, name, arguments) \
    static_assert(alike<decltype(cudnn::api::name), decltype(&cudnn##name)>::value, #name);
UL_CUDNN_FUNCTIONS(UL_CUDNN_ALIKE)
