// Sums, means, maxima and minima over rows (axis 0), columns (1) or everything (2), and over lists of nodes.
//
// Forward reads each element once, backward of sums reads the result's gradient and reads and writes the argument's,
// that of extrema reads the argument and writes one element a group: bound by memory, and for the many small groups of
// a batch by the time from the launch through one load and a fold. Columns of rows are folded by a warp, rows by blocks
// of kWarp columns, everything by blocks over parts of a fixed size, whose results a second launch folds where a member
// has several.
#include "kernel.h"

namespace lazynet::cuda {

enum Axis : int { kOverRows = 0, kOverCols = 1, kOverAll = 2 };
constexpr int64_t kPart = 8192;   // elements that a block folds
constexpr int64_t kSpread = 128;  // elements that a warp handles at a time

struct ReduceArgs {
  Members members;  // a unit is a row, kWarp columns or a part
  Axis axis;
  bool average;
  void* partial;  // of parts where a member may have several, else null
};
// A list argument: the pieces of member i are at [begin[i], begin[i + 1]).
struct ListArgs {
  const Piece* results;
  const Piece* pieces;
  const int64_t* begin;
  const int64_t* first;   // first unit of each member (forward) or piece (backward), and the end of the last
  const int64_t* member;  // backward: of each piece
  int64_t count, units;   // members or pieces
  bool average;
};

#ifdef LN_DEVICE_CODE

// NaN wins.
struct Min {
  template <class T>
  LN_DEVICE T identity() {
    return infinity<T>();
  }
  template <class T>
  LN_DEVICE T combine(T a, T b) {
    return b < a || b != b ? b : a;
  }
};

template <class T>
LN_DEVICE T mean_scale(bool average, int64_t count) {
  return !average ? T(1) : (count == 0 ? T(0) : T(1) / static_cast<T>(count));
}

template <class Fold, class T>
LN_DEVICE void fold_columns(const ReduceArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.members.units; unit += warp_count()) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    const T* row = row_value<T>(x, place.unit);
    const T folded = fold_by_warp<Fold, T>(x.cols, [=](int64_t j) { return row[j]; });
    if (lane() == 0) value_of<T>(y)[place.unit * y.ld] = mean_scale<T>(args.average, x.cols) * folded;
  }
}

template <class Fold, class T>
LN_DEVICE void fold_rows(const ReduceArgs& args) {
  constexpr int kRows = kThreads / kWarp;
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    const int64_t col = place.unit * kWarp + lane();
    T folded = Fold::template identity<T>();
    if (col < x.cols)
      for (int64_t row = threadIdx.x / kWarp; row < x.rows; row += kRows)
        folded = Fold::combine(folded, row_value<T>(x, row)[col]);
    folded = fold_over_warps<Fold>(folded);
    if (threadIdx.x < kWarp && col < x.cols) value_of<T>(y)[col] = mean_scale<T>(args.average, x.rows) * folded;
  }
}

template <class Fold, class T>
LN_DEVICE void fold_parts(const ReduceArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member);
    const int64_t elements = x.rows * x.cols, first = place.unit * kPart;
    const int64_t end = first + kPart < elements ? first + kPart : elements;
    T folded = Fold::template identity<T>();
    for (int64_t i = first + threadIdx.x; i < end; i += blockDim.x) {
      const int64_t row = x.rows == 1 ? 0 : i / x.cols;
      folded = Fold::combine(folded, row_value<T>(x, row)[i - row * x.cols]);
    }
    folded = fold_block<Fold>(folded);
    if (threadIdx.x != 0) continue;
    if (args.partial)
      static_cast<T*>(args.partial)[unit] = folded;
    else
      *value_of<T>(piece_of(args.members, 0, place.member)) = mean_scale<T>(args.average, elements) * folded;
  }
}

// A warp a member.
template <class Fold, class T>
LN_DEVICE void finish_parts(const ReduceArgs& args) {
  for (int64_t member = warp_number(); member < args.members.count; member += warp_count()) {
    const Piece x = piece_of(args.members, 1, member), y = piece_of(args.members, 0, member);
    const int64_t begin = args.members.begin ? args.members.begin[member] : 0;
    const int64_t end = args.members.begin ? args.members.begin[member + 1] : args.members.units;
    const T* partial = static_cast<const T*>(args.partial) + begin;
    const T folded = fold_by_warp<Fold, T>(end - begin, [=](int64_t i) { return partial[i]; });
    if (lane() == 0) *value_of<T>(y) = mean_scale<T>(args.average, x.rows * x.cols) * folded;
  }
}

#define LN_FOLD(name, Fold)                               \
  template <class T>                                      \
  LN_DEVICE void name##_columns(const ReduceArgs& args) { \
    fold_columns<Fold, T>(args);                          \
  }                                                       \
  template <class T>                                      \
  LN_DEVICE void name##_rows(const ReduceArgs& args) {    \
    fold_rows<Fold, T>(args);                             \
  }                                                       \
  template <class T>                                      \
  LN_DEVICE void name##_parts(const ReduceArgs& args) {   \
    fold_parts<Fold, T>(args);                            \
  }                                                       \
  template <class T>                                      \
  LN_DEVICE void name##_finish(const ReduceArgs& args) {  \
    finish_parts<Fold, T>(args);                          \
  }                                                       \
  LN_KERNELS(name##_columns, ReduceArgs, kThreads)        \
  LN_KERNELS(name##_rows, ReduceArgs, kThreads)           \
  LN_KERNELS(name##_parts, ReduceArgs, kThreads)          \
  LN_KERNELS(name##_finish, ReduceArgs, kThreads)
LN_FOLD(sum, Add)
LN_FOLD(max, Max)
LN_FOLD(min, Min)

// A unit is kSpread elements.
template <class T>
LN_DEVICE void spread(const ReduceArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.members.units; unit += warp_count()) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    if (!x.grad) continue;
    const int64_t elements = x.rows * x.cols, first = place.unit * kSpread;
    const int64_t end = first + kSpread < elements ? first + kSpread : elements;
    const T scale =
        mean_scale<T>(args.average, args.axis == kOverRows ? x.rows : (args.axis == kOverCols ? x.cols : elements));
    LN_NO_UNROLL
    for (int64_t i = first + lane(); i < end; i += kWarp) {
      const int64_t row = x.rows == 1 ? 0 : i / x.cols, col = i - row * x.cols;
      const int64_t from = args.axis == kOverRows ? col : (args.axis == kOverCols ? row * y.ld : 0);
      row_grad<T>(x, row)[col] += scale * grad_of<T>(y)[from];
    }
  }
}
LN_KERNELS(spread, ReduceArgs, kThreads)

template <class T>
LN_DEVICE bool is_it(T x, T y) {
  return x == y || (y != y && x != x);
}

// The gradient of an extremum goes to the first element that equals it, or is NaN as it is. A unit is a row, a column
// or a member; a block a unit.
template <class T>
LN_DEVICE void extremum_backward(const ReduceArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    if (!x.grad) continue;
    const int64_t result = args.axis == kOverCols ? place.unit * y.ld : (args.axis == kOverRows ? place.unit : 0);
    const int64_t count = args.axis == kOverCols ? x.cols : (args.axis == kOverRows ? x.rows : x.rows * x.cols);
    const auto at = [&](int64_t i) {
      if (args.axis == kOverCols) return place.unit * x.ld + i;
      if (args.axis == kOverRows) return i * x.ld + place.unit;
      const int64_t row = i / x.cols;
      return row * x.ld + i - row * x.cols;
    };
    const T wanted = value_of<T>(y)[result];
    int64_t first = INT64_MAX;
    for (int64_t i = threadIdx.x; i < count && first == INT64_MAX; i += blockDim.x)
      if (is_it(value_of<T>(x)[at(i)], wanted)) first = i;
    first = fold_block<First>(first);
    if (threadIdx.x == 0 && first != INT64_MAX) grad_of<T>(x)[at(first)] += grad_of<T>(y)[result];
  }
}
LN_KERNELS(extremum_backward, ReduceArgs, kThreads)

// ---- lists

// A unit is kSpread elements of a result.
template <class T>
LN_DEVICE void sum_lists(const ListArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.units; unit += warp_count()) {
    const int64_t member = last_at_most(args.first, args.count, unit);
    const Piece y = args.results[member];
    const int64_t begin = args.begin[member], end = args.begin[member + 1];
    const int64_t elements = y.rows * y.cols, start = (unit - args.first[member]) * kSpread;
    const int64_t stop = start + kSpread < elements ? start + kSpread : elements;
    LN_NO_UNROLL
    for (int64_t i = start + lane(); i < stop; i += kWarp) {
      const int64_t row = y.rows == 1 ? 0 : i / y.cols, col = i - row * y.cols;
      T sum = 0;
      for (int64_t k = begin; k < end; ++k) sum += row_value<T>(args.pieces[k], row)[col];
      value_of<T>(y)[row * y.ld + col] = mean_scale<T>(args.average, end - begin) * sum;
    }
  }
}
LN_KERNELS(sum_lists, ListArgs, kThreads)

// The same of long lists: a unit is an element of a result, a block a unit.
template <class T>
LN_DEVICE void sum_long_lists(const ListArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.units; unit += gridDim.x) {
    const int64_t member = last_at_most(args.first, args.count, unit);
    const Piece y = args.results[member];
    const int64_t begin = args.begin[member], end = args.begin[member + 1], element = unit - args.first[member];
    const int64_t row = element / y.cols, col = element - row * y.cols;
    T sum = 0;
    for (int64_t k = begin + threadIdx.x; k < end; k += blockDim.x) sum += row_value<T>(args.pieces[k], row)[col];
    sum = fold_block<Add>(sum);
    if (threadIdx.x == 0) value_of<T>(y)[row * y.ld + col] = mean_scale<T>(args.average, end - begin) * sum;
  }
}
LN_KERNELS(sum_long_lists, ListArgs, kThreads)

// A unit is kSpread elements of a piece.
template <class T>
LN_DEVICE void spread_lists(const ListArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.units; unit += warp_count()) {
    const int64_t number = last_at_most(args.first, args.count, unit), member = args.member[number];
    const Piece x = args.pieces[number], y = args.results[member];
    const T scale = mean_scale<T>(args.average, args.begin[member + 1] - args.begin[member]);
    const int64_t elements = x.rows * x.cols, start = (unit - args.first[number]) * kSpread;
    const int64_t stop = start + kSpread < elements ? start + kSpread : elements;
    LN_NO_UNROLL
    for (int64_t i = start + lane(); i < stop; i += kWarp) {
      const int64_t row = x.rows == 1 ? 0 : i / x.cols, col = i - row * x.cols;
      row_grad<T>(x, row)[col] += scale * row_grad<T>(y, row)[col];
    }
  }
}
LN_KERNELS(spread_lists, ListArgs, kThreads)

#else

namespace {

Axis axis_of(const Batch& batch) { return static_cast<Axis>(static_cast<int>(batch.attributes[0])); }
int64_t parts_of(int64_t elements, int64_t part) { return (elements + part - 1) / part; }

struct Folds {
  const Kernel &columns, &rows, &parts, &finish;
};

template <class T>
void fold(Queue& queue, const Batch& batch, bool average, const Folds& folds) {
  const Axis axis = axis_of(batch);
  const Operand& argument = batch.arguments[0];
  bool several = false;
  ReduceArgs args{};
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    const Piece& x = argument.pieces[i];
    if (axis == kOverCols) return x.rows;
    if (axis == kOverRows) return parts_of(x.cols, kWarp);
    several = several || x.rows * x.cols > kPart;
    return std::max<int64_t>(parts_of(x.rows * x.cols, kPart), 1);
  });
  args.axis = axis;
  args.average = average;
  if (axis == kOverCols)
    return queue.launch(folds.columns, blocks_for(args.members.units, kThreads / kWarp), kThreads, 0, args);
  if (axis == kOverRows) return queue.launch(folds.rows, blocks_for(args.members.units, 1), kThreads, 0, args);
  if (several) args.partial = queue.scratch(static_cast<std::size_t>(args.members.units) * sizeof(T));
  int64_t longest = 0;
  for (int64_t i = 0; i < batch.members; ++i)
    longest = std::max(longest, argument.pieces[i].rows * argument.pieces[i].cols);
  const int threads = longest <= 4 * kWarp ? kWarp : kThreads;
  const ReduceArgs first = args;
  queue.launch(folds.parts, blocks_for(args.members.units, 1), threads, 0, first);
  if (!several) return;
  // What the first launch was told is told again.
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    const Piece& x = argument.pieces[i];
    return std::max<int64_t>(parts_of(x.rows * x.cols, kPart), 1);
  });
  queue.launch(folds.finish, blocks_for(batch.members, kThreads / kWarp), kThreads, 0, args);
}

template <class T>
void spread_gradient(Queue& queue, const Batch& batch, bool average) {
  LN_KERNEL_OF(kernel, "reduce", "spread");
  if (!batch.arguments[0].wants_grad) return;
  ReduceArgs args{};
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    const Piece& x = batch.arguments[0].pieces[i];
    return parts_of(x.rows * x.cols, kSpread);
  });
  args.axis = axis_of(batch);
  args.average = average;
  queue.launch(kernel, blocks_for(args.members.units, kThreads / kWarp), kThreads, 0, args);
}

template <class T>
void extremum_gradient(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "reduce", "extremum_backward");
  if (!batch.arguments[0].wants_grad) return;
  ReduceArgs args{};
  args.axis = axis_of(batch);
  int64_t longest = 0;
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    const Piece& x = batch.arguments[0].pieces[i];
    longest = std::max(longest, args.axis == kOverCols ? x.cols : (args.axis == kOverRows ? x.rows : x.rows * x.cols));
    return args.axis == kOverCols ? x.rows : (args.axis == kOverRows ? x.cols : 1);
  });
  queue.launch(kernel, blocks_for(args.members.units, 1), longest <= 4 * kWarp ? kWarp : kThreads, 0, args);
}

ListArgs list_args(Queue& queue, const Batch& batch) {
  const Operand& list = batch.arguments[0];
  ListArgs args{};
  args.results = queue.upload(batch.result.pieces, batch.members);
  args.pieces = queue.upload(list.pieces, list.count);
  int64_t* begin = queue.room(batch.members + 1, &args.begin);
  for (int64_t i = 0; i <= batch.members; ++i) begin[i] = list.begin[i];
  args.average = batch.attributes[0] != 0;
  return args;
}

}  // namespace

#define LN_REDUCE(name, fold_name, average)                         \
  template <class T>                                                \
  void name##_forward(Queue& queue, const Batch& batch) {           \
    LN_KERNEL_OF(columns, "reduce", fold_name "_columns");          \
    LN_KERNEL_OF(rows, "reduce", fold_name "_rows");                \
    LN_KERNEL_OF(parts, "reduce", fold_name "_parts");              \
    LN_KERNEL_OF(finish, "reduce", fold_name "_finish");            \
    fold<T>(queue, batch, average, {columns, rows, parts, finish}); \
  }
LN_REDUCE(reduce_sum, "sum", false)
LN_REDUCE(reduce_mean, "sum", true)
LN_REDUCE(reduce_max, "max", false)
LN_REDUCE(reduce_min, "min", false)

template <class T>
void reduce_sum_backward(Queue& queue, const Batch& batch) {
  spread_gradient<T>(queue, batch, false);
}
template <class T>
void reduce_mean_backward(Queue& queue, const Batch& batch) {
  spread_gradient<T>(queue, batch, true);
}
template <class T>
void reduce_max_backward(Queue& queue, const Batch& batch) {
  extremum_gradient<T>(queue, batch);
}
template <class T>
void reduce_min_backward(Queue& queue, const Batch& batch) {
  extremum_gradient<T>(queue, batch);
}

template <class T>
void sum_nodes_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "reduce", "sum_lists");
  LN_KERNEL_OF(kernel_of_long, "reduce", "sum_long_lists");
  constexpr int64_t kLong = 32, kFew = 4;  // pieces a member, elements a piece
  ListArgs args = list_args(queue, batch);
  args.count = batch.members;
  int64_t elements = 0;
  for (int64_t i = 0; i < batch.members; ++i) elements += batch.result.pieces[i].rows * batch.result.pieces[i].cols;
  const bool is_long = batch.arguments[0].count > kLong * batch.members && elements <= kFew * kWarp * batch.members;
  int64_t* first = queue.room(batch.members + 1, &args.first);
  first[0] = 0;
  for (int64_t i = 0; i < batch.members; ++i) {
    const int64_t size = batch.result.pieces[i].rows * batch.result.pieces[i].cols;
    first[i + 1] = first[i] + (is_long ? size : parts_of(size, kSpread));
  }
  args.units = first[batch.members];
  if (is_long) return queue.launch(kernel_of_long, blocks_for(args.units, 1), kThreads, 0, args);
  queue.launch(kernel, blocks_for(args.units, kThreads / kWarp), kThreads, 0, args);
}

template <class T>
void sum_nodes_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "reduce", "spread_lists");
  const Operand& list = batch.arguments[0];
  if (!list.wants_grad) return;
  ListArgs args = list_args(queue, batch);
  args.count = list.count;
  int64_t* first = queue.room(list.count + 1, &args.first);
  int64_t* member = queue.room(list.count, &args.member);
  first[0] = 0;
  for (int64_t i = 0; i < batch.members; ++i)
    for (int64_t k = list.begin[i]; k < list.begin[i + 1]; ++k) {
      const Piece& x = list.pieces[k];
      member[k] = i;
      first[k + 1] = first[k] + (x.grad ? parts_of(x.rows * x.cols, kSpread) : 0);
    }
  args.units = first[list.count];
  queue.launch(kernel, blocks_for(args.units, kThreads / kWarp), kThreads, 0, args);
}

LN_INSTANTIATE(reduce_sum)
LN_INSTANTIATE(reduce_mean)
LN_INSTANTIATE(reduce_max)
LN_INSTANTIATE(reduce_min)
LN_INSTANTIATE(sum_nodes)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
