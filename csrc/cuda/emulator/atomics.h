// Atomic operations. Fibers run in turn, so plain arithmetic is atomic; but the thread sanitizer has to see atomic
// accesses, and finds by them the ones that are not.
#pragma once

#include <cstdint>
#include <cstring>

namespace lazynet::emulator {

template <class T>
struct SameType {
  using Type = T;
};

// *address = change(*address); returns the old value.
template <class T, class Change>
inline T atomically(T* address, const Change& change) {
#ifdef __SANITIZE_THREAD__
  T old, next;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do {
    next = change(old);
  } while (!__atomic_compare_exchange(address, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
#else
  T old = *address;
  *address = change(old);
  return old;
#endif
}

}  // namespace lazynet::emulator

#define LN_ATOMIC(name, T, expression)                                                                  \
  inline T name(T* address, T value) {                                                                  \
    return ::lazynet::emulator::atomically(address, [=](T old) { return static_cast<T>(expression); }); \
  }
#define LN_ATOMICS_OF_INTEGER(T)                                                                          \
  LN_ATOMIC(atomicMax, T, old > value ? old : value)                                                      \
  LN_ATOMIC(atomicMin, T, old < value ? old : value)                                                      \
  LN_ATOMIC(atomicAnd, T, old& value)                                                                     \
  LN_ATOMIC(atomicOr, T, old | value)                                                                     \
  LN_ATOMIC(atomicXor, T, old ^ value)                                                                    \
  LN_ATOMIC(atomicExch, T, (static_cast<void>(old), value))                                               \
  inline T atomicCAS(T* address, T compare, T value) {                                                    \
    return ::lazynet::emulator::atomically(address, [=](T old) { return old == compare ? value : old; }); \
  }

LN_ATOMICS_OF_INTEGER(int)
LN_ATOMICS_OF_INTEGER(unsigned)
LN_ATOMICS_OF_INTEGER(long long)
LN_ATOMICS_OF_INTEGER(unsigned long long)
// Signed sums wrap around on the device.
LN_ATOMIC(atomicAdd, int, static_cast<unsigned>(old) + static_cast<unsigned>(value))
LN_ATOMIC(atomicSub, int, static_cast<unsigned>(old) - static_cast<unsigned>(value))
LN_ATOMIC(atomicAdd, unsigned, old + value)
LN_ATOMIC(atomicSub, unsigned, old - value)
LN_ATOMIC(atomicAdd, unsigned long long, old + value)
LN_ATOMIC(atomicAdd, float, old + value)
LN_ATOMIC(atomicAdd, double, old + value)
LN_ATOMIC(atomicExch, float, (static_cast<void>(old), value))

#undef LN_ATOMIC
#undef LN_ATOMICS_OF_INTEGER
