// unfold_rows(x): beside each other the rows that a filter of a convolution over rows sees; a linear does the rest.
//
// Forward writes each element of the result once and reads each of x `width` times, mostly from the cache; backward
// goes over x and adds the up to `width` gradients of each element, in the order of rows: bound by memory. Its blocks
// have several rows, since what one row reads of a row of the result lies between what its neighbours read.
#include "kernel.h"

namespace lazynet::cuda {

struct UnfoldArgs {
  Members members;  // a unit is kElements elements of the result, in backward a tile of x, a thread an element
  int64_t width, stride, padding, dilation;
  int tile_cols_log2;
};

#ifdef LN_DEVICE_CODE

template <class T>
LN_DEVICE void unfold_rows_forward(const UnfoldArgs& args) {
  for_elements(args.members, 0, [&](const Piece& y, const Piece& x, int64_t, int64_t r, int64_t col) {
    const int64_t channel = col / args.width, k = col - channel * args.width;
    const int64_t row = r * args.stride - args.padding + k * args.dilation;
    value_of<T>(y)[r * y.ld + col] = row >= 0 && row < x.rows ? row_value<T>(x, row)[channel] : T(0);
  });
}
LN_KERNELS(unfold_rows_forward, UnfoldArgs, kThreads)

template <class T>
LN_DEVICE void unfold_rows_backward(const UnfoldArgs& args) {
  const int tile_cols = 1 << args.tile_cols_log2, tile_rows = static_cast<int>(blockDim.x) >> args.tile_cols_log2;
  const int thread = static_cast<int>(threadIdx.x);
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    const Place place = place_of(args.members, unit);
    const Piece y = piece_of(args.members, 0, place.member), x = piece_of(args.members, 1, place.member);
    const int64_t across = (x.cols + tile_cols - 1) >> args.tile_cols_log2, below = place.unit / across;
    const int64_t row = below * tile_rows + (thread >> args.tile_cols_log2);
    const int64_t channel = (place.unit - below * across) * tile_cols + (thread & (tile_cols - 1));
    if (!x.grad || row >= x.rows || channel >= x.cols) continue;
    T sum = row_grad<T>(x, row)[channel];
    for (int64_t k = args.width - 1; k >= 0; --k) {  // rows of the result from the first to the last
      const int64_t start = row + args.padding - k * args.dilation;
      if (start < 0) continue;
      const int64_t r = args.stride == 1 ? start : start / args.stride;
      if (r * args.stride == start && r < y.rows) sum += row_grad<T>(y, r)[channel * args.width + k];
    }
    row_grad<T>(x, row)[channel] = sum;
  }
}
LN_KERNELS(unfold_rows_backward, UnfoldArgs, kThreads)

#else

namespace {

UnfoldArgs args_of(const Batch& batch) {
  UnfoldArgs args{};
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
  UnfoldArgs args = args_of(batch);
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    const Piece& y = batch.result.pieces[i];
    return element_units(y);
  });
  queue.launch(kernel, blocks_for(args.members.units, kThreads / kWarp), kThreads, 0, args);
}

template <class T>
void unfold_rows_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "convolution", "unfold_rows_backward");
  if (!batch.arguments[0].wants_grad) return;
  UnfoldArgs args = args_of(batch);
  const int64_t cols = batch.arguments[0].pieces[0].cols;  // of all members
  args.tile_cols_log2 = lanes_log2_for(std::min<int64_t>(cols, kWarp));
  const int64_t tile_rows = kThreads >> args.tile_cols_log2, tile_cols = int64_t{1} << args.tile_cols_log2;
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    return (batch.arguments[0].pieces[i].rows + tile_rows - 1) / tile_rows * ((cols + tile_cols - 1) / tile_cols);
  });
  queue.launch(kernel, blocks_for(args.members.units, 1), kThreads, 0, args);
}

LN_INSTANTIATE(unfold_rows)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
