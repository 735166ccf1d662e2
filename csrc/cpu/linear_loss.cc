// linear_cross_entropy(x, W, b): -log softmax(x W + b)[class] of every row, without ever holding the logits of all rows
// (after Hsu et al. 2024, Liger Kernel). While the logits of a block of rows are in the cache, forward makes the
// gradients of x, W and b too, for a gradient of 1 of every row; backward scales them. Only where the gradients of the
// rows differ are W's made again.
//
// Bound by arithmetic: 6 rows in classes operations for forward and backward together, as a linear has.
#include "../blas.h"
#include "../ops/shape_rules.h"
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

template <class T>
struct LinearLoss {
  const Batch& batch;
  const Piece &x, &w;
  const bool transpose;
  const int64_t ignored;
  const T smoothing;
  const int64_t in, classes;
  T* logits;                     // of a block of rows; then gradients
  int64_t member = 0, next = 0;  // where next_target() stands

  explicit LinearLoss(const Batch& of)
      : batch(of),
        x(of.arguments[0].matrix),
        w(of.arguments[1].pieces[0]),
        transpose(of.attributes[0] != 0),
        ignored(static_cast<int64_t>(of.attributes[1])),
        smoothing(static_cast<T>(of.attributes[2])),
        in(x.cols),
        classes(transpose ? w.rows : w.cols),
        logits(static_cast<T*>(of.scratch)) {}

  // The classes of all rows in turn.
  int64_t next_target() {
    while (next == batch.result.pieces[member].rows) ++member, next = 0;
    return batch.payload[member][next++];
  }

  // Calls visit(first row, rows, targets) for blocks of rows whose logits lie in `logits`.
  template <class Visit>
  void for_blocks(const Visit& visit) {
    const int64_t rows = batch.result.matrix.rows, block = scratch_rules::loss_block_rows(rows, classes);
    int64_t targets[scratch_rules::kMostLossRows];
    const T* bias = batch.argument_count == 3 ? value_of<T>(batch.arguments[2].pieces[0]) : nullptr;
    for (int64_t first = 0; first < rows; first += block) {
      const int64_t count = rows - first < block ? rows - first : block;
      for (int64_t r = 0; r < count; ++r) targets[r] = next_target();
      if (bias)
        for_rows(count, classes, [&](int64_t r) {
          std::memcpy(logits + r * classes, bias, static_cast<std::size_t>(classes) * sizeof(T));
        });
      gemm<T>(false, transpose, count, classes, in, T(1), row_value<T>(x, first), x.ld, value_of<T>(w), w.ld,
              bias ? T(1) : T(0), logits, classes);
      visit(first, count, targets);
    }
  }

  // Of one row: returns the loss and, with `gradient`, leaves the gradient times factor where the logits were.
  T loss_of_row(T* row, int64_t target, bool gradient, T factor) const {
    const int64_t count = classes;
    if (target == ignored) {
      if (gradient) std::memset(row, 0, static_cast<std::size_t>(count) * sizeof(T));
      return T(0);
    }
    const T shift = softmax_shift(max_over<T>(count, [=](int64_t j) { return row[j]; }));
    const T chosen = row[target] - shift;
    T mean = T(0);
    if (smoothing != T(0)) mean = sum_over<T>(count, [=](int64_t j) { return row[j] - shift; }) / static_cast<T>(count);
    T sum;
    if (gradient) {
      LN_IVDEP
      for (int64_t j = 0; j < count; ++j) row[j] = m::exp(row[j] - shift);
      sum = sum_over<T>(count, [=](int64_t j) { return row[j]; });
    } else {
      sum = sum_over<T>(count, [=](int64_t j) { return m::exp(row[j] - shift); });
    }
    const SoftmaxSum<T> total{shift, sum};
    if (gradient) {
      const bool masked = sum == T(0);  // all logits are -inf
      const T scale = factor * total.scale(), uniform = masked ? T(0) : factor * smoothing / static_cast<T>(count);
      LN_IVDEP
      for (int64_t j = 0; j < count; ++j) row[j] = row[j] * scale - uniform;
      if (!masked) row[target] -= factor * (T(1) - smoothing);
    }
    const T log_scale = total.log_scale(), loss = log_scale - chosen;
    return smoothing == T(0) ? loss : (T(1) - smoothing) * loss + smoothing * (log_scale - mean);
  }

  // Adds the gradients of W and of the bias that the gradients of a block's logits give.
  void add_weight_gradients(int64_t first, int64_t count, T* weight, int64_t weight_ld, T* bias) const {
    const T* rows = row_value<T>(x, first);
    if (weight && transpose)
      gemm<T>(true, false, classes, in, count, T(1), logits, classes, rows, x.ld, T(1), weight, weight_ld);
    else if (weight)
      gemm<T>(true, false, in, classes, count, T(1), rows, x.ld, logits, classes, T(1), weight, weight_ld);
    if (!bias) return;
    parallel_for(classes, kColumnBlock, [&](int64_t begin, int64_t end) {
      for (int64_t r = 0; r < count; ++r) add_to(end - begin, logits + r * classes + begin, bias + begin);
    });
  }
};

}  // namespace

template <class T>
void linear_cross_entropy_forward(const Batch& batch) {
  LinearLoss<T> op(batch);
  T *result = value_of<T>(batch.result.matrix), *kept = static_cast<T*>(batch.kept);
  T *weight = static_cast<T*>(batch.early[1]), *bias = static_cast<T*>(batch.early[2]);
  const bool gradient = kept || weight || bias;
  op.for_blocks([&](int64_t first, int64_t count, const int64_t* targets) {
    for_rows(count, op.classes, [&](int64_t r) {
      result[first + r] = op.loss_of_row(op.logits + r * op.classes, targets[r], gradient, T(1));
    });
    if (kept)
      gemm<T>(false, !op.transpose, count, op.in, op.classes, T(1), op.logits, op.classes, value_of<T>(op.w), op.w.ld,
              T(0), kept + first * op.in, op.in);
    op.add_weight_gradients(first, count, weight, op.w.cols, bias);
  });
}

template <class T>
void linear_cross_entropy_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  const Piece& x = batch.arguments[0].matrix;
  const T *g = grad_of<T>(batch.result.matrix), *kept = static_cast<const T*>(batch.kept);
  T* dx = grad_of<T>(x);
  for_rows(batch.result.matrix.rows, x.cols, [&](int64_t r) {
    const T* from = kept + r * x.cols;
    T* to = dx + r * x.ld;
    const T scale = g[r];
    LN_IVDEP
    for (int64_t j = 0; j < x.cols; ++j) to[j] += scale * from[j];
  });
}

template <class T>
void linear_cross_entropy_shared(const Batch& batch) {
  LinearLoss<T> op(batch);
  const T* g = grad_of<T>(batch.result.matrix);
  const auto grad = [&](int k) {
    const bool wanted = k < batch.argument_count && batch.arguments[k].wants_grad;
    return wanted ? grad_of<T>(batch.arguments[k].pieces[0]) : nullptr;
  };
  T *weight = grad(1), *bias = grad(2);
  const T *early_weight = static_cast<const T*>(batch.early[1]), *early_bias = static_cast<const T*>(batch.early[2]);
  bool scaled = (!weight || early_weight) && (!bias || early_bias);
  const int64_t rows = batch.result.matrix.rows;
  for (int64_t r = 1; r < rows && scaled; ++r) scaled = g[r] == g[0];
  if (scaled && rows > 0) {
    const T scale = g[0];
    const auto add = [&](const T* from, T* to, int64_t count) {
      LN_IVDEP
      for (int64_t j = 0; j < count; ++j) to[j] += scale * from[j];
    };
    if (weight)
      for_rows(op.w.rows, op.w.cols,
               [&](int64_t r) { add(early_weight + r * op.w.cols, weight + r * op.w.ld, op.w.cols); });
    if (bias) add(early_bias, bias, op.classes);
    return;
  }
  op.for_blocks([&](int64_t first, int64_t count, const int64_t* targets) {
    for_rows(count, op.classes,
             [&](int64_t r) { op.loss_of_row(op.logits + r * op.classes, targets[r], true, g[first + r]); });
    op.add_weight_gradients(first, count, weight, op.w.ld, bias);
  });
}
LN_INSTANTIATE_SHARED(linear_cross_entropy)

}  // namespace lazynet::cpu::LN_UNIT
