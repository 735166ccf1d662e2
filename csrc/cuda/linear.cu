// linear(x, W, b): cuBLAS over all rows of all members. The bias is written into the rows of the result, to which the
// product then adds: as many bytes as adding the bias to the product, one pass of which cuBLAS hides.
//
// matmul(a, b): all members in one launch, tiles of the results as units. A tile's strips of both factors go through
// registers into shared memory, one step ahead of the arithmetic. Operations: 2 m n k a member; a tile of R x C reads
// (R + C) / (2 R C) elements an operation, so that tiles of 64 x 64 are bound by arithmetic and small ones by the
// latency of their steps. Few members with long sums, and very large ones, are cuBLAS's.
#include "kernel.h"
#include "strips.h"
#ifndef LN_DEVICE_CODE
#include "transfer.h"
#endif

namespace lazynet::cuda {

struct BiasArgs {
  const void* bias;
  void* y;
  int64_t rows, cols, ld;
  int64_t packed;         // whether 16 bytes move at a time
  int64_t across;         // threads of a block that lie in one row, a power of two
  int64_t blocks_across;  // blocks side by side
};

// One product C = op(A) op(B) or C += op(A) op(B) of a group.
constexpr int64_t kTransposeA = 1, kTransposeB = 2, kPackedA = 4, kPackedB = 8, kPackedC = 16;
struct Part {
  const void *a, *b;
  void* c;
  int64_t m, n, k, lda, ldb, ldc;  // C is m x n
  int64_t flags;                   // packed: 16 bytes may move at a time
};

struct ProductsArgs {
  Part single;           // where there is one
  const Part* parts;     // null where there is one
  const int64_t* begin;  // first tile of each part, and the end of the last
  int64_t count, tiles;
  int64_t add;
};

// Threads of a block for each size of tiles.
constexpr int kThreads64 = 128, kThreads32 = 64, kThreads16 = 64;

#ifdef LN_DEVICE_CODE

template <class T>
LN_DEVICE void linear_bias(const BiasArgs& args) {
  const T* bias = static_cast<const T*>(args.bias);
  T* y = static_cast<T*>(args.y);
  const int64_t across = args.across, side = blockIdx.x % args.blocks_across, down = blockIdx.x / args.blocks_across;
  const int64_t place = side * across + (threadIdx.x & (across - 1));
  const int64_t block_rows = blockDim.x / across, step = gridDim.x / args.blocks_across * block_rows;
  const int64_t first = down * block_rows + threadIdx.x / across;
  if (args.packed) {
    const int64_t col = place * Pack<T>::kCount;
    if (col >= args.cols) return;
    const Pack<T> value = pack_at(bias + col);
    for (int64_t row = first; row < args.rows; row += step) pack_at(y + row * args.ld + col) = value;
  } else if (place < args.cols) {
    const T value = bias[place];
    for (int64_t row = first; row < args.rows; row += step) y[row * args.ld + place] = value;
  }
}
LN_KERNELS(linear_bias, BiasArgs, kThreads)

// What a block of kBlockThreads computes at a time: kRows x kCols elements, kThreadRows x kThreadCols a thread, from
// strips of the factors that are kDepth deep.
template <class T, int kRows_, int kCols_, int kDepth_, int kThreadRows_, int kThreadCols_>
struct Tile {
  static constexpr int kRows = kRows_, kCols = kCols_, kDepth = kDepth_;
  static constexpr int kThreadRows = kThreadRows_, kThreadCols = kThreadCols_;
  static constexpr int kBlockThreads = kRows / kThreadRows * (kCols / kThreadCols);
  static constexpr int kThreadsAcross = kCols / kThreadCols, kThreadsDown = kRows / kThreadRows;
};

template <class T, class Tile>
LN_DEVICE void products(const ProductsArgs& args) {
  using StripA = Strip<T, Tile::kRows, Tile::kDepth, Tile::kBlockThreads>;
  using StripB = Strip<T, Tile::kCols, Tile::kDepth, Tile::kBlockThreads>;
  using Rows = Share<T, Tile::kThreadRows, Tile::kThreadsDown>;
  using Cols = Share<T, Tile::kThreadCols, Tile::kThreadsAcross>;
  LN_SHARED(Pack<T>, packs_a, 2 * StripA::kElements / Pack<T>::kCount);
  LN_SHARED(Pack<T>, packs_b, 2 * StripB::kElements / Pack<T>::kCount);
  const int across = static_cast<int>(threadIdx.x) % Tile::kThreadsAcross;
  const int down = static_cast<int>(threadIdx.x) / Tile::kThreadsAcross;
  int half = 0;

  for (int64_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    const int64_t number = args.parts ? last_at_most(args.begin, args.count, tile) : 0;
    const Part part = args.parts ? args.parts[number] : args.single;
    const int64_t unit = args.parts ? tile - args.begin[number] : tile;
    const int64_t tiles_across = (part.n + Tile::kCols - 1) / Tile::kCols;
    const int64_t first_row = unit / tiles_across * Tile::kRows, first_col = unit % tiles_across * Tile::kCols;
    const Factor<T> a{
        static_cast<const T*>(part.a), part.lda, first_row, part.m, part.k, (part.flags & kTransposeA) == 0,
        (part.flags & kPackedA) != 0};
    const Factor<T> b{
        static_cast<const T*>(part.b), part.ldb, first_col, part.n, part.k, (part.flags & kTransposeB) != 0,
        (part.flags & kPackedB) != 0};

    T sums[Tile::kThreadRows][Tile::kThreadCols];
    set_zero(sums);
    multiply_factors<StripA, StripB, Rows, Cols>(a, b, packs_a[0].of, packs_b[0].of, down, across, half, sums);

    LN_UNROLL
    for (int i = 0; i < Tile::kThreadRows; ++i) {
      const int64_t row = first_row + Rows::place(i / Rows::kWidth, down) + i % Rows::kWidth;
      if (row < part.m)
        write_share<Cols>(static_cast<T*>(part.c) + row * part.ldc + first_col, part.n - first_col, across, sums[i],
                          (part.flags & kPackedC) != 0, args.add != 0);
    }
  }
}

template <class T>
LN_DEVICE void products_64(const ProductsArgs& args) {
  products<T, Tile<T, 64, 64, 16, 8, 4> >(args);
}
LN_KERNELS(products_64, ProductsArgs, kThreads64)

template <class T>
LN_DEVICE void products_32(const ProductsArgs& args) {
  products<T, Tile<T, 32, 32, 16, 4, 4> >(args);
}
LN_KERNELS(products_32, ProductsArgs, kThreads32)

template <class T>
LN_DEVICE void products_16(const ProductsArgs& args) {
  products<T, Tile<T, 16, 16, 32, 2, 2> >(args);
}
LN_KERNELS(products_16, ProductsArgs, kThreads16)

#else

namespace {

template <class T>
bool moves_packed(const void* address, int64_t ld) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0 && ld * static_cast<int64_t>(sizeof(T)) % 16 == 0;
}

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

template <class T>
void write_bias(Queue& queue, const Piece& bias, const Piece& y) {
  LN_KERNEL_OF(kernel, "linear", "linear_bias");
  if (y.rows == 0 || y.cols == 0) return;
  constexpr int64_t kPack = 16 / sizeof(T);
  BiasArgs args{bias.value, y.value, y.rows, y.cols, y.ld, 0, 1, 1};
  args.packed = y.cols % kPack == 0 && moves_packed<T>(bias.value, 0) && moves_packed<T>(y.value, y.ld);
  const int64_t places = args.packed ? y.cols / kPack : y.cols;
  while (args.across < std::min<int64_t>(places, kThreads)) args.across *= 2;
  int64_t block_rows = 1;
  while (block_rows < y.rows && args.across * block_rows < kThreads) block_rows *= 2;
  args.blocks_across = (places + args.across - 1) / args.across;
  // Several rows a thread, for which it has read the bias once.
  const int64_t blocks_down = std::max<int64_t>(blocks_for(y.rows, 4 * block_rows) / args.blocks_across, 1);
  queue.launch(kernel, args.blocks_across * blocks_down, static_cast<int>(args.across * block_rows), 0, args);
}

}  // namespace

template <class T>
void linear_forward(Queue& queue, const Batch& batch) {
  const Linear op(batch);
  const bool bias = batch.argument_count == 3;
  if (bias) write_bias<T>(queue, shared_piece(batch, 2), op.y);
  queue.multiply(kDtype<T>, {false, op.transpose, op.y.rows, op.y.cols, op.x.cols, op.x.value, op.x.ld, op.w.value,
                             op.w.ld, bias ? 1.0 : 0.0, op.y.value, op.y.ld});
}

template <class T>
void linear_backward(Queue& queue, const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  const Linear op(batch);
  queue.multiply(kDtype<T>, {false, !op.transpose, op.x.rows, op.x.cols, op.y.cols, op.y.grad, op.y.ld, op.w.value,
                             op.w.ld, batch.arguments[0].overwrite ? 0.0 : 1.0, op.x.grad, op.x.ld});
}

template <class T>
void linear_shared(Queue& queue, const Batch& batch) {
  const Linear op(batch);
  if (batch.arguments[1].wants_grad) {
    const void *left = op.transpose ? op.y.grad : op.x.value, *right = op.transpose ? op.x.value : op.y.grad;
    queue.multiply(kDtype<T>, {true, false, op.w.rows, op.w.cols, op.x.rows, left, (op.transpose ? op.y : op.x).ld,
                               right, (op.transpose ? op.x : op.y).ld, 1.0, op.w.grad, op.w.ld});
  }
  if (batch.argument_count == 3 && batch.arguments[2].wants_grad)
    add_column_sums<T>(queue, op.y.grad, op.y.rows, op.y.cols, op.y.ld, false, shared_piece(batch, 2).grad);
}
LN_INSTANTIATE_SHARED(linear)

namespace {

// Products that become as few launches as possible.
template <class T>
class Group {
 public:
  Group(int64_t most, bool add) : add_(add) { parts_.reserve(static_cast<std::size_t>(most)); }

  void add(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const void* a, int64_t lda,
           const void* b, int64_t ldb, void* c, int64_t ldc) {
    if (m == 0 || n == 0 || (k == 0 && add_)) return;
    const int64_t flags = (transpose_a ? kTransposeA : 0) | (transpose_b ? kTransposeB : 0) |
                          (moves_packed<T>(a, lda) ? kPackedA : 0) | (moves_packed<T>(b, ldb) ? kPackedB : 0) |
                          (moves_packed<T>(c, ldc) ? kPackedC : 0);
    parts_.push_back({a, b, c, m, n, k, lda, ldb, ldc, flags});
  }

  void run(Queue& queue) {
    leave_to_cublas(queue);
    if (parts_.empty()) return;
    LN_KERNEL_OF(products_64, "linear", "products_64");
    LN_KERNEL_OF(products_32, "linear", "products_32");
    LN_KERNEL_OF(products_16, "linear", "products_16");
    const int size = best_size();
    ProductsArgs args{};
    args.count = static_cast<int64_t>(parts_.size());
    args.add = add_;
    if (args.count == 1) {
      args.single = parts_[0];
      args.tiles = tiles_of(parts_[0], size);
    } else {
      int64_t* begin = queue.room(args.count + 1, &args.begin);
      for (const Part& part : parts_) {
        *begin++ = args.tiles;
        args.tiles += tiles_of(part, size);
      }
      *begin = args.tiles;
      args.parts = queue.upload(parts_.data(), args.count);
    }
    queue.launch(size == 64   ? products_64
                 : size == 32 ? products_32
                              : products_16,
                 blocks_for(args.tiles, 1),
                 size == 64   ? kThreads64
                 : size == 32 ? kThreads32
                              : kThreads16,
                 0, args);
  }

 private:
  static int64_t tiles_of(const Part& part, int size) {
    return (part.m + size - 1) / size * ((part.n + size - 1) / size);
  }

  // A product of cuBLAS takes 5 microseconds to start, in which a device does some 10^8 multiplications; a tile takes
  // 40 nanoseconds for each of the elements that it sums. Long sums of few members are therefore better split by
  // cuBLAS; and a product that fills the device for several times 5 microseconds is better done by it.
  void leave_to_cublas(Queue& queue) {
    constexpr double kLarge = 1 << 28;
    constexpr int64_t kLongSum = 128;  // 5 microseconds of a tile
    const int64_t long_sum = kLongSum * static_cast<int64_t>(parts_.size());
    const auto is_for_cublas = [&](const Part& p) {
      return p.k > long_sum || static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) > kLarge;
    };
    const auto rest =
        std::stable_partition(parts_.begin(), parts_.end(), [&](const Part& p) { return !is_for_cublas(p); });
    for (auto p = rest; p != parts_.end(); ++p)
      queue.multiply(kDtype<T>, {(p->flags & kTransposeA) != 0, (p->flags & kTransposeB) != 0, p->m, p->n, p->k, p->a,
                                 p->lda, p->b, p->ldb, add_ ? 1.0 : 0.0, p->c, p->ldc});
    parts_.erase(rest, parts_.end());
  }

  // The size of tiles with which the batch is done first. Small ones fit better and are done sooner each, but read more
  // from shared memory for every operation. Estimates, in cycles a summed element: of a multiprocessor that has tiles
  // enough, and until one tile is done.
  int best_size() const {
    constexpr double kMultiprocessors = 100;  // of a large device
    const auto time = [&](int size, double busy, double latency) {
      double steps = 0, longest = 0;
      for (const Part& part : parts_) {
        steps += static_cast<double>(tiles_of(part, size)) * static_cast<double>(part.k);
        longest = std::max(longest, static_cast<double>(part.k));
      }
      return steps * busy / kMultiprocessors + longest * latency;
    };
    const double of_64 = time(64, 53, 60), of_32 = time(32, 18, 40), of_16 = time(16, 10, 25);
    if (of_64 < of_32 && of_64 < of_16) return 64;
    return of_32 < of_16 ? 32 : 16;
  }

  const bool add_;
  std::vector<Part> parts_;
};

}  // namespace

template <class T>
void matmul_forward(Queue& queue, const Batch& batch) {
  const bool ta = batch.attributes[0] != 0, tb = batch.attributes[1] != 0;
  Group<T> group(batch.members, false);
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece &a = batch.arguments[0].pieces[i], &b = batch.arguments[1].pieces[i], &y = batch.result.pieces[i];
    group.add(ta, tb, y.rows, y.cols, ta ? a.rows : a.cols, a.value, a.ld, b.value, b.ld, y.value, y.ld);
  }
  group.run(queue);
}

template <class T>
void matmul_backward(Queue& queue, const Batch& batch) {
  const bool ta = batch.attributes[0] != 0, tb = batch.attributes[1] != 0;
  Group<T> group(2 * batch.members, true);
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece &a = batch.arguments[0].pieces[i], &b = batch.arguments[1].pieces[i], &y = batch.result.pieces[i];
    if (batch.arguments[0].wants_grad && a.grad) {
      // op(A) gets dY op(B)^T; A stored transposed gets the transpose of that.
      if (ta)
        group.add(tb, true, a.rows, a.cols, y.cols, b.value, b.ld, y.grad, y.ld, a.grad, a.ld);
      else
        group.add(false, !tb, a.rows, a.cols, y.cols, y.grad, y.ld, b.value, b.ld, a.grad, a.ld);
    }
    if (batch.arguments[1].wants_grad && b.grad) {
      if (tb)
        group.add(true, ta, b.rows, b.cols, y.rows, y.grad, y.ld, a.value, a.ld, b.grad, b.ld);
      else
        group.add(!ta, false, b.rows, b.cols, y.rows, a.value, a.ld, y.grad, y.ld, b.grad, b.ld);
    }
  }
  group.run(queue);
}
LN_INSTANTIATE(matmul)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
