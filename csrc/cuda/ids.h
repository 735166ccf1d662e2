// Ids that a node computes: numbers of the graph's type, which must be whole and in range.
#pragma once

#include "kernel.h"

#ifdef LN_DEVICE_CODE
namespace lazynet::cuda {

template <class T>
LN_DEVICE bool is_id(T id, int64_t limit) {
  return id >= T(0) && id < static_cast<T>(limit) && id == static_cast<T>(static_cast<int64_t>(id));
}

template <class T>
LN_DEVICE T id_at(const Piece& ids, int64_t element) {
  return static_cast<const T*>(ids.value)[offset_of(ids, element)];
}

// By the thread that finds an element to be no id: tells of it if none before it is wrong, so that the first one is
// told whichever is found first. Looking takes long, but only where there is an error.
template <class T, class Limit>
LN_DEVICE void report_id(const Members& members, int operand, const Place& found, Fault* fault, const Limit& limit) {
  for (int64_t member = 0; member <= found.member; ++member) {
    const Piece ids = piece_of(members, operand, member);
    const int64_t end = member < found.member ? ids.rows * ids.cols : found.unit;
    for (int64_t i = 0; i < end; ++i)
      if (!is_id(id_at<T>(ids, i), limit(member))) return;
  }
  fault->member = found.member;
  fault->id = static_cast<double>(id_at<T>(piece_of(members, operand, found.member), found.unit));
  fault->limit = limit(found.member);
}

}  // namespace lazynet::cuda
#endif
