// softmax, log_softmax, logsumexp over rows (axis 0), columns (1) or everything (2), softmax over columns also within
// a window; sparsemax over columns.
#include "band.h"
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

enum Axis { kOverRows = 0, kOverCols = 1, kOverAll = 2 };
Axis axis_of(const Batch& batch) { return static_cast<Axis>(static_cast<int>(batch.attributes[0])); }

// The softmax sums of at most kColumnBlock columns.
template <class T>
struct ColumnSums {
  T shift[kColumnBlock], scale[kColumnBlock], log_scale[kColumnBlock], log_sum_exp[kColumnBlock];
  ColumnSums(const Piece& x, int64_t first, int64_t width) {
    T sum[kColumnBlock];
    fold_rows<Max, T>([&](int64_t r) { return row_value<T>(x, r) + first; }, 0, x.rows, width, shift);
    for (int64_t j = 0; j < width; ++j) shift[j] = softmax_shift(shift[j]), sum[j] = T(0);
    for (int64_t r = 0; r < x.rows; ++r) {
      const T* in = row_value<T>(x, r) + first;
      LN_IVDEP
      for (int64_t j = 0; j < width; ++j) sum[j] += m::exp(in[j] - shift[j]);
    }
    for (int64_t j = 0; j < width; ++j) {
      const SoftmaxSum<T> total{shift[j], sum[j]};
      scale[j] = total.scale();
      log_scale[j] = total.log_scale();
      log_sum_exp[j] = shift[j] + m::log(sum[j]);
    }
  }
};

// Per column of a block: the sum over the rows of f(y, g).
template <class T, class Function>
void column_sums(const Piece& result, int64_t first, int64_t width, T* sums, const Function& f) {
  for (int64_t j = 0; j < width; ++j) sums[j] = T(0);
  for (int64_t r = 0; r < result.rows; ++r) {
    const T *y = row_value<T>(result, r) + first, *g = row_grad<T>(result, r) + first;
    LN_IVDEP
    for (int64_t j = 0; j < width; ++j) sums[j] += f(y[j], g[j]);
  }
}

// Runs function(argument, result, member) for all members.
template <class Function>
void for_pairs(const Batch& batch, bool backward, const Function& function) {
  if (backward && !batch.arguments[0].wants_grad) return;
  for_members(batch, backward, [&](int64_t i) {
    const Piece& x = batch.arguments[0].pieces[i];
    if (!backward || x.grad) function(x, batch.result.pieces[i]);
  });
}

template <class T>
void softmax_row(const T* x, int64_t count, T* y) {
  const T shift = softmax_shift(max_over<T>(count, [=](int64_t i) { return x[i]; }));
  LN_IVDEP
  for (int64_t i = 0; i < count; ++i) y[i] = m::exp(x[i] - shift);
  const T scale = SoftmaxSum<T>{shift, sum_over<T>(count, [=](int64_t i) { return y[i]; })}.scale();
  LN_IVDEP
  for (int64_t i = 0; i < count; ++i) y[i] *= scale;
}

}  // namespace

template <class T>
void softmax_forward(const Batch& batch) {
  const Axis axis = axis_of(batch);
  const Band band = {batch.attributes[1], batch.attributes[2]};
  for_pairs(batch, false, [&](const Piece& x, const Piece& y) {
    if (axis == kOverCols)
      return for_rows(x.rows, x.cols, [&](int64_t r) {
        const int64_t begin = band.begin(r, x.rows, x.cols), end = band.end(r, x.rows, x.cols);
        T* out = value_of<T>(y) + r * y.ld;
        for (int64_t j = 0; j < begin; ++j) out[j] = T(0);
        if (begin < end) softmax_row(row_value<T>(x, r) + begin, end - begin, out + begin);
        for (int64_t j = end < begin ? begin : end; j < x.cols; ++j) out[j] = T(0);
      });
    for_column_blocks(x.cols, [&](int64_t first, int64_t width) {
      const ColumnSums<T> sums(x, first, width);
      for (int64_t r = 0; r < x.rows; ++r) {
        const T* in = row_value<T>(x, r) + first;
        T* out = value_of<T>(y) + r * y.ld + first;
        LN_IVDEP
        for (int64_t j = 0; j < width; ++j) out[j] = m::exp(in[j] - sums.shift[j]) * sums.scale[j];
      }
    });
  });
}

template <class T>
void softmax_backward(const Batch& batch) {
  const Axis axis = axis_of(batch);
  for_pairs(batch, true, [&](const Piece& x, const Piece& result) {
    if (axis == kOverCols)
      return for_rows(x.rows, x.cols, [&](int64_t r) {
        const T *y = row_value<T>(result, r), *g = row_grad<T>(result, r);
        const T dot = sum_over<T>(x.cols, [=](int64_t j) { return g[j] * y[j]; });
        T* dx = row_grad<T>(x, r);
        LN_IVDEP
        for (int64_t j = 0; j < x.cols; ++j) dx[j] += y[j] * (g[j] - dot);
      });
    for_column_blocks(x.cols, [&](int64_t first, int64_t width) {
      T dot[kColumnBlock];
      column_sums(result, first, width, dot, [](T y, T g) { return y * g; });
      for (int64_t r = 0; r < x.rows; ++r) {
        const T *y = row_value<T>(result, r) + first, *g = row_grad<T>(result, r) + first;
        T* dx = row_grad<T>(x, r) + first;
        LN_IVDEP
        for (int64_t j = 0; j < width; ++j) dx[j] += y[j] * (g[j] - dot[j]);
      }
    });
  });
}
LN_INSTANTIATE(softmax)

template <class T>
void log_softmax_forward(const Batch& batch) {
  const Axis axis = axis_of(batch);
  for_pairs(batch, false, [&](const Piece& x, const Piece& y) {
    if (axis == kOverCols)
      return for_rows(x.rows, x.cols, [&](int64_t r) {
        const T* in = row_value<T>(x, r);
        T* out = value_of<T>(y) + r * y.ld;
        const SoftmaxSum<T> total = softmax_sum(in, x.cols);
        const T shift = total.shift, log_scale = total.log_scale();
        LN_IVDEP
        for (int64_t j = 0; j < x.cols; ++j) out[j] = in[j] - shift - log_scale;
      });
    for_column_blocks(x.cols, [&](int64_t first, int64_t width) {
      const ColumnSums<T> sums(x, first, width);
      for (int64_t r = 0; r < x.rows; ++r) {
        const T* in = row_value<T>(x, r) + first;
        T* out = value_of<T>(y) + r * y.ld + first;
        LN_IVDEP
        for (int64_t j = 0; j < width; ++j) out[j] = in[j] - sums.shift[j] - sums.log_scale[j];
      }
    });
  });
}

// dx = g - softmax * sum(g); nothing for a group of -inf alone, which is found by counting what is
// not.
template <class T>
void log_softmax_backward(const Batch& batch) {
  const Axis axis = axis_of(batch);
  const auto alive = [](T y) { return y == -kInfinity<T> ? T(0) : T(1); };
  for_pairs(batch, true, [&](const Piece& x, const Piece& result) {
    if (axis == kOverCols)
      return for_rows(x.rows, x.cols, [&](int64_t r) {
        const T *y = row_value<T>(result, r), *g = row_grad<T>(result, r);
        if (sum_over<T>(x.cols, [=](int64_t j) { return alive(y[j]); }) == T(0)) return;
        const T total = sum_over<T>(x.cols, [=](int64_t j) { return g[j]; });
        T* dx = row_grad<T>(x, r);
        LN_IVDEP
        for (int64_t j = 0; j < x.cols; ++j) dx[j] += g[j] - m::exp(y[j]) * total;
      });
    for_column_blocks(x.cols, [&](int64_t first, int64_t width) {
      T total[kColumnBlock], count[kColumnBlock];
      column_sums(result, first, width, total, [](T, T g) { return g; });
      column_sums(result, first, width, count, [&](T y, T) { return alive(y); });
      for (int64_t r = 0; r < x.rows; ++r) {
        const T *y = row_value<T>(result, r) + first, *g = row_grad<T>(result, r) + first;
        T* dx = row_grad<T>(x, r) + first;
        LN_IVDEP
        for (int64_t j = 0; j < width; ++j) dx[j] += count[j] == T(0) ? T(0) : g[j] - m::exp(y[j]) * total[j];
      }
    });
  });
}
LN_INSTANTIATE(log_softmax)

template <class T>
void logsumexp_forward(const Batch& batch) {
  const Axis axis = axis_of(batch);
  const auto log_sum_exp = [](const SoftmaxSum<T>& total) { return total.shift + m::log(total.sum); };
  for_pairs(batch, false, [&](const Piece& x, const Piece& result) {
    T* y = value_of<T>(result);
    if (axis == kOverCols) {
      for_rows(x.rows, x.cols,
               [&](int64_t r) { y[r * result.ld] = log_sum_exp(softmax_sum(row_value<T>(x, r), x.cols)); });
    } else if (axis == kOverRows) {
      for_column_blocks(x.cols, [&](int64_t first, int64_t width) {
        const ColumnSums<T> sums(x, first, width);
        for (int64_t j = 0; j < width; ++j) y[first + j] = sums.log_sum_exp[j];
      });
    } else {
      const Piece all = contiguous(x) ? flattened(x) : x;
      const T shift = softmax_shift(max_over<T>(all.rows, [&](int64_t r) {
        const T* in = row_value<T>(all, r);
        return max_over<T>(all.cols, [=](int64_t j) { return in[j]; });
      }));
      *y = shift + m::log(sum_over<T>(all.rows, [&](int64_t r) {
             const T* in = row_value<T>(all, r);
             return sum_over<T>(all.cols, [=](int64_t j) { return m::exp(in[j] - shift); });
           }));
    }
  });
}

template <class T>
void logsumexp_backward(const Batch& batch) {
  const Axis axis = axis_of(batch);
  const auto gradient = [](T x, T y, T g) { return y == -kInfinity<T> ? T(0) : g * m::exp(x - y); };
  for_pairs(batch, true, [&](const Piece& x, const Piece& result) {
    for_rows(x.rows, x.cols, [&](int64_t r) {
      const int64_t row = axis == kOverCols ? r : 0;
      const T *in = row_value<T>(x, r), *y = row_value<T>(result, row), *g = row_grad<T>(result, row);
      T* dx = row_grad<T>(x, r);
      if (axis == kOverRows) {
        LN_IVDEP
        for (int64_t j = 0; j < x.cols; ++j) dx[j] += gradient(in[j], y[j], g[j]);
      } else {
        const T y0 = *y, g0 = *g;
        LN_IVDEP
        for (int64_t j = 0; j < x.cols; ++j) dx[j] += gradient(in[j], y0, g0);
      }
    });
  });
}
LN_INSTANTIATE(logsumexp)

namespace {

// The threshold of Martins & Astudillo (2016): max(z - t, 0) sums to 1. Found without sorting: from
// a set that holds the support, repeat t = (sum - 1) / count over what lies above t, until nothing
// leaves it.
template <class T>
T sparsemax_threshold(const T* x, int64_t count, T maximum) {
  T threshold = T(-1), size = static_cast<T>(count) + T(1);
  for (;;) {
    const T t = threshold;
    const T left = sum_over<T>(count, [=](int64_t i) { return x[i] - maximum > t ? T(1) : T(0); });
    if (!(left > T(0)) || left >= size) return threshold;
    const T sum = sum_over<T>(count, [=](int64_t i) { return x[i] - maximum > t ? x[i] - maximum : T(0); });
    size = left;
    threshold = (sum - T(1)) / left;
  }
}

}  // namespace

template <class T>
void sparsemax_forward(const Batch& batch) {
  for_pairs(batch, false, [&](const Piece& x, const Piece& result) {
    for_rows(x.rows, x.cols, [&](int64_t r) {
      const T* in = row_value<T>(x, r);
      T* y = value_of<T>(result) + r * result.ld;
      const T maximum = max_over<T>(x.cols, [=](int64_t j) { return in[j]; });
      const bool masked = maximum == -kInfinity<T>;
      const T threshold = masked ? T(0) : sparsemax_threshold(in, x.cols, maximum);
      LN_IVDEP
      for (int64_t j = 0; j < x.cols; ++j) y[j] = masked ? T(0) : m::positive(in[j] - maximum - threshold);
    });
  });
}

template <class T>
void sparsemax_backward(const Batch& batch) {
  for_pairs(batch, true, [&](const Piece& x, const Piece& result) {
    for_rows(x.rows, x.cols, [&](int64_t r) {
      const T *y = row_value<T>(result, r), *g = row_grad<T>(result, r);
      const T count = sum_over<T>(x.cols, [=](int64_t j) { return y[j] > T(0) ? T(1) : T(0); });
      const T sum = sum_over<T>(x.cols, [=](int64_t j) { return y[j] > T(0) ? g[j] : T(0); });
      const T mean = sum / count;  // used on the support only, so never 0 / 0
      T* dx = row_grad<T>(x, r);
      LN_IVDEP
      for (int64_t j = 0; j < x.cols; ++j) dx[j] += y[j] > T(0) ? g[j] - mean : T(0);
    });
  });
}
LN_INSTANTIATE(sparsemax)

}  // namespace lazynet::cpu::LN_UNIT
