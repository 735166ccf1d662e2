// cuBLAS's stand-in: products of matrices stored by columns, by plain loops that sum in double precision.
#include <algorithm>
#include <vector>

#include "device.h"

using namespace lazynet::emulator;

namespace {

constexpr const char* kName = "cublas gemm";

// How a matrix is stored: op(matrix) is rows x cols.
struct Stored {
  bool transposed;
  int64_t rows, cols, ld;
  int64_t stored_rows() const { return transposed ? cols : rows; }
  int64_t stored_cols() const { return transposed ? rows : cols; }
  bool fits() const { return ld >= std::max<int64_t>(1, stored_rows()); }
  std::size_t bytes(std::size_t element) const {
    if (!rows || !cols) return 0;
    return static_cast<std::size_t>((stored_cols() - 1) * ld + stored_rows()) * element;
  }
  int64_t index(int64_t row, int64_t col) const { return transposed ? col + row * ld : row + col * ld; }
};

template <class T>
struct Product {
  T alpha, beta;
  const T *a, *b;
  T* c;
  Stored in_a, in_b, in_c;

  void run() const {
    const int64_t m = in_c.rows, n = in_c.cols, k = alpha != T(0) ? in_a.cols : 0;
    std::vector<double> left(static_cast<std::size_t>(m * k)), sums(static_cast<std::size_t>(m));
    for (int64_t p = 0; p < k; ++p)
      for (int64_t i = 0; i < m; ++i) left[static_cast<std::size_t>(p * m + i)] = double(a[in_a.index(i, p)]);
    for (int64_t j = 0; j < n; ++j) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t p = 0; p < k; ++p) {
        const double factor = double(b[in_b.index(p, j)]);
        const double* column = left.data() + p * m;
        for (int64_t i = 0; i < m; ++i) sums[static_cast<std::size_t>(i)] += column[i] * factor;
      }
      T* out = c + in_c.index(0, j);
      for (int64_t i = 0; i < m; ++i) {
        const double value = k ? double(alpha) * sums[static_cast<std::size_t>(i)] : 0.0;
        out[i] = static_cast<T>(beta == T(0) ? value : value + double(beta) * double(out[i]));
      }
    }
  }
};

CUdeviceptr number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

// The operands' ranges, where a product reads or writes them at all.
template <class T, class Check>
bool check_operands(const Product<T>& p, const Check& check) {
  const bool reads = p.alpha != T(0);
  return (!reads || check(number_of(p.a), p.in_a.bytes(sizeof(T)), kName)) &&
         (!reads || check(number_of(p.b), p.in_b.bytes(sizeof(T)), kName)) &&
         check(number_of(p.c), p.in_c.bytes(sizeof(T)), kName);
}

bool is_operation(int operation) { return operation >= CUBLAS_OP_N && operation <= CUBLAS_OP_C; }

template <class T>
cublasStatus_t gemm(cublasHandle_t handle, int transpose_a, int transpose_b, int m, int n, int k, const T* alpha,
                    const T* a, int lda, const T* b, int ldb, const T* beta, T* c, int ldc) {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  CUresult result = call(Needs::kWorking, [&](Device& d) -> CUresult {
    const auto refuse = [&](cublasStatus_t code, const std::string& text) {
      status = code;
      return d.refuse(CUDA_SUCCESS, std::string(kName) + ": " + text);
    };
    Blas* blas = d.blas.find(handle);
    if (!blas) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "no such handle");
    if (!is_operation(transpose_a) || !is_operation(transpose_b) || m < 0 || n < 0 || k < 0 || !alpha || !beta)
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "a size, an operation or a factor is wrong");
    if (d.memory.touches(number_of(alpha), sizeof(T)) || d.memory.touches(number_of(beta), sizeof(T)))
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "the factors are read from host memory");
    const Product<T> product{*alpha,
                             *beta,
                             a,
                             b,
                             c,
                             {transpose_a != CUBLAS_OP_N, m, k, lda},
                             {transpose_b != CUBLAS_OP_N, k, n, ldb},
                             {false, m, n, ldc}};
    if (!product.in_a.fits() || !product.in_b.fits() || !product.in_c.fits())
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "a leading dimension is smaller than the matrix");
    if (!m || !n) return CUDA_SUCCESS;
    if (!check_operands(product, [&](auto... range) { return d.check_range(range...); })) {
      status = CUBLAS_STATUS_EXECUTION_FAILED;
      return CUDA_SUCCESS;
    }
    CUresult code;
    Stream* stream = d.stream_of(blas->stream, &code);
    if (!stream) return code;
    Command command;
    command.work = [&d, product] {
      if (!check_operands(product, [&](auto... range) { return d.still_there(range...); })) return false;
      product.run();
      return true;
    };
    d.queues.add(*stream, std::move(command));
    return CUDA_SUCCESS;
  });
  if (status == CUBLAS_STATUS_SUCCESS && result != CUDA_SUCCESS) status = CUBLAS_STATUS_EXECUTION_FAILED;
  return status;
}

template <class Function>
cublasStatus_t with_handle(cublasHandle_t handle, const Function& function) {
  cublasStatus_t status = CUBLAS_STATUS_NOT_INITIALIZED;
  call(Needs::kContext, [&](Device& d) -> CUresult {
    if (Blas* blas = d.blas.find(handle)) status = function(d, *blas);
    return CUDA_SUCCESS;
  });
  return status;
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  const CUresult result = call(Needs::kContext, [&](Device& d) -> CUresult {
    *handle = d.blas.add({nullptr});
    return CUDA_SUCCESS;
  });
  return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  return with_handle(handle, [&](Device& d, Blas&) {
    d.blas.remove(handle);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, CUstream stream) {
  return with_handle(handle, [&](Device& d, Blas& blas) -> cublasStatus_t {
    if (stream && !d.streams.find(stream)) return CUBLAS_STATUS_INVALID_VALUE;
    blas.stream = stream;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, int mode) {
  return with_handle(handle, [&](Device&, Blas&) { return mode >= 0 ? 0 : CUBLAS_STATUS_INVALID_VALUE; });
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  return with_handle(handle, [&](Device& d, Blas&) -> cublasStatus_t {
    if (workspace && !d.check_range(number_of(workspace), bytes, "cublasSetWorkspace"))
      return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, int transpose_a, int transpose_b, int m, int n, int k,
                              const float* alpha, const float* a, int lda, const float* b, int ldb, const float* beta,
                              float* c, int ldc) {
  return gemm(handle, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, int transpose_a, int transpose_b, int m, int n, int k,
                              const double* alpha, const double* a, int lda, const double* b, int ldb,
                              const double* beta, double* c, int ldc) {
  return gemm(handle, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
}
