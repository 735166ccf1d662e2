// What the kernels of fused chains are made of: a kernel is written for every structure of a chain (fused.cc) and
// compiled as any other. Sizes, addresses and attributes are arguments; registers are local variables.
#pragma once

#include "kernel.h"
#ifdef LN_DEVICE_CODE
#include "../ops/formulas.h"
#endif

namespace lazynet::cuda {

constexpr int kFusedThreads = 128;  // of a block

// Where an operand's or a result's value and gradient are: rows `ld` elements apart; or an array of the addresses of
// rows, in which the operand starts at column `ld`.
struct FusedPlace {
  void* value;
  void* grad;  // null, also among the addresses of rows: not wanted
  int64_t ld, grad_ld;
};
struct FusedHead {
  int64_t rows, cols;
  uint64_t value_lists, grad_lists;  // places, a bit each, that have an array of addresses
};
// Operands come first, then results.
template <class T, int kPlaces, int kAttributes>
struct FusedArgs {
  FusedHead head;
  FusedPlace places[kPlaces];
  T attributes[kAttributes];
};

#ifdef LN_DEVICE_CODE

// Neighbouring elements of one register, which move in one access.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Lanes {
  using Element = T;
  static constexpr int kCount = kWidth;
  T at[kWidth];
};

template <class V, class T>
LN_DEVICE V load(const T* from) {
  return *reinterpret_cast<const V*>(from);
}
template <class V, class T>
LN_DEVICE V load_wanted(const T* from, int64_t col) {
  return from ? load<V>(from + col) : V{};
}
template <class V, class T>
LN_DEVICE V spread(const T* from) {
  V v;
  for (int i = 0; i < V::kCount; ++i) v.at[i] = *from;
  return v;
}
template <class V, class T>
LN_DEVICE void store(T* to, const V& v) {
  *reinterpret_cast<V*>(to) = v;
}
template <class V>
LN_DEVICE V sum(const V& a, const V& b) {
  V v;
  for (int i = 0; i < V::kCount; ++i) v.at[i] = a.at[i] + b.at[i];
  return v;
}

template <class Formula, class V>
LN_DEVICE V value(const V& a, const V& b, const typename V::Element* p) {
  V v;
  for (int i = 0; i < V::kCount; ++i) v.at[i] = Formula::value(a.at[i], b.at[i], p);
  return v;
}
template <class Formula, int kArgument, class V>
LN_DEVICE V gradient(const V& a, const V& b, const V& y, const V& g, const typename V::Element* p) {
  V v;
  for (int i = 0; i < V::kCount; ++i)
    v.at[i] = Formula::template gradient<kArgument>(a.at[i], b.at[i], y.at[i], g.at[i], p);
  return v;
}

// Rows of a place, and of one that may have an array of addresses.
template <class T>
LN_DEVICE T* value_row(const FusedPlace& place, int64_t row) {
  return static_cast<T*>(place.value) + row * place.ld;
}
template <class T>
LN_DEVICE T* grad_row(const FusedPlace& place, int64_t row) {
  return static_cast<T*>(place.grad) + row * place.grad_ld;
}
template <class T>
LN_DEVICE const T* listed_value_row(const FusedHead& head, const FusedPlace& place, int number, int64_t row) {
  if (!(head.value_lists >> number & 1)) return value_row<T>(place, row);
  return static_cast<const T* const*>(place.value)[row] + place.ld;
}
template <class T>
LN_DEVICE T* listed_grad_row(const FusedHead& head, const FusedPlace& place, int number, int64_t row) {
  if (!(head.grad_lists >> number & 1)) return grad_row<T>(place, row);
  T* const start = static_cast<T* const*>(place.grad)[row];
  return start ? start + place.grad_ld : nullptr;
}

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
