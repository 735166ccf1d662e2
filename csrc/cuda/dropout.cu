// Dropout.
//
// Bytes: each element is read once and written once. Operations: 10 rounds of Philox for four elements, about 70
// integer instructions: bound by memory.
#include "../ops/random.h"
#include "kernel.h"

namespace lazynet::cuda {

struct DropoutArgs {
  Members members;      // a unit is four elements of a member
  const int64_t* keys;  // two a member
  uint32_t threshold;
  double scale;
};

#ifdef LN_DEVICE_CODE

template <class T, class Apply>
LN_DEVICE void for_kept(const DropoutArgs& args, const Apply& apply) {
  for (int64_t unit = thread_number(); unit < args.members.units; unit += thread_count()) {
    const Place place = place_of(args.members, unit);
    const int64_t* key = args.keys + 2 * place.member;
    const RandomBits bits =
        random_bits(static_cast<uint32_t>(key[0]), static_cast<uint32_t>(key[1]), static_cast<uint64_t>(place.unit));
    const Piece y = piece_of(args.members, 0, place.member), x = piece_of(args.members, 1, place.member);
    const int64_t elements = x.rows * x.cols;
    for (int k = 0; k < 4; ++k) {
      const int64_t element = 4 * place.unit + k;
      if (element >= elements) break;
      const int64_t row = element / x.cols, col = element % x.cols;
      apply(y, x, row * y.ld + col, row * x.ld + col, keeps(bits.of[k], args.threshold));
    }
  }
}

template <class T>
LN_DEVICE void dropout_forward(const DropoutArgs& args) {
  const T scale = static_cast<T>(args.scale);
  for_kept<T>(args, [=](const Piece& y, const Piece& x, int64_t to, int64_t from, bool keep) {
    value_of<T>(y)[to] = keep ? value_of<T>(x)[from] * scale : T(0);
  });
}
LN_KERNELS(dropout_forward, DropoutArgs, kThreads)

template <class T>
LN_DEVICE void dropout_backward(const DropoutArgs& args) {
  const T scale = static_cast<T>(args.scale);
  for_kept<T>(args, [=](const Piece& y, const Piece& x, int64_t to, int64_t from, bool keep) {
    if (keep && x.grad) grad_of<T>(x)[from] += grad_of<T>(y)[to] * scale;
  });
}
LN_KERNELS(dropout_backward, DropoutArgs, kThreads)

#else

namespace {

DropoutArgs args_of(Queue& queue, const Batch& batch) {
  DropoutArgs args{};
  int64_t* keys = queue.room(2 * batch.members, &args.keys);
  for (int64_t i = 0; i < batch.members; ++i) {
    keys[2 * i] = batch.payload[i][0];
    keys[2 * i + 1] = batch.payload[i][1];
  }
  const auto mask = mask_of<double>(batch.payload[0], batch.attributes[0]);
  args.threshold = mask.threshold;
  args.scale = mask.scale;
  args.members = members_of(
      queue, batch, 2, [&](int64_t i) { return (batch.result.pieces[i].rows * batch.result.pieces[i].cols + 3) / 4; });
  return args;
}

}  // namespace

template <class T>
void dropout_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "dropout", "dropout_forward");
  const DropoutArgs args = args_of(queue, batch);
  queue.launch(kernel, blocks_for(args.members.units, kThreads), kThreads, 0, args);
}

template <class T>
void dropout_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "dropout", "dropout_backward");
  const DropoutArgs args = args_of(queue, batch);
  queue.launch(kernel, blocks_for(args.members.units, kThreads), kThreads, 0, args);
}

LN_INSTANTIATE(dropout)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
