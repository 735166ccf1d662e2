// Elementwise operators: every row of elementwise.def from the formulas that the CPU compiles too. A module is made of
// one row, LN_PICK, so that only what is used is compiled.
//
// Bytes: forward reads each argument and writes the result once; backward reads what the row says and the result's
// gradient once, and reads and writes the gradients. A few operations an element: bound by memory. A warp takes a chunk
// of one member at a time, in accesses of 16 bytes where the member's memory allows, so that many small members cost
// one search a warp.
#include "kernel.h"
#ifdef LN_DEVICE_CODE
#include "../ops/formulas.h"
#endif

namespace lazynet::cuda {

// An operand of a grid: row r starts step * r elements in (0: one row for all), columns are `column` apart (0: one
// element for all).
struct Line {
  void* value;
  void* grad;
  int64_t step, column;
};
// A member, or a stretch of many, which has one row.
struct Grid {
  int64_t rows, cols;
  Line y, a, b;
};

constexpr int kChunk = 128;  // elements
struct ElementwiseArgs {
  int64_t count;         // grids
  int64_t units;         // of all: chunks; in folds what is folded
  const int64_t* begin;  // first unit of each
  const Grid* grids;
  double attributes[2];
  int argument;  // folds: whose gradient
};

#ifdef LN_DEVICE_CODE

template <class T>
LN_DEVICE T* at(void* base, int64_t element) {
  return static_cast<T*>(base) + element;
}

// A formula where its arguments are found.
template <class Formula, class T>
struct Row {
  static constexpr bool kBinary = Formula::kArguments == 2;
  static constexpr bool kReadsA = Formula::kReadsArguments, kReadsB = kBinary && Formula::kReadsArguments;
  T p[2];

  LN_INLINE Row of(const ElementwiseArgs& args) {
    return {{static_cast<T>(args.attributes[0]), static_cast<T>(args.attributes[1])}};
  }
  template <int kArgument>
  __device__ __forceinline__ T gradient(const Grid& grid, int64_t row, int64_t col) const {
    const int64_t y = row * grid.y.step + col;
    const T a = kReadsA ? *at<T>(grid.a.value, row * grid.a.step + col * grid.a.column) : T(0);
    const T b = kReadsB ? *at<T>(grid.b.value, row * grid.b.step + col * grid.b.column) : T(0);
    return Formula::template gradient<kArgument>(a, b, Formula::kReadsResult ? *at<T>(grid.y.value, y) : T(0),
                                                 *at<T>(grid.y.grad, y), p);
  }
};

// Calls packs(grid, first, count) for chunks that are read 16 bytes at a time, element(grid, row, col) for the others'.
template <class T, class Aligned, class Packs, class Element>
LN_DEVICE void for_chunks(const ElementwiseArgs& args, const Aligned& is_aligned, const Packs& packs,
                          const Element& element) {
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.units; unit += warp_count()) {
    const int64_t member = args.count == 1 ? 0 : last_at_most(args.begin, args.count, unit);
    const Grid grid = args.grids[member];
    const int64_t first = (unit - args.begin[member]) * kChunk, left = grid.rows * grid.cols - first;
    const int count = static_cast<int>(left < kChunk ? left : kChunk);
    int done = 0;
    if (grid.rows == 1 && is_aligned(grid)) {
      constexpr int kPack = Pack<T>::kCount;
      done = count / kPack * kPack;
      LN_NO_UNROLL
      for (int k = lane() * kPack; k < done; k += kWarp * kPack) packs(grid, first + k);
    }
    LN_NO_UNROLL
    for (int k = done + lane(); k < count; k += kWarp) {
      const int64_t row = grid.rows == 1 ? 0 : (first + k) / grid.cols;
      element(grid, row, first + k - row * grid.cols);
    }
  }
}

// Of an operand in a row of packs; one element for all where it is broadcast.
template <class T>
LN_DEVICE Pack<T> operand_pack(const Line& line, int64_t element) {
  if (line.column) return pack_at(at<T>(line.value, element));
  Pack<T> pack;
  for (int i = 0; i < Pack<T>::kCount; ++i) pack.of[i] = *at<T>(line.value, 0);
  return pack;
}

template <class Formula, class T>
LN_DEVICE void elementwise_forward(const ElementwiseArgs& args) {
  constexpr bool kBinary = Formula::kArguments == 2;
  const auto formula = Row<Formula, T>::of(args);
  for_chunks<T>(
      args,
      [](const Grid& grid) {
        return aligned(grid.y.value) && (!grid.a.column || aligned(grid.a.value)) &&
               (!kBinary || !grid.b.column || aligned(grid.b.value));
      },
      [&](const Grid& grid, int64_t element) {
        const Pack<T> a = operand_pack<T>(grid.a, element);
        const Pack<T> b = kBinary ? operand_pack<T>(grid.b, element) : a;
        Pack<T> y;
        for (int i = 0; i < Pack<T>::kCount; ++i) y.of[i] = Formula::value(a.of[i], b.of[i], formula.p);
        pack_at(at<T>(grid.y.value, element)) = y;
      },
      [&](const Grid& grid, int64_t row, int64_t col) {
        const T a = *at<T>(grid.a.value, row * grid.a.step + col * grid.a.column);
        const T b = kBinary ? *at<T>(grid.b.value, row * grid.b.step + col * grid.b.column) : T(0);
        *at<T>(grid.y.value, row * grid.y.step + col) = Formula::value(a, b, formula.p);
      });
}

// Adds to the gradients of arguments of the result's shape; a null one is not wanted or left to a fold.
template <class Formula, class T>
LN_DEVICE void elementwise_backward(const ElementwiseArgs& args) {
  using At = Row<Formula, T>;
  const At formula = At::of(args);
  for_chunks<T>(
      args,
      [](const Grid& grid) {
        return aligned(grid.y.grad) && (!Formula::kReadsResult || aligned(grid.y.value)) &&
               (!At::kReadsA || !grid.a.column || aligned(grid.a.value)) &&
               (!At::kReadsB || !grid.b.column || aligned(grid.b.value)) && aligned(grid.a.grad) &&
               (!At::kBinary || aligned(grid.b.grad));
      },
      [&](const Grid& grid, int64_t element) {
        const Pack<T> g = pack_at(at<T>(grid.y.grad, element));
        const Pack<T> y = Formula::kReadsResult ? pack_at(at<T>(grid.y.value, element)) : g;
        const Pack<T> a = At::kReadsA ? operand_pack<T>(grid.a, element) : g;
        const Pack<T> b = At::kReadsB ? operand_pack<T>(grid.b, element) : g;
        const auto add = [&](void* grad, const auto& gradient) {
          if (!grad) return;
          Pack<T>& to = pack_at(at<T>(grad, element));
          Pack<T> sum = to;
          for (int i = 0; i < Pack<T>::kCount; ++i) sum.of[i] += gradient(i);
          to = sum;
        };
        add(grid.a.grad,
            [&](int i) { return Formula::template gradient<0>(a.of[i], b.of[i], y.of[i], g.of[i], formula.p); });
        if constexpr (At::kBinary)
          add(grid.b.grad,
              [&](int i) { return Formula::template gradient<1>(a.of[i], b.of[i], y.of[i], g.of[i], formula.p); });
      },
      [&](const Grid& grid, int64_t row, int64_t col) {
        if (grid.a.grad) *at<T>(grid.a.grad, row * grid.a.step + col) += formula.template gradient<0>(grid, row, col);
        if constexpr (At::kBinary)
          if (grid.b.grad) *at<T>(grid.b.grad, row * grid.b.step + col) += formula.template gradient<1>(grid, row, col);
      });
}

template <class Formula, class T>
LN_DEVICE T gradient_of(const Row<Formula, T>& formula, int argument, const Grid& grid, int64_t row, int64_t col) {
  if constexpr (Formula::kArguments == 2)
    if (argument == 1) return formula.template gradient<1>(grid, row, col);
  return formula.template gradient<0>(grid, row, col);
}

// The gradient of an argument that has one element for a row (a unit is a row) or for all (a unit is a grid); a block a
// unit.
template <class Formula, class T>
LN_DEVICE void elementwise_fold(const ElementwiseArgs& args) {
  const auto formula = Row<Formula, T>::of(args);
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.units; unit += gridDim.x) {
    const int64_t member = last_at_most(args.begin, args.count, unit);
    const Grid& grid = args.grids[member];
    const Line& to = args.argument == 0 ? grid.a : grid.b;
    const bool one_row = to.step != 0;
    const int64_t first = one_row ? unit - args.begin[member] : 0, count = one_row ? grid.cols : grid.rows * grid.cols;
    T sum = 0;
    if (to.grad) LN_NO_UNROLL
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const int64_t row = i / grid.cols;
      sum += gradient_of(formula, args.argument, grid, first + row, i - row * grid.cols);
    }
    sum = fold_block<Add>(sum);
    if (threadIdx.x == 0 && to.grad) *at<T>(to.grad, first * to.step) += sum;
  }
}

// The gradient of an argument that has one row for all; a unit is kWarp columns of a grid.
template <class Formula, class T>
LN_DEVICE void elementwise_fold_rows(const ElementwiseArgs& args) {
  constexpr int kRows = kThreads / kWarp;
  const auto formula = Row<Formula, T>::of(args);
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.units; unit += gridDim.x) {
    const int64_t member = last_at_most(args.begin, args.count, unit);
    const Grid& grid = args.grids[member];
    const Line& to = args.argument == 0 ? grid.a : grid.b;
    const int64_t col = (unit - args.begin[member]) * kWarp + lane();
    T sum = 0;
    if (to.grad && col < grid.cols)
      for (int64_t row = threadIdx.x / kWarp; row < grid.rows; row += kRows)
        sum += gradient_of(formula, args.argument, grid, row, col);
    sum = fold_over_warps<Add>(sum);
    if (threadIdx.x < kWarp && to.grad && col < grid.cols) *at<T>(to.grad, col) += sum;
  }
}

#define LN_ROW(name)                                            \
  template <class T>                                            \
  LN_DEVICE void name##_forward(const ElementwiseArgs& args) {  \
    elementwise_forward<name##_formula, T>(args);               \
  }                                                             \
  template <class T>                                            \
  LN_DEVICE void name##_backward(const ElementwiseArgs& args) { \
    elementwise_backward<name##_formula, T>(args);              \
  }                                                             \
  LN_KERNELS(name##_forward, ElementwiseArgs, kThreads)         \
  LN_KERNELS(name##_backward, ElementwiseArgs, kThreads)
#define LN_FOLDS(name)                                           \
  template <class T>                                             \
  LN_DEVICE void name##_fold(const ElementwiseArgs& args) {      \
    elementwise_fold<name##_formula, T>(args);                   \
  }                                                              \
  template <class T>                                             \
  LN_DEVICE void name##_fold_rows(const ElementwiseArgs& args) { \
    elementwise_fold_rows<name##_formula, T>(args);              \
  }                                                              \
  LN_KERNELS(name##_fold, ElementwiseArgs, kThreads)             \
  LN_KERNELS(name##_fold_rows, ElementwiseArgs, kThreads)
#ifdef LN_PICK
#define LN_ROW_OF(name) LN_ROW(name) LN_FOLDS(name)
LN_ROW_OF(LN_PICK)
#else
#define LN_UNARY(name, ...) LN_ROW(name)
#define LN_BINARY(name, ...) LN_ROW(name) LN_FOLDS(name)
#include "../ops/elementwise.def"
#endif

#else

namespace {

bool contiguous(const Piece& piece) { return piece.ld == piece.cols || piece.rows <= 1; }

Line line_of(const Batch& batch, int argument, int64_t member) {
  const Operand& operand = batch.arguments[argument];
  const Piece& piece = operand.pieces[member];
  const Piece& result = batch.result.pieces[member];
  const bool full = piece.rows == result.rows && piece.cols == result.cols;
  const Broadcast kind = full ? kFull : static_cast<Broadcast>(batch.broadcast[argument]);
  return {piece.value, operand.wants_grad ? piece.grad : nullptr, kind == kFull || kind == kColumn ? piece.ld : 0,
          kind == kFull || kind == kRow};
}
bool is_full(const Grid& grid, const Line& line) { return line.column && (line.step || grid.rows <= 1); }

Grid grid_of(const Batch& batch, int64_t member) {
  const Piece& result = batch.result.pieces[member];
  Grid grid{result.rows, result.cols, {result.value, result.grad, result.ld, 1}, {}, {}};
  bool one_span = contiguous(result);
  for (int k = 0; k < batch.argument_count; ++k) {
    Line& line = k == 0 ? grid.a : grid.b;
    line = line_of(batch, k, member);
    const bool scalar = !line.step && !line.column;
    one_span = one_span && (scalar || (is_full(grid, line) && contiguous(batch.arguments[k].pieces[member])));
  }
  if (one_span) grid.cols *= grid.rows, grid.rows = 1;
  return grid;
}

Grid grid_of_run(const Batch& batch, const Run& run, std::size_t size) {
  const auto at = [&](void* base) { return base ? static_cast<char*>(base) + run.begin * size : nullptr; };
  const Piece& result = batch.result.matrix;
  Grid grid{1, run.elements, {at(result.value), at(result.grad), run.elements, 1}, {}, {}};
  for (int k = 0; k < batch.argument_count; ++k)
    (k == 0 ? grid.a : grid.b) = {run.value[k], batch.arguments[k].wants_grad ? run.grad[k] : nullptr, run.elements, 1};
  return grid;
}

std::vector<Grid> grids_of(const Batch& batch, std::size_t size) {
  std::vector<Grid> grids(batch.runs ? batch.run_count : batch.members);
  for (std::size_t i = 0; i < grids.size(); ++i)
    grids[i] = batch.runs ? grid_of_run(batch, batch.runs[i], size) : grid_of(batch, static_cast<int64_t>(i));
  return grids;
}

template <class Units>
ElementwiseArgs args_of(Queue& queue, const Batch& batch, const std::vector<Grid>& grids, const Units& units_of) {
  ElementwiseArgs args{};
  args.count = static_cast<int64_t>(grids.size());
  int64_t* begin = queue.room(args.count + 1, &args.begin);
  begin[0] = 0;
  for (int64_t i = 0; i < args.count; ++i) begin[i + 1] = begin[i] + units_of(grids[i]);
  args.units = begin[args.count];
  args.grids = queue.upload(grids.data(), args.count);
  const int attributes = op_info(batch.op).attribute_count;
  for (int i = 0; i < attributes; ++i) args.attributes[i] = batch.attributes[i];
  return args;
}

int64_t chunks_of(const Grid& grid) { return (grid.rows * grid.cols + kChunk - 1) / kChunk; }
constexpr int64_t kChunksPerBlock = kThreads / kWarp;

void forward(Queue& queue, const Batch& batch, const Kernel& kernel) {
  const ElementwiseArgs args = args_of(queue, batch, grids_of(batch, size_of(kernel.dtype)), chunks_of);
  queue.launch(kernel, blocks_for(args.units, kChunksPerBlock), kThreads, 0, args);
}

// The gradients of one argument where it is broadcast, which are then no longer in `grids`.
void fold(Queue& queue, const Batch& batch, int argument, const Kernel& by_block, const Kernel& by_rows,
          std::vector<Grid>* grids) {
  std::vector<Grid> folded, by_columns;
  for (Grid& grid : *grids) {
    Line& line = argument == 0 ? grid.a : grid.b;
    if (!line.grad || is_full(grid, line)) continue;
    (line.column ? by_columns : folded).push_back(grid);
    line.grad = nullptr;
  }
  const auto launch = [&](const Kernel& kernel, int threads, const std::vector<Grid>& chosen, const auto& units_of) {
    if (chosen.empty()) return;
    ElementwiseArgs args = args_of(queue, batch, chosen, units_of);
    args.argument = argument;
    queue.launch(kernel, blocks_for(args.units, 1), threads, 0, args);
  };
  int64_t longest = 0;
  for (const Grid& grid : folded) {
    const Line& line = argument == 0 ? grid.a : grid.b;
    longest = std::max(longest, line.step ? grid.cols : grid.rows * grid.cols);
  }
  constexpr int64_t kForOneWarp = 512;
  launch(by_block, longest <= kForOneWarp ? kWarp : kThreads, folded,
         [&](const Grid& grid) { return (argument == 0 ? grid.a : grid.b).step ? grid.rows : 1; });
  launch(by_rows, kThreads, by_columns, [](const Grid& grid) { return (grid.cols + kWarp - 1) / kWarp; });
}

void backward(Queue& queue, const Batch& batch, const Kernel& kernel, const Kernel* by_block, const Kernel* by_rows) {
  std::vector<Grid> grids = grids_of(batch, size_of(kernel.dtype));
  if (by_block)
    for (int k = 0; k < batch.argument_count; ++k) fold(queue, batch, k, *by_block, *by_rows, &grids);
  const bool any = std::any_of(grids.begin(), grids.end(), [](const Grid& grid) { return grid.a.grad || grid.b.grad; });
  if (!any) return;
  const ElementwiseArgs args = args_of(queue, batch, grids, chunks_of);
  queue.launch(kernel, blocks_for(args.units, kChunksPerBlock), kThreads, 0, args);
}

}  // namespace

#define LN_ROW(name)                                                        \
  template <class T>                                                        \
  void name##_forward(Queue& queue, const Batch& batch) {                   \
    static const Kernel kernel("elementwise", "forward", kDtype<T>, #name); \
    forward(queue, batch, kernel);                                          \
  }
#define LN_UNARY(name, ...)                                                  \
  LN_ROW(name)                                                               \
  template <class T>                                                         \
  void name##_backward(Queue& queue, const Batch& batch) {                   \
    static const Kernel kernel("elementwise", "backward", kDtype<T>, #name); \
    backward(queue, batch, kernel, nullptr, nullptr);                        \
  }                                                                          \
  LN_INSTANTIATE(name)
#define LN_BINARY(name, ...)                                                   \
  LN_ROW(name)                                                                 \
  template <class T>                                                           \
  void name##_backward(Queue& queue, const Batch& batch) {                     \
    static const Kernel kernel("elementwise", "backward", kDtype<T>, #name);   \
    static const Kernel by_block("elementwise", "fold", kDtype<T>, #name);     \
    static const Kernel by_rows("elementwise", "fold_rows", kDtype<T>, #name); \
    backward(queue, batch, kernel, &by_block, &by_rows);                       \
  }                                                                            \
  LN_INSTANTIATE(name)
#include "../ops/elementwise.def"

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
