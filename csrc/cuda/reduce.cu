// Sums, means, maxima and minima over rows (axis 0), columns (1) or everything (2), and over lists of nodes.
//
// Forward reads each element once, backward of sums reads the result's gradient and reads and writes the argument's,
// that of extrema reads the argument and writes one element a group: bound by memory, and for the many small groups of
// a batch by the time from the launch through one load and a fold. What becomes one element of the result is a group:
// columns of a matrix are groups of kWarp side by side, which a block reads row by row; other groups are a warp's where
// they are short, else a block's. Long ones are split in parts of a fixed size, whose results a second launch joins.
#include "rows.h"

namespace lazynet::cuda {

enum Axis : int { kOverRows = 0, kOverCols = 1, kOverAll = 2 };
constexpr int64_t kPart = 8192;     // elements of a group that a block does
constexpr int64_t kPartRows = 512;  // the same of groups side by side
constexpr int64_t kSpread = 128;    // elements that a warp handles at a time

struct ReduceArgs {
  Members members;  // a unit is a group, a part of one, or a part of kWarp side by side
  Axis axis;
  bool average;
  void* partial;              // results of units where a group may have several
  const int64_t* first_part;  // when they are joined: the first of each member; a unit is then all parts of a group
};
// A list argument: the pieces of member i are at [begin[i], begin[i + 1]).
struct ListArgs {
  const Piece* results;
  const Piece* pieces;
  const int64_t* begin;
  const int64_t* first;   // first unit of each member (forward) or piece (backward), and the end of the last
  const int64_t* member;  // backward: of each piece
  const uint8_t* packs;   // forward: whether a member's pieces are read 16 bytes at a time
  int64_t count, units;   // members or pieces
  bool average;
};

// How the groups of a member are split.
struct Split {
  int64_t groups, parts;  // of those side by side kWarp count as one here
};
LN_INLINE Split split_of(const Piece& x, Axis axis) {
  const auto ratio = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto at_least_one = [](int64_t a) { return a > 0 ? a : 1; };
  if (axis == kOverRows) return {ratio(x.cols, kWarp), at_least_one(ratio(x.rows, kPartRows))};
  if (axis == kOverCols) return {x.rows, at_least_one(ratio(x.cols, kPart))};
  return {1, at_least_one(ratio(x.rows * x.cols, kPart))};
}

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
LN_DEVICE int64_t group_size(const Piece& x, Axis axis) {
  return axis == kOverRows ? x.rows : (axis == kOverCols ? x.cols : x.rows * x.cols);
}
LN_DEVICE int64_t offset_in(const Piece& x, Axis axis, int64_t group, int64_t i) {
  return axis == kOverRows ? i * x.ld + group : (axis == kOverCols ? group * x.ld + i : offset_of(x, i));
}

// The result of a group, joined from its elements.
template <class Fold, class T>
struct Folding {
  using Join = Fold;
  using Value = T;
  static constexpr bool kFirstCounts = false;
  LN_DEVICE bool wants(const Piece&) { return true; }
  LN_DEVICE T value(const T& element, int64_t, const T&) { return element; }
  LN_DEVICE T wanted(const Piece&, int64_t) { return T(0); }
  LN_DEVICE void finish(const ReduceArgs& args, const Piece& x, const Piece& y, int64_t group, T folded) {
    value_of<T>(y)[args.axis == kOverCols ? group * y.ld : group] =
        mean_scale<T>(args.average, group_size(x, args.axis)) * folded;
  }
};
// The gradient of an extremum goes to the first element that equals it, or is NaN as it is.
template <class T>
struct Finding {
  using Join = First;
  using Value = int64_t;
  static constexpr bool kFirstCounts = true;
  LN_DEVICE bool wants(const Piece& x) { return x.grad != nullptr; }
  LN_DEVICE T wanted(const Piece& y, int64_t place) { return value_of<T>(y)[place]; }
  LN_DEVICE int64_t value(const T& element, int64_t number, const T& wanted) {
    return element == wanted || (wanted != wanted && element != element) ? number : INT64_MAX;
  }
  LN_DEVICE void finish(const ReduceArgs& args, const Piece& x, const Piece& y, int64_t group, int64_t first) {
    if (first == INT64_MAX) return;
    grad_of<T>(x)[offset_in(x, args.axis, group, first)] +=
        grad_of<T>(y)[args.axis == kOverCols ? group * y.ld : group];
  }
};

// Elements first, first + step, ... of a group, as far as they count.
template <class What, class T>
LN_DEVICE typename What::Value join(const Piece& x, const Piece& y, Axis axis, int64_t group, int64_t first,
                                    int64_t end, int64_t step) {
  auto joined = What::Join::template identity<typename What::Value>();
  const T wanted = What::wanted(y, axis == kOverCols ? group * y.ld : group);
  const T* in = value_of<const T>(x);
  const auto add = [&](int64_t i, int64_t offset) {
    joined = What::Join::combine(joined, What::value(in[offset], i, wanted));
  };
  const auto run = [&](const auto& offset) {
    if constexpr (What::kFirstCounts) {
      for (int64_t i = first; i < end && joined == INT64_MAX; i += step) add(i, offset(i));
    } else {
      LN_UNROLL_BY(4)
      for (int64_t i = first; i < end; i += step) add(i, offset(i));
    }
  };
  if (axis == kOverRows)
    run([&](int64_t i) { return i * x.ld + group; });
  else if (axis == kOverCols || x.rows == 1 || x.ld == x.cols)
    run([base = axis == kOverCols ? group * x.ld : 0](int64_t i) { return base + i; });
  else
    run([&](int64_t i) { return offset_of(x, i); });
  return joined;
}

// A warp a group.
template <class What, class T>
LN_DEVICE void reduce_short(const ReduceArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.members.units; unit += warp_count()) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    if (!What::wants(x)) continue;
    const auto joined = fold_warp<typename What::Join>(
        join<What, T>(x, y, args.axis, place.unit, lane(), group_size(x, args.axis), kWarp));
    if (lane() == 0) What::finish(args, x, y, place.unit, joined);
  }
}

// A block a part of a group.
template <class What, class T>
LN_DEVICE void reduce_long(const ReduceArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    if (!What::wants(x)) continue;
    const int64_t parts = split_of(x, args.axis).parts, group = place.unit / parts;
    const int64_t first = (place.unit - group * parts) * kPart, size = group_size(x, args.axis);
    const int64_t end = first + kPart < size ? first + kPart : size;
    const auto joined =
        fold_block<typename What::Join>(join<What, T>(x, y, args.axis, group, first + threadIdx.x, end, blockDim.x));
    if (threadIdx.x != 0) continue;
    if (args.partial)
      static_cast<typename What::Value*>(args.partial)[unit] = joined;
    else
      What::finish(args, x, y, group, joined);
  }
}

// A block a part of kWarp groups side by side; a warp has every so many-th row.
template <class What, class T>
LN_DEVICE void reduce_beside(const ReduceArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    if (!What::wants(x)) continue;
    const int64_t parts = split_of(x, kOverRows).parts, groups = place.unit / parts, group = groups * kWarp + lane();
    const int64_t first = (place.unit - groups * parts) * kPartRows;
    const int64_t end = first + kPartRows < x.rows ? first + kPartRows : x.rows;
    auto joined = What::Join::template identity<typename What::Value>();
    if (group < x.cols)
      joined = join<What, T>(x, y, kOverRows, group, first + threadIdx.x / kWarp, end, blockDim.x / kWarp);
    joined = fold_over_warps<typename What::Join>(joined);
    if (threadIdx.x >= kWarp || group >= x.cols) continue;
    if (args.partial)
      static_cast<typename What::Value*>(args.partial)[unit * kWarp + lane()] = joined;
    else
      What::finish(args, x, y, group, joined);
  }
}

// A warp a group or kWarp side by side, whose parts are there.
template <class What, class T>
LN_DEVICE void join_parts(const ReduceArgs& args) {
  const auto* partial = static_cast<const typename What::Value*>(args.partial);
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.members.units; unit += warp_count()) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    if (!What::wants(x)) continue;
    // The first launch had `parts` units for each of these, and members before this one had theirs.
    const int64_t parts = split_of(x, args.axis).parts, first = args.first_part[place.member] + place.unit * parts;
    if (args.axis == kOverRows) {
      const int64_t group = place.unit * kWarp + lane();
      if (group >= x.cols) continue;
      auto joined = What::Join::template identity<typename What::Value>();
      LN_UNROLL_BY(4)
      for (int64_t part = 0; part < parts; ++part)
        joined = What::Join::combine(joined, partial[(first + part) * kWarp + lane()]);
      What::finish(args, x, y, group, joined);
    } else {
      const auto joined = fold_by_warp<typename What::Join, typename What::Value>(
          parts, [=](int64_t part) { return partial[first + part]; });
      if (lane() == 0) What::finish(args, x, y, place.unit, joined);
    }
  }
}

#define LN_REDUCTION(name, ...)                          \
  template <class T>                                     \
  LN_DEVICE void name##_short(const ReduceArgs& args) {  \
    reduce_short<__VA_ARGS__, T>(args);                  \
  }                                                      \
  template <class T>                                     \
  LN_DEVICE void name##_long(const ReduceArgs& args) {   \
    reduce_long<__VA_ARGS__, T>(args);                   \
  }                                                      \
  template <class T>                                     \
  LN_DEVICE void name##_beside(const ReduceArgs& args) { \
    reduce_beside<__VA_ARGS__, T>(args);                 \
  }                                                      \
  template <class T>                                     \
  LN_DEVICE void name##_parts(const ReduceArgs& args) {  \
    join_parts<__VA_ARGS__, T>(args);                    \
  }                                                      \
  LN_KERNELS(name##_short, ReduceArgs, kThreads)         \
  LN_KERNELS(name##_long, ReduceArgs, kThreads)          \
  LN_KERNELS(name##_beside, ReduceArgs, kThreads)        \
  LN_KERNELS(name##_parts, ReduceArgs, kThreads)
LN_REDUCTION(sum, Folding<Add, T>)
LN_REDUCTION(max, Folding<Max, T>)
LN_REDUCTION(min, Folding<Min, T>)
LN_REDUCTION(find, Finding<T>)

// A unit is kSpread elements.
template <class T>
LN_DEVICE void spread(const ReduceArgs& args) {
  constexpr int kPack = Pack<T>::kCount;
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.members.units; unit += warp_count()) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    if (!x.grad) continue;
    const int64_t elements = x.rows * x.cols, first = place.unit * kSpread;
    const int64_t end = first + kSpread < elements ? first + kSpread : elements;
    const T scale = mean_scale<T>(args.average, group_size(x, args.axis));
    const T* g = grad_of<T>(y);
    const bool packs = aligned(x.grad) && x.cols % kPack == 0 && (x.rows == 1 || x.ld % kPack == 0) &&
                       (args.axis != kOverRows || aligned(g));
    if (packs) {
      LN_NO_UNROLL
      for (int64_t i = first + lane() * kPack; i < end; i += kWarp * kPack) {
        const int64_t row = x.rows == 1 ? 0 : i / x.cols, col = i - row * x.cols;
        Pack<T>& to = pack_at(row_grad<T>(x, row) + col);
        const T one = args.axis == kOverRows ? T(0) : g[args.axis == kOverCols ? row * y.ld : 0];
        Pack<T> sum = to;
        LN_UNROLL
        for (int k = 0; k < kPack; ++k) sum.of[k] += scale * (args.axis == kOverRows ? g[col + k] : one);
        to = sum;
      }
      continue;
    }
    LN_NO_UNROLL
    for (int64_t i = first + lane(); i < end; i += kWarp) {
      const int64_t row = x.rows == 1 ? 0 : i / x.cols, col = i - row * x.cols;
      row_grad<T>(x, row)[col] += scale * g[args.axis == kOverRows ? col : (args.axis == kOverCols ? row * y.ld : 0)];
    }
  }
}
LN_KERNELS(spread, ReduceArgs, kThreads)

// ---- lists

template <class T>
LN_DEVICE void add_scaled(T& sum, T scale, const T& x) {
  sum += scale * x;
}
template <class T>
LN_DEVICE void add_scaled(Pack<T>& sum, T scale, const Pack<T>& x) {
  LN_UNROLL
  for (int i = 0; i < Pack<T>::kCount; ++i) sum.of[i] += scale * x.of[i];
}

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
    const T scale = mean_scale<T>(args.average, end - begin);
    const auto run = [&](auto pack, int step) {
      using P = decltype(pack);
      LN_NO_UNROLL
      for (int64_t i = start + lane() * step; i < stop; i += kWarp * step) {
        const int64_t row = y.rows == 1 ? 0 : i / y.cols, col = i - row * y.cols;
        P sum{}, scaled{};
        LN_UNROLL_BY(4)
        for (int64_t k = begin; k < end; ++k)
          add_scaled(sum, T(1), *reinterpret_cast<const P*>(row_value<T>(args.pieces[k], row) + col));
        add_scaled(scaled, scale, sum);
        *reinterpret_cast<P*>(value_of<T>(y) + row * y.ld + col) = scaled;
      }
    };
    if (args.packs[member])
      run(Pack<T>{}, Pack<T>::kCount);
    else
      run(T{}, 1);
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
  constexpr int kPack = Pack<T>::kCount;
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.units; unit += warp_count()) {
    const int64_t number = last_at_most(args.first, args.count, unit), member = args.member[number];
    const Piece x = args.pieces[number], y = args.results[member];
    const T scale = mean_scale<T>(args.average, args.begin[member + 1] - args.begin[member]);
    const int64_t elements = x.rows * x.cols, start = (unit - args.first[number]) * kSpread;
    const int64_t stop = start + kSpread < elements ? start + kSpread : elements;
    const auto run = [&](auto pack, int step) {
      using P = decltype(pack);
      LN_NO_UNROLL
      for (int64_t i = start + lane() * step; i < stop; i += kWarp * step) {
        const int64_t row = x.rows == 1 ? 0 : i / x.cols, col = i - row * x.cols;
        P& to = *reinterpret_cast<P*>(row_grad<T>(x, row) + col);
        P sum = to;
        add_scaled(sum, scale, *reinterpret_cast<const P*>(row_grad<T>(y, row) + col));
        to = sum;
      }
    };
    const bool packs = aligned(x.grad) && aligned(y.grad) && x.cols % kPack == 0 &&
                       (x.rows == 1 || (x.ld % kPack == 0 && y.ld % kPack == 0));
    if (packs)
      run(Pack<T>{}, kPack);
    else
      run(T{}, 1);
  }
}
LN_KERNELS(spread_lists, ListArgs, kThreads)

#else

namespace {

Axis axis_of(const Batch& batch) { return static_cast<Axis>(static_cast<int>(batch.attributes[0])); }
int64_t parts_of(int64_t elements, int64_t part) { return (elements + part - 1) / part; }

// How groups are gone through; see the kernels of these names.
struct Reduction {
  const Kernel &of_short, &of_long, &beside, &parts;
};
#define LN_REDUCTION_OF(variable, name)                      \
  LN_KERNEL_OF(variable##_short, "reduce", name "_short");   \
  LN_KERNEL_OF(variable##_long, "reduce", name "_long");     \
  LN_KERNEL_OF(variable##_beside, "reduce", name "_beside"); \
  LN_KERNEL_OF(variable##_parts, "reduce", name "_parts");   \
  const Reduction variable { variable##_short, variable##_long, variable##_beside, variable##_parts }

// `value_bytes`: of what a part becomes.
void reduce(Queue& queue, const Batch& batch, const Reduction& reduction, std::size_t value_bytes, bool average) {
  const Operand& argument = batch.arguments[0];
  ReduceArgs args{};
  args.axis = axis_of(batch);
  args.average = average;
  int64_t longest = 0, most_parts = 1, parts = 0;
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece& x = argument.pieces[i];
    const Split split = split_of(x, args.axis);
    longest = std::max(longest, args.axis == kOverCols ? x.cols : x.rows * x.cols);
    most_parts = std::max(most_parts, split.parts);
    parts += split.groups * split.parts;
  }
  const bool beside = args.axis == kOverRows;
  const auto groups_of = [&](int64_t i) { return split_of(argument.pieces[i], args.axis).groups; };
  const auto units_of = [&](int64_t i) { return groups_of(i) * split_of(argument.pieces[i], args.axis).parts; };
  constexpr int64_t kWarps = kThreads / kWarp, kForOneWarp = 1024;
  if (!beside && longest <= kForOneWarp) {
    args.members = members_of(queue, batch, 2, groups_of);
    return queue.launch(reduction.of_short, blocks_for(args.members.units, kWarps), kThreads, 0, args);
  }
  if (most_parts > 1)
    args.partial = queue.scratch(static_cast<std::size_t>(parts * (beside ? kWarp : 1)) * value_bytes);
  args.members = members_of(queue, batch, 2, units_of);
  queue.launch(beside ? reduction.beside : reduction.of_long, blocks_for(args.members.units, 1), kThreads, 0, args);
  if (most_parts == 1) return;
  int64_t* first_part = queue.room(batch.members, &args.first_part);
  for (int64_t i = 0, next = 0; i < batch.members; next += units_of(i++)) first_part[i] = next;
  args.members = members_of(queue, batch, 2, groups_of);
  queue.launch(reduction.parts, blocks_for(args.members.units, kWarps), kThreads, 0, args);
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
  LN_REDUCTION_OF(find, "find");
  if (batch.arguments[0].wants_grad) reduce(queue, batch, find, sizeof(int64_t), false);
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

// Whether a member's result and all that is added can be read 16 bytes at a time.
template <class T>
bool list_in_packs(const Batch& batch, int64_t member) {
  const Operand& list = batch.arguments[0];
  const Piece& y = batch.result.pieces[member];
  constexpr int64_t kPack = 16 / sizeof(T);
  const auto fits = [&](const Piece& piece) { return aligned(piece.value) && (y.rows <= 1 || piece.ld % kPack == 0); };
  return y.cols % kPack == 0 && fits(y) &&
         std::all_of(list.pieces + list.begin[member], list.pieces + list.begin[member + 1], fits);
}

}  // namespace

#define LN_REDUCE(name, kind, average)                    \
  template <class T>                                      \
  void name##_forward(Queue& queue, const Batch& batch) { \
    LN_REDUCTION_OF(reduction, kind);                     \
    reduce(queue, batch, reduction, sizeof(T), average);  \
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
  uint8_t* packs = queue.room(batch.members, &args.packs);
  for (int64_t i = 0; i < batch.members; ++i) packs[i] = list_in_packs<T>(batch, i);
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
  int64_t* member = queue.room(list.count, &args.member);
  for (int64_t i = 0; i < batch.members; ++i)
    for (int64_t k = list.begin[i]; k < list.begin[i + 1]; ++k) member[k] = i;
  int64_t* first = queue.room(list.count + 1, &args.first);
  first[0] = 0;
  for (int64_t k = 0; k < list.count; ++k) {
    const Piece& x = list.pieces[k];
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
