// Which columns a row of scores sees: those within a window around its own position.
#pragma once

#include "kernel.h"

namespace lazynet::cuda {

// `before` and `after` its own position. Rows stand at the end: the last row has the position of the last column, so
// that what continues a sequence sees all of it.
struct Band {
  int64_t before, after;

#ifdef LN_DEVICE_CODE
  __device__ __forceinline__ int64_t begin(int64_t row, int64_t rows, int64_t cols) const {
    return clamp(row + cols - rows - before, cols);
  }
  __device__ __forceinline__ int64_t end(int64_t row, int64_t rows, int64_t cols) const {
    return clamp(row + cols - rows + after + 1, cols);
  }

 private:
  LN_DEVICE int64_t clamp(int64_t column, int64_t cols) { return column < 0 ? 0 : (column < cols ? column : cols); }
#endif
};

#ifndef LN_DEVICE_CODE
// From attributes, infinity for all.
inline Band band_of(double before, double after) {
  constexpr double kAll = 1e15;  // more than any matrix has
  return {static_cast<int64_t>(std::min(before, kAll)), static_cast<int64_t>(std::min(after, kAll))};
}
#endif

}  // namespace lazynet::cuda
