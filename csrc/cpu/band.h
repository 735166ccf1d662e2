// Which columns a row of scores sees: those within a window around its own position.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace lazynet::cpu::LN_UNIT {

// `before` and `after` its own position, infinity for all. Rows stand at the end: the last row has the position of the
// last column, so that what continues a sequence sees all of it.
struct Band {
  double before, after;

  int64_t begin(int64_t row, int64_t rows, int64_t cols) const {
    const int64_t position = row + cols - rows;
    if (!(before < static_cast<double>(cols + rows))) return 0;
    return clamp(position - static_cast<int64_t>(before), cols);
  }
  int64_t end(int64_t row, int64_t rows, int64_t cols) const {
    const int64_t position = row + cols - rows;
    if (!(after < static_cast<double>(cols + rows))) return cols;
    return clamp(position + static_cast<int64_t>(after) + 1, cols);
  }

 private:
  static int64_t clamp(int64_t column, int64_t cols) { return column < 0 ? 0 : column < cols ? column : cols; }
};

}  // namespace lazynet::cpu::LN_UNIT
