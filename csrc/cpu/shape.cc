// Constants and rearrangements of elements.
#include "ids.h"
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

// Walks two pieces of equally many elements in row-major order: visit(offset in a, offset in b,
// length) for every run that lies in one row of both.
template <class Visit>
void for_runs(const Piece& a, const Piece& b, const Visit& visit) {
  if (a.rows * a.cols == 0) return;
  const Piece x = contiguous(a) ? flattened(a) : a, y = contiguous(b) ? flattened(b) : b;
  int64_t row_x = 0, column_x = 0, row_y = 0, column_y = 0;
  while (row_x < x.rows) {
    const int64_t left_x = x.cols - column_x, left_y = y.cols - column_y;
    const int64_t run = left_x < left_y ? left_x : left_y;
    visit(row_x * x.ld + column_x, row_y * y.ld + column_y, run);
    if ((column_x += run) == x.cols) column_x = 0, ++row_x;
    if ((column_y += run) == y.cols) column_y = 0, ++row_y;
  }
}

// Visits a rows x cols index space in square tiles, so that both sides of a transposition stay in
// cache.
template <class Visit>
void for_tiles(int64_t rows, int64_t cols, const Visit& visit) {
  constexpr int64_t kTile = 16;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (int64_t c0 = 0; c0 < cols; c0 += kTile)
      for (int64_t r = r0; r < rows && r < r0 + kTile; ++r)
        for (int64_t c = c0; c < cols && c < c0 + kTile; ++c) visit(r, c);
}

// Calls visit(piece, offset of its first element in the result) for all pieces of member i's list.
template <class Visit>
void for_parts(const Operand& list, int64_t member, bool side_by_side, int64_t result_ld, const Visit& visit) {
  int64_t start = 0;
  for (int64_t k = list.begin[member]; k < list.begin[member + 1]; ++k) {
    const Piece& part = list.pieces[k];
    visit(part, start);
    start += side_by_side ? part.cols : part.rows * result_ld;
  }
}

template <class T>
void concat_forward(const Batch& batch, bool side_by_side) {
  for_members(batch, false, [&](int64_t i) {
    const Piece& result = batch.result.pieces[i];
    for_parts(batch.arguments[0], i, side_by_side, result.ld, [&](const Piece& part, int64_t start) {
      copy_block(value_of<T>(part), part.ld, value_of<T>(result) + start, result.ld, part.rows, part.cols);
    });
  });
}
template <class T>
void concat_backward(const Batch& batch, bool side_by_side) {
  if (!batch.arguments[0].wants_grad) return;
  for_members(batch, true, [&](int64_t i) {
    const Piece& result = batch.result.pieces[i];
    for_parts(batch.arguments[0], i, side_by_side, result.ld, [&](const Piece& part, int64_t start) {
      if (part.grad) add_block(grad_of<T>(result) + start, result.ld, grad_of<T>(part), part.ld, part.rows, part.cols);
    });
  });
}

}  // namespace

template <class T>
void constant_forward(const Batch& batch) {
  const T value = static_cast<T>(batch.attributes[0]);
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece& result = batch.result.pieces[i];
    for (int64_t r = 0; r < result.rows; ++r) {
      T* y = value_of<T>(result) + r * result.ld;
      for (int64_t c = 0; c < result.cols; ++c) y[c] = value;
    }
  }
}
template <class T>
void constant_backward(const Batch&) {}
LN_INSTANTIATE(constant)

template <class T>
void copy_forward(const Batch& batch) {
  for_members(batch, false, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &y = batch.result.pieces[i];
    for_runs(x, y, [&](int64_t from, int64_t to, int64_t length) {
      std::memcpy(value_of<T>(y) + to, value_of<T>(x) + from, static_cast<std::size_t>(length) * sizeof(T));
    });
  });
}
template <class T>
void copy_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  for_members(batch, true, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &y = batch.result.pieces[i];
    if (!x.grad) return;
    for_runs(x, y, [&](int64_t to, int64_t from, int64_t length) {
      add_to(length, grad_of<T>(y) + from, grad_of<T>(x) + to);
    });
  });
}
LN_INSTANTIATE(copy)

template <class T>
void take_rows_forward(const Batch& batch) {
  for_members(batch, false, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    for (int64_t r = 0; r < result.rows; ++r)
      std::memcpy(value_of<T>(result) + r * result.ld, row_value<T>(x, batch.payload[i][r]),
                  static_cast<std::size_t>(x.cols) * sizeof(T));
  });
}
template <class T>
void take_rows_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  for_members(batch, true, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    for (int64_t r = 0; x.grad && r < result.rows; ++r)
      add_to(x.cols, row_grad<T>(result, r), row_grad<T>(x, batch.payload[i][r]));
  });
}
LN_INSTANTIATE(take_rows)

template <class T>
void take_cols_forward(const Batch& batch) {
  if (!ids_in_range<T>(batch, 1, [&](int64_t i) { return batch.arguments[0].pieces[i].cols; })) return;
  for_members(batch, false, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &ids = batch.arguments[1].pieces[i], &y = batch.result.pieces[i];
    for (int64_t r = 0; r < y.rows; ++r)
      for (int64_t c = 0; c < y.cols; ++c)
        value_of<T>(y)[r * y.ld + c] = row_value<T>(x, r)[static_cast<int64_t>(row_value<T>(ids, r)[c])];
  });
}
template <class T>
void take_cols_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  for_members(batch, true, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &ids = batch.arguments[1].pieces[i], &y = batch.result.pieces[i];
    for (int64_t r = 0; x.grad && r < y.rows; ++r)
      for (int64_t c = 0; c < y.cols; ++c)
        row_grad<T>(x, r)[static_cast<int64_t>(row_value<T>(ids, r)[c])] += row_grad<T>(y, r)[c];
  });
}
LN_INSTANTIATE(take_cols)

template <class T>
void transpose_forward(const Batch& batch) {
  for_members(batch, false, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    const T* in = value_of<T>(x);
    T* y = value_of<T>(result);
    for_tiles(result.rows, result.cols, [&](int64_t r, int64_t c) { y[r * result.ld + c] = in[c * x.ld + r]; });
  });
}
template <class T>
void transpose_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  for_members(batch, true, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    if (!x.grad) return;
    const T* g = grad_of<T>(result);
    T* dx = grad_of<T>(x);
    for_tiles(x.rows, x.cols, [&](int64_t r, int64_t c) { dx[r * x.ld + c] += g[c * result.ld + r]; });
  });
}
LN_INSTANTIATE(transpose)

template <class T>
void concat_cols_forward(const Batch& batch) {
  concat_forward<T>(batch, true);
}
template <class T>
void concat_cols_backward(const Batch& batch) {
  concat_backward<T>(batch, true);
}
LN_INSTANTIATE(concat_cols)

template <class T>
void concat_rows_forward(const Batch& batch) {
  concat_forward<T>(batch, false);
}
template <class T>
void concat_rows_backward(const Batch& batch) {
  concat_backward<T>(batch, false);
}
LN_INSTANTIATE(concat_rows)

}  // namespace lazynet::cpu::LN_UNIT
