// Losses against class numbers: one loss a row.
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

// Calls function(x, result, row, class) for all rows whose class counts, ignored(...) for the
// others.
template <class Function, class Ignored>
void for_classes(const Batch& batch, bool backward, const Function& function, const Ignored& ignored) {
  const int64_t ignored_class = static_cast<int64_t>(batch.attributes[0]);
  for_members(batch, backward, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    if (backward && !x.grad) return;
    for_rows(x.rows, x.cols, [&](int64_t r) {
      const int64_t target = batch.payload[i][r];
      if (target == ignored_class)
        ignored(result, r);
      else
        function(x, result, r, target);
    });
  });
}
template <class T>
void write_zero(const Piece& result, int64_t row) {
  value_of<T>(result)[row * result.ld] = T(0);
}
inline void do_nothing(const Piece&, int64_t) {}

}  // namespace

template <class T>
void cross_entropy_forward(const Batch& batch) {
  const T smoothing = static_cast<T>(batch.attributes[1]);
  for_classes(
      batch, false,
      [=](const Piece& piece, const Piece& result, int64_t r, int64_t target) {
        const T* x = row_value<T>(piece, r);
        const SoftmaxSum<T> total = softmax_sum(x, piece.cols);
        const T shift = total.shift, log_scale = total.log_scale();
        T loss = log_scale - (x[target] - shift);
        if (smoothing != T(0)) {  // else 0 * infinity where logits are masked
          const T mean = sum_over<T>(piece.cols, [=](int64_t j) { return x[j] - shift; }) / static_cast<T>(piece.cols);
          loss = (T(1) - smoothing) * loss + smoothing * (log_scale - mean);
        }
        value_of<T>(result)[r * result.ld] = loss;
      },
      write_zero<T>);
}

template <class T>
void cross_entropy_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  const T smoothing = static_cast<T>(batch.attributes[1]);
  for_classes(
      batch, true,
      [=](const Piece& piece, const Piece& result, int64_t r, int64_t target) {
        const T* x = row_value<T>(piece, r);
        T* dx = row_grad<T>(piece, r);
        const SoftmaxSum<T> total = softmax_sum(x, piece.cols);
        if (total.sum == T(0)) return;  // all logits are -inf
        const T g = *row_grad<T>(result, r);
        const T shift = total.shift, scale = g * total.scale(), uniform = g * smoothing / static_cast<T>(piece.cols);
        LN_IVDEP
        for (int64_t j = 0; j < piece.cols; ++j) dx[j] += m::exp(x[j] - shift) * scale - uniform;
        dx[target] -= g * (T(1) - smoothing);
      },
      do_nothing);
}
LN_INSTANTIATE(cross_entropy)

template <class T>
void nll_loss_forward(const Batch& batch) {
  for_classes(
      batch, false,
      [](const Piece& x, const Piece& result, int64_t r, int64_t target) {
        value_of<T>(result)[r * result.ld] = -row_value<T>(x, r)[target];
      },
      write_zero<T>);
}

template <class T>
void nll_loss_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  for_classes(
      batch, true,
      [](const Piece& x, const Piece& result, int64_t r, int64_t target) {
        row_grad<T>(x, r)[target] -= *row_grad<T>(result, r);
      },
      do_nothing);
}
LN_INSTANTIATE(nll_loss)

}  // namespace lazynet::cpu::LN_UNIT
