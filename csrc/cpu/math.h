// The functions of ops/math.h on the CPU. The float versions of exp, tanh and their kin are polynomials without
// branches or calls, so that loops over them become vector code; arguments out of range are clamped by selections that
// let NaN through. Double uses the C library.
#pragma once

#include <cstdint>
#include <cstring>

#define LN_CODE cpu::LN_UNIT
// Vector code needs every call inlined, and the compiler's own measure of size stops short of that.
#define LN_INLINE static inline __attribute__((always_inline))

namespace lazynet::LN_CODE::m {

LN_INLINE int32_t bits_of(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
LN_INLINE float float_of(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

LN_INLINE float abs(float x) { return __builtin_fabsf(x); }
LN_INLINE double abs(double x) { return __builtin_fabs(x); }
LN_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
LN_INLINE double sqrt(double x) { return __builtin_sqrt(x); }
LN_INLINE float sin(float x) { return __builtin_sinf(x); }
LN_INLINE double sin(double x) { return __builtin_sin(x); }
LN_INLINE float cos(float x) { return __builtin_cosf(x); }
LN_INLINE double cos(double x) { return __builtin_cos(x); }
LN_INLINE float pow(float x, float y) { return __builtin_powf(x, y); }
LN_INLINE double pow(double x, double y) { return __builtin_pow(x, y); }
LN_INLINE float copysign(float x, float sign) { return __builtin_copysignf(x, sign); }

// x = n ln 2 + r, |r| <= ln 2 / 2. Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits.
struct Reduced {
  int32_t n;
  float r;
};
LN_INLINE Reduced reduce_by_ln2(float x) {
  const float magic = 12582912.0f;
  float shifted = x * 1.44269504f + magic;
  float n = shifted - magic;
  float r = x - n * 0.693359375f;  // the high part has 9 bits: exact without fused multiply-add too
  return {bits_of(shifted) - bits_of(magic), r + n * 2.12194440e-4f};
}
// exp(r) - 1 - r, |r| <= ln 2 / 2.
LN_INLINE float exp_tail(float r) {
  float q = 1.9875691500e-4f;
  q = q * r + 1.3981999507e-3f;
  q = q * r + 8.3334519073e-3f;
  q = q * r + 4.1665795894e-2f;
  q = q * r + 1.6666665459e-1f;
  q = q * r + 5.0000001201e-1f;
  return q * r * r;
}
// 2^n for -126 <= n <= 127; unsigned because n is arbitrary when x is NaN.
LN_INLINE float power_of_two(int32_t n) {
  return float_of(static_cast<int32_t>((static_cast<uint32_t>(n) + 127u) << 23));
}

LN_INLINE float exp(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -105.0f ? -105.0f : x;
  Reduced e = reduce_by_ln2(x);
  float y = (exp_tail(e.r) + e.r) + 1.0f;
  int32_t half = e.n >> 1;  // in two steps: infinity and subnormals come out right
  return y * power_of_two(half) * power_of_two(e.n - half);
}
LN_INLINE double exp(double x) { return __builtin_exp(x); }

LN_INLINE float expm1(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -20.0f ? -20.0f : x;
  Reduced e = reduce_by_ln2(x);
  float y = exp_tail(e.r) + e.r;
  float scale = power_of_two(e.n - 1);  // half of it, as 2^128 is no float
  return 2.0f * (scale * y + (scale - 0.5f));
}
LN_INLINE double expm1(double x) { return __builtin_expm1(x); }

LN_INLINE float tanh(float x) {
  float t = expm1(-2.0f * abs(x));
  return copysign(t / (t + 2.0f), x);
}
LN_INLINE double tanh(double x) { return __builtin_tanh(x); }

// log(1 + f) + n ln 2, 1 + f in [sqrt(1/2), sqrt(2)].
LN_INLINE float log_sum(float f, float n) {
  float q = 7.0376836292e-2f;
  q = q * f - 1.1514610310e-1f;
  q = q * f + 1.1676998740e-1f;
  q = q * f - 1.2420140846e-1f;
  q = q * f + 1.4249322787e-1f;
  q = q * f - 1.6668057665e-1f;
  q = q * f + 2.0000714765e-1f;
  q = q * f - 2.4999993993e-1f;
  q = q * f + 3.3333331174e-1f;
  float square = f * f;
  float tail = q * f * square - n * 2.12194440e-4f;
  tail = tail - 0.5f * square;
  return (f + tail) + n * 0.693359375f;
}
LN_INLINE float log(float x) {
  const float infinity = __builtin_inff();
  bool subnormal = x < 1.17549435e-38f;
  int32_t bits = bits_of(subnormal ? x * 8388608.0f : x);
  int32_t n = (bits - 0x3f3504f3) >> 23;  // 0x3f3504f3: sqrt(1/2)
  float f = float_of(bits - static_cast<int32_t>(static_cast<uint32_t>(n) << 23)) - 1.0f;
  float y = log_sum(f, static_cast<float>(subnormal ? n - 23 : n));
  y = x < infinity ? y : x;  // infinity and NaN
  y = x == 0.0f ? -infinity : y;
  return x < 0.0f ? __builtin_nanf("") : y;
}
LN_INLINE double log(double x) { return __builtin_log(x); }

// log(1 + u), 0 <= u <= 1.
LN_INLINE float log1p_of_fraction(float u) {
  bool large = u > 0.41421356f;
  return log_sum(large ? 0.5f * u - 0.5f : u, large ? 1.0f : 0.0f);
}
LN_INLINE double log1p_of_fraction(double u) { return __builtin_log1p(u); }

// Two polynomials: x P(x^2) near zero, 1 - exp(Q(|x|)) elsewhere; beyond 4 the result is 1.
LN_INLINE float erf(float x) {
  float t = abs(x);
  t = t > 4.0f ? 4.0f : t;
  float s = t * t;
  float far = -1.72853470e-5f * t + 3.83197126e-4f;
  far = far * s + (-3.88396438e-3f * t + 2.42546219e-2f);
  far = far * t - 1.06777877e-1f;
  far = far * t - 6.34846687e-1f;
  far = far * t - 1.28717512e-1f;
  far = 1.0f - exp(far * t - t);
  float near = -5.96761703e-4f;
  near = near * s + 4.99119423e-3f;
  near = near * s - 2.67681349e-2f;
  near = near * s + 1.12819925e-1f;
  near = near * s - 3.76125336e-1f;
  near = near * s + 1.28379166e-1f;
  near = near * t + t;
  return copysign(t > 0.927734375f ? far : near, x);
}
LN_INLINE double erf(double x) { return __builtin_erf(x); }

LN_INLINE float normal_cdf(float x) { return 0.5f + 0.5f * erf(x * 0.70710678f); }
LN_INLINE double normal_cdf(double x) { return 0.5 * __builtin_erfc(x * -0.70710678118654752); }

}  // namespace lazynet::LN_CODE::m
