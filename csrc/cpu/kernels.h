// What every CPU kernel file includes first. The files are compiled once a vector unit, each time with
// LN_UNIT set to baseline, avx2 or avx512 (portable elsewhere), so everything here and in them stays inside
// the unit's namespace or has internal linkage: the linker must never merge code of two units. For the same
// reason kernels use no templates of the standard library that could be compiled out of line.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../threads.h"
#include "unit.h"

namespace lazynet::cpu::LN_UNIT {

// Declarations of every kernel of the table.
#define LN_KERNEL(name, ...)         \
  template <class T>                 \
  void name##_forward(const Batch&); \
  template <class T>                 \
  void name##_backward(const Batch&);
#define LN_SHARED(name, ...)          \
  template <class T>                  \
  void name##_forward(const Batch&);  \
  template <class T>                  \
  void name##_backward(const Batch&); \
  template <class T>                  \
  void name##_shared(const Batch&);
#include "../ops/ops.def"

// In a kernel file, after the definition of name_forward and name_backward (and name_shared).
#define LN_INSTANTIATE(name)                          \
  template void name##_forward<float>(const Batch&);  \
  template void name##_forward<double>(const Batch&); \
  template void name##_backward<float>(const Batch&); \
  template void name##_backward<double>(const Batch&);
#define LN_INSTANTIATE_SHARED(name)                 \
  LN_INSTANTIATE(name)                              \
  template void name##_shared<float>(const Batch&); \
  template void name##_shared<double>(const Batch&);

template <class T>
static inline T* value_of(const Piece& piece) {
  return static_cast<T*>(piece.value);
}
template <class T>
static inline T* grad_of(const Piece& piece) {
  return static_cast<T*>(piece.grad);
}

// Elements of work below which a second thread costs more than it brings.
static constexpr int64_t kGrainElements = 2048;

// Calls function(member) for all members, over the threads when the batch is large enough and its operand
// gradients do not overlap. `backward`: gradients are written.
template <class Function>
static inline void for_members(const Batch& batch, bool backward, const Function& function) {
  bool serial = false;
  if (backward)
    for (int k = 0; k < batch.argument_count; ++k)
      serial = serial || (batch.arguments[k].wants_grad && batch.arguments[k].overlapping);
  int64_t elements = 1;
  for (int k = 0; k < batch.argument_count; ++k)
    for (int64_t i = 0; i < batch.arguments[k].count; ++i)
      elements += batch.arguments[k].pieces[i].rows * batch.arguments[k].pieces[i].cols;
  int64_t grain = 1 + batch.members * kGrainElements / elements;
  auto range = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) function(i);
  };
  if (serial)
    range(0, batch.members);
  else
    parallel_for(batch.members, grain, range);
}

}  // namespace lazynet::cpu::LN_UNIT
