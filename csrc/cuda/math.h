// The functions of ops/math.h on a CUDA device.
#pragma once

// What a device runs, and what is part of the core: see kernel.h.
#if defined(__CUDACC__) || defined(LN_EMULATOR)
#define LN_DEVICE_CODE
#endif

#define LN_CODE cuda
#ifdef LN_DEVICE_CODE
#define LN_INLINE static __device__ __forceinline__
#else
#include <math.h>
#define LN_INLINE static inline
#endif

namespace lazynet::cuda::m {

#define LN_FUNCTION(name)                                \
  LN_INLINE float name(float x) { return ::name##f(x); } \
  LN_INLINE double name(double x) { return ::name(x); }
LN_FUNCTION(sqrt)
LN_FUNCTION(sin)
LN_FUNCTION(cos)
LN_FUNCTION(exp)
LN_FUNCTION(expm1)
LN_FUNCTION(tanh)
LN_FUNCTION(log)
LN_FUNCTION(erf)
#undef LN_FUNCTION
LN_INLINE float abs(float x) { return ::fabsf(x); }
LN_INLINE double abs(double x) { return ::fabs(x); }
LN_INLINE float pow(float x, float y) { return ::powf(x, y); }
LN_INLINE double pow(double x, double y) { return ::pow(x, y); }
LN_INLINE float copysign(float x, float sign) { return ::copysignf(x, sign); }
LN_INLINE double copysign(double x, double sign) { return ::copysign(x, sign); }
LN_INLINE float log1p_of_fraction(float x) { return ::log1pf(x); }
LN_INLINE double log1p_of_fraction(double x) { return ::log1p(x); }
LN_INLINE float normal_cdf(float x) { return 0.5f * ::erfcf(x * -0.70710678f); }
LN_INLINE double normal_cdf(double x) { return 0.5 * ::erfc(x * -0.70710678118654752); }

}  // namespace lazynet::cuda::m
