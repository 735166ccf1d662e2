// Shuffles, votes and __syncwarp. Every existing lane that a mask names must take part, in the same operation of the
// same line.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "interface.h"

#define LN_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace lazynet::emulator {

template <class T>
inline T shuffle(WarpKind kind, unsigned mask, T value, int source, const char* file, int line) {
  static_assert(std::is_arithmetic<T>::value && (sizeof(T) == 4 || sizeof(T) == 8),
                "shuffles move numbers of 4 or 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_operation(kind, mask, bits, source, file, line);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace lazynet::emulator

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, LN_HERE) {
  int base = ::lazynet::emulator::current_view->lane & ~(width - 1);
  return ::lazynet::emulator::shuffle(::lazynet::emulator::WarpKind::kShuffle, mask, value,
                                      base | (source & (width - 1)), file, line);
}

// A source beyond the group of `width` lanes means the lane itself.
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, LN_HERE) {
  int lane = ::lazynet::emulator::current_view->lane, source = lane - static_cast<int>(delta);
  return ::lazynet::emulator::shuffle(::lazynet::emulator::WarpKind::kShuffleUp, mask, value,
                                      source < (lane & ~(width - 1)) ? lane : source, file, line);
}

template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, LN_HERE) {
  int lane = ::lazynet::emulator::current_view->lane, source = lane + static_cast<int>(delta);
  return ::lazynet::emulator::shuffle(::lazynet::emulator::WarpKind::kShuffleDown, mask, value,
                                      source > (lane | (width - 1)) ? lane : source, file, line);
}

template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, LN_HERE) {
  int lane = ::lazynet::emulator::current_view->lane, source = lane ^ lanes;
  return ::lazynet::emulator::shuffle(::lazynet::emulator::WarpKind::kShuffleXor, mask, value,
                                      source > (lane | (width - 1)) ? lane : source, file, line);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, LN_HERE) {
  ::lazynet::emulator::warp_operation(::lazynet::emulator::WarpKind::kSync, mask, 0, 0, file, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, LN_HERE) {
  return static_cast<unsigned>(
      ::lazynet::emulator::warp_operation(::lazynet::emulator::WarpKind::kBallot, mask, predicate != 0, 0, file, line));
}
inline int __any_sync(unsigned mask, int predicate, LN_HERE) {
  return ::lazynet::emulator::warp_operation(::lazynet::emulator::WarpKind::kAny, mask, predicate != 0, 0, file,
                                             line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, LN_HERE) {
  return ::lazynet::emulator::warp_operation(::lazynet::emulator::WarpKind::kAll, mask, predicate == 0, 0, file,
                                             line) == 0;
}

// No two lanes need to be together anywhere but in the operations above: the answer is the lane alone.
inline unsigned __activemask() { return 1u << ::lazynet::emulator::current_view->lane; }

#undef LN_HERE
