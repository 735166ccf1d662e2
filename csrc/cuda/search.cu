// top_ids(x, count): the columns of the largest elements of every row, the largest first, of equals the first.
//
// A block a row. Every thread finds the largest of its share of the row; the count-th largest of these is a bound that
// at least `count` elements reach, and seldom many more. A second look at the row, then in the cache, collects them,
// and each of them counts how many come before it. Bound by the reading of rows, from memory and once more from the
// cache; one element needs no second look.
#include "kernel.h"

namespace lazynet::cuda {

struct TopIdsArgs {
  Members members;  // a unit is a row
};

#ifdef LN_DEVICE_CODE

constexpr int kTopThreads = 512;
constexpr int kCollected = 1024;  // elements that are collected at most

// An element and its column; -1: none.
template <class T>
struct Candidate {
  T value;
  int column;
};
// In the order of results. NaN is smaller than anything.
template <class T>
LN_DEVICE bool before(const Candidate<T>& a, const Candidate<T>& b) {
  if (b.column < 0 || a.column < 0) return a.column >= 0;
  if (a.value > b.value) return true;
  if (a.value < b.value) return false;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  return a_nan == b_nan ? a.column < b.column : b_nan;
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

// How many of `count` candidates come before one of them.
template <class T>
LN_DEVICE int rank_of(const Candidate<T>& one, const Candidate<T>* all, int count) {
  int rank = 0;
  for (int i = 0; i < count; ++i) rank += before(all[i], one) ? 1 : 0;
  return rank;
}

template <class T>
LN_DEVICE void top_ids_forward(const TopIdsArgs& args) {
  LN_SHARED(Candidate<T>, largest, kTopThreads);  // of each thread, or warp
  LN_SHARED(Candidate<T>, collected, kCollected);
  LN_SHARED(Candidate<T>, chosen, 2);  // the bound, and the last result so far
  LN_SHARED(int, collected_count, 1);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member), y = piece_of(args.members, 0, place.member);
    const T* row = row_value<T>(x, place.unit);
    T* ids = value_of<T>(y) + place.unit * y.ld;
    const int cols = static_cast<int>(x.cols), count = static_cast<int>(y.cols);
    int done = 0;                 // results that are there
    Candidate<T> last{T(0), -1};  // the last of them
    int most = threads / 2;       // that a round looks for: the bound of more lies far down
    while (done < count) {
      Candidate<T> best{T(0), -1};
      for (int j = thread; j < cols; j += threads) {
        const Candidate<T> each{row[j], j};
        if ((done == 0 || before(last, each)) && before(each, best)) best = each;
      }
      int wanted = count - done < most ? count - done : most;
      __syncthreads();  // what the round before left is read
      if (wanted == 1) {
        best = best_of_warp(best);
        if (lane() == 0) largest[thread / kWarp] = best;
        __syncthreads();
        best = best_of_warp(lane() < threads / kWarp ? largest[lane()] : Candidate<T>{T(0), -1});
        if (thread == 0) ids[done] = static_cast<T>(best.column);
        last = best;
        ++done;
        continue;
      }
      largest[thread] = best;
      if (thread == 0) *collected_count = 0;
      // Fewer threads than are wanted may have found something.
      const int found = fold_block<Add>(best.column >= 0 ? 1 : 0);
      if (wanted > found) wanted = found;
      if (best.column >= 0 && rank_of(best, largest, threads) == wanted - 1) chosen[0] = best;
      __syncthreads();
      const Candidate<T> bound = chosen[0];
      for (int j = thread; j < cols; j += threads) {
        const Candidate<T> each{row[j], j};
        if ((done > 0 && !before(last, each)) || before(bound, each)) continue;
        const int number = atomicAdd(collected_count, 1);
        if (number < kCollected) collected[number] = each;
      }
      __syncthreads();
      const int all = *collected_count;
      if (all > kCollected) {  // a few threads have most of the largest elements
        most = wanted / 4 > 1 ? wanted / 4 : 1;
        continue;
      }
      const int taken = all < count - done ? all : count - done;
      for (int i = thread; i < all; i += threads) {
        const int rank = rank_of(collected[i], collected, all);
        if (rank < taken) ids[done + rank] = static_cast<T>(collected[i].column);
        if (rank == taken - 1) chosen[1] = collected[i];
      }
      __syncthreads();
      last = chosen[1];
      done += taken;
    }
  }
}
LN_KERNELS(top_ids_forward, TopIdsArgs, kTopThreads)

#else

template <class T>
void top_ids_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "search", "top_ids_forward");
  TopIdsArgs args{};
  int64_t longest = 0;
  args.members = members_of(queue, batch, 2, [&](int64_t i) {
    longest = std::max(longest, batch.arguments[0].pieces[i].cols);
    return batch.result.pieces[i].rows;
  });
  const int threads = longest <= 256 ? kWarp : (longest <= 4096 ? 128 : 512);
  queue.launch(kernel, blocks_for(args.members.units, 1), threads, 0, args);
}
template <class T>
void top_ids_backward(Queue&, const Batch&) {}
LN_INSTANTIATE(top_ids)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
