// Sums, means, maxima and minima over rows (axis 0), columns (1) or everything (2), and over lists
// of nodes.
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

enum Axis { kOverRows = 0, kOverCols = 1, kOverAll = 2 };
Axis axis_of(const Batch& batch) { return static_cast<Axis>(static_cast<int>(batch.attributes[0])); }

// Elements that go into one element of the result.
int64_t group_size(const Piece& x, Axis axis) {
  return axis == kOverRows ? x.rows : (axis == kOverCols ? x.cols : x.rows * x.cols);
}
template <class T>
T mean_scale(int64_t count) {
  return count == 0 ? T(0) : T(1) / static_cast<T>(count);
}

// A fold that stands for the minimum as well.
struct Min {
  template <class T>
  static constexpr T identity() {
    return kInfinity<T>;
  }
  template <class T>
  static inline T combine(T a, T b) {
    return b < a || b != b ? b : a;
  }
};

template <class Fold, class T>
void reduce_piece(const Piece& x, const Piece& result, Axis axis, bool average) {
  T* y = value_of<T>(result);
  const T scale = average ? mean_scale<T>(group_size(x, axis)) : T(1);
  const auto fold_row = [](const Piece& piece, int64_t r) {
    const T* in = row_value<T>(piece, r);
    return fold_pairwise<Fold, T>(0, piece.cols, [=](int64_t j) { return in[j]; });
  };
  if (axis == kOverCols) {
    for_rows(x.rows, x.cols, [&](int64_t r) { y[r * result.ld] = scale * fold_row(x, r); });
  } else if (axis == kOverRows) {
    for_column_blocks(x.cols, [&](int64_t first, int64_t width) {
      const auto row = [&](int64_t r) { return row_value<T>(x, r) + first; };
      fold_rows<Fold, T>(row, 0, x.rows, width, y + first);
      if (average)
        for (int64_t j = 0; j < width; ++j) y[first + j] *= scale;
    });
  } else {
    const Piece all = contiguous(x) ? flattened(x) : x;
    *y = scale * fold_pairwise<Fold, T>(0, all.rows, [&](int64_t r) { return fold_row(all, r); });
  }
}
template <class Fold, class T>
void reduce_forward(const Batch& batch, bool average) {
  const Axis axis = axis_of(batch);
  for_members(batch, false, [&](int64_t i) {
    reduce_piece<Fold, T>(batch.arguments[0].pieces[i], batch.result.pieces[i], axis, average);
  });
}

// Spreads the gradient of a sum or mean.
template <class T>
void spread_gradient(const Batch& batch, bool average) {
  const Operand& argument = batch.arguments[0];
  const Axis axis = axis_of(batch);
  if (!argument.wants_grad) return;
  for_members(batch, true, [&](int64_t i) {
    const Piece &x = argument.pieces[i], &result = batch.result.pieces[i];
    if (!x.grad) return;
    const T scale = average ? mean_scale<T>(group_size(x, axis)) : T(1);
    for_rows(x.rows, x.cols, [&](int64_t r) {
      const T* g = row_grad<T>(result, axis == kOverCols ? r : 0);
      T* dx = row_grad<T>(x, r);
      if (axis == kOverRows) {
        LN_IVDEP
        for (int64_t j = 0; j < x.cols; ++j) dx[j] += scale * g[j];
      } else {
        const T each = x.cols ? scale * *g : T(0);
        LN_IVDEP
        for (int64_t j = 0; j < x.cols; ++j) dx[j] += each;
      }
    });
  });
}

// The first of `count` elements, `step` apart, that is y, or is NaN as y; -1: none.
template <class T>
int64_t find_first(const T* x, int64_t count, int64_t step, T y) {
  for (int64_t i = 0; i < count; ++i) {
    const T v = x[i * step];
    if (v == y || (y != y && v != v)) return i;
  }
  return -1;
}

// The gradient of a maximum or minimum goes to the first element that equals it.
template <class T>
void extremum_gradient(const Piece& x, const Piece& result, Axis axis) {
  const T *in = value_of<T>(x), *y = value_of<T>(result), *g = grad_of<T>(result);
  T* dx = grad_of<T>(x);
  const auto add = [&](int64_t found, int64_t start, int64_t step, T gradient) {
    if (found >= 0) dx[start + found * step] += gradient;
    return found >= 0;
  };
  if (axis == kOverRows) {
    for (int64_t c = 0; c < x.cols; ++c) add(find_first(in + c, x.rows, x.ld, y[c]), c, x.ld, g[c]);
  } else if (axis == kOverCols) {
    for (int64_t r = 0; r < x.rows; ++r) {
      const int64_t found = find_first(in + r * x.ld, x.cols, 1, y[r * result.ld]);
      add(found, r * x.ld, 1, g[r * result.ld]);
    }
  } else {
    for (int64_t r = 0; r < x.rows; ++r)
      if (add(find_first(in + r * x.ld, x.cols, 1, *y), r * x.ld, 1, *g)) break;
  }
}
template <class T>
void extremum_backward(const Batch& batch) {
  const Operand& argument = batch.arguments[0];
  const Axis axis = axis_of(batch);
  if (!argument.wants_grad) return;
  for_members(batch, true, [&](int64_t i) {
    if (argument.pieces[i].grad) extremum_gradient<T>(argument.pieces[i], batch.result.pieces[i], axis);
  });
}

// The size of a list's pieces, as one row where all of them and the result lie without gaps.
Piece list_shape(const Operand& list, int64_t begin, int64_t end, const Piece& result) {
  bool gaps = !contiguous(result);
  for (int64_t i = begin; i < end; ++i) gaps = gaps || !contiguous(list.pieces[i]);
  return gaps ? result : flattened(result);
}

}  // namespace

template <class T>
void reduce_sum_forward(const Batch& batch) {
  reduce_forward<Add, T>(batch, false);
}
template <class T>
void reduce_sum_backward(const Batch& batch) {
  spread_gradient<T>(batch, false);
}
LN_INSTANTIATE(reduce_sum)

template <class T>
void reduce_mean_forward(const Batch& batch) {
  reduce_forward<Add, T>(batch, true);
}
template <class T>
void reduce_mean_backward(const Batch& batch) {
  spread_gradient<T>(batch, true);
}
LN_INSTANTIATE(reduce_mean)

template <class T>
void reduce_max_forward(const Batch& batch) {
  reduce_forward<Max, T>(batch, false);
}
template <class T>
void reduce_max_backward(const Batch& batch) {
  extremum_backward<T>(batch);
}
LN_INSTANTIATE(reduce_max)

template <class T>
void reduce_min_forward(const Batch& batch) {
  reduce_forward<Min, T>(batch, false);
}
template <class T>
void reduce_min_backward(const Batch& batch) {
  extremum_backward<T>(batch);
}
LN_INSTANTIATE(reduce_min)

template <class T>
void sum_nodes_forward(const Batch& batch) {
  const Operand& list = batch.arguments[0];
  const bool average = batch.attributes[0] != 0;
  for_members(batch, false, [&](int64_t i) {
    const int64_t begin = list.begin[i], end = list.begin[i + 1];
    const Piece& result = batch.result.pieces[i];
    const Piece shape = list_shape(list, begin, end, result);
    const T scale = average ? mean_scale<T>(end - begin) : T(1);
    for (int64_t r = 0; r < shape.rows; ++r)
      for_column_blocks(shape.cols, [&](int64_t first, int64_t width) {
        T* y = value_of<T>(result) + r * result.ld + first;
        const auto row = [&](int64_t k) { return row_value<T>(list.pieces[k], r) + first; };
        fold_rows<Add, T>(row, begin, end, width, y);
        if (average)
          for (int64_t j = 0; j < width; ++j) y[j] *= scale;
      });
  });
}

template <class T>
void sum_nodes_backward(const Batch& batch) {
  const Operand& list = batch.arguments[0];
  const bool average = batch.attributes[0] != 0;
  if (!list.wants_grad) return;
  for_members(batch, true, [&](int64_t i) {
    const int64_t begin = list.begin[i], end = list.begin[i + 1];
    const Piece& result = batch.result.pieces[i];
    const Piece shape = list_shape(list, begin, end, result);
    const T scale = average ? mean_scale<T>(end - begin) : T(1);
    for (int64_t k = begin; k < end; ++k)
      for (int64_t r = 0; list.pieces[k].grad && r < shape.rows; ++r) {
        const T* g = row_grad<T>(result, r);
        T* dx = row_grad<T>(list.pieces[k], r);
        LN_IVDEP
        for (int64_t j = 0; j < shape.cols; ++j) dx[j] += scale * g[j];
      }
  });
}
LN_INSTANTIATE(sum_nodes)

}  // namespace lazynet::cpu::LN_UNIT
