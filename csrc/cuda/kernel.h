// What every .cu file of a family includes first. Such a file has two halves, which share the structures between them:
// kernels, compiled at run time for the device at hand (in tests also by nvcc, and for the emulator by the C++
// compiler), and launchers, which are part of the core and turn a Batch into launches. LN_DEVICE_CODE tells the halves
// apart.
//
// Conventions of kernels
//   A kernel is a function template `template <class T> LN_DEVICE void name(const Args& args)` and a line
//   LN_KERNELS(name, Args, threads), which makes the entries name_float and name_double; `threads` is the most that a
//   block has. Args is a plain structure of at most 4 kB; what is longer is uploaded and pointed to.
//   Shared memory: LN_SHARED(T, name, count) of a fixed size, LN_DYNAMIC_SHARED(T, name) of a size given at launch.
//   Sums run in an order that depends on the sizes alone, and never by atomic additions of floating point numbers: the
//   same input gives the same bits.
//   No other header than these: the run-time compiler has no standard library.
#pragma once

#include "../kernel.h"
#include "../ops/math.h"

#ifdef LN_DEVICE_CODE

#define LN_DEVICE static __device__ __forceinline__
// Of a multiprocessor at least; told to the compiler, which otherwise spills a few registers for one more.
#define LN_RESIDENT_BLOCKS 2

// Before a loop: LN_UNROLL where arrays are indexed by its counter, so that they stay in registers; LN_NO_UNROLL where
// unrolling would take registers and bring nothing.
#ifndef LN_EMULATOR
#define LN_UNROLL _Pragma("unroll")
#define LN_NO_UNROLL _Pragma("unroll 1")
#define LN_UNROLL_BY(times) LN_PRAGMA(unroll times)
#define LN_PRAGMA(text) _Pragma(#text)
#define LN_KERNEL_ENTRY(name, Args) extern "C" __global__ void name(const __grid_constant__ Args args)
#define LN_RESIDENT_ENTRY(name, Args, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Args args)
#define LN_SHARED(T, name, count) __shared__ T name[count]
#define LN_DYNAMIC_SHARED(T, name)                     \
  extern __shared__ __align__(16) char name##_bytes[]; \
  T* name = reinterpret_cast<T*>(name##_bytes)
#else
#define LN_UNROLL
#define LN_NO_UNROLL
#define LN_UNROLL_BY(times)
#define LN_RESIDENT_ENTRY(name, Args, threads, blocks) LN_KERNEL_ENTRY(name, Args)
#endif
#define LN_BOUNDED_ENTRY(name, Args, threads) LN_RESIDENT_ENTRY(name, Args, threads, LN_RESIDENT_BLOCKS)

// A module may hold the kernels of one element type alone, so that only what is used is compiled. `blocks`: resident
// ones, where a kernel asks for another number.
#ifdef LN_ONLY_DOUBLE
#define LN_RESIDENT_FLOAT_ENTRY(name, function, Args, threads, blocks)
#else
#define LN_RESIDENT_FLOAT_ENTRY(name, function, Args, threads, blocks) \
  LN_RESIDENT_ENTRY(name##_float, Args, threads, blocks) { function<float>(args); }
#endif
#ifdef LN_ONLY_FLOAT
#define LN_DOUBLE_ENTRY(name, function, Args, threads)
#else
#define LN_DOUBLE_ENTRY(name, function, Args, threads) \
  LN_BOUNDED_ENTRY(name##_double, Args, threads) { function<double>(args); }
#endif
#define LN_FLOAT_ENTRY(name, function, Args, threads) \
  LN_RESIDENT_FLOAT_ENTRY(name, function, Args, threads, LN_RESIDENT_BLOCKS)
#define LN_KERNELS(function, Args, threads)         \
  LN_FLOAT_ENTRY(function, function, Args, threads) \
  LN_DOUBLE_ENTRY(function, function, Args, threads)

#endif  // LN_DEVICE_CODE

namespace lazynet::cuda {

constexpr int kWarp = 32;
constexpr int kThreads = 256;  // of a block, where nothing speaks for another number

// The members of a batch as kernels see them. A unit is what one step of a kernel's loop does: a row, an element, a
// tile; units of all members are numbered one after another.
constexpr int kMostOperands = 5;
struct Members {
  int64_t count;
  int64_t units;         // of all members
  const int64_t* begin;  // first unit of each member, and the end of the last; null where there is one member
  // By operand: 0 the result, k + 1 argument k. Null where there is one member, which then stands in `single`.
  const Piece* pieces[kMostOperands];
  Piece single[kMostOperands];
};

// What a warp handles at a time where a unit is elements of one piece, row after row.
constexpr int64_t kElements = 128;

#ifdef LN_DEVICE_CODE

template <class T>
LN_DEVICE T* value_of(const Piece& piece) {
  return static_cast<T*>(piece.value);
}
template <class T>
LN_DEVICE T* grad_of(const Piece& piece) {
  return static_cast<T*>(piece.grad);
}
template <class T>
LN_DEVICE const T* row_value(const Piece& piece, int64_t row) {
  return static_cast<const T*>(piece.value) + row * piece.ld;
}
template <class T>
LN_DEVICE T* row_grad(const Piece& piece, int64_t row) {
  return static_cast<T*>(piece.grad) + row * piece.ld;
}

// Where an element is that is counted row by row.
LN_DEVICE int64_t offset_of(const Piece& piece, int64_t element) {
  if (piece.rows == 1 || piece.ld == piece.cols) return element;
  const int64_t row = element / piece.cols;
  return row * piece.ld + element - row * piece.cols;
}

// 16 bytes of elements: what one access moves at best.
template <class T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / sizeof(T);
  T of[kCount];
};
LN_DEVICE bool aligned(const void* address) { return reinterpret_cast<uint64_t>(address) % 16 == 0; }
template <class T>
LN_DEVICE Pack<T>& pack_at(T* address) {
  return *reinterpret_cast<Pack<T>*>(address);
}
template <class T>
LN_DEVICE const Pack<T>& pack_at(const T* address) {
  return *reinterpret_cast<const Pack<T>*>(address);
}

// The last of `count` ascending numbers that is at most `wanted`; the first is.
LN_DEVICE int64_t last_at_most(const int64_t* numbers, int64_t count, int64_t wanted) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (numbers[middle] <= wanted)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// A unit's member, and its number among the member's units.
struct Place {
  int64_t member, unit;
};
LN_DEVICE Place place_of(const Members& members, int64_t unit) {
  if (!members.begin) return {0, unit};
  const int64_t member = last_at_most(members.begin, members.count, unit);
  return {member, unit - members.begin[member]};
}
LN_DEVICE Piece piece_of(const Members& members, int operand, int64_t member) {
  return members.begin ? members.pieces[operand][member] : members.single[operand];
}

LN_DEVICE int64_t thread_number() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
LN_DEVICE int64_t thread_count() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }
LN_DEVICE int lane() { return static_cast<int>(threadIdx.x % kWarp); }
LN_DEVICE int64_t warp_number() { return thread_number() / kWarp; }
LN_DEVICE int64_t warp_count() { return thread_count() / kWarp; }

// Where a unit is kElements elements of operand `counted`: calls visit(result, first argument, member, row, col) for
// all of them, a warp a unit.
template <class Visit>
LN_DEVICE void for_elements(const Members& members, int counted, const Visit& visit) {
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < members.units; unit += warp_count()) {
    const Place place = place_of(members, unit);
    const Piece y = piece_of(members, 0, place.member), x = piece_of(members, 1, place.member);
    const int64_t rows = counted == 0 ? y.rows : x.rows, cols = counted == 0 ? y.cols : x.cols;
    const int64_t first = place.unit * kElements, left = rows * cols - first;
    const int64_t end = left < kElements ? first + left : first + kElements;
    LN_NO_UNROLL
    for (int64_t i = first + lane(); i < end; i += kWarp) {
      const int64_t row = rows == 1 ? 0 : i / cols;
      visit(y, x, place.member, row, i - row * cols);
    }
  }
}

struct Add {
  template <class T>
  LN_DEVICE T identity() {
    return T(0);
  }
  template <class T>
  LN_DEVICE T combine(T a, T b) {
    return a + b;
  }
};
template <class T>
LN_DEVICE T infinity() {
  return static_cast<T>(__int_as_float(0x7f800000));
}
// NaN wins.
struct Max {
  template <class T>
  LN_DEVICE T identity() {
    return -infinity<T>();
  }
  template <class T>
  LN_DEVICE T combine(T a, T b) {
    return b > a || b != b ? b : a;
  }
};

// The smallest of integers.
struct First {
  template <class T>
  LN_DEVICE T identity() {
    return INT64_MAX;
  }
  template <class T>
  LN_DEVICE T combine(T a, T b) {
    return b < a ? b : a;
  }
};

// Over the lanes of a warp, all of which take part; every lane gets the result.
template <class Fold, class T>
LN_DEVICE T fold_warp(T x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x = Fold::combine(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
// Over the threads of a block, all of which take part, a whole number of warps; every thread gets the result.
template <class Fold, class T>
LN_DEVICE T fold_block(T x) {
  LN_SHARED(T, partial, kWarp);
  x = fold_warp<Fold>(x);
  __syncthreads();  // those of an earlier call are read
  if (lane() == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  x = lane() < warps ? partial[lane()] : Fold::template identity<T>();
  return fold_warp<Fold>(x);
}

// Over the warps of a block, lane by lane; every thread gets its lane's result.
template <class Fold, class T>
LN_DEVICE T fold_over_warps(T x) {
  LN_SHARED(T, partial, kThreads);
  __syncthreads();  // those of an earlier call are read
  partial[threadIdx.x] = x;
  __syncthreads();
  x = partial[lane()];
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int k = 1; k < warps; ++k) x = Fold::combine(x, partial[k * kWarp + lane()]);
  return x;
}

// f(0) + ... + f(count - 1) and the like, the elements dealt to the lanes of a warp.
template <class Fold, class T, class Function>
LN_DEVICE T fold_by_warp(int64_t count, const Function& f) {
  T x = Fold::template identity<T>();
  for (int64_t i = lane(); i < count; i += kWarp) x = Fold::combine(x, f(i));
  return fold_warp<Fold>(x);
}

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda

#ifndef LN_DEVICE_CODE
#include "launch.h"
#endif
