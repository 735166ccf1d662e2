// Moving pieces to and from packed memory, sums, checks and the optimizers' updates.
//
// All of it is bound by memory: an element is read and written once or twice and a few operations are done with it.
// Accesses are of 16 bytes where memory allows. Sums go by parts whose sizes depend on the matrix alone, then over the
// parts in order.
#include "../ops/updates.h"
#include "kernel.h"
#ifndef LN_DEVICE_CODE
#include "transfer.h"
#endif

namespace lazynet::cuda {

// Rows that lie anywhere, and a matrix of them; by packs of `pack` elements.
struct RowsArgs {
  const void* const* rows;
  const int64_t* order;  // scatter_add of rows that share memory: numbers of matrix rows, those of a target together
  const int64_t* begin;  // where in `order` those of a target begin; null: row i goes to target i
  int64_t count;         // of rows, or of targets
  int64_t cols;          // packs
  void* matrix;
  int64_t ld;  // elements
  int pack;
  int lanes_log2;  // threads that share a row
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

template <class T, class Visit>
LN_DEVICE void for_rows(const RowsArgs& args, const Visit& visit) {
  const int lanes = 1 << args.lanes_log2, first = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int64_t rows = thread_count() >> args.lanes_log2;
  LN_NO_UNROLL
  for (int64_t row = thread_number() >> args.lanes_log2; row < args.count; row += rows) LN_NO_UNROLL
  for (int64_t col = first; col < args.cols; col += lanes) visit(row, col);
}
template <class P>
LN_DEVICE P* matrix_at(const RowsArgs& args, int64_t row, int64_t col, int64_t element_bytes) {
  return reinterpret_cast<P*>(static_cast<char*>(args.matrix) + row * args.ld * element_bytes) + col;
}

template <class T>
LN_DEVICE void gather(const RowsArgs& args) {
  const auto copy = [&](auto pack) {
    using P = decltype(pack);
    for_rows<T>(args, [&](int64_t row, int64_t col) {
      *matrix_at<P>(args, row, col, sizeof(T)) = static_cast<const P*>(args.rows[row])[col];
    });
  };
  if (args.pack > 1)
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
    for_rows<T>(args, [&](int64_t row, int64_t col) {
      if (!args.rows[row]) return;
      P* to = static_cast<P*>(const_cast<void*>(args.rows[row])) + col;
      if (!args.begin) return add(to, *matrix_at<const P>(args, row, col, sizeof(T)));
      P sum = *to;
      LN_UNROLL_BY(4)  // several loads on their way: a frequent word has a long list
      for (int64_t i = args.begin[row]; i < args.begin[row + 1]; ++i)
        add(&sum, *matrix_at<const P>(args, args.order[i], col, sizeof(T)));
      *to = sum;
    });
  };
  if (args.pack > 1)
    run(Pack<T>{});
  else
    run(T{});
}
LN_KERNELS(scatter_add, RowsArgs, kThreads)

// A block sums kWarp columns of a part, its warps every kSumRows-th row each.
template <class T>
LN_DEVICE void column_sums(const ColumnSumsArgs& args) {
  LN_SHARED(T, partial, kThreads);
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
    __syncthreads();  // those of the unit before are read
    partial[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= kWarp || col >= args.cols) continue;
    for (int k = 1; k < kSumRows; ++k) sum += partial[k * kWarp + threadIdx.x];
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

bool aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

// The rows of pieces, of their values or gradients, where a matrix is gathered from them or scattered to them.
struct Rows {
  std::vector<const void*> addresses;
  bool packs = true;  // all can be read 16 bytes at a time
};
template <class T>
Rows rows_of(const Piece* pieces, int64_t count, void* Piece::* base, const void* matrix, int64_t ld) {
  constexpr int64_t kPack = 16 / sizeof(T);
  Rows rows;
  rows.packs = aligned(matrix) && ld % kPack == 0 && count > 0 && pieces[0].cols % kPack == 0;
  for (int64_t i = 0; i < count; ++i) {
    const Piece& piece = pieces[i];
    const char* row = static_cast<const char*>(piece.*base);
    rows.packs = rows.packs && aligned(row) && (piece.rows <= 1 || piece.ld % kPack == 0);
    const int64_t step = row ? piece.ld * static_cast<int64_t>(sizeof(T)) : 0;
    for (int64_t r = 0; r < piece.rows; ++r) rows.addresses.push_back(row + r * step);
  }
  return rows;
}

template <class T>
RowsArgs args_of(const Rows& rows, int64_t cols, const void* matrix, int64_t ld) {
  RowsArgs args{};
  args.count = static_cast<int64_t>(rows.addresses.size());
  args.pack = rows.packs ? 16 / sizeof(T) : 1;
  args.cols = cols / args.pack;
  args.matrix = const_cast<void*>(matrix);
  args.ld = ld;
  while ((1 << args.lanes_log2) < args.cols && (1 << args.lanes_log2) < kThreads) ++args.lanes_log2;
  return args;
}

void launch_rows(Queue& queue, const Kernel& kernel, const RowsArgs& args) {
  if (args.cols == 0) return;
  queue.launch(kernel, blocks_for(args.count << args.lanes_log2, kThreads), kThreads, 0, args);
}

// Row numbers by target, and the targets; in the order of rows within each. Empty where targets overlap in part.
struct Targets {
  std::vector<const void*> addresses;
  std::vector<int64_t> order, begin;
};
Targets targets_of(const std::vector<const void*>& rows, int64_t row_bytes) {
  Targets targets;
  for (int64_t i = 0; i < static_cast<int64_t>(rows.size()); ++i)
    if (rows[i]) targets.order.push_back(i);
  std::stable_sort(targets.order.begin(), targets.order.end(), [&](int64_t a, int64_t b) { return rows[a] < rows[b]; });
  for (std::size_t i = 0; i < targets.order.size(); ++i) {
    const void* address = rows[targets.order[i]];
    if (!targets.addresses.empty() && targets.addresses.back() == address) continue;
    if (!targets.addresses.empty() && static_cast<const char*>(targets.addresses.back()) + row_bytes > address)
      return {};
    targets.addresses.push_back(address);
    targets.begin.push_back(static_cast<int64_t>(i));
  }
  targets.begin.push_back(static_cast<int64_t>(targets.order.size()));
  return targets;
}

}  // namespace

template <class T>
void gather(Queue& queue, const Piece* pieces, int64_t count, void* matrix, int64_t ld) {
  LN_KERNEL_OF(kernel, "transfer", "gather");
  if (count == 0) return;
  const Rows rows = rows_of<T>(pieces, count, &Piece::value, matrix, ld);
  RowsArgs args = args_of<T>(rows, pieces[0].cols, matrix, ld);
  args.rows = queue.upload(rows.addresses.data(), args.count);
  launch_rows(queue, kernel, args);
}

template <class T>
void scatter_add(Queue& queue, const void* matrix, int64_t ld, const Piece* pieces, int64_t count, bool overlapping) {
  LN_KERNEL_OF(kernel, "transfer", "scatter_add");
  if (count == 0) return;
  const int64_t cols = pieces[0].cols;
  const Rows rows = rows_of<T>(pieces, count, &Piece::grad, matrix, ld);
  RowsArgs args = args_of<T>(rows, cols, matrix, ld);
  if (!overlapping) {
    args.rows = queue.upload(rows.addresses.data(), args.count);
    return launch_rows(queue, kernel, args);
  }
  const Targets targets = targets_of(rows.addresses, cols * static_cast<int64_t>(sizeof(T)));
  if (targets.begin.empty()) {  // row after row, each whole before the next
    for (int64_t i = 0; i < args.count; ++i) {
      RowsArgs one = args;
      one.count = 1;
      one.rows = queue.upload(&rows.addresses[i], 1);
      one.matrix = static_cast<T*>(args.matrix) + i * ld;
      launch_rows(queue, kernel, one);
    }
    return;
  }
  args.count = static_cast<int64_t>(targets.addresses.size());
  args.rows = queue.upload(targets.addresses.data(), args.count);
  args.order = queue.upload(targets.order.data(), static_cast<int64_t>(targets.order.size()));
  args.begin = queue.upload(targets.begin.data(), args.count + 1);
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
  args.partial = queue.scratch(bytes);
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
  const UpdateItem<T>* items;
  UpdateItem<T>* item = queue.room(count, &items);
  int64_t* begin = queue.room(count + 1, &args.begin);
  begin[0] = 0;
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
    begin[i + 1] = begin[i] + (u.count + kUpdateChunk - 1) / kUpdateChunk;
  }
  args.items = items;
  args.numbers = queue.upload(numbers.data(), static_cast<int64_t>(numbers.size()));
  args.units = begin[count];
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

#define LN_INSTANTIATE_TRANSFER(T)                                                               \
  template void gather<T>(Queue&, const Piece*, int64_t, void*, int64_t);                        \
  template void scatter_add<T>(Queue&, const void*, int64_t, const Piece*, int64_t, bool);       \
  template void add_column_sums<T>(Queue&, const void*, int64_t, int64_t, int64_t, bool, void*); \
  template void add_one<T>(Queue&, void*);                                                       \
  template int64_t first_non_finite<T>(Queue&, const void*, int64_t, int64_t, int64_t);          \
  template void update<T>(Queue&, int, const Update*, int64_t);                                  \
  template double sum_of_squares<T>(Queue&, const Stretch*, int64_t);
LN_INSTANTIATE_TRANSFER(float)
LN_INSTANTIATE_TRANSFER(double)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
