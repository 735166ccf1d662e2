// Dense matrix products from a BLAS that is loaded at run time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "threads.h"

namespace lazynet {

void load_blas(const char* path, const char* prefix, const char* suffix);

// C (m x n) = alpha op(A) op(B) + beta C, row-major; op(A) is m x k, op(B) is k x n; leading dimensions
// are those of the stored matrices. Split over the workers of threads.h by rows or columns of C.
template <class T>
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
          const T* b, int64_t ldb, T beta, T* c, int64_t ldc);
// The same on the calling thread alone, for kernels that already run on the workers.
template <class T>
void gemm_serial(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
                 const T* b, int64_t ldb, T beta, T* c, int64_t ldc);

// A block of C that one thread computes.
struct GemmPart {
  int64_t row, rows, col, cols;
};
// Calls function(part) for parts that cover an m x n product of depth k, over the threads: blocks of rows, or of
// columns where there are more of them. Cut at multiples of a register tile.
template <class Function>
void for_gemm_parts(int64_t m, int64_t n, int64_t k, const Function& function) {
  constexpr int64_t kGrainProducts = int64_t{1} << 15;  // below, a second thread costs more than it brings
  constexpr int64_t kTile = 8;
  const bool by_rows = m >= n;
  const int64_t size = by_rows ? m : n;
  const int64_t products = std::max<int64_t>(m * n * k, 1);
  const int64_t grain = (size * kGrainProducts / products + kTile) / kTile;
  parallel_for((size + kTile - 1) / kTile, grain, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kTile, count = std::min(end * kTile, size) - first;
    function(by_rows ? GemmPart{first, count, 0, n} : GemmPart{0, m, first, count});
  });
}

}  // namespace lazynet
