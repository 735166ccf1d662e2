// CUDA's language for g++: included by force before a .cu file, it makes of it a shared object whose kernels run on
// the CPU, on the run time of libemulator.so. Beyond CUDA's own names a file uses three macros instead of what only
// nvcc understands: LN_SHARED, LN_DYNAMIC_SHARED and LN_KERNEL_ENTRY.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "interface.h"

// Standard headers first: the macros below would change names that they use.
#include "atomics.h"
#include "device_math.h"
#include "vector_types.h"
#include "warp.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

#define threadIdx (::lazynet::emulator::current_view->thread)
#define blockIdx (::lazynet::emulator::current_grid.block)
#define blockDim (::lazynet::emulator::current_grid.block_dim)
#define gridDim (::lazynet::emulator::current_grid.grid_dim)

constexpr int warpSize = 32;

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  ::lazynet::emulator::block_barrier(file, line);
}

// Fibers of a block run in turn, so that every write is seen at once.
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
inline T __ldg(const T* address) {
  return *address;
}
template <class T>
inline T __ldcs(const T* address) {
  return *address;
}
template <class T>
inline T __ldcg(const T* address) {
  return *address;
}
template <class T>
inline void __stcs(T* address, T value) {
  *address = value;
}
template <class T>
inline void __stcg(T* address, T value) {
  *address = value;
}

// As in CUDA a failed assert ends the launch, not the process.
#undef assert
#ifdef NDEBUG
#define assert(condition) static_cast<void>(0)
#else
#define assert(condition) \
  ((condition) ? static_cast<void>(0) : ::lazynet::emulator::assertion_failed(#condition, __FILE__, __LINE__))
#endif

// An array of the block: T* name, with `count` elements, a constant.
#define LN_SHARED(T, name, count) \
  static char name##_tag;         \
  T* const name = static_cast<T*>(::lazynet::emulator::static_shared(&name##_tag, sizeof(T) * (count), alignof(T)))

// The memory of the block whose size is given at the launch.
#define LN_DYNAMIC_SHARED(T, name) T* const name = static_cast<T*>(::lazynet::emulator::dynamic_shared())

// The kernel NAME, whose body follows and sees `const Args& args`. The second symbol tells the driver's stand-in how
// many bytes to copy at a launch.
#define LN_KERNEL_ENTRY(NAME, Args)                                                                                   \
  extern "C" LN_EMULATOR_EXPORT const std::size_t NAME##_argument_bytes = sizeof(Args);                               \
  static_assert(std::is_trivially_copyable<Args>::value, "a kernel's argument is copied as bytes");                   \
  static_assert(sizeof(Args) <= 4096 && alignof(Args) <= 16, "a kernel's argument has 4096 bytes at most");           \
  static void NAME##_body(const Args& args);                                                                          \
  extern "C" LN_EMULATOR_EXPORT void NAME(const void* argument) { NAME##_body(*static_cast<const Args*>(argument)); } \
  static void NAME##_body([[maybe_unused]] const Args& args)
