// Moving pieces to and from packed memory, sums, checks and the optimizers' updates.
//
// All of it is bound by memory: an element is read and written once or twice and a few operations are done with it.
// Accesses are of 16 bytes where memory allows. Sums go by parts whose sizes depend on the matrix alone, then over the
// parts in order.
#include "../ops/updates.h"
#include "kernel.h"
#ifndef LN_DEVICE_CODE
#include <numeric>

#include "transfer.h"
#endif

namespace lazynet::cuda {

// How rows are read: by packs of `pack` elements, each row by 2^lanes_log2 threads.
struct RowShape {
  int64_t cols;  // packs
  int pack;
  int lanes_log2;
};
// Rows that lie anywhere, and a matrix of them.
struct RowsArgs {
  const void* const* rows;  // null: row i is that of `number[i]` in `table`
  const int32_t* numbers;
  const void* table;
  int64_t table_ld;  // elements
  int64_t count;
  void* matrix;
  int64_t ld;  // elements
  RowShape shape;
};

// Some of the rows of a matrix that go to one target.
struct RowPart {
  void* target;
  int32_t begin, end;  // in `order`
};
struct SumRowsArgs {
  const void* matrix;
  int64_t ld;            // elements
  const int32_t* order;  // numbers of rows; null: all, in order
  const RowPart* parts;
  int64_t count;
  int64_t adding;  // the first of them, which are added to the target; the others are written to it
  RowShape shape;
};

constexpr int kSumRows = kThreads / kWarp;  // of threads in a block of column sums
struct ColumnSumsArgs {
  const void* matrix;
  int64_t rows, cols, ld;
  int64_t part_rows;  // rows of a part
  void* partial;      // parts x cols, of one part the sums themselves, which are then added to
  int64_t parts;
};
struct FinishSumsArgs {
  const void* partial;
  int64_t parts, cols;
  void* sums;
};

struct AddOneArgs {
  void* element;
};
struct NonFiniteArgs {
  const void* matrix;
  int64_t rows, cols, ld;
  unsigned long long* first;
};

// What a warp updates at a time, elements.
constexpr int64_t kUpdateChunk = 512;
template <class T>
struct UpdateItem {
  T *value, *m, *v;
  const T* grad;
  int64_t count;
  int numbers;  // which
  bool first;   // SGD: see UpdateConstants
};
struct UpdateArgs {
  const void* items;    // UpdateItem<T>
  const void* numbers;  // UpdateNumbers<T>
  const int64_t* begin;
  int64_t count, units;
  int kind;
};

constexpr int64_t kSquaresChunk = 8192;  // elements that a block sums
struct SquaresItem {
  const void* data;
  int64_t count;
};
struct SquaresArgs {
  const SquaresItem* items;
  const int64_t* begin;
  int64_t count, units;
  double* partial;
};
struct FinishSquaresArgs {
  const double* partial;
  int64_t units;
  double* sum;
};

enum UpdateKind : int { kPlainSgd, kMomentumSgd, kAdagrad, kAdam };

#ifdef LN_DEVICE_CODE

template <class Visit>
LN_DEVICE void for_rows(const RowShape& shape, int64_t count, const Visit& visit) {
  const int lanes = 1 << shape.lanes_log2, first = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int64_t rows = thread_count() >> shape.lanes_log2;
  LN_NO_UNROLL
  for (int64_t row = thread_number() >> shape.lanes_log2; row < count; row += rows) LN_NO_UNROLL
  for (int64_t col = first; col < shape.cols; col += lanes) visit(row, col);
}
template <class T, class P>
LN_DEVICE const P& pack_of(const void* matrix, int64_t ld, int64_t row, int64_t col) {
  return reinterpret_cast<const P*>(static_cast<const T*>(matrix) + row * ld)[col];
}

template <class T>
LN_DEVICE void gather(const RowsArgs& args) {
  const auto copy = [&](auto pack) {
    using P = decltype(pack);
    for_rows(args.shape, args.count, [&](int64_t row, int64_t col) {
      const_cast<P&>(pack_of<T, P>(args.matrix, args.ld, row, col)) =
          args.rows ? static_cast<const P*>(args.rows[row])[col]
                    : pack_of<T, P>(args.table, args.table_ld, args.numbers[row], col);
    });
  };
  if (args.shape.pack > 1)
    copy(Pack<T>{});
  else
    copy(T{});
}
LN_KERNELS(gather, RowsArgs, kThreads)

template <class T>
LN_DEVICE void add(T* to, const T& x) {
  *to += x;
}
template <class T>
LN_DEVICE void add(Pack<T>* to, const Pack<T>& x) {
  Pack<T> sum = *to;
  for (int i = 0; i < Pack<T>::kCount; ++i) sum.of[i] += x.of[i];
  *to = sum;
}
template <class T>
LN_DEVICE void scatter_add(const RowsArgs& args) {
  const auto run = [&](auto pack) {
    using P = decltype(pack);
    for_rows(args.shape, args.count, [&](int64_t row, int64_t col) {
      if (!args.rows[row]) return;
      add(static_cast<P*>(const_cast<void*>(args.rows[row])) + col, pack_of<T, P>(args.matrix, args.ld, row, col));
    });
  };
  if (args.shape.pack > 1)
    run(Pack<T>{});
  else
    run(T{});
}
LN_KERNELS(scatter_add, RowsArgs, kThreads)

template <class T>
LN_DEVICE void sum_rows(const SumRowsArgs& args) {
  const auto run = [&](auto pack) {
    using P = decltype(pack);
    for_rows(args.shape, args.count, [&](int64_t row, int64_t col) {
      const RowPart part = args.parts[row];
      P* to = static_cast<P*>(part.target) + col;
      P sum = row < args.adding ? *to : P{};
      LN_UNROLL_BY(4)  // several loads on their way
      for (int32_t i = part.begin; i < part.end; ++i)
        add(&sum, pack_of<T, P>(args.matrix, args.ld, args.order ? args.order[i] : i, col));
      *to = sum;
    });
  };
  if (args.shape.pack > 1)
    run(Pack<T>{});
  else
    run(T{});
}
LN_KERNELS(sum_rows, SumRowsArgs, kThreads)

// A block sums kWarp columns of a part, its warps every kSumRows-th row each.
template <class T>
LN_DEVICE void column_sums(const ColumnSumsArgs& args) {
  const int64_t tiles = (args.cols + kWarp - 1) / kWarp;
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < tiles * args.parts; unit += gridDim.x) {
    const int64_t part = unit / tiles, col = (unit - part * tiles) * kWarp + lane();
    const int64_t first = part * args.part_rows;
    const int64_t end = first + args.part_rows < args.rows ? first + args.part_rows : args.rows;
    T sum = 0;
    if (col < args.cols)
      for (int64_t row = first + threadIdx.x / kWarp; row < end; row += kSumRows)
        sum += static_cast<const T*>(args.matrix)[row * args.ld + col];
    sum = fold_over_warps<Add>(sum);
    if (threadIdx.x >= kWarp || col >= args.cols) continue;
    T* to = static_cast<T*>(args.partial) + part * args.cols + col;
    *to = args.parts == 1 ? *to + sum : sum;
  }
}
LN_KERNELS(column_sums, ColumnSumsArgs, kThreads)

template <class T>
LN_DEVICE void finish_column_sums(const FinishSumsArgs& args) {
  for (int64_t col = thread_number(); col < args.cols; col += thread_count()) {
    T sum = 0;
    for (int64_t part = 0; part < args.parts; ++part)
      sum += static_cast<const T*>(args.partial)[part * args.cols + col];
    static_cast<T*>(args.sums)[col] += sum;
  }
}
LN_KERNELS(finish_column_sums, FinishSumsArgs, kThreads)

// One block.
template <class T>
LN_DEVICE void finish_sum(const FinishSumsArgs& args) {
  T sum = 0;
  for (int64_t i = threadIdx.x; i < args.parts * args.cols; i += blockDim.x)
    sum += static_cast<const T*>(args.partial)[i];
  sum = fold_block<Add>(sum);
  if (threadIdx.x == 0) *static_cast<T*>(args.sums) += sum;
}
LN_KERNELS(finish_sum, FinishSumsArgs, kThreads)

template <class T>
LN_DEVICE void add_one(const AddOneArgs& args) {
  *static_cast<T*>(args.element) += T(1);
}
LN_KERNELS(add_one, AddOneArgs, 1)

template <class T>
LN_DEVICE void first_non_finite(const NonFiniteArgs& args) {
  for (int64_t i = thread_number(); i < args.rows * args.cols; i += thread_count()) {
    const int64_t row = i / args.cols;
    const T x = static_cast<const T*>(args.matrix)[row * args.ld + i - row * args.cols];
    if (m::abs(x) < infinity<T>()) continue;
    atomicMin(args.first, static_cast<unsigned long long>(i));
    return;
  }
}
LN_KERNELS(first_non_finite, NonFiniteArgs, kThreads)

template <class T>
LN_DEVICE void update_element(int kind, const UpdateNumbers<T>& n, bool first, T& value, T& m, T& v, T grad) {
  if (kind == kPlainSgd) return step_sgd(n, value, grad);
  if (first) m = 0;
  if (kind == kMomentumSgd) return step_momentum(n, value, m, grad);
  if (kind == kAdagrad) return step_adagrad(n, value, m, grad);
  step_adam(n, value, m, v, grad);
}

template <class T>
LN_DEVICE void update(const UpdateArgs& args) {
  constexpr int kPack = Pack<T>::kCount;
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.units; unit += warp_count()) {
    const int64_t number = last_at_most(args.begin, args.count, unit);
    const auto item = static_cast<const UpdateItem<T>*>(args.items)[number];
    const UpdateNumbers<T> n = static_cast<const UpdateNumbers<T>*>(args.numbers)[item.numbers];
    const int64_t first = (unit - args.begin[number]) * kUpdateChunk, left = item.count - first;
    const int count = static_cast<int>(left < kUpdateChunk ? left : kUpdateChunk);
    T *value = item.value + first, *m = item.m ? item.m + first : nullptr, *v = item.v ? item.v + first : nullptr;
    const T* grad = item.grad + first;
    int done = 0;
    if (aligned(value) && aligned(m) && aligned(v) && aligned(grad)) {
      done = count / kPack * kPack;
      LN_NO_UNROLL
      for (int k = lane() * kPack; k < done; k += kWarp * kPack) {
        Pack<T> x = pack_at(value + k), first_moment = m ? pack_at(m + k) : x, second_moment = v ? pack_at(v + k) : x;
        const Pack<T> g = pack_at(grad + k);
        for (int i = 0; i < kPack; ++i)
          update_element(args.kind, n, item.first, x.of[i], first_moment.of[i], second_moment.of[i], g.of[i]);
        pack_at(value + k) = x;
        if (m) pack_at(m + k) = first_moment;
        if (v) pack_at(v + k) = second_moment;
      }
    }
    LN_NO_UNROLL
    for (int k = done + lane(); k < count; k += kWarp) {
      T x = value[k], first_moment = m ? m[k] : x, second_moment = v ? v[k] : x;
      update_element(args.kind, n, item.first, x, first_moment, second_moment, grad[k]);
      value[k] = x;
      if (m) m[k] = first_moment;
      if (v) v[k] = second_moment;
    }
  }
}
LN_KERNELS(update, UpdateArgs, kThreads)

// A block a chunk of one stretch.
template <class T>
LN_DEVICE void sum_of_squares(const SquaresArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.units; unit += gridDim.x) {
    const int64_t number = last_at_most(args.begin, args.count, unit);
    const SquaresItem item = args.items[number];
    const int64_t first = (unit - args.begin[number]) * kSquaresChunk, left = item.count - first;
    const int64_t count = left < kSquaresChunk ? left : kSquaresChunk;
    const T* x = static_cast<const T*>(item.data) + first;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
      sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    sum = fold_block<Add>(sum);
    if (threadIdx.x == 0) args.partial[unit] = sum;
  }
}
LN_KERNELS(sum_of_squares, SquaresArgs, kThreads)

template <class T>
LN_DEVICE void finish_sum_of_squares(const FinishSquaresArgs& args) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < args.units; i += blockDim.x) sum += args.partial[i];
  sum = fold_block<Add>(sum);
  if (threadIdx.x == 0) *args.sum = sum;
}
LN_KERNELS(finish_sum_of_squares, FinishSquaresArgs, kThreads)

#else

namespace {

template <class T>
RowShape shape_of(bool packs, int64_t cols) {
  RowShape shape{};
  shape.pack = packs ? 16 / sizeof(T) : 1;
  shape.cols = cols / shape.pack;
  shape.lanes_log2 = lanes_log2_for(shape.cols);
  return shape;
}
template <class Args>
void launch_rows(Queue& queue, const Kernel& kernel, const Args& args) {
  if (args.shape.cols == 0) return;
  queue.launch(kernel, blocks_for(args.count << args.shape.lanes_log2, kThreads), kThreads, 0, args);
}

// The addresses of all rows of pieces, of their values or gradients.
template <class T>
std::vector<void*> addresses_of(const Piece* pieces, int64_t count, void* Piece::* base) {
  std::vector<void*> addresses;
  for (int64_t i = 0; i < count; ++i) {
    char* row = static_cast<char*>(pieces[i].*base);
    const int64_t step = row ? pieces[i].ld * static_cast<int64_t>(sizeof(T)) : 0;
    for (int64_t r = 0; r < pieces[i].rows; ++r) addresses.push_back(row + r * step);
  }
  return addresses;
}
template <class T>
RowsArgs args_of(Queue& queue, const std::vector<void*>& rows, int64_t cols, const void* matrix, int64_t ld) {
  RowsArgs args{};
  bool packs = in_packs<T>(matrix, ld, cols);
  for (std::size_t i = 0; i < rows.size() && packs; ++i) packs = aligned(rows[i]);
  args.count = static_cast<int64_t>(rows.size());
  args.rows = queue.upload(rows.data(), args.count);
  args.matrix = const_cast<void*>(matrix);
  args.ld = ld;
  args.shape = shape_of<T>(packs, cols);
  return args;
}

// The different ones of addresses that may be equal, and the number of each. Empty where rows overlap in part.
struct Targets {
  std::vector<void*> addresses;
  std::vector<int32_t> numbers;
};
Targets targets_of(const std::vector<void*>& rows, int64_t row_bytes) {
  std::vector<int32_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return rows[a] < rows[b]; });
  Targets targets;
  targets.numbers.resize(rows.size());
  for (const int32_t i : order) {
    if (targets.addresses.empty() || targets.addresses.back() != rows[i]) {
      if (!targets.addresses.empty() && static_cast<char*>(targets.addresses.back()) + row_bytes > rows[i]) return {};
      targets.addresses.push_back(rows[i]);
    }
    targets.numbers[i] = static_cast<int32_t>(targets.addresses.size()) - 1;
  }
  return targets;
}

}  // namespace

template <class T>
void gather(Queue& queue, const Piece* pieces, int64_t count, void* matrix, int64_t ld) {
  if (count == 0) return;
  gather_rows<T>(queue, addresses_of<T>(pieces, count, &Piece::value), pieces[0].cols, matrix, ld);
}

template <class T>
void gather_rows(Queue& queue, const std::vector<void*>& rows, int64_t cols, void* matrix, int64_t ld) {
  LN_KERNEL_OF(kernel, "transfer", "gather");
  launch_rows(queue, kernel, args_of<T>(queue, rows, cols, matrix, ld));
}

template <class T>
void gather_rows(Queue& queue, const Piece& table, const std::vector<int32_t>& numbers, void* matrix, int64_t ld) {
  LN_KERNEL_OF(kernel, "transfer", "gather");
  RowsArgs args{};
  args.count = static_cast<int64_t>(numbers.size());
  args.numbers = queue.upload(numbers.data(), args.count);
  args.table = table.value;
  args.table_ld = table.ld;
  args.matrix = matrix;
  args.ld = ld;
  args.shape =
      shape_of<T>(in_packs<T>(matrix, ld, table.cols) && in_packs<T>(table.value, table.ld, table.cols), table.cols);
  launch_rows(queue, kernel, args);
}

template <class T>
void scatter_add(Queue& queue, const void* matrix, int64_t ld, const Piece* pieces, int64_t count, bool overlapping) {
  LN_KERNEL_OF(kernel, "transfer", "scatter_add");
  if (count == 0) return;
  const int64_t cols = pieces[0].cols;
  const std::vector<void*> rows = addresses_of<T>(pieces, count, &Piece::grad);
  if (!overlapping) return launch_rows(queue, kernel, args_of<T>(queue, rows, cols, matrix, ld));
  const Targets targets = targets_of(rows, cols * static_cast<int64_t>(sizeof(T)));
  if (!targets.numbers.empty()) return add_rows<T>(queue, matrix, ld, cols, targets.numbers, targets.addresses);
  for (std::size_t i = 0; i < rows.size(); ++i) {  // row after row, each whole before the next
    const void* row = static_cast<const T*>(matrix) + static_cast<int64_t>(i) * ld;
    launch_rows(queue, kernel, args_of<T>(queue, {rows[i]}, cols, row, ld));
  }
}

template <class T>
void add_rows(Queue& queue, const void* matrix, int64_t ld, int64_t cols, const std::vector<int32_t>& target_of,
              const std::vector<void*>& targets) {
  LN_KERNEL_OF(kernel, "transfer", "sum_rows");
  // A frequent word has thousands of rows: they are added in parts, then the parts.
  constexpr int32_t kMostRows = 32;
  std::vector<int32_t> end(targets.size() + 1, 0), order(target_of.size());
  for (const int32_t target : target_of) ++end[target + 1];
  for (std::size_t i = 0; i < targets.size(); ++i) end[i + 1] += end[i];
  std::vector<RowPart> parts, rest, later;  // what is added at once; partial sums; and what adds those
  bool packs = in_packs<T>(matrix, ld, cols);
  int32_t partial = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!targets[i] || end[i] == end[i + 1]) continue;
    packs = packs && aligned(targets[i]);
    if (end[i + 1] - end[i] <= kMostRows) {
      parts.push_back({targets[i], end[i], end[i + 1]});
      continue;
    }
    const int32_t first = partial;
    for (int32_t begin = end[i]; begin < end[i + 1]; begin += kMostRows, ++partial)
      rest.push_back({nullptr, begin, std::min(begin + kMostRows, end[i + 1])});
    later.push_back({targets[i], first, partial});
  }
  for (std::size_t i = 0; i < target_of.size(); ++i) order[end[target_of[i]]++] = static_cast<int32_t>(i);
  constexpr int64_t kPack = 16 / sizeof(T);
  const int64_t partial_ld = (cols + kPack - 1) / kPack * kPack;
  T* sums = nullptr;
  if (partial) sums = static_cast<T*>(queue.scratch(static_cast<std::size_t>(partial * partial_ld) * sizeof(T)));
  for (std::size_t i = 0; i < rest.size(); ++i) rest[i].target = sums + static_cast<int64_t>(i) * partial_ld;
  SumRowsArgs args{};
  args.matrix = matrix;
  args.ld = ld;
  args.shape = shape_of<T>(packs, cols);
  args.order = queue.upload(order.data(), static_cast<int64_t>(order.size()));
  args.adding = static_cast<int64_t>(parts.size());
  parts.insert(parts.end(), rest.begin(), rest.end());
  args.count = static_cast<int64_t>(parts.size());
  args.parts = queue.upload(parts.data(), args.count);
  launch_rows(queue, kernel, args);
  if (!partial) return;
  args.matrix = sums;
  args.ld = partial_ld;
  args.order = nullptr;
  args.count = args.adding = static_cast<int64_t>(later.size());
  args.parts = queue.upload(later.data(), args.count);
  launch_rows(queue, kernel, args);
}

template <class T>
void add_column_sums(Queue& queue, const void* matrix, int64_t rows, int64_t cols, int64_t ld, bool all, void* sums) {
  LN_KERNEL_OF(partial, "transfer", "column_sums");
  LN_KERNEL_OF(finish_columns, "transfer", "finish_column_sums");
  LN_KERNEL_OF(finish_all, "transfer", "finish_sum");
  constexpr int64_t kPartRows = 128, kMostParts = 256;
  if (rows == 0 || cols == 0) return;
  ColumnSumsArgs args{matrix, rows, cols, ld, std::max(kPartRows, (rows + kMostParts - 1) / kMostParts), sums, 0};
  args.parts = (rows + args.part_rows - 1) / args.part_rows;
  const int64_t blocks = blocks_for((cols + kWarp - 1) / kWarp * args.parts, 1);
  if (args.parts == 1 && !all) return queue.launch(partial, blocks, kThreads, 0, args);
  const std::size_t bytes = static_cast<std::size_t>(args.parts * cols) * sizeof(T);
  args.partial = queue.scratch(bytes, Queue::Scratch::kOfCallee);
  if (args.parts == 1) queue.zero(args.partial, bytes);
  queue.launch(partial, blocks, kThreads, 0, args);
  const FinishSumsArgs rest{args.partial, args.parts, cols, sums};
  queue.launch(all ? finish_all : finish_columns, all ? 1 : blocks_for(cols, kThreads), kThreads, 0, rest);
}

template <class T>
void add_one(Queue& queue, void* element) {
  LN_KERNEL_OF(kernel, "transfer", "add_one");
  queue.launch(kernel, 1, 1, 0, AddOneArgs{element});
}

template <class T>
int64_t first_non_finite(Queue& queue, const void* matrix, int64_t rows, int64_t cols, int64_t ld) {
  LN_KERNEL_OF(kernel, "transfer", "first_non_finite");
  const unsigned long long none = ~0ull;
  unsigned long long found = none;
  auto* first = static_cast<unsigned long long*>(queue.scratch(sizeof none));
  queue.write(first, &none, sizeof none);
  queue.launch(kernel, blocks_for(rows * cols, kThreads), kThreads, 0, NonFiniteArgs{matrix, rows, cols, ld, first});
  queue.read(&found, first, sizeof found);
  return found == none ? -1 : static_cast<int64_t>(found);
}

template <class T>
void update(Queue& queue, int optimizer, const Update* updates, int64_t count) {
  LN_KERNEL_OF(kernel, "transfer", "update");
  if (count == 0) return;
  std::vector<UpdateNumbers<T> > numbers;
  const UpdateConstants* last = nullptr;
  UpdateArgs args{};
  args.count = count;
  int64_t* begin = queue.room(count + 1, &args.begin);
  begin[0] = 0;
  for (int64_t i = 0; i < count; ++i) begin[i + 1] = begin[i] + (updates[i].count + kUpdateChunk - 1) / kUpdateChunk;
  args.units = begin[count];
  const UpdateItem<T>* items;
  UpdateItem<T>* item = queue.room(count, &items);
  for (int64_t i = 0; i < count; ++i) {
    const Update& u = updates[i];
    if (u.constants != last) numbers.push_back(numbers_of<T>(optimizer, *u.constants));
    last = u.constants;
    item[i] = {static_cast<T*>(u.value),
               static_cast<T*>(u.m),
               static_cast<T*>(u.v),
               static_cast<const T*>(u.grad),
               u.count,
               static_cast<int>(numbers.size()) - 1,
               optimizer == LN_SGD && u.constants->first};
  }
  args.items = items;
  args.numbers = queue.upload(numbers.data(), static_cast<int64_t>(numbers.size()));
  const bool momentum = updates[0].constants->momentum != 0;  // one setting of the optimizer
  args.kind =
      optimizer == LN_SGD ? (momentum ? kMomentumSgd : kPlainSgd) : (optimizer == LN_ADAGRAD ? kAdagrad : kAdam);
  queue.launch(kernel, blocks_for(args.units, kThreads / kWarp), kThreads, 0, args);
}

template <class T>
double sum_of_squares(Queue& queue, const Stretch* stretches, int64_t count) {
  LN_KERNEL_OF(partial, "transfer", "sum_of_squares");
  LN_KERNEL_OF(finish, "transfer", "finish_sum_of_squares");
  if (count == 0) return 0;
  SquaresArgs args{};
  args.count = count;
  int64_t* begin = queue.room(count + 1, &args.begin);
  begin[0] = 0;
  for (int64_t i = 0; i < count; ++i)
    begin[i + 1] = begin[i] + (stretches[i].count + kSquaresChunk - 1) / kSquaresChunk;
  args.units = begin[count];
  SquaresItem* items = queue.room(count, &args.items);
  for (int64_t i = 0; i < count; ++i) items[i] = {stretches[i].data, stretches[i].count};
  auto* sum = static_cast<double*>(queue.scratch(static_cast<std::size_t>(args.units + 1) * sizeof(double)));
  args.partial = sum + 1;
  queue.launch(partial, blocks_for(args.units, 1), kThreads, 0, args);
  queue.launch(finish, 1, kThreads, 0, FinishSquaresArgs{args.partial, args.units, sum});
  double result = 0;
  queue.read(&result, sum, sizeof result);
  return result;
}

#define LN_INSTANTIATE_TRANSFER(T)                                                                 \
  template void gather<T>(Queue&, const Piece*, int64_t, void*, int64_t);                          \
  template void scatter_add<T>(Queue&, const void*, int64_t, const Piece*, int64_t, bool);         \
  template void gather_rows<T>(Queue&, const std::vector<void*>&, int64_t, void*, int64_t);        \
  template void gather_rows<T>(Queue&, const Piece&, const std::vector<int32_t>&, void*, int64_t); \
  template void add_rows<T>(Queue&, const void*, int64_t, int64_t, const std::vector<int32_t>&,    \
                            const std::vector<void*>&);                                            \
  template void add_column_sums<T>(Queue&, const void*, int64_t, int64_t, int64_t, bool, void*);   \
  template void add_one<T>(Queue&, void*);                                                         \
  template int64_t first_non_finite<T>(Queue&, const void*, int64_t, int64_t, int64_t);            \
  template void update<T>(Queue&, int, const Update*, int64_t);                                    \
  template double sum_of_squares<T>(Queue&, const Stretch*, int64_t);
LN_INSTANTIATE_TRANSFER(float)
LN_INSTANTIATE_TRANSFER(double)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
