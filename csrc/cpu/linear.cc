// linear(x, W, b): one GEMM over all rows of all members; its weight gradient is one GEMM over all batches.
// matmul(a, b): each member has its own pair of matrices; grouped small GEMMs, threads over members.
#include "../blas.h"
#include "gemm.h"
#include "kernels.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

// x (rows, in), W (in, out) or, transposed, (out, in); W may be a view with a row stride.
struct Linear {
  explicit Linear(const Batch& batch)
      : x(batch.arguments[0].matrix),
        w(batch.arguments[1].pieces[0]),
        y(batch.result.matrix),
        transpose(batch.attributes[0] != 0) {}
  const Piece &x, &w, &y;
  bool transpose;
};

}  // namespace

template <class T>
void linear_forward(const Batch& batch) {
  const Linear op(batch);
  const T* x = value_of<T>(op.x);
  const T* bias = batch.argument_count == 3 ? value_of<T>(batch.arguments[2].pieces[0]) : nullptr;
  T* y = value_of<T>(op.y);
  const int64_t m = op.y.rows, n = op.y.cols, k = op.x.cols, ldy = op.y.ld;
  if (const T* panels = panels_of<T>(batch, batch.arguments[1], op.transpose, m, k, n))
    return multiply_packed<T>(m, n, k, x, op.x.ld, panels, y, ldy, bias ? Start::kBias : Start::kZero, bias);
  for (int64_t i = 0; bias && i < m; ++i) std::memcpy(y + i * ldy, bias, static_cast<std::size_t>(n) * sizeof(T));
  gemm<T>(false, op.transpose, m, n, k, T(1), x, op.x.ld, value_of<T>(op.w), op.w.ld, bias ? T(1) : T(0), y, ldy);
}

template <class T>
void linear_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  const Linear op(batch);
  const int64_t m = op.x.rows, n = op.x.cols, k = op.y.cols;
  const T* dy = grad_of<T>(op.y);
  T* dx = grad_of<T>(op.x);
  const bool add = !batch.arguments[0].overwrite;
  if (const T* panels = panels_of<T>(batch, batch.arguments[1], !op.transpose, m, k, n))
    return multiply_packed<T>(m, n, k, dy, op.y.ld, panels, dx, op.x.ld, add ? Start::kResult : Start::kZero,
                              static_cast<const T*>(nullptr));
  gemm<T>(false, !op.transpose, m, n, k, T(1), dy, op.y.ld, value_of<T>(op.w), op.w.ld, add ? T(1) : T(0), dx, op.x.ld);
}

template <class T>
void linear_shared(const Batch& batch) {
  const Linear op(batch);
  if (batch.arguments[1].wants_grad) {
    const Piece &left = op.transpose ? op.y : op.x, &right = op.transpose ? op.x : op.y;
    const T* a = op.transpose ? grad_of<T>(left) : value_of<T>(left);
    const T* b = op.transpose ? value_of<T>(right) : grad_of<T>(right);
    gemm<T>(true, false, op.w.rows, op.w.cols, op.x.rows, T(1), a, left.ld, b, right.ld, T(1), grad_of<T>(op.w),
            op.w.ld);
  }
  if (batch.argument_count == 3 && batch.arguments[2].wants_grad) {
    T* bias = grad_of<T>(batch.arguments[2].pieces[0]);
    for (int64_t row = 0; row < op.y.rows; ++row) {
      const T* dy = grad_of<T>(op.y) + row * op.y.ld;
      for (int64_t col = 0; col < op.y.cols; ++col) bias[col] += dy[col];
    }
  }
}
LN_INSTANTIATE_SHARED(linear)

template <class T>
void matmul_forward(const Batch& batch) {
  const bool ta = batch.attributes[0] != 0, tb = batch.attributes[1] != 0;
  for_members(batch, false, [&](int64_t i) {
    const Piece &a = batch.arguments[0].pieces[i], &b = batch.arguments[1].pieces[i], &y = batch.result.pieces[i];
    gemm_serial<T>(ta, tb, y.rows, y.cols, ta ? a.rows : a.cols, T(1), value_of<T>(a), a.ld, value_of<T>(b), b.ld, T(0),
                   value_of<T>(y), y.ld);
  });
}

template <class T>
void matmul_backward(const Batch& batch) {
  const bool ta = batch.attributes[0] != 0, tb = batch.attributes[1] != 0;
  for_members(batch, true, [&](int64_t i) {
    const Piece &a = batch.arguments[0].pieces[i], &b = batch.arguments[1].pieces[i], &y = batch.result.pieces[i];
    const T* dy = grad_of<T>(y);
    if (batch.arguments[0].wants_grad) {
      // op(A) gets dY op(B)^T; A stored transposed gets the transpose of that.
      if (ta)
        gemm_serial<T>(tb, true, a.rows, a.cols, y.cols, T(1), value_of<T>(b), b.ld, dy, y.ld, T(1), grad_of<T>(a),
                       a.ld);
      else
        gemm_serial<T>(false, !tb, a.rows, a.cols, y.cols, T(1), dy, y.ld, value_of<T>(b), b.ld, T(1), grad_of<T>(a),
                       a.ld);
    }
    if (batch.arguments[1].wants_grad) {
      if (tb)
        gemm_serial<T>(true, ta, b.rows, b.cols, y.rows, T(1), dy, y.ld, value_of<T>(a), a.ld, T(1), grad_of<T>(b),
                       b.ld);
      else
        gemm_serial<T>(!ta, false, b.rows, b.cols, y.rows, T(1), value_of<T>(a), a.ld, dy, y.ld, T(1), grad_of<T>(b),
                       b.ld);
    }
  });
}
LN_INSTANTIATE(matmul)

}  // namespace lazynet::cpu::LN_UNIT
