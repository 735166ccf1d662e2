// What the formulas of elementwise.def call, for float and double: functions in terms of those that each backend
// brings, abs, sqrt, sin, cos, pow, copysign, exp, expm1, tanh, log, erf, normal_cdf and log1p_of_fraction (of 0 to 1).
// The backend's math.h also defines LN_CODE, its namespace, and LN_INLINE, how a function is defined there.
#pragma once

#ifdef LN_UNIT
#include "../cpu/math.h"
#else
#include "../cuda/math.h"
#endif

namespace lazynet::LN_CODE::m {

// Keeps NaN.
template <class T>
LN_INLINE T positive(T x) {
  return x < T(0) ? T(0) : x;
}

template <class T>
LN_INLINE T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

template <class T>
LN_INLINE T softplus(T x) {
  return positive(x) + log1p_of_fraction(exp(-abs(x)));
}

template <class T>
LN_INLINE T normal_pdf(T x) {
  return T(0.3989422804014327) * exp(T(-0.5) * x * x);
}

// x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class T>
LN_INLINE T gelu_tanh(T x) {
  T u = T(0.7978845608028654) * x * (T(1) + T(0.044715) * x * x);
  return T(0.5) * x * (T(1) + tanh(u));
}
template <class T>
LN_INLINE T gelu_tanh_derivative(T x) {
  x = x > T(20) ? T(20) : (x < T(-20) ? T(-20) : x);  // constant beyond, where x^3 could overflow
  T u = T(0.7978845608028654) * x * (T(1) + T(0.044715) * x * x);
  T du = T(0.7978845608028654) * (T(1) + T(3 * 0.044715) * x * x);
  T t = tanh(u);
  return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * du;
}

template <class T>
LN_INLINE T huber(T d, T delta) {
  T size = abs(d);
  return size <= delta ? T(0.5) * d * d : delta * (size - T(0.5) * delta);
}
template <class T>
LN_INLINE T huber_derivative(T d, T delta) {
  return d > delta ? delta : (d < -delta ? -delta : d);
}

}  // namespace lazynet::LN_CODE::m
