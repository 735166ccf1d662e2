// layer_norm(x, weight, bias) and rms_norm(x, weight) over columns.
//
// A row is read from memory once and once or twice more from the cache; forward writes the result, backward also reads
// the result's gradient and reads and writes the argument's: bound by memory. The gradients of weight and bias are sums
// over all rows: numbers of each row first, then sums over parts of rows, in tiles of kWarp columns, then over parts.
#include "rows.h"

namespace lazynet::cuda {

struct NormArgs {
  Members members;     // a unit is a row
  const void* weight;  // null: none
  const void* bias;
  double epsilon;
  bool centered;  // the mean is subtracted
};

struct NormSharedArgs {
  NormArgs norm;
  void* mean;  // of each row; 1 over its deviation
  void* rstd;
  int64_t cols, part_rows, parts;
  void* weight_sums;  // parts x cols, of one part the gradients themselves; null: not wanted
  void* bias_sums;
};
struct NormFinishArgs {
  const void* sums[2];  // parts x cols
  void* grads[2];       // null: not wanted
  int64_t cols, parts;
};

#ifdef LN_DEVICE_CODE

template <class T>
struct RowStatistics {
  T mean, rstd;
};
template <class By, class T>
LN_DEVICE RowStatistics<T> statistics_of(const T* x, int64_t cols, const NormArgs& args) {
  const T each = T(1) / static_cast<T>(cols);
  const T mean = args.centered ? fold_by<By, Add, T>(cols, [=](int64_t j) { return x[j]; }) * each : T(0);
  const T variance = fold_by<By, Add, T>(cols, [=](int64_t j) { return (x[j] - mean) * (x[j] - mean); }) * each;
  return {mean, T(1) / m::sqrt(variance + static_cast<T>(args.epsilon))};
}

template <class By, class T>
LN_DEVICE void norm_forward(const NormArgs& args) {
  const T *weight = static_cast<const T*>(args.weight), *bias = static_cast<const T*>(args.bias);
  for_rows_by<By>(args.members, [&](const Place& place) {
    const Piece x = piece_of(args.members, 1, place.member), result = piece_of(args.members, 0, place.member);
    const T* in = row_value<T>(x, place.unit);
    T* y = value_of<T>(result) + place.unit * result.ld;
    const RowStatistics<T> row = statistics_of<By>(in, x.cols, args);
    each_by<By>(x.cols, [=](int64_t j) {
      const T n = (in[j] - row.mean) * row.rstd, scaled = weight ? n * weight[j] : n;
      y[j] = bias ? scaled + bias[j] : scaled;
    });
  });
}
LN_ROW_KERNELS(norm_forward, NormArgs)

// With h = g * weight and n the normalized row: dx = (h - mean(h) - n * mean(h * n)) / deviation, without the first
// mean where the row is not centered.
template <class By, class T>
LN_DEVICE void norm_backward(const NormArgs& args) {
  const T* weight = static_cast<const T*>(args.weight);
  for_rows_by<By>(args.members, [&](const Place& place) {
    const Piece x = piece_of(args.members, 1, place.member), result = piece_of(args.members, 0, place.member);
    if (!x.grad) return;
    const T *in = row_value<T>(x, place.unit), *g = row_grad<T>(result, place.unit);
    T* dx = row_grad<T>(x, place.unit);
    const RowStatistics<T> row = statistics_of<By>(in, x.cols, args);
    const T each = T(1) / static_cast<T>(x.cols);
    const auto h = [=](int64_t j) { return weight ? g[j] * weight[j] : g[j]; };
    const T mean_h = args.centered ? fold_by<By, Add, T>(x.cols, h) * each : T(0);
    const T mean_hn =
        fold_by<By, Add, T>(x.cols, [=](int64_t j) { return h(j) * (in[j] - row.mean); }) * each * row.rstd;
    each_by<By>(x.cols,
                [=](int64_t j) { dx[j] += row.rstd * (h(j) - mean_h - (in[j] - row.mean) * row.rstd * mean_hn); });
  });
}
LN_ROW_KERNELS(norm_backward, NormArgs)

template <class By, class T>
LN_DEVICE void norm_rows(const NormSharedArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = By::number(); unit < args.norm.members.units; unit += By::count()) {
    const Place place = place_of(args.norm.members, unit);
    const Piece x = piece_of(args.norm.members, 1, place.member);
    const RowStatistics<T> row = statistics_of<By>(row_value<T>(x, place.unit), x.cols, args.norm);
    if (By::first() != 0) continue;
    static_cast<T*>(args.mean)[unit] = row.mean;
    static_cast<T*>(args.rstd)[unit] = row.rstd;
  }
}
LN_ROW_KERNELS(norm_rows, NormSharedArgs)

// A block a part of rows in kWarp columns, its warps every eighth row.
template <class T>
LN_DEVICE void norm_sums(const NormSharedArgs& args) {
  const int64_t tiles = (args.cols + kWarp - 1) / kWarp, rows = args.norm.members.units;
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < tiles * args.parts; unit += gridDim.x) {
    const int64_t part = unit / tiles, col = (unit - part * tiles) * kWarp + lane(), begin = part * args.part_rows;
    const int64_t end = begin + args.part_rows < rows ? begin + args.part_rows : rows;
    T weight = 0, bias = 0;
    LN_NO_UNROLL
    for (int64_t row = begin + threadIdx.x / kWarp; row < end && col < args.cols; row += kThreads / kWarp) {
      const Place place = place_of(args.norm.members, row);
      const T g = row_grad<T>(piece_of(args.norm.members, 0, place.member), place.unit)[col];
      const T x = row_value<T>(piece_of(args.norm.members, 1, place.member), place.unit)[col];
      weight += g * (x - static_cast<const T*>(args.mean)[row]) * static_cast<const T*>(args.rstd)[row];
      bias += g;
    }
    weight = fold_over_warps<Add>(weight);
    bias = fold_over_warps<Add>(bias);
    if (threadIdx.x >= kWarp || col >= args.cols) continue;
    const auto put = [&](void* sums, T sum) {
      if (!sums) return;
      T* to = static_cast<T*>(sums) + part * args.cols + col;
      *to = args.parts == 1 ? *to + sum : sum;
    };
    put(args.weight_sums, weight);
    put(args.bias_sums, bias);
  }
}
LN_KERNELS(norm_sums, NormSharedArgs, kThreads)

template <class T>
LN_DEVICE void norm_finish(const NormFinishArgs& args) {
  for (int64_t i = thread_number(); i < 2 * args.cols; i += thread_count()) {
    const int which = i < args.cols ? 0 : 1;
    const int64_t col = i - which * args.cols;
    if (!args.grads[which]) continue;
    T sum = 0;
    LN_UNROLL_BY(4)
    for (int64_t part = 0; part < args.parts; ++part)
      sum += static_cast<const T*>(args.sums[which])[part * args.cols + col];
    static_cast<T*>(args.grads[which])[col] += sum;
  }
}
LN_KERNELS(norm_finish, NormFinishArgs, kThreads)

#else

namespace {

constexpr int64_t kPartRows = 64, kMostParts = 256;

const void* optional_value(const Batch& batch, int argument) {
  return argument < batch.argument_count ? batch.arguments[argument].pieces[0].value : nullptr;
}
void* optional_grad(const Batch& batch, int argument) {
  const bool wanted = argument < batch.argument_count && batch.arguments[argument].wants_grad;
  return wanted ? batch.arguments[argument].pieces[0].grad : nullptr;
}

NormArgs args_of(Queue& queue, const Batch& batch, bool backward) {
  NormArgs args{};
  args.members = rows_of(queue, batch, 2, backward);
  args.weight = optional_value(batch, 1);
  args.bias = optional_value(batch, 2);
  args.epsilon = batch.attributes[0];
  args.centered = batch.op == kOp_layer_norm;
  return args;
}

// All members have the same.
int64_t cols_of(const Batch& batch) { return batch.result.matrix.cols; }

template <class T>
void norm_forward(Queue& queue, const Batch& batch) {
  LN_ROW_KERNEL_OF(kernel, "normalization", "norm_forward");
  const NormArgs args = args_of(queue, batch, false);
  launch_rows(queue, kernel, args.members.units, cols_of(batch), args);
}

template <class T>
void norm_backward(Queue& queue, const Batch& batch) {
  LN_ROW_KERNEL_OF(kernel, "normalization", "norm_backward");
  if (!batch.arguments[0].wants_grad) return;
  const NormArgs args = args_of(queue, batch, true);
  launch_rows(queue, kernel, args.members.units, cols_of(batch), args);
}

template <class T>
void norm_shared(Queue& queue, const Batch& batch) {
  LN_ROW_KERNEL_OF(rows, "normalization", "norm_rows");
  LN_KERNEL_OF(sums, "normalization", "norm_sums");
  LN_KERNEL_OF(finish, "normalization", "norm_finish");
  void *weight = optional_grad(batch, 1), *bias = optional_grad(batch, 2);
  const int64_t count = batch.result.matrix.rows;
  if ((!weight && !bias) || count == 0) return;
  NormSharedArgs args{};
  args.cols = cols_of(batch);
  args.part_rows = std::max(kPartRows, (count + kMostParts - 1) / kMostParts);
  args.parts = (count + args.part_rows - 1) / args.part_rows;
  const bool several = args.parts > 1;
  const int64_t partial = several ? args.parts * args.cols : 0;
  T* scratch = static_cast<T*>(queue.scratch(static_cast<std::size_t>(2 * count + 2 * partial) * sizeof(T)));
  args.mean = scratch;
  args.rstd = scratch + count;
  args.weight_sums = !weight || !several ? weight : scratch + 2 * count;
  args.bias_sums = !bias || !several ? bias : scratch + 2 * count + partial;
  args.norm = args_of(queue, batch, false);
  launch_rows(queue, rows, count, args.cols, args);
  args.norm = args_of(queue, batch, true);
  queue.launch(sums, blocks_for((args.cols + kWarp - 1) / kWarp * args.parts, 1), kThreads, 0, args);
  if (!several) return;
  const NormFinishArgs rest{{args.weight_sums, args.bias_sums}, {weight, bias}, args.cols, args.parts};
  queue.launch(finish, blocks_for(2 * args.cols, kThreads), kThreads, 0, rest);
}

}  // namespace

#define LN_NORM(name)                                      \
  template <class T>                                       \
  void name##_forward(Queue& queue, const Batch& batch) {  \
    norm_forward<T>(queue, batch);                         \
  }                                                        \
  template <class T>                                       \
  void name##_backward(Queue& queue, const Batch& batch) { \
    norm_backward<T>(queue, batch);                        \
  }                                                        \
  template <class T>                                       \
  void name##_shared(Queue& queue, const Batch& batch) {   \
    norm_shared<T>(queue, batch);                          \
  }                                                        \
  LN_INSTANTIATE_SHARED(name)
LN_NORM(layer_norm)
LN_NORM(rms_norm)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
