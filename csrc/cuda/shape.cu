// Constants and rearrangements of elements.
//
// Every element is read and written once (its gradient read twice and written once), with a few integer operations that
// find its place: bound by memory. What keeps rows together is a copy of blocks, of all members in one launch, in
// accesses of 16 bytes where a block's memory allows. Whole rows are gathered and added as those of packed operands.
#include "ids.h"
#include "kernel.h"
#ifndef LN_DEVICE_CODE
#include "transfer.h"
#endif

namespace lazynet::cuda {

constexpr int kTile = 32;     // of a transposition
constexpr int kTileRows = 8;  // of threads

struct ConstantArgs {
  void* result;
  int64_t elements;
  double value;
};

// A rows x cols matrix that goes to another.
struct Block {
  const void* from;
  void* to;
  int64_t from_ld, to_ld, rows, cols;
  bool packs;  // accesses of 16 bytes, but for what is left of a single row
};
struct BlocksArgs {
  const Block* blocks;
  const int64_t* begin;  // first unit of each
  int64_t count, units;
  int unit;        // elements
  int lanes_log2;  // threads that share a unit
};

struct TransposeArgs {
  Members members;  // a unit is a tile of the result
};

struct TakeColsArgs {
  Members members;  // a unit is kElements elements of the result, in backward a row
  Fault* fault;
};

#ifdef LN_DEVICE_CODE

template <class T>
LN_DEVICE void constant_forward(const ConstantArgs& args) {
  constexpr int kPack = Pack<T>::kCount;
  T* const y = static_cast<T*>(args.result);
  const T value = static_cast<T>(args.value);
  Pack<T> pack;
  for (int i = 0; i < kPack; ++i) pack.of[i] = value;
  const int64_t packs = aligned(y) ? args.elements / kPack : 0;
  for (int64_t i = thread_number(); i < packs; i += thread_count()) pack_at(y + i * kPack) = pack;
  for (int64_t i = packs * kPack + thread_number(); i < args.elements; i += thread_count()) y[i] = value;
}
LN_KERNELS(constant_forward, ConstantArgs, kThreads)

// move(from, to) of elements or packs of them.
template <class T, class Move>
LN_DEVICE void for_blocks(const BlocksArgs& args, const Move& move) {
  constexpr int kPack = Pack<T>::kCount;
  const int lanes = 1 << args.lanes_log2, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  LN_NO_UNROLL
  for (int64_t unit = thread_number() >> args.lanes_log2; unit < args.units;
       unit += thread_count() >> args.lanes_log2) {
    const int64_t number = args.count == 1 ? 0 : last_at_most(args.begin, args.count, unit);
    const Block block = args.blocks[number];
    const int64_t first = (unit - args.begin[number]) * args.unit, left = block.rows * block.cols - first;
    const int count = static_cast<int>(left < args.unit ? left : args.unit);
    const auto place = [&](int64_t element, int64_t& from, int64_t& to) {
      const int64_t row = block.rows == 1 ? 0 : element / block.cols, col = element - row * block.cols;
      from = row * block.from_ld + col;
      to = row * block.to_ld + col;
    };
    int64_t from, to;
    const int packed = block.packs ? count / kPack * kPack : 0;
    LN_NO_UNROLL
    for (int k = lane * kPack; k < packed; k += lanes * kPack) {
      place(first + k, from, to);
      move(pack_at(static_cast<const T*>(block.from) + from), pack_at(static_cast<T*>(block.to) + to));
    }
    LN_NO_UNROLL
    for (int k = packed + lane; k < count; k += lanes) {
      place(first + k, from, to);
      move(static_cast<const T*>(block.from)[from], static_cast<T*>(block.to)[to]);
    }
  }
}

template <class T>
LN_DEVICE void copy_blocks(const BlocksArgs& args) {
  for_blocks<T>(args, [](const auto& from, auto& to) { to = from; });
}
LN_KERNELS(copy_blocks, BlocksArgs, kThreads)

template <class T>
LN_DEVICE void add_to(T& to, T from) {
  to += from;
}
template <class T>
LN_DEVICE void add_to(Pack<T>& to, const Pack<T>& from) {
  Pack<T> sum = to;
  for (int i = 0; i < Pack<T>::kCount; ++i) sum.of[i] += from.of[i];
  to = sum;
}
template <class T>
LN_DEVICE void add_blocks(const BlocksArgs& args) {
  for_blocks<T>(args, [](const auto& from, auto& to) { add_to(to, from); });
}
LN_KERNELS(add_blocks, BlocksArgs, kThreads)

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

template <class T>
LN_DEVICE void take_cols_forward(const TakeColsArgs& args) {
  for_elements(args.members, 0, [&](const Piece& y, const Piece& x, int64_t member, int64_t row, int64_t col) {
    const T id = row_value<T>(piece_of(args.members, 2, member), row)[col];
    if (is_id(id, x.cols))
      value_of<T>(y)[row * y.ld + col] = row_value<T>(x, row)[static_cast<int64_t>(id)];
    else
      report_id<T>(args.members, 2, {member, row * y.cols + col}, args.fault,
                   [&](int64_t each) { return piece_of(args.members, 1, each).cols; });
  });
}
LN_KERNELS(take_cols_forward, TakeColsArgs, kThreads)

// A warp a row, kWarp gradients at a time: the first lane of those with the same id adds them all, in order.
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
    LN_NO_UNROLL
    for (int64_t start = 0; start < y.cols; start += kWarp) {
      const int64_t col = start + lane();
      const int count = static_cast<int>(y.cols - start < kWarp ? y.cols - start : kWarp);
      const T id = col < y.cols ? ids[col] : T(-1), gradient = col < y.cols ? g[col] : T(0);
      T sum = 0;
      bool leads = col < y.cols;
      LN_NO_UNROLL
      for (int k = 0; k < count; ++k) {
        const T other = __shfl_sync(0xffffffffu, id, k), its_gradient = __shfl_sync(0xffffffffu, gradient, k);
        if (other != id) continue;
        leads = leads && k >= lane();
        sum += its_gradient;
      }
      if (leads) dx[static_cast<int64_t>(id)] += sum;
      __syncwarp();  // another lane may go on with it
    }
  }
}
LN_KERNELS(take_cols_backward, TakeColsArgs, kThreads)

#else

namespace {

// Blocks of which one wants a gradient (backward) or all (forward).
template <class T>
class Blocks {
 public:
  void add(const void* from, int64_t from_ld, void* to, int64_t to_ld, int64_t rows, int64_t cols) {
    if (!to || rows == 0 || cols == 0) return;
    const bool flat = from_ld == cols && to_ld == cols;
    const Block block{from, to, from_ld, to_ld, flat ? 1 : rows, flat ? rows * cols : cols, false};
    blocks_.push_back(block);
    blocks_.back().packs = block.rows == 1 ? aligned(from) && aligned(to)
                                           : in_packs<T>(from, from_ld, cols) && in_packs<T>(to, to_ld, cols);
    elements_ += rows * cols;
    largest_ = std::max(largest_, rows * cols);
  }
  void launch(Queue& queue, const Kernel& kernel) const {
    if (blocks_.empty()) return;
    constexpr int64_t kEnough = 1 << 14, kMost = 1024;  // units that fill a device, elements of one
    BlocksArgs args{};
    args.count = static_cast<int64_t>(blocks_.size());
    // Fewer threads for small blocks, more elements a search for many.
    while ((4 << args.lanes_log2) < largest_ && (1 << args.lanes_log2) < kWarp) ++args.lanes_log2;
    args.unit = 4 << args.lanes_log2;
    while ((1 << args.lanes_log2) == kWarp && args.unit < kMost && elements_ / args.unit > kEnough) args.unit *= 2;
    args.blocks = queue.upload(blocks_.data(), args.count);
    int64_t* begin = queue.room(args.count + 1, &args.begin);
    begin[0] = 0;
    for (int64_t i = 0; i < args.count; ++i)
      begin[i + 1] = begin[i] + (blocks_[i].rows * blocks_[i].cols + args.unit - 1) / args.unit;
    args.units = begin[args.count];
    queue.launch(kernel, blocks_for(args.units << args.lanes_log2, kThreads), kThreads, 0, args);
  }

 private:
  std::vector<Block> blocks_;
  int64_t elements_ = 0, largest_ = 0;
};

// From x to elements that lie one after another, and back.
template <class T>
void copy_out(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "copy_blocks");
  Blocks<T> blocks;
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece& x = batch.arguments[0].pieces[i];
    blocks.add(x.value, x.ld, batch.result.pieces[i].value, x.cols, x.rows, x.cols);
  }
  blocks.launch(queue, kernel);
}
template <class T>
void add_back(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "add_blocks");
  Blocks<T> blocks;
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece& x = batch.arguments[0].pieces[i];
    blocks.add(batch.result.pieces[i].grad, x.cols, x.grad, x.ld, x.rows, x.cols);
  }
  blocks.launch(queue, kernel);
}

// Calls visit(part, where it begins in the result) for the parts of all members.
template <class Visit>
void for_parts(const Batch& batch, bool side_by_side, const Visit& visit) {
  const Operand& list = batch.arguments[0];
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece& result = batch.result.pieces[i];
    int64_t start = 0;
    for (int64_t k = list.begin[i]; k < list.begin[i + 1]; ++k) {
      visit(list.pieces[k], result, start);
      start += side_by_side ? list.pieces[k].cols : list.pieces[k].rows * result.ld;
    }
  }
}
template <class T>
void concat_forward(Queue& queue, const Batch& batch, bool side_by_side) {
  LN_KERNEL_OF(kernel, "shape", "copy_blocks");
  Blocks<T> blocks;
  for_parts(batch, side_by_side, [&](const Piece& x, const Piece& y, int64_t start) {
    blocks.add(x.value, x.ld, static_cast<T*>(y.value) + start, y.ld, x.rows, x.cols);
  });
  blocks.launch(queue, kernel);
}
template <class T>
void concat_backward(Queue& queue, const Batch& batch, bool side_by_side) {
  LN_KERNEL_OF(kernel, "shape", "add_blocks");
  if (!batch.arguments[0].wants_grad) return;
  Blocks<T> blocks;
  for_parts(batch, side_by_side, [&](const Piece& x, const Piece& y, int64_t start) {
    blocks.add(static_cast<const T*>(y.grad) + start, y.ld, x.grad, x.ld, x.rows, x.cols);
  });
  blocks.launch(queue, kernel);
}

template <class Units>
TakeColsArgs take_cols_args(Queue& queue, const Batch& batch, const Units& units_of) {
  TakeColsArgs args{};
  args.members = members_of(queue, batch, 3, [&](int64_t i) { return units_of(batch.result.pieces[i]); });
  return args;
}

// The elements of a vector stay in order.
bool only_vectors(const Batch& batch) {
  for (int64_t i = 0; i < batch.members; ++i)
    if (batch.result.pieces[i].rows > 1 && batch.result.pieces[i].cols > 1) return false;
  return true;
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
  const Piece& result = batch.result.matrix;
  const ConstantArgs args{result.value, result.rows * result.cols, batch.attributes[0]};
  queue.launch(kernel, blocks_for(args.elements, 4 * kThreads), kThreads, 0, args);
}
template <class T>
void constant_backward(Queue&, const Batch&) {}

template <class T>
void copy_forward(Queue& queue, const Batch& batch) {
  copy_out<T>(queue, batch);
}
template <class T>
void copy_backward(Queue& queue, const Batch& batch) {
  if (batch.arguments[0].wants_grad) add_back<T>(queue, batch);
}

template <class T>
void take_rows_forward(Queue& queue, const Batch& batch) {
  const Operand& argument = batch.arguments[0];
  const Piece& result = batch.result.matrix;
  if (argument.matrix.value) {
    std::vector<int32_t> numbers;
    int64_t first = 0;
    for (int64_t i = 0; i < batch.members; ++i) {
      for (int64_t r = 0; r < batch.result.pieces[i].rows; ++r)
        numbers.push_back(static_cast<int32_t>(first + batch.payload[i][r]));
      first += argument.pieces[i].rows;
    }
    return gather_rows<T>(queue, argument.matrix, numbers, result.value, result.ld);
  }
  std::vector<void*> rows;
  for (int64_t i = 0; i < batch.members; ++i)
    for (int64_t r = 0; r < batch.result.pieces[i].rows; ++r)
      rows.push_back(static_cast<T*>(argument.pieces[i].value) + batch.payload[i][r] * argument.pieces[i].ld);
  gather_rows<T>(queue, rows, result.cols, result.value, result.ld);
}
template <class T>
void take_rows_backward(Queue& queue, const Batch& batch) {
  static thread_local Numbering taken;
  const Operand& argument = batch.arguments[0];
  const Piece& result = batch.result.matrix;
  if (!argument.wants_grad) return;
  std::vector<int32_t> target_of;
  std::vector<void*> targets;
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece& x = argument.pieces[i];
    const auto before = static_cast<int32_t>(targets.size());
    taken.forget();
    for (int64_t r = 0; r < batch.result.pieces[i].rows; ++r)
      target_of.push_back(before + taken.of(batch.payload[i][r]));
    for (const int64_t row : taken.met()) targets.push_back(x.grad ? static_cast<T*>(x.grad) + row * x.ld : nullptr);
  }
  add_rows<T>(queue, result.grad, result.ld, result.cols, target_of, targets);
}

template <class T>
void take_cols_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "take_cols_forward");
  Fault* const fault = queue.fault(batch.fault);
  TakeColsArgs args = take_cols_args(queue, batch, element_units);
  args.fault = fault;
  queue.launch(kernel, blocks_for(args.members.units, kThreads / kWarp), kThreads, 0, args);
}
template <class T>
void take_cols_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "take_cols_backward");
  if (!batch.arguments[0].wants_grad) return;
  const TakeColsArgs args = take_cols_args(queue, batch, [](const Piece& y) { return y.cols == 0 ? 0 : y.rows; });
  queue.launch(kernel, blocks_for(args.members.units, kThreads / kWarp), kThreads, 0, args);
}

template <class T>
void transpose_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "transpose_forward");
  if (only_vectors(batch)) return copy_out<T>(queue, batch);
  const TransposeArgs args = tiles_of(queue, batch);
  queue.launch(kernel, blocks_for(args.members.units, 1), kTile * kTileRows, 0, args);
}
template <class T>
void transpose_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "shape", "transpose_backward");
  if (!batch.arguments[0].wants_grad) return;
  if (only_vectors(batch)) return add_back<T>(queue, batch);
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
