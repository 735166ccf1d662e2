// Random numbers of dropout: the mask is a function of the member's key and the element's number alone, so that
// backward computes it again instead of keeping it, and the same on every backend.
#pragma once

#include <cstdint>

#include "math.h"

namespace lazynet::LN_CODE {

struct RandomBits {
  uint32_t of[4];
};

// Philox4x32-10 (Salmon et al. 2011): the four numbers of a counter.
LN_INLINE RandomBits random_bits(uint32_t key_low, uint32_t key_high, uint64_t counter) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32), c2 = 0, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0, product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key_low;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key_high;
    c3 = static_cast<uint32_t>(product0);
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Which elements of a member are dropped: element i looks at number i % 4 of counter i / 4.
template <class T>
struct DropoutMask {
  uint32_t key_low, key_high;  // what the graph gave the node
  uint32_t threshold;          // of 24-bit integers: those at or above are kept
  T scale;                     // of what is kept
};
LN_INLINE bool keeps(uint32_t bits, uint32_t threshold) { return (bits >> 8) >= threshold; }

template <class T>
LN_INLINE DropoutMask<T> mask_of(const int64_t* key, double rate) {
  return {static_cast<uint32_t>(key[0]), static_cast<uint32_t>(key[1]),
          static_cast<uint32_t>(__builtin_ceil(rate * 16777216.0)), static_cast<T>(1.0 / (1.0 - rate))};
}

}  // namespace lazynet::LN_CODE
