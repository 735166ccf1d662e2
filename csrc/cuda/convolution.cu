// unfold_rows(x): beside each other the rows that a filter of a convolution over rows sees; a linear does the rest.
//
// Forward writes each element of the result once and reads each of x `width` times, mostly from the cache; backward
// goes over x and adds the up to `width` gradients of each element, in the order of rows: bound by memory.
#include "kernel.h"

namespace lazynet::cuda {

constexpr int64_t kChunk = 128;  // elements that a warp handles at a time
struct UnfoldArgs {
  Members members;  // a unit is kChunk elements: of the result, in backward of x
  int64_t width, stride, padding, dilation;
};

#ifdef LN_DEVICE_CODE

template <class T>
LN_DEVICE void unfold_rows_forward(const UnfoldArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.members.units; unit += warp_count()) {
    const Place place = place_of(args.members, unit);
    const Piece y = piece_of(args.members, 0, place.member), x = piece_of(args.members, 1, place.member);
    const int64_t elements = y.rows * y.cols, first = place.unit * kChunk;
    const int64_t end = first + kChunk < elements ? first + kChunk : elements;
    LN_NO_UNROLL
    for (int64_t i = first + lane(); i < end; i += kWarp) {
      const int64_t r = i / y.cols, col = i - r * y.cols, channel = col / args.width, k = col - channel * args.width;
      const int64_t row = r * args.stride - args.padding + k * args.dilation;
      value_of<T>(y)[r * y.ld + col] = row >= 0 && row < x.rows ? row_value<T>(x, row)[channel] : T(0);
    }
  }
}
LN_KERNELS(unfold_rows_forward, UnfoldArgs, kThreads)

template <class T>
LN_DEVICE void unfold_rows_backward(const UnfoldArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.members.units; unit += warp_count()) {
    const Place place = place_of(args.members, unit);
    const Piece y = piece_of(args.members, 0, place.member), x = piece_of(args.members, 1, place.member);
    if (!x.grad) continue;
    const int64_t elements = x.rows * x.cols, first = place.unit * kChunk;
    const int64_t end = first + kChunk < elements ? first + kChunk : elements;
    LN_NO_UNROLL
    for (int64_t i = first + lane(); i < end; i += kWarp) {
      const int64_t row = i / x.cols, channel = i - row * x.cols;
      T sum = row_grad<T>(x, row)[channel];
      LN_NO_UNROLL
      for (int64_t k = args.width - 1; k >= 0; --k) {  // rows of the result from the first to the last
        const int64_t start = row + args.padding - k * args.dilation;
        if (start < 0 || start % args.stride != 0 || start / args.stride >= y.rows) continue;
        sum += row_grad<T>(y, start / args.stride)[channel * args.width + k];
      }
      row_grad<T>(x, row)[channel] = sum;
    }
  }
}
LN_KERNELS(unfold_rows_backward, UnfoldArgs, kThreads)

#else

namespace {

UnfoldArgs args_of(Queue& queue, const Batch& batch, bool backward) {
  UnfoldArgs args{};
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    const Piece& piece = backward ? batch.arguments[0].pieces[i] : batch.result.pieces[i];
    return (piece.rows * piece.cols + kChunk - 1) / kChunk;
  });
  args.width = static_cast<int64_t>(batch.attributes[0]);
  args.stride = static_cast<int64_t>(batch.attributes[1]);
  args.padding = static_cast<int64_t>(batch.attributes[2]);
  args.dilation = static_cast<int64_t>(batch.attributes[3]);
  return args;
}

}  // namespace

template <class T>
void unfold_rows_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "convolution", "unfold_rows_forward");
  const UnfoldArgs args = args_of(queue, batch, false);
  queue.launch(kernel, blocks_for(args.members.units, kThreads / kWarp), kThreads, 0, args);
}

template <class T>
void unfold_rows_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "convolution", "unfold_rows_backward");
  if (!batch.arguments[0].wants_grad) return;
  const UnfoldArgs args = args_of(queue, batch, true);
  queue.launch(kernel, blocks_for(args.members.units, kThreads / kWarp), kThreads, 0, args);
}

LN_INSTANTIATE(unfold_rows)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
