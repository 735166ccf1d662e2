// Ids that a node computes: numbers of the graph's type, which must be whole and in range.
#pragma once

#include "loops.h"

namespace lazynet::cpu::LN_UNIT {

// Whether all elements of an argument are ids less than limit(member); else batch.fault says which is not.
template <class T, class Limit>
static bool ids_in_range(const Batch& batch, int argument, const Limit& limit) {
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece& ids = batch.arguments[argument].pieces[i];
    const int64_t end = limit(i);
    for (int64_t r = 0; r < ids.rows; ++r)
      for (int64_t c = 0; c < ids.cols; ++c) {
        const T id = row_value<T>(ids, r)[c];
        if (id >= T(0) && id < static_cast<T>(end) && id == static_cast<T>(static_cast<int64_t>(id))) continue;
        *batch.fault = {i, static_cast<double>(id), end};
        return false;
      }
  }
  return true;
}

}  // namespace lazynet::cpu::LN_UNIT
