// The launchers of the operator table: one of each kind for every row that has kernels.
#pragma once

#include "../kernel.h"
#include "../ops/op.h"

namespace lazynet::cuda {

class Queue;

#define LN_KERNEL(name, ...)                 \
  template <class T>                         \
  void name##_forward(Queue&, const Batch&); \
  template <class T>                         \
  void name##_backward(Queue&, const Batch&);
#define LN_SHARED(name, ...)                  \
  template <class T>                          \
  void name##_forward(Queue&, const Batch&);  \
  template <class T>                          \
  void name##_backward(Queue&, const Batch&); \
  template <class T>                          \
  void name##_shared(Queue&, const Batch&);
#include "../ops/ops.def"

// In a family's file, after the definitions of name_forward and name_backward (and name_shared).
#define LN_INSTANTIATE(name)                                  \
  template void name##_forward<float>(Queue&, const Batch&);  \
  template void name##_forward<double>(Queue&, const Batch&); \
  template void name##_backward<float>(Queue&, const Batch&); \
  template void name##_backward<double>(Queue&, const Batch&);
#define LN_INSTANTIATE_SHARED(name)                         \
  LN_INSTANTIATE(name)                                      \
  template void name##_shared<float>(Queue&, const Batch&); \
  template void name##_shared<double>(Queue&, const Batch&);

}  // namespace lazynet::cuda
