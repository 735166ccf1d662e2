// softmax, log_softmax, logsumexp over rows (axis 0), columns (1) or everything (2), softmax over columns also within a
// window; sparsemax over columns.
//
// A row's elements are read from memory once and two or three times more from the cache, and written once; one or two
// exponentials an element: bound by memory. Over rows a block takes kWarp columns, its warps every eighth row.
#include "band.h"
#include "rows.h"

namespace lazynet::cuda {

enum Axis : int { kOverRows = 0, kOverCols = 1, kOverAll = 2 };
struct SoftmaxArgs {
  Members members;  // a unit is a row, a member (everything), kWarp columns (over rows) or kElements elements
  Band band;
  Axis axis;
};

#ifdef LN_DEVICE_CODE

// ---- over columns

template <class By, class T>
LN_DEVICE void softmax_forward(const SoftmaxArgs& args) {
  for_rows_by<By>(args.members, [&](const Place& place) {
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    const int64_t begin = args.band.begin(place.unit, x.rows, x.cols), end = args.band.end(place.unit, x.rows, x.cols);
    const T* in = row_value<T>(x, place.unit);
    T* out = value_of<T>(y) + place.unit * y.ld;
    const SoftmaxSum<T> total = softmax_sum<By>(in + begin, begin < end ? end - begin : 0);
    const T shift = total.shift, scale = total.scale();
    each_by<By>(x.cols, [=](int64_t j) { out[j] = begin <= j && j < end ? m::exp(in[j] - shift) * scale : T(0); });
  });
}
LN_ROW_KERNELS(softmax_forward, SoftmaxArgs)

template <class By, class T>
LN_DEVICE void softmax_backward(const SoftmaxArgs& args) {
  for_rows_by<By>(args.members, [&](const Place& place) {
    const Piece x = piece_of(args.members, 1, place.member), result = piece_of(args.members, 0, place.member);
    if (!x.grad) return;
    const T *y = row_value<T>(result, place.unit), *g = row_grad<T>(result, place.unit);
    T* dx = row_grad<T>(x, place.unit);
    const T dot = fold_by<By, Add, T>(x.cols, [=](int64_t j) { return g[j] * y[j]; });
    each_by<By>(x.cols, [=](int64_t j) { dx[j] += y[j] * (g[j] - dot); });
  });
}
LN_ROW_KERNELS(softmax_backward, SoftmaxArgs)

template <class By, class T>
LN_DEVICE void log_softmax_forward(const SoftmaxArgs& args) {
  for_rows_by<By>(args.members, [&](const Place& place) {
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    const T* in = row_value<T>(x, place.unit);
    T* out = value_of<T>(y) + place.unit * y.ld;
    const SoftmaxSum<T> total = softmax_sum<By>(in, x.cols);
    const T shift = total.shift, log_scale = total.log_scale();
    each_by<By>(x.cols, [=](int64_t j) { out[j] = in[j] - shift - log_scale; });
  });
}
LN_ROW_KERNELS(log_softmax_forward, SoftmaxArgs)

template <class T>
LN_DEVICE T alive(T y) {
  return y == -infinity<T>() ? T(0) : T(1);
}

// dx = g - softmax * sum(g); nothing for a group of -inf alone.
template <class By, class T>
LN_DEVICE void log_softmax_backward(const SoftmaxArgs& args) {
  for_rows_by<By>(args.members, [&](const Place& place) {
    const Piece x = piece_of(args.members, 1, place.member), result = piece_of(args.members, 0, place.member);
    if (!x.grad) return;
    const T *y = row_value<T>(result, place.unit), *g = row_grad<T>(result, place.unit);
    T* dx = row_grad<T>(x, place.unit);
    const T count = fold_by<By, Add, T>(x.cols, [=](int64_t j) { return alive(y[j]); });
    const T total = fold_by<By, Add, T>(x.cols, [=](int64_t j) { return g[j]; });
    if (count != T(0)) each_by<By>(x.cols, [=](int64_t j) { dx[j] += g[j] - m::exp(y[j]) * total; });
  });
}
LN_ROW_KERNELS(log_softmax_backward, SoftmaxArgs)

// A unit is a row, or a member where everything is summed.
template <class By, class T>
LN_DEVICE void logsumexp_forward(const SoftmaxArgs& args) {
  for_rows_by<By>(args.members, [&](const Place& place) {
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    const bool all = args.axis == kOverAll;
    const T* in = all ? value_of<T>(x) : row_value<T>(x, place.unit);
    const int64_t count = all ? x.rows * x.cols : x.cols, cols = x.cols, gap = x.ld - x.cols;
    const auto element = [=](int64_t i) { return in[gap == 0 || !all ? i : i + i / cols * gap]; };
    const T shift = softmax_shift(fold_by<By, Max, T>(count, element));
    const T sum = fold_by<By, Add, T>(count, [=](int64_t i) { return m::exp(element(i) - shift); });
    if (By::first() == 0) value_of<T>(y)[place.unit * y.ld] = shift + m::log(sum);
  });
}
LN_ROW_KERNELS(logsumexp_forward, SoftmaxArgs)

// A unit is kElements elements of the argument.
template <class T>
LN_DEVICE void logsumexp_backward(const SoftmaxArgs& args) {
  for_elements(args.members, 1, [&](const Piece& result, const Piece& x, int64_t, int64_t row, int64_t col) {
    if (!x.grad) return;
    const int64_t from = args.axis == kOverRows ? col : (args.axis == kOverCols ? row * result.ld : 0);
    const T y = value_of<T>(result)[from];
    if (y != -infinity<T>())
      row_grad<T>(x, row)[col] += grad_of<T>(result)[from] * m::exp(row_value<T>(x, row)[col] - y);
  });
}
LN_KERNELS(logsumexp_backward, SoftmaxArgs, kThreads)

// The threshold of Martins & Astudillo (2016): max(z - t, 0) sums to 1. Found without sorting: from a set that holds
// the support, repeat t = (sum - 1) / count over what lies above t, until nothing leaves it.
template <class By, class T>
LN_DEVICE T sparsemax_threshold(const T* x, int64_t count, T maximum) {
  T threshold = T(-1), size = static_cast<T>(count) + T(1);
  for (;;) {
    const T t = threshold;
    const T left = fold_by<By, Add, T>(count, [=](int64_t i) { return x[i] - maximum > t ? T(1) : T(0); });
    if (!(left > T(0)) || left >= size) return threshold;
    const T sum = fold_by<By, Add, T>(count, [=](int64_t i) { return x[i] - maximum > t ? x[i] - maximum : T(0); });
    size = left;
    threshold = (sum - T(1)) / left;
  }
}

template <class By, class T>
LN_DEVICE void sparsemax_forward(const SoftmaxArgs& args) {
  for_rows_by<By>(args.members, [&](const Place& place) {
    const Piece x = piece_of(args.members, 1, place.member), result = piece_of(args.members, 0, place.member);
    const T* in = row_value<T>(x, place.unit);
    T* y = value_of<T>(result) + place.unit * result.ld;
    const T maximum = fold_by<By, Max, T>(x.cols, [=](int64_t j) { return in[j]; });
    const bool masked = maximum == -infinity<T>();
    const T threshold = masked ? T(0) : sparsemax_threshold<By>(in, x.cols, maximum);
    each_by<By>(x.cols, [=](int64_t j) { y[j] = masked ? T(0) : m::positive(in[j] - maximum - threshold); });
  });
}
LN_ROW_KERNELS(sparsemax_forward, SoftmaxArgs)

template <class By, class T>
LN_DEVICE void sparsemax_backward(const SoftmaxArgs& args) {
  for_rows_by<By>(args.members, [&](const Place& place) {
    const Piece x = piece_of(args.members, 1, place.member), result = piece_of(args.members, 0, place.member);
    if (!x.grad) return;
    const T *y = row_value<T>(result, place.unit), *g = row_grad<T>(result, place.unit);
    T* dx = row_grad<T>(x, place.unit);
    const T count = fold_by<By, Add, T>(x.cols, [=](int64_t j) { return y[j] > T(0) ? T(1) : T(0); });
    const T sum = fold_by<By, Add, T>(x.cols, [=](int64_t j) { return y[j] > T(0) ? g[j] : T(0); });
    const T mean = sum / count;  // used on the support only, so never 0 / 0
    each_by<By>(x.cols, [=](int64_t j) {
      if (y[j] > T(0)) dx[j] += g[j] - mean;
    });
  });
}
LN_ROW_KERNELS(sparsemax_backward, SoftmaxArgs)

// ---- over rows

// The column of a thread in a unit of kWarp columns; its warp does every kRows-th row.
template <class T>
struct Column {
  static constexpr int kRows = kThreads / kWarp;
  Piece x, y;
  int64_t col;
  bool inside;

  __device__ __forceinline__ Column(const Members& members, int64_t unit) {
    const Place place = place_of(members, unit);
    x = piece_of(members, 1, place.member);
    y = piece_of(members, 0, place.member);
    col = place.unit * kWarp + lane();
    inside = col < x.cols;
  }
  template <class Function>
  __device__ __forceinline__ void each(const Function& f) const {
    LN_NO_UNROLL
    for (int64_t row = threadIdx.x / kWarp; inside && row < x.rows; row += kRows) f(row);
  }
  template <class Fold, class Function>
  __device__ __forceinline__ T fold(const Function& f) const {
    T folded = Fold::template identity<T>();
    each([&](int64_t row) { folded = Fold::combine(folded, f(row)); });
    return fold_over_warps<Fold>(folded);
  }
  __device__ __forceinline__ T in(int64_t row) const { return row_value<T>(x, row)[col]; }
  __device__ __forceinline__ T& dx(int64_t row) const { return row_grad<T>(x, row)[col]; }
  __device__ __forceinline__ T& out(int64_t row) const { return value_of<T>(y)[row * y.ld + col]; }
  __device__ __forceinline__ T g(int64_t row) const { return row_grad<T>(y, row)[col]; }
  __device__ __forceinline__ SoftmaxSum<T> softmax_sum() const {
    const T shift = softmax_shift(fold<Max>([&](int64_t row) { return in(row); }));
    return {shift, fold<Add>([&](int64_t row) { return m::exp(in(row) - shift); })};
  }
};
template <class T, class Function>
LN_DEVICE void for_columns(const Members& members, const Function& f) {
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < members.units; unit += gridDim.x) f(Column<T>(members, unit));
}

template <class T>
LN_DEVICE void softmax_columns(const SoftmaxArgs& args) {
  for_columns<T>(args.members, [](const Column<T>& c) {
    const SoftmaxSum<T> total = c.softmax_sum();
    c.each([&](int64_t row) { c.out(row) = m::exp(c.in(row) - total.shift) * total.scale(); });
  });
}
LN_KERNELS(softmax_columns, SoftmaxArgs, kThreads)

template <class T>
LN_DEVICE void softmax_columns_backward(const SoftmaxArgs& args) {
  for_columns<T>(args.members, [](const Column<T>& c) {
    const T dot = c.template fold<Add>([&](int64_t row) { return c.out(row) * c.g(row); });
    if (c.x.grad) c.each([&](int64_t row) { c.dx(row) += c.out(row) * (c.g(row) - dot); });
  });
}
LN_KERNELS(softmax_columns_backward, SoftmaxArgs, kThreads)

template <class T>
LN_DEVICE void log_softmax_columns(const SoftmaxArgs& args) {
  for_columns<T>(args.members, [](const Column<T>& c) {
    const SoftmaxSum<T> total = c.softmax_sum();
    c.each([&](int64_t row) { c.out(row) = c.in(row) - total.shift - total.log_scale(); });
  });
}
LN_KERNELS(log_softmax_columns, SoftmaxArgs, kThreads)

template <class T>
LN_DEVICE void log_softmax_columns_backward(const SoftmaxArgs& args) {
  for_columns<T>(args.members, [](const Column<T>& c) {
    const T total = c.template fold<Add>([&](int64_t row) { return c.g(row); });
    const T count = c.template fold<Add>([&](int64_t row) { return alive(c.out(row)); });
    if (c.x.grad && count != T(0)) c.each([&](int64_t row) { c.dx(row) += c.g(row) - m::exp(c.out(row)) * total; });
  });
}
LN_KERNELS(log_softmax_columns_backward, SoftmaxArgs, kThreads)

template <class T>
LN_DEVICE void logsumexp_columns(const SoftmaxArgs& args) {
  for_columns<T>(args.members, [](const Column<T>& c) {
    const SoftmaxSum<T> total = c.softmax_sum();
    if (c.inside && threadIdx.x < kWarp) c.out(0) = total.shift + m::log(total.sum);
  });
}
LN_KERNELS(logsumexp_columns, SoftmaxArgs, kThreads)

#else

namespace {

Axis axis_of(const Batch& batch) {
  return batch.op == kOp_sparsemax ? kOverCols : static_cast<Axis>(static_cast<int>(batch.attributes[0]));
}

void launch(Queue& queue, const Batch& batch, bool backward, const RowKernel& rows, const Kernel& columns) {
  if (backward && !batch.arguments[0].wants_grad) return;
  SoftmaxArgs args{};
  args.axis = axis_of(batch);
  args.band = batch.op == kOp_softmax ? band_of(batch.attributes[1], batch.attributes[2]) : band_of(1e15, 1e15);
  int64_t longest = 0;
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    const Piece& x = batch.arguments[0].pieces[i];
    longest = std::max(longest, args.axis == kOverAll ? x.rows * x.cols : x.cols);
    if (args.axis == kOverRows) return (x.cols + kWarp - 1) / kWarp;
    return args.axis == kOverAll ? int64_t{1} : x.rows;
  });
  if (args.axis == kOverRows)
    queue.launch(columns, blocks_for(args.members.units, 1), kThreads, 0, args);
  else
    launch_rows(queue, rows, args.members.units, longest, args);
}

}  // namespace

// `over_columns`: a row kernel, `over_rows`: a kernel of columns.
#define LN_SOFTMAX(name, backward, over_columns, over_rows) \
  template <class T>                                        \
  void name(Queue& queue, const Batch& batch) {             \
    LN_ROW_KERNEL_OF(rows, "softmax", over_columns);        \
    LN_KERNEL_OF(columns, "softmax", over_rows);            \
    launch(queue, batch, backward, rows, columns);          \
  }
LN_SOFTMAX(softmax_forward, false, "softmax_forward", "softmax_columns")
LN_SOFTMAX(softmax_backward, true, "softmax_backward", "softmax_columns_backward")
LN_SOFTMAX(log_softmax_forward, false, "log_softmax_forward", "log_softmax_columns")
LN_SOFTMAX(log_softmax_backward, true, "log_softmax_backward", "log_softmax_columns_backward")
LN_SOFTMAX(logsumexp_forward, false, "logsumexp_forward", "logsumexp_columns")
LN_SOFTMAX(sparsemax_forward, false, "sparsemax_forward", "")
LN_SOFTMAX(sparsemax_backward, true, "sparsemax_backward", "")

template <class T>
void logsumexp_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "softmax", "logsumexp_backward");
  if (!batch.arguments[0].wants_grad) return;
  SoftmaxArgs args{};
  args.axis = axis_of(batch);
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    const Piece& x = batch.arguments[0].pieces[i];
    return element_units(x);
  });
  queue.launch(kernel, blocks_for(args.members.units, kThreads / kWarp), kThreads, 0, args);
}

LN_INSTANTIATE(softmax)
LN_INSTANTIATE(log_softmax)
LN_INSTANTIATE(logsumexp)
LN_INSTANTIATE(sparsemax)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
