// Kernels that do row by row: a warp a row where rows are short, else a block.
#pragma once

#include "kernel.h"

namespace lazynet::cuda {

#ifdef LN_DEVICE_CODE

// Who does a row: `first` and `step` deal its elements to threads, fold() joins what they have found.
struct ByWarp {
  LN_DEVICE int64_t number() { return warp_number(); }
  LN_DEVICE int64_t count() { return warp_count(); }
  LN_DEVICE int first() { return lane(); }
  LN_DEVICE int step() { return kWarp; }
  template <class Fold, class T>
  LN_DEVICE T fold(T x) {
    return fold_warp<Fold>(x);
  }
};
struct ByBlock {
  LN_DEVICE int64_t number() { return blockIdx.x; }
  LN_DEVICE int64_t count() { return gridDim.x; }
  LN_DEVICE int first() { return static_cast<int>(threadIdx.x); }
  LN_DEVICE int step() { return static_cast<int>(blockDim.x); }
  template <class Fold, class T>
  LN_DEVICE T fold(T x) {
    return fold_block<Fold>(x);
  }
};

// f(0) + ... + f(count - 1) and the like; every thread gets the result.
template <class By, class Fold, class T, class Function>
LN_DEVICE T fold_by(int64_t count, const Function& f) {
  T x = Fold::template identity<T>();
  LN_UNROLL_BY(4)
  for (int64_t i = By::first(); i < count; i += By::step()) x = Fold::combine(x, f(i));
  return By::template fold<Fold>(x);
}
template <class By, class Function>
LN_DEVICE void each_by(int64_t count, const Function& f) {
  LN_UNROLL_BY(4)
  for (int64_t i = By::first(); i < count; i += By::step()) f(i);
}
// Calls row(place) for every unit of the members that falls to the thread's warp or block.
template <class By, class Row>
LN_DEVICE void for_rows_by(const Members& members, const Row& row) {
  LN_NO_UNROLL
  for (int64_t unit = By::number(); unit < members.units; unit += By::count()) row(place_of(members, unit));
}

// The kernels name_by_warp and name_by_block of `template <class By, class T> void name(const Args&)`.
#define LN_ROW_KERNELS(name, Args)                   \
  template <class T>                                 \
  LN_DEVICE void name##_by_warp(const Args& args) {  \
    name<ByWarp, T>(args);                           \
  }                                                  \
  template <class T>                                 \
  LN_DEVICE void name##_by_block(const Args& args) { \
    name<ByBlock, T>(args);                          \
  }                                                  \
  LN_KERNELS(name##_by_warp, Args, kThreads)         \
  LN_KERNELS(name##_by_block, Args, kThreads)

// The largest finite number that exponents are taken from; 0 where there is none.
template <class T>
LN_DEVICE T softmax_shift(T maximum) {
  return m::abs(maximum) == infinity<T>() ? T(0) : maximum;
}
// Sums of a softmax; of -infinity alone the sum is 0 and so is each share.
template <class T>
struct SoftmaxSum {
  T shift, sum;
  __device__ __forceinline__ T scale() const { return sum == T(0) ? T(0) : T(1) / sum; }
  __device__ __forceinline__ T log_scale() const { return sum == T(0) ? T(0) : m::log(sum); }
};
template <class By, class T>
LN_DEVICE SoftmaxSum<T> softmax_sum(const T* x, int64_t count) {
  const T shift = softmax_shift(fold_by<By, Max, T>(count, [=](int64_t i) { return x[i]; }));
  return {shift, fold_by<By, Add, T>(count, [=](int64_t i) { return m::exp(x[i] - shift); })};
}

#else

// Both kernels of a row kernel.
struct RowKernel {
  const Kernel &by_warp, &by_block;
};
#define LN_ROW_KERNEL_OF(variable, family, name)               \
  LN_KERNEL_OF(variable##_by_warp, family, name "_by_warp");   \
  LN_KERNEL_OF(variable##_by_block, family, name "_by_block"); \
  const RowKernel variable { variable##_by_warp, variable##_by_block }

// `longest`: elements of a row.
template <class Args>
void launch_rows(Queue& queue, const RowKernel& kernel, int64_t rows, int64_t longest, const Args& args) {
  constexpr int64_t kForOneWarp = 1024;
  if (longest <= kForOneWarp)
    queue.launch(kernel.by_warp, blocks_for(rows, kThreads / kWarp), kThreads, 0, args);
  else
    queue.launch(kernel.by_block, blocks_for(rows, 1), kThreads, 0, args);
}

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
