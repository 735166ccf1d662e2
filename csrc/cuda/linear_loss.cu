// linear_cross_entropy: the logits of a block of rows at a time, in working memory that stays in the device's cache:
// a product by cuBLAS, then one kernel, a block of threads a row, which adds the bias as it reads. A device makes no
// early gradients: backward and the shared pass each compute the logits again and turn them into their gradients.
//
// Bound by arithmetic: 2 rows in classes operations forward, 4 each for the gradients of x and of W. The kernels read
// each logit once for the loss; for gradients they read it twice and write it.
#include "kernel.h"
#ifndef LN_DEVICE_CODE
#include "transfer.h"
#endif

namespace lazynet::cuda {

struct LossArgs {
  void* logits;  // without the bias; gradients take their place
  int64_t ld, rows, classes;
  const void* bias;  // may be null
  int64_t packed_bias;
  const int64_t* targets;
  void* loss;
  const void* loss_grad;
  int64_t ignored;
  double smoothing;
};

// Of a block: few rows are there at a time, so each has many. The exponential of doubles takes more registers.
template <class T>
constexpr int kMostLossThreads = sizeof(T) == 8 ? 256 : 512;

#ifdef LN_DEVICE_CODE

// 0 where the maximum is infinite, so that a row of -inf alone has sum 0 and no NaN.
template <class T>
LN_DEVICE T shift_of(T maximum) {
  return m::abs(maximum) == infinity<T>() ? T(0) : maximum;
}

// exp(x - shift) of a row sums to `sum`.
template <class T>
struct RowSum {
  T maximum, sum;
};
template <class T, int kCount>
LN_DEVICE void take_in(RowSum<T>& row, const T (&x)[kCount]) {
  T maximum = row.maximum;
  LN_UNROLL
  for (int e = 0; e < kCount; ++e) maximum = Max::combine(maximum, x[e]);
  if (maximum != row.maximum) {
    if (row.sum != T(0)) row.sum *= m::exp(shift_of(row.maximum) - shift_of(maximum));
    row.maximum = maximum;
  }
  const T shift = shift_of(maximum);
  LN_UNROLL
  for (int e = 0; e < kCount; ++e) row.sum += m::exp(x[e] - shift);
}

// Calls visit(first class, logits) for all classes of a row, those of a pack together and the last ones one by one,
// dealt to the threads of a block.
template <class T, class Visit>
LN_DEVICE void for_logits(const LossArgs& args, const T* row, const Visit& visit) {
  constexpr int kPack = Pack<T>::kCount;
  const T* bias = static_cast<const T*>(args.bias);
  const int64_t packs = args.classes / kPack;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    Pack<T> x = pack_at(row + i * kPack);
    if (bias) {
      Pack<T> b;
      if (args.packed_bias) {
        b = pack_at(bias + i * kPack);
      } else {
        LN_UNROLL
        for (int e = 0; e < kPack; ++e) b.of[e] = bias[i * kPack + e];
      }
      LN_UNROLL
      for (int e = 0; e < kPack; ++e) x.of[e] += b.of[e];
    }
    visit(i * kPack, x.of);
  }
  const int64_t rest = packs * kPack + threadIdx.x;
  if (rest < args.classes) {
    const T x[1] = {bias ? row[rest] + bias[rest] : row[rest]};
    visit(rest, x);
  }
}

// Of a whole row, given what each thread took in.
template <class T>
LN_DEVICE RowSum<T> fold_row(const RowSum<T>& own) {
  const T maximum = fold_block<Max>(own.maximum);
  T sum = own.sum;
  if (sum != T(0)) sum *= m::exp(shift_of(own.maximum) - shift_of(maximum));
  return {maximum, fold_block<Add>(sum)};
}

template <class T>
LN_DEVICE void linear_loss_rows(const LossArgs& args) {
  const T smoothing = static_cast<T>(args.smoothing);
  for (int64_t number = blockIdx.x; number < args.rows; number += gridDim.x) {
    T* loss = static_cast<T*>(args.loss) + number;
    const int64_t target = args.targets[number];
    if (target == args.ignored) {
      if (threadIdx.x == 0) *loss = T(0);
      continue;
    }
    const T* row = static_cast<const T*>(args.logits) + number * args.ld;
    const T logit = args.bias ? row[target] + static_cast<const T*>(args.bias)[target] : row[target];
    const T middle = shift_of(logit);
    RowSum<T> own{Max::identity<T>(), T(0)};
    T departures = T(0);  // from `middle`, for the mean of the logits
    for_logits<T>(args, row, [&](int64_t, const auto& x) {
      take_in(own, x);
      if (smoothing != T(0))
        for (T one : x) departures += one - middle;
    });
    const RowSum<T> all = fold_row(own);
    if (smoothing != T(0)) departures = fold_block<Add>(departures);
    if (threadIdx.x != 0) continue;
    const T shift = shift_of(all.maximum), log_scale = all.sum == T(0) ? T(0) : m::log(all.sum);
    const T chosen_loss = log_scale - (logit - shift);
    const T mean = departures / static_cast<T>(args.classes) + (middle - shift);
    *loss = smoothing == T(0) ? chosen_loss : (T(1) - smoothing) * chosen_loss + smoothing * (log_scale - mean);
  }
}
LN_FLOAT_ENTRY(linear_loss_rows, linear_loss_rows, LossArgs, kMostLossThreads<float>)
LN_DOUBLE_ENTRY(linear_loss_rows, linear_loss_rows, LossArgs, kMostLossThreads<double>)

template <class T>
LN_DEVICE void linear_loss_gradients(const LossArgs& args) {
  constexpr int kPack = Pack<T>::kCount;
  const T smoothing = static_cast<T>(args.smoothing);
  for (int64_t number = blockIdx.x; number < args.rows; number += gridDim.x) {
    T* row = static_cast<T*>(args.logits) + number * args.ld;
    const int64_t target = args.targets[number];
    if (target == args.ignored) {
      for (int64_t j = threadIdx.x; j < args.classes; j += blockDim.x) row[j] = T(0);
      continue;
    }
    RowSum<T> own{Max::identity<T>(), T(0)};
    for_logits<T>(args, row, [&](int64_t, const auto& x) { take_in(own, x); });
    const RowSum<T> all = fold_row(own);
    const bool masked = all.sum == T(0);  // all logits are -inf
    const T factor = static_cast<const T*>(args.loss_grad)[number], shift = shift_of(all.maximum);
    const T scale = masked ? T(0) : factor * (T(1) / all.sum);
    const T uniform = masked ? T(0) : factor * smoothing / static_cast<T>(args.classes);
    const T at_target = masked ? T(0) : factor * (T(1) - smoothing);
    const auto gradient = [&](T x, int64_t j) {
      const T share = m::exp(x - shift) * scale - uniform;
      return j == target ? share - at_target : share;
    };
    for_logits<T>(args, row, [&](int64_t first, const auto& x) {
      if constexpr (sizeof(x) == sizeof(Pack<T>)) {
        Pack<T> made;
        LN_UNROLL
        for (int e = 0; e < kPack; ++e) made.of[e] = gradient(x[e], first + e);
        pack_at(row + first) = made;
      } else {
        row[first] = gradient(x[0], first);
      }
    });
  }
}
LN_FLOAT_ENTRY(linear_loss_gradients, linear_loss_gradients, LossArgs, kMostLossThreads<float>)
LN_DOUBLE_ENTRY(linear_loss_gradients, linear_loss_gradients, LossArgs, kMostLossThreads<double>)

#else

namespace {

template <class T>
class LinearLoss {
 public:
  LinearLoss(Queue& queue, const Batch& batch)
      : queue_(queue),
        batch_(batch),
        x_(batch.arguments[0].matrix),
        w_(shared_piece(batch, 1)),
        transpose_(batch.attributes[0] != 0),
        classes_(transpose_ ? w_.rows : w_.cols),
        ld_((classes_ + kPack - 1) / kPack * kPack) {}

  // Calls visit(first row, rows) for blocks of rows, after `kernel` has worked on their logits.
  template <class Visit>
  void for_blocks(const Kernel& kernel, const Visit& visit) {
    const int64_t rows = batch_.result.matrix.rows, most = rows_at_a_time(rows);
    if (rows == 0) return;
    logits_ = static_cast<T*>(queue_.scratch(static_cast<std::size_t>(most * ld_) * sizeof(T)));
    LossArgs args{};
    args.logits = logits_;
    args.ld = ld_;
    args.classes = classes_;
    if (batch_.argument_count == 3) args.bias = shared_piece(batch_, 2).value;
    args.packed_bias = reinterpret_cast<uintptr_t>(args.bias) % 16 == 0;
    args.ignored = static_cast<int64_t>(batch_.attributes[1]);
    args.smoothing = batch_.attributes[2];
    for (int64_t first = 0; first < rows; first += most) {
      args.rows = std::min(most, rows - first);
      queue_.multiply(kDtype<T>, {false, transpose_, args.rows, classes_, x_.cols, row(x_.value, first, x_.ld), x_.ld,
                                  w_.value, w_.ld, 0.0, logits_, ld_});
      int64_t* targets = queue_.room(args.rows, &args.targets);
      for (int64_t r = 0; r < args.rows; ++r) targets[r] = next_target();
      args.loss = row(batch_.result.matrix.value, first, 1);
      args.loss_grad = row(batch_.result.matrix.grad, first, 1);
      queue_.launch(kernel, blocks_for(args.rows, 1), threads(), 0, args);
      visit(first, args.rows);
    }
  }

  // Adds what the gradients of a block's logits give.
  void add_x_gradient(int64_t first, int64_t rows) {
    queue_.multiply(kDtype<T>, {false, !transpose_, rows, x_.cols, classes_, logits_, ld_, w_.value, w_.ld, 1.0,
                                row(x_.grad, first, x_.ld), x_.ld});
  }
  void add_weight_gradient(int64_t first, int64_t rows) {
    const T* x = row(x_.value, first, x_.ld);
    if (transpose_)
      queue_.multiply(kDtype<T>, {true, false, classes_, x_.cols, rows, logits_, ld_, x, x_.ld, 1.0, w_.grad, w_.ld});
    else
      queue_.multiply(kDtype<T>, {true, false, x_.cols, classes_, rows, x, x_.ld, logits_, ld_, 1.0, w_.grad, w_.ld});
  }
  void add_bias_gradient(int64_t rows) {
    add_column_sums<T>(queue_, logits_, rows, classes_, ld_, false, shared_piece(batch_, 2).grad);
  }

 private:
  static constexpr int64_t kPack = 16 / sizeof(T);

  static T* row(void* matrix, int64_t row, int64_t ld) { return matrix ? static_cast<T*>(matrix) + row * ld : nullptr; }

  // As many as fit the device's cache, and enough for products that are bound by arithmetic; blocks of one batch have
  // about the same size, whole tiles.
  int64_t rows_at_a_time(int64_t rows) const {
    constexpr int64_t kBytes = int64_t{32} << 20, kFewest = 128, kTile = 64;
    const int64_t row_bytes = std::max<int64_t>(ld_, 1) * static_cast<int64_t>(sizeof(T));
    const int64_t fit = std::max(kFewest, kBytes / row_bytes / kTile * kTile);
    const int64_t blocks = (rows + fit - 1) / fit;
    if (blocks <= 1) return rows;
    return ((rows + blocks - 1) / blocks + kTile - 1) / kTile * kTile;
  }

  // Of a row: two packs for each at least, where there are so many.
  int threads() const {
    int count = kWarp;
    while (count < kMostLossThreads<T> && 4 * count * kPack <= classes_) count *= 2;
    return count;
  }

  // The classes of all rows in turn.
  int64_t next_target() {
    while (next_ == batch_.result.pieces[member_].rows) ++member_, next_ = 0;
    return batch_.payload[member_][next_++];
  }

  Queue& queue_;
  const Batch& batch_;
  const Piece &x_, &w_;
  const bool transpose_;
  const int64_t classes_, ld_;
  T* logits_ = nullptr;
  int64_t member_ = 0, next_ = 0;  // where next_target() stands
};

}  // namespace

template <class T>
void linear_cross_entropy_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "linear_loss", "linear_loss_rows");
  LinearLoss<T>(queue, batch).for_blocks(kernel, [](int64_t, int64_t) {});
}

template <class T>
void linear_cross_entropy_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "linear_loss", "linear_loss_gradients");
  if (!batch.arguments[0].wants_grad) return;
  LinearLoss<T> op(queue, batch);
  op.for_blocks(kernel, [&](int64_t first, int64_t rows) { op.add_x_gradient(first, rows); });
}

template <class T>
void linear_cross_entropy_shared(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "linear_loss", "linear_loss_gradients");
  const bool weight = batch.arguments[1].wants_grad;
  const bool bias = batch.argument_count == 3 && batch.arguments[2].wants_grad;
  if (!weight && !bias) return;
  LinearLoss<T> op(queue, batch);
  op.for_blocks(kernel, [&](int64_t first, int64_t rows) {
    if (weight) op.add_weight_gradient(first, rows);
    if (bias) op.add_bias_gradient(rows);
  });
}
LN_INSTANTIATE_SHARED(linear_cross_entropy)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
