// Constants and rearrangements of elements.
//
// Every element is read and written once (its gradient read twice and written once), with a few integer operations that
// find its place: bound by memory. Where whole rows move, rows are gathered and scattered as those of packed operands.
#include "ids.h"
#include "kernel.h"
#ifndef LN_DEVICE_CODE
#include "transfer.h"
#endif

namespace lazynet::cuda {

constexpr int64_t kChunk = 128;  // elements that a warp handles at a time
constexpr int kTile = 32;        // of a transposition
constexpr int kTileRows = 8;     // of threads

struct ConstantArgs {
  Members members;  // a unit is kChunk elements
  double value;
};

// Pairs of pieces with equally many elements in row-major order.
struct PairsArgs {
  const Piece* from;  // x, and
  const Piece* to;    // the part of the result that it becomes
  const int64_t* begin;
  int64_t count, units;  // a unit is kChunk elements
};

struct TransposeArgs {
  Members members;  // a unit is a tile of the result
};

struct TakeColsArgs {
  Members members;  // a unit is a row of the result
  Fault* fault;
};

#ifdef LN_DEVICE_CODE

template <class T>
LN_DEVICE void constant_forward(const ConstantArgs& args) {
  for (int64_t unit = warp_number(); unit < args.members.units; unit += warp_count()) {
    const Place place = place_of(args.members, unit);
    const Piece y = piece_of(args.members, 0, place.member);
    const int64_t elements = y.rows * y.cols, first = place.unit * kChunk;
    const int64_t end = first + kChunk < elements ? first + kChunk : elements;
    for (int64_t i = first + lane(); i < end; i += kWarp) {
      const int64_t row = y.rows == 1 ? 0 : i / y.cols;
      value_of<T>(y)[row * y.ld + i - row * y.cols] = static_cast<T>(args.value);
    }
  }
}
LN_KERNELS(constant_forward, ConstantArgs, kThreads)

LN_DEVICE int64_t offset_of(const Piece& piece, int64_t element) {
  if (piece.rows == 1 || piece.ld == piece.cols) return element;
  const int64_t row = element / piece.cols;
  return row * piece.ld + element - row * piece.cols;
}
template <class Visit>
LN_DEVICE void for_pairs(const PairsArgs& args, const Visit& visit) {
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.units; unit += warp_count()) {
    const int64_t number = last_at_most(args.begin, args.count, unit);
    const Piece x = args.from[number], y = args.to[number];
    const int64_t elements = x.rows * x.cols, first = (unit - args.begin[number]) * kChunk;
    const int64_t end = first + kChunk < elements ? first + kChunk : elements;
    LN_NO_UNROLL
    for (int64_t i = first + lane(); i < end; i += kWarp) visit(x, y, offset_of(x, i), offset_of(y, i));
  }
}

template <class T>
LN_DEVICE void copy_pairs(const PairsArgs& args) {
  for_pairs(args, [](const Piece& x, const Piece& y, int64_t from, int64_t to) {
    value_of<T>(y)[to] = value_of<T>(x)[from];
  });
}
LN_KERNELS(copy_pairs, PairsArgs, kThreads)

template <class T>
LN_DEVICE void add_pairs(const PairsArgs& args) {
  for_pairs(args,
            [](const Piece& x, const Piece& y, int64_t to, int64_t from) { grad_of<T>(x)[to] += grad_of<T>(y)[from]; });
}
LN_KERNELS(add_pairs, PairsArgs, kThreads)

// A tile goes through shared memory, so that both sides are read and written along their rows.
template <class T, class Read, class Write>
LN_DEVICE void for_tiles(const TransposeArgs& args, const Read& read, const Write& write) {
  LN_SHARED(T, tile, kTile * (kTile + 1));
  const int x = static_cast<int>(threadIdx.x) % kTile, y = static_cast<int>(threadIdx.x) / kTile;
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    const Place place = place_of(args.members, unit);
    const Piece result = piece_of(args.members, 0, place.member), from = piece_of(args.members, 1, place.member);
    const int64_t across = (result.cols + kTile - 1) / kTile;
    const int64_t first_row = place.unit / across * kTile, first_col = place.unit % across * kTile;
    __syncthreads();  // the tile before is written
    for (int k = y; k < kTile; k += kTileRows)
      read(result, from, first_row, first_col, x, k, tile[k * (kTile + 1) + x]);
    __syncthreads();
    for (int k = y; k < kTile; k += kTileRows)
      write(result, from, first_row, first_col, x, k, tile[x * (kTile + 1) + k]);
  }
}

template <class T>
LN_DEVICE void transpose_forward(const TransposeArgs& args) {
  for_tiles<T>(
      args,
      [](const Piece& y, const Piece& x, int64_t first_row, int64_t first_col, int i, int k, T& element) {
        const int64_t row = first_col + k, col = first_row + i;  // of x
        if (row < y.cols && col < y.rows) element = row_value<T>(x, row)[col];
      },
      [](const Piece& y, const Piece&, int64_t first_row, int64_t first_col, int i, int k, const T& element) {
        const int64_t row = first_row + k, col = first_col + i;
        if (row < y.rows && col < y.cols) value_of<T>(y)[row * y.ld + col] = element;
      });
}
LN_KERNELS(transpose_forward, TransposeArgs, kThreads)

template <class T>
LN_DEVICE void transpose_backward(const TransposeArgs& args) {
  for_tiles<T>(
      args,
      [](const Piece& y, const Piece&, int64_t first_row, int64_t first_col, int i, int k, T& element) {
        const int64_t row = first_row + k, col = first_col + i;
        if (row < y.rows && col < y.cols) element = row_grad<T>(y, row)[col];
      },
      [](const Piece& y, const Piece& x, int64_t first_row, int64_t first_col, int i, int k, const T& element) {
        const int64_t row = first_col + k, col = first_row + i;  // of x
        if (x.grad && row < y.cols && col < y.rows) row_grad<T>(x, row)[col] += element;
      });
}
LN_KERNELS(transpose_backward, TransposeArgs, kThreads)

// A warp a row.
template <class T>
LN_DEVICE void take_cols_forward(const TakeColsArgs& args) {
  if (blockIdx.x == 0)
    report_ids<T>(args.members, 2, args.fault, [&](int64_t member) { return piece_of(args.members, 1, member).cols; });
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.members.units; unit += warp_count()) {
    const Place place = place_of(args.members, unit);
    const Piece y = piece_of(args.members, 0, place.member), x = piece_of(args.members, 1, place.member);
    const T *ids = row_value<T>(piece_of(args.members, 2, place.member), place.unit),
            *row = row_value<T>(x, place.unit);
    for (int64_t c = lane(); c < y.cols; c += kWarp)
      if (is_id(ids[c], x.cols)) value_of<T>(y)[place.unit * y.ld + c] = row[static_cast<int64_t>(ids[c])];
  }
}
LN_KERNELS(take_cols_forward, TakeColsArgs, kThreads)

// The first of equal ids adds the gradients of all.
template <class T>
LN_DEVICE void take_cols_backward(const TakeColsArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.members.units; unit += warp_count()) {
    const Place place = place_of(args.members, unit);
    const Piece y = piece_of(args.members, 0, place.member), x = piece_of(args.members, 1, place.member);
    if (!x.grad) continue;
    const T* ids = row_value<T>(piece_of(args.members, 2, place.member), place.unit);
    const T* g = row_grad<T>(y, place.unit);
    T* dx = row_grad<T>(x, place.unit);
    for (int64_t c = lane(); c < y.cols; c += kWarp) {
      const T id = ids[c];
      bool first = true;
      for (int64_t k = 0; k < c && first; ++k) first = ids[k] != id;
      if (!first) continue;
      T sum = dx[static_cast<int64_t>(id)];
      for (int64_t k = c; k < y.cols; ++k)
        if (ids[k] == id) sum += g[k];
      dx[static_cast<int64_t>(id)] = sum;
    }
  }
}
LN_KERNELS(take_cols_backward, TakeColsArgs, kThreads)

#else

namespace {

int64_t chunks_of(const Piece& piece) { return (piece.rows * piece.cols + kChunk - 1) / kChunk; }

// Pairs of which one wants a gradient (backward) or all (forward).
class Pairs {
 public:
  explicit Pairs(bool backward) : backward_(backward) {}
  void add(const Piece& x, const Piece& y) {
    if (chunks_of(x) == 0 || (backward_ && !x.grad)) return;
    from_.push_back(x);
    to_.push_back(y);
  }
  void launch(Queue& queue, const Kernel& kernel) const {
    if (from_.empty()) return;
    PairsArgs args{};
    args.count = static_cast<int64_t>(from_.size());
    args.from = queue.upload(from_.data(), args.count);
    args.to = queue.upload(to_.data(), args.count);
    int64_t* begin = queue.room(args.count + 1, &args.begin);
    begin[0] = 0;
    for (int64_t i = 0; i < args.count; ++i) begin[i + 1] = begin[i] + chunks_of(from_[i]);
    args.units = begin[args.count];
    queue.launch(kernel, blocks_for(args.units, kThreads / kWarp), kThreads, 0, args);
  }

 private:
  const bool backward_;
  std::vector<Piece> from_, to_;
};

template <class T>
Pairs concatenated(const Batch& batch, bool side_by_side, bool backward) {
  const Operand& list = batch.arguments[0];
  Pairs pairs(backward);
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece& result = batch.result.pieces[i];
    int64_t start = 0;
    for (int64_t k = list.begin[i]; k < list.begin[i + 1]; ++k) {
      const Piece& part = list.pieces[k];
      pairs.add(part, {static_cast<T*>(result.value) + start, backward ? static_cast<T*>(result.grad) + start : nullptr,
                       part.rows, part.cols, result.ld});
      start += side_by_side ? part.cols : part.rows * result.ld;
    }
  }
  return pairs;
}

template <class T>
void concat_forward(Queue& queue, const Batch& batch, bool side_by_side) {
  LN_KERNEL_OF(kernel, "shape", "copy_pairs");
  concatenated<T>(batch, side_by_side, false).launch(queue, kernel);
}
template <class T>
void concat_backward(Queue& queue, const Batch& batch, bool side_by_side) {
  LN_KERNEL_OF(kernel, "shape", "add_pairs");
  if (batch.arguments[0].wants_grad) concatenated<T>(batch, side_by_side, true).launch(queue, kernel);
}

// A piece a row of the result: the row of x that it is.
template <class T>
std::vector<Piece> taken_rows(const Batch& batch) {
  std::vector<Piece> rows;
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece& x = batch.arguments[0].pieces[i];
    for (int64_t r = 0; r < batch.result.pieces[i].rows; ++r) {
      const int64_t start = batch.payload[i][r] * x.ld;
      rows.push_back(
          {static_cast<T*>(x.value) + start, x.grad ? static_cast<T*>(x.grad) + start : nullptr, 1, x.cols, x.cols});
    }
  }
  return rows;
}

TakeColsArgs take_cols_args(Queue& queue, const Batch& batch) {
  TakeColsArgs args{};
  args.members = members_of(queue, batch, 3, [&](int64_t i) { return batch.result.pieces[i].rows; });
  return args;
}

TransposeArgs tiles_of(Queue& queue, const Batch& batch) {
  TransposeArgs args{};
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    const Piece& y = batch.result.pieces[i];
    return (y.rows + kTile - 1) / kTile * ((y.cols + kTile - 1) / kTile);
  });
  return args;
}

}  // namespace

template <class T>
void constant_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "constant_forward");
  ConstantArgs args{};
  args.members = members_of(queue, batch, 1, [&](int64_t i) { return chunks_of(batch.result.pieces[i]); });
  args.value = batch.attributes[0];
  queue.launch(kernel, blocks_for(args.members.units, kThreads / kWarp), kThreads, 0, args);
}
template <class T>
void constant_backward(Queue&, const Batch&) {}

template <class T>
void copy_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "copy_pairs");
  Pairs pairs(false);
  for (int64_t i = 0; i < batch.members; ++i) pairs.add(batch.arguments[0].pieces[i], batch.result.pieces[i]);
  pairs.launch(queue, kernel);
}
template <class T>
void copy_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "add_pairs");
  if (!batch.arguments[0].wants_grad) return;
  Pairs pairs(true);
  for (int64_t i = 0; i < batch.members; ++i) pairs.add(batch.arguments[0].pieces[i], batch.result.pieces[i]);
  pairs.launch(queue, kernel);
}

template <class T>
void take_rows_forward(Queue& queue, const Batch& batch) {
  const std::vector<Piece> rows = taken_rows<T>(batch);
  gather<T>(queue, rows.data(), static_cast<int64_t>(rows.size()), batch.result.matrix.value, batch.result.matrix.ld);
}
template <class T>
void take_rows_backward(Queue& queue, const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  const std::vector<Piece> rows = taken_rows<T>(batch);
  scatter_add<T>(queue, batch.result.matrix.grad, batch.result.matrix.ld, rows.data(),
                 static_cast<int64_t>(rows.size()), true);
}

template <class T>
void take_cols_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "take_cols_forward");
  Fault* const fault = queue.fault(batch.fault);
  TakeColsArgs args = take_cols_args(queue, batch);
  args.fault = fault;
  queue.launch(kernel, blocks_for(args.members.units, kThreads / kWarp), kThreads, 0, args);
}
template <class T>
void take_cols_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "take_cols_backward");
  if (!batch.arguments[0].wants_grad) return;
  const TakeColsArgs args = take_cols_args(queue, batch);
  queue.launch(kernel, blocks_for(args.members.units, kThreads / kWarp), kThreads, 0, args);
}

template <class T>
void transpose_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "transpose_forward");
  const TransposeArgs args = tiles_of(queue, batch);
  queue.launch(kernel, blocks_for(args.members.units, 1), kTile * kTileRows, 0, args);
}
template <class T>
void transpose_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "transpose_backward");
  if (!batch.arguments[0].wants_grad) return;
  const TransposeArgs args = tiles_of(queue, batch);
  queue.launch(kernel, blocks_for(args.members.units, 1), kTile * kTileRows, 0, args);
}

template <class T>
void concat_cols_forward(Queue& queue, const Batch& batch) {
  concat_forward<T>(queue, batch, true);
}
template <class T>
void concat_cols_backward(Queue& queue, const Batch& batch) {
  concat_backward<T>(queue, batch, true);
}
template <class T>
void concat_rows_forward(Queue& queue, const Batch& batch) {
  concat_forward<T>(queue, batch, false);
}
template <class T>
void concat_rows_backward(Queue& queue, const Batch& batch) {
  concat_backward<T>(queue, batch, false);
}

LN_INSTANTIATE(constant)
LN_INSTANTIATE(copy)
LN_INSTANTIATE(take_rows)
LN_INSTANTIATE(take_cols)
LN_INSTANTIATE(transpose)
LN_INSTANTIATE(concat_cols)
LN_INSTANTIATE(concat_rows)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
