// Dense matrix products from a BLAS that is loaded at run time.
#pragma once

#include <cstdint>

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

}  // namespace lazynet
