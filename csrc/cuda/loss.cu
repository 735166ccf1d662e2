// Losses against class numbers: one loss a row.
//
// cross_entropy reads each logit from memory once and once or twice more from the cache, backward also reads and writes
// its gradient; an exponential or two a logit: bound by memory. nll_loss reads one element a row.
#include "rows.h"

namespace lazynet::cuda {

struct ClassLossArgs {
  Members members;         // a unit is a row
  const int64_t* classes;  // of all rows
  const int64_t* first;    // number of each member's first row among all
  int64_t ignored;
  double smoothing;
};

#ifdef LN_DEVICE_CODE

LN_DEVICE int64_t class_of(const ClassLossArgs& args, const Place& place) {
  return args.classes[args.first[place.member] + place.unit];
}

template <class By, class T>
LN_DEVICE void cross_entropy_forward(const ClassLossArgs& args) {
  const T smoothing = static_cast<T>(args.smoothing);
  for_rows_by<By>(args.members, [&](const Place& place) {
    const Piece piece = piece_of(args.members, 1, place.member), result = piece_of(args.members, 0, place.member);
    const int64_t target = class_of(args, place);
    T loss = 0;
    if (target != args.ignored) {
      const T* x = row_value<T>(piece, place.unit);
      const SoftmaxSum<T> total = softmax_sum<By>(x, piece.cols);
      const T shift = total.shift, log_scale = total.log_scale();
      loss = log_scale - (x[target] - shift);
      if (smoothing != T(0)) {  // else 0 * infinity where logits are masked
        const T sum = fold_by<By, Add, T>(piece.cols, [=](int64_t j) { return x[j] - shift; });
        loss = (T(1) - smoothing) * loss + smoothing * (log_scale - sum / static_cast<T>(piece.cols));
      }
    }
    if (By::first() == 0) value_of<T>(result)[place.unit * result.ld] = loss;
  });
}
LN_ROW_KERNELS(cross_entropy_forward, ClassLossArgs)

template <class By, class T>
LN_DEVICE void cross_entropy_backward(const ClassLossArgs& args) {
  const T smoothing = static_cast<T>(args.smoothing);
  for_rows_by<By>(args.members, [&](const Place& place) {
    const Piece piece = piece_of(args.members, 1, place.member), result = piece_of(args.members, 0, place.member);
    const int64_t target = class_of(args, place);
    if (!piece.grad || target == args.ignored) return;
    const T* x = row_value<T>(piece, place.unit);
    T* dx = row_grad<T>(piece, place.unit);
    const SoftmaxSum<T> total = softmax_sum<By>(x, piece.cols);
    if (total.sum == T(0)) return;  // all logits are -inf
    const T g = *row_grad<T>(result, place.unit);
    const T shift = total.shift, scale = g * total.scale(), uniform = g * smoothing / static_cast<T>(piece.cols);
    const T hit = g * (T(1) - smoothing);
    each_by<By>(piece.cols, [=](int64_t j) {
      const T sum = dx[j] + (m::exp(x[j] - shift) * scale - uniform);
      dx[j] = j == target ? sum - hit : sum;
    });
  });
}
LN_ROW_KERNELS(cross_entropy_backward, ClassLossArgs)

// A thread a row.
template <class T>
LN_DEVICE void nll_loss_forward(const ClassLossArgs& args) {
  for (int64_t unit = thread_number(); unit < args.members.units; unit += thread_count()) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), result = piece_of(args.members, 0, place.member);
    const int64_t target = class_of(args, place);
    value_of<T>(result)[place.unit * result.ld] = target == args.ignored ? T(0) : -row_value<T>(x, place.unit)[target];
  }
}
LN_KERNELS(nll_loss_forward, ClassLossArgs, kThreads)

template <class T>
LN_DEVICE void nll_loss_backward(const ClassLossArgs& args) {
  for (int64_t unit = thread_number(); unit < args.members.units; unit += thread_count()) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), result = piece_of(args.members, 0, place.member);
    const int64_t target = class_of(args, place);
    if (x.grad && target != args.ignored) row_grad<T>(x, place.unit)[target] -= *row_grad<T>(result, place.unit);
  }
}
LN_KERNELS(nll_loss_backward, ClassLossArgs, kThreads)

#else

namespace {

ClassLossArgs args_of(Queue& queue, const Batch& batch, int64_t* longest) {
  ClassLossArgs args{};
  int64_t rows = 0, next = 0;
  int64_t* first = queue.room(batch.members, &args.first);
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    first[i] = rows;
    rows += batch.result.pieces[i].rows;
    *longest = std::max(*longest, batch.arguments[0].pieces[i].cols);
    return batch.result.pieces[i].rows;
  });
  int64_t* classes = queue.room(rows, &args.classes);
  for (int64_t i = 0; i < batch.members; ++i)
    for (int64_t r = 0; r < batch.result.pieces[i].rows; ++r) classes[next++] = batch.payload[i][r];
  args.ignored = static_cast<int64_t>(batch.attributes[0]);
  if (batch.op == kOp_cross_entropy) args.smoothing = batch.attributes[1];
  return args;
}

}  // namespace

template <class T>
void cross_entropy_forward(Queue& queue, const Batch& batch) {
  LN_ROW_KERNEL_OF(kernel, "loss", "cross_entropy_forward");
  int64_t longest = 0;
  const ClassLossArgs args = args_of(queue, batch, &longest);
  launch_rows(queue, kernel, args.members.units, longest, args);
}

template <class T>
void cross_entropy_backward(Queue& queue, const Batch& batch) {
  LN_ROW_KERNEL_OF(kernel, "loss", "cross_entropy_backward");
  if (!batch.arguments[0].wants_grad) return;
  int64_t longest = 0;
  const ClassLossArgs args = args_of(queue, batch, &longest);
  launch_rows(queue, kernel, args.members.units, longest, args);
}

template <class T>
void nll_loss_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "loss", "nll_loss_forward");
  int64_t longest = 0;
  const ClassLossArgs args = args_of(queue, batch, &longest);
  queue.launch(kernel, blocks_for(args.members.units, kThreads), kThreads, 0, args);
}

template <class T>
void nll_loss_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "loss", "nll_loss_backward");
  if (!batch.arguments[0].wants_grad) return;
  int64_t longest = 0;
  const ClassLossArgs args = args_of(queue, batch, &longest);
  queue.launch(kernel, blocks_for(args.members.units, kThreads), kThreads, 0, args);
}

LN_INSTANTIATE(cross_entropy)
LN_INSTANTIATE(nll_loss)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
