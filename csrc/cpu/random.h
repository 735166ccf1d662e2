// Random numbers of dropout: the mask is a function of the member's key and the element's number alone, so backward
// computes it again instead of keeping it.
#pragma once

#include "loops.h"

namespace lazynet::cpu::LN_UNIT {

static constexpr int64_t kRandomBlocks = 64;  // Philox counter blocks of four elements that are made together

// Philox4x32-10 (Salmon et al. 2011) on the counters first, first + 1, ...; the plain loop over
// blocks becomes vector code.
static inline void random_bits(uint32_t key_low, uint32_t key_high, uint64_t first, int blocks, uint32_t* bits) {
  for (int b = 0; b < blocks; ++b) {
    const uint64_t counter = first + static_cast<uint64_t>(b);
    uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = key_low, k1 = key_high;
    for (int round = 0; round < 10; ++round) {
      const uint64_t product0 = uint64_t{0xD2511F53u} * c0, product1 = uint64_t{0xCD9E8D57u} * c2;
      c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(product1);
      c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(product0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    bits[4 * b] = c0;
    bits[4 * b + 1] = c1;
    bits[4 * b + 2] = c2;
    bits[4 * b + 3] = c3;
  }
}

// Which elements of a member are dropped.
template <class T>
struct DropoutMask {
  uint32_t key_low, key_high;
  uint32_t threshold;  // of 24-bit integers: those at or above are kept
  T scale;             // of what is kept

  // `key`: the two halves that the graph gave the node.
  DropoutMask(const int64_t* key, double rate)
      : key_low(static_cast<uint32_t>(key[0])),
        key_high(static_cast<uint32_t>(key[1])),
        threshold(static_cast<uint32_t>(__builtin_ceil(rate * 16777216.0))),
        scale(static_cast<T>(1.0 / (1.0 - rate))) {}

  // Calls apply(index, keep) for `count` elements, the first of which has number `element` in its
  // member.
  template <class Apply>
  void run(int64_t element, int64_t count, const Apply& apply) const {
    uint32_t bits[4 * kRandomBlocks];
    for (int64_t done = 0; done < count;) {
      const int skip = static_cast<int>((element + done) % 4);
      const int64_t room = 4 * kRandomBlocks - skip, left = count - done;
      const int length = static_cast<int>(left < room ? left : room);
      random_bits(key_low, key_high, static_cast<uint64_t>((element + done) / 4), (skip + length + 3) / 4, bits);
      LN_IVDEP
      for (int k = 0; k < length; ++k) apply(done + k, (bits[skip + k] >> 8) >= threshold);
      done += length;
    }
  }
};

}  // namespace lazynet::cpu::LN_UNIT
