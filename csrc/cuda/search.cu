// top_ids(x, count): the columns of the largest elements of every row, the largest first, of equals the first.
//
// A block a row finds one element after another: reads the row `count` times, from the cache after the first time.
// Bound by that for the few elements that decoding asks for.
#include "kernel.h"

namespace lazynet::cuda {

struct TopIdsArgs {
  Members members;  // a unit is a row
};

#ifdef LN_DEVICE_CODE

// An element and its column; -1: none.
template <class T>
struct Candidate {
  T value;
  int64_t column;
};
// NaN is smaller than anything.
template <class T>
LN_DEVICE bool before(const Candidate<T>& a, const Candidate<T>& b) {
  if (b.column < 0) return a.column >= 0;
  if (a.column < 0) return false;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan != b_nan) return b_nan;
  if (!a_nan && a.value != b.value) return a.value > b.value;
  return a.column < b.column;
}
template <class T>
LN_DEVICE Candidate<T> best_of_warp(Candidate<T> best) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Candidate<T> other{__shfl_xor_sync(0xffffffffu, best.value, step),
                             __shfl_xor_sync(0xffffffffu, best.column, step)};
    if (before(other, best)) best = other;
  }
  return best;
}
template <class T>
LN_DEVICE Candidate<T> best_of_block(Candidate<T> best) {
  LN_SHARED(Candidate<T>, partial, kWarp);
  best = best_of_warp(best);
  __syncthreads();  // those of an earlier call are read
  if (lane() == 0) partial[threadIdx.x / kWarp] = best;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  best = lane() < warps ? partial[lane()] : Candidate<T>{T(0), -1};
  return best_of_warp(best);
}

template <class T>
LN_DEVICE void top_ids_forward(const TopIdsArgs& args) {
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    const T* row = row_value<T>(x, place.unit);
    Candidate<T> last{T(0), -1};
    for (int64_t k = 0; k < y.cols; ++k) {
      Candidate<T> best{T(0), -1};
      for (int64_t j = threadIdx.x; j < x.cols; j += blockDim.x) {
        const Candidate<T> each{row[j], j};
        if ((k == 0 || before(last, each)) && before(each, best)) best = each;
      }
      last = best_of_block(best);
      if (threadIdx.x == 0) value_of<T>(y)[place.unit * y.ld + k] = static_cast<T>(last.column);
    }
  }
}
LN_KERNELS(top_ids_forward, TopIdsArgs, kThreads)

#else

template <class T>
void top_ids_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "search", "top_ids_forward");
  constexpr int64_t kForOneWarp = 256;  // columns
  TopIdsArgs args{};
  int64_t longest = 0;
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    longest = std::max(longest, batch.arguments[0].pieces[i].cols);
    return batch.result.pieces[i].rows;
  });
  queue.launch(kernel, blocks_for(args.members.units, 1), longest <= kForOneWarp ? kWarp : kThreads, 0, args);
}
template <class T>
void top_ids_backward(Queue&, const Batch&) {}
LN_INSTANTIATE(top_ids)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
