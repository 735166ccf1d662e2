#include "backend.h"

#include <cstring>
#include <vector>

namespace lazynet {

void Backend::read_rows(void* to, const void* from, int64_t rows, int64_t row_bytes, int64_t stride) {
  if (rows == 0 || row_bytes == 0) return;
  if (rows == 1 || stride == row_bytes) return read(to, from, static_cast<std::size_t>(rows * row_bytes));
  std::vector<char> all(static_cast<std::size_t>((rows - 1) * stride + row_bytes));
  read(all.data(), from, all.size());
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(static_cast<char*>(to) + row * row_bytes, all.data() + row * stride,
                static_cast<std::size_t>(row_bytes));
}

}  // namespace lazynet
