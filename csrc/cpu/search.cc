// top_ids(x, count): the columns of the largest elements of every row, the largest first, of equals the first.
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

// The largest number; NaN is none.
struct LargestNumber {
  template <class T>
  static constexpr T identity() {
    return -kInfinity<T>;
  }
  template <class T>
  static inline T combine(T a, T b) {
    return b > a ? b : a;
  }
};

// Keeps the largest so far in order. Once there are enough, blocks that hold nothing larger are passed over at the
// speed of vector code. NaN is smaller than anything.
template <class T>
void top_of_row(const T* x, int64_t cols, int64_t count, T* ids) {
  constexpr int64_t kBlock = 256;
  const auto larger = [&](T element, int64_t place) {  // than that of a place
    const T other = x[static_cast<int64_t>(ids[place])];
    return element > other || (other != other && element == element);
  };
  int64_t filled = 0;
  for (int64_t first = 0; first < cols; first += kBlock) {
    const int64_t end = first + kBlock < cols ? first + kBlock : cols;
    if (filled == count) {
      const T last = x[static_cast<int64_t>(ids[count - 1])];
      const T* block = x + first;
      const T largest = fold_pairwise<LargestNumber, T>(0, end - first, [=](int64_t i) { return block[i]; });
      if (last == last && !(largest > last)) continue;
    }
    for (int64_t j = first; j < end; ++j) {
      int64_t place = filled;
      if (filled == count) {
        if (!larger(x[j], count - 1)) continue;
        place = count - 1;
      } else {
        ++filled;
      }
      for (; place > 0 && larger(x[j], place - 1); --place) ids[place] = ids[place - 1];
      ids[place] = static_cast<T>(j);
    }
  }
}

}  // namespace

template <class T>
void top_ids_forward(const Batch& batch) {
  for_members(batch, false, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    for_rows(x.rows, x.cols, [&](int64_t r) {
      top_of_row(row_value<T>(x, r), x.cols, result.cols, value_of<T>(result) + r * result.ld);
    });
  });
}
template <class T>
void top_ids_backward(const Batch&) {}
LN_INSTANTIATE(top_ids)

}  // namespace lazynet::cpu::LN_UNIT
