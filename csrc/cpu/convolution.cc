// unfold_rows(x): beside each other the rows that a filter of a convolution over rows sees; a linear does the rest.
// Columns lie in the order of PyTorch's weights: all places of the first channel, then those of the next.
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

struct Window {
  int64_t width, stride, padding, dilation;
  explicit Window(const Batch& batch)
      : width(static_cast<int64_t>(batch.attributes[0])),
        stride(static_cast<int64_t>(batch.attributes[1])),
        padding(static_cast<int64_t>(batch.attributes[2])),
        dilation(static_cast<int64_t>(batch.attributes[3])) {}
  // The row that place `k` of result row `r` reads; outside of x there are zeros.
  int64_t row(int64_t r, int64_t k) const { return r * stride - padding + k * dilation; }
};

}  // namespace

template <class T>
void unfold_rows_forward(const Batch& batch) {
  const Window window(batch);
  for_members(batch, false, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    for (int64_t r = 0; r < result.rows; ++r)
      for (int64_t k = 0; k < window.width; ++k) {
        const int64_t row = window.row(r, k);
        T* y = value_of<T>(result) + r * result.ld + k;
        const bool inside = row >= 0 && row < x.rows;
        const T* in = inside ? row_value<T>(x, row) : nullptr;
        for (int64_t c = 0; c < x.cols; ++c) y[c * window.width] = inside ? in[c] : T(0);
      }
  });
}

template <class T>
void unfold_rows_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  const Window window(batch);
  for_members(batch, true, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    for (int64_t r = 0; x.grad && r < result.rows; ++r)
      for (int64_t k = 0; k < window.width; ++k) {
        const int64_t row = window.row(r, k);
        if (row < 0 || row >= x.rows) continue;
        const T* g = row_grad<T>(result, r) + k;
        T* dx = row_grad<T>(x, row);
        for (int64_t c = 0; c < x.cols; ++c) dx[c] += g[c * window.width];
      }
  });
}
LN_INSTANTIATE(unfold_rows)

}  // namespace lazynet::cpu::LN_UNIT
