// The mask of dropout over many elements, as vector code.
#pragma once

#include "../ops/random.h"
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {

static constexpr int64_t kRandomBlocks = 64;  // counters whose numbers are made together

// Calls apply(index, keep) for `count` elements, the first of which has number `element` in its member.
template <class T, class Apply>
static inline void for_dropout(const DropoutMask<T>& mask, int64_t element, int64_t count, const Apply& apply) {
  RandomBits bits[kRandomBlocks];
  const uint32_t* numbers = bits[0].of;
  for (int64_t done = 0; done < count;) {
    const int skip = static_cast<int>((element + done) % 4);
    const int64_t room = 4 * kRandomBlocks - skip, left = count - done;
    const int length = static_cast<int>(left < room ? left : room);
    const auto first = static_cast<uint64_t>((element + done) / 4);
    for (int b = 0; b < (skip + length + 3) / 4; ++b) bits[b] = random_bits(mask.key_low, mask.key_high, first + b);
    LN_IVDEP
    for (int k = 0; k < length; ++k) apply(done + k, keeps(numbers[skip + k], mask.threshold));
    done += length;
  }
}

}  // namespace lazynet::cpu::LN_UNIT
