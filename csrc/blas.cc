#include "blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <string>

#include "error.h"
#include "threads.h"

namespace lazynet {
namespace {

// The CBLAS interface with 32-bit integers.
constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
template <class T>
using GemmFunction = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, T alpha, const T* a,
                              int lda, const T* b, int ldb, T beta, T* c, int ldc);

GemmFunction<float> sgemm = nullptr;
GemmFunction<double> dgemm = nullptr;

GemmFunction<float> function_for(float) { return sgemm; }
GemmFunction<double> function_for(double) { return dgemm; }

void* find(void* library, const std::string& name, const char* path) {
  void* symbol = dlsym(library, name.c_str());
  if (!symbol) fail(LN_DEVICE_ERROR, "BLAS: ", path, " has no ", name, "; a CBLAS library is required");
  return symbol;
}

}  // namespace

void load_blas(const char* path, const char* prefix, const char* suffix) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(LN_DEVICE_ERROR, "BLAS: cannot load ", path, ": ", dlerror());
  auto name = [&](const char* middle) { return std::string(prefix) + middle + suffix; };
  auto single = reinterpret_cast<GemmFunction<float>>(find(library, name("cblas_sgemm"), path));
  auto wide = reinterpret_cast<GemmFunction<double>>(find(library, name("cblas_dgemm"), path));
  // Our workers share the work, so that the cut is ours and the bits are the same every run.
  if (void* set = dlsym(library, name("openblas_set_num_threads").c_str())) reinterpret_cast<void (*)(int)>(set)(1);
  sgemm = single;
  dgemm = wide;
}

template <class T>
void gemm_serial(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
                 const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  // CBLAS wants positive leading dimensions even of empty matrices.
  auto leading = [](int64_t ld) { return static_cast<int>(std::max<int64_t>(ld, 1)); };
  GemmFunction<T> function = function_for(T());
  if (!function) fail(LN_DEVICE_ERROR, "BLAS: no library is loaded; call ln_load_blas first");
  function(kRowMajor, transpose_a ? kTranspose : kNoTranspose, transpose_b ? kTranspose : kNoTranspose,
           static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a, leading(lda), b, leading(ldb), beta,
           c, leading(ldc));
}

template <class T>
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
          const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  constexpr int64_t kGrainProducts = int64_t{1} << 15;  // below, a second thread costs more than it brings
  constexpr int64_t kTile = 8;                          // cuts are at multiples of a register tile
  // The longer side of C is cut: rows of op(A), or columns of op(B).
  const bool by_rows = m >= n;
  const int64_t size = by_rows ? m : n;
  const int64_t products = std::max<int64_t>(m * n * k, 1);
  const int64_t grain = (size * kGrainProducts / products + kTile) / kTile;
  parallel_for((size + kTile - 1) / kTile, grain, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kTile, count = std::min(end * kTile, size) - first;
    if (by_rows)
      gemm_serial(transpose_a, transpose_b, count, n, k, alpha, a + (transpose_a ? first : first * lda), lda, b, ldb,
                  beta, c + first * ldc, ldc);
    else
      gemm_serial(transpose_a, transpose_b, m, count, k, alpha, a, lda, b + (transpose_b ? first * ldb : first), ldb,
                  beta, c + first, ldc);
  });
}

template void gemm(bool, bool, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t, float,
                   float*, int64_t);
template void gemm(bool, bool, int64_t, int64_t, int64_t, double, const double*, int64_t, const double*, int64_t,
                   double, double*, int64_t);
template void gemm_serial(bool, bool, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t,
                          float, float*, int64_t);
template void gemm_serial(bool, bool, int64_t, int64_t, int64_t, double, const double*, int64_t, const double*, int64_t,
                          double, double*, int64_t);

}  // namespace lazynet
