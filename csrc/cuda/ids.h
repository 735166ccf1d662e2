// Ids that a node computes: numbers of the graph's type, which must be whole and in range.
#pragma once

#include "kernel.h"

#ifdef LN_DEVICE_CODE
namespace lazynet::cuda {

template <class T>
LN_DEVICE bool is_id(T id, int64_t limit) {
  return id >= T(0) && id < static_cast<T>(limit) && id == static_cast<T>(static_cast<int64_t>(id));
}

// By all threads of one block: the first element of an operand that is no id less than limit(member).
template <class T, class Limit>
LN_DEVICE void report_ids(const Members& members, int operand, Fault* fault, const Limit& limit) {
  for (int64_t member = 0; member < members.count; ++member) {
    const Piece ids = piece_of(members, operand, member);
    int64_t first = INT64_MAX;
    for (int64_t i = threadIdx.x; i < ids.rows * ids.cols && first == INT64_MAX; i += blockDim.x)
      if (!is_id(row_value<T>(ids, i / ids.cols)[i % ids.cols], limit(member))) first = i;
    first = fold_block<First>(first);
    if (first == INT64_MAX) continue;
    if (threadIdx.x == 0) {
      fault->member = member;
      fault->id = static_cast<double>(row_value<T>(ids, first / ids.cols)[first % ids.cols]);
      fault->limit = limit(member);
    }
    return;
  }
}

}  // namespace lazynet::cuda
#endif
