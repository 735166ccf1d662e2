// Linear-chain conditional random fields (Lafferty et al. 2001): sums over all tag sequences, and the best of them. The
// score of a sequence is start[first] + emissions + transitions[tag][next tag] + end[last].
//
// A block a sequence goes from place to place, a thread a tag: bound by the time of a step, K exponentials one after
// another and a barrier, times the length of the longest sequence; T K^2 exponentials in each direction. The gradients
// of transitions go over all places at once, by parts of them.
#include "kernel.h"

namespace lazynet::cuda {

struct CrfArgs {
  Members members;  // a unit is a place; a block does a member
  int64_t tags;
  const void* transitions;
  int64_t transitions_ld;
  const void* start;
  const void* end;
  void* sums;    // of member i from row begin[i] + 2 i on: of paths up to each place; then two rows of work
  void* rests;   // of each place: of the ways on from there; null: not kept
  void* totals;  // of each member
};

struct CrfTransitionsArgs {
  CrfArgs crf;
  int64_t part_places, parts;
  void* partial;  // parts x tags x tags
};
struct CrfFinishArgs {
  CrfArgs crf;
  const void* partial;
  int64_t parts;
  void* transitions;  // gradients; null: not wanted
  void* start;
  void* end;
};

#ifdef LN_DEVICE_CODE

// What a block sees of its sequence.
template <class T>
struct Chain {
  int64_t length, tags, ld, first;  // first: number of its first place among all
  Piece emissions, result;
  const T *transitions, *start, *end;
  T *sums, *work;

  __device__ __forceinline__ Chain(const CrfArgs& args, int64_t member) {
    emissions = piece_of(args.members, 1, member);
    result = piece_of(args.members, 0, member);
    length = emissions.rows;
    tags = args.tags;
    ld = args.transitions_ld;
    first = args.members.begin ? args.members.begin[member] : 0;
    transitions = static_cast<const T*>(args.transitions);
    start = static_cast<const T*>(args.start);
    end = static_cast<const T*>(args.end);
    sums = static_cast<T*>(args.sums) + (first + 2 * member) * tags;
    work = sums + length * tags;
  }
  template <class Function>
  __device__ __forceinline__ void each_tag(const Function& f) const {
    LN_NO_UNROLL
    for (int64_t j = threadIdx.x; j < tags; j += blockDim.x) f(j);
  }
  // The fold over tags, for all threads.
  template <class Fold, class Function>
  __device__ __forceinline__ T fold(const Function& f) const {
    T x = Fold::template identity<T>();
    each_tag([&](int64_t j) { x = Fold::combine(x, f(j)); });
    return fold_block<Fold>(x);
  }
  // log of a sum of exponentials f(0) + ... + f(tags - 1), by one thread.
  template <class Function>
  __device__ __forceinline__ T log_sum(const Function& f) const {
    T largest = -infinity<T>(), sum = 0;
    for (int64_t i = 0; i < tags; ++i) largest = Max::combine(largest, f(i));
    const T shift = m::abs(largest) == infinity<T>() ? T(0) : largest;
    for (int64_t i = 0; i < tags; ++i) sum += m::exp(f(i) - shift);
    return shift + m::log(sum);
  }

  // Sums of paths up to each place; combine(before, tag): over the tags before.
  template <class Combine>
  __device__ __forceinline__ void forward(const Combine& combine) const {
    LN_NO_UNROLL
    for (int64_t t = 0; t < length; ++t) {
      const T *e = row_value<T>(emissions, t), *before = sums + (t - 1) * tags;
      each_tag([&](int64_t j) { sums[t * tags + j] = (t == 0 ? start[j] : combine(before, j)) + e[j]; });
      __syncthreads();
    }
  }
  __device__ __forceinline__ void sum_forward() const {
    forward([&](const T* before, int64_t j) {
      return log_sum([&](int64_t i) { return before[i] + transitions[i * ld + j]; });
    });
  }
  // Of no places there is one sequence, with score 0.
  __device__ __forceinline__ T log_partition() const {
    if (length == 0) return T(0);
    const T* last = sums + (length - 1) * tags;
    const T largest = fold<Max>([&](int64_t j) { return last[j] + end[j]; });
    const T shift = m::abs(largest) == infinity<T>() ? T(0) : largest;
    return shift + m::log(fold<Add>([&](int64_t j) { return m::exp(last[j] + end[j] - shift); }));
  }
  // Calls visit(place, tag, rest) from the last place to the first; rest: log of the sum over all ways on from the tag.
  template <class Visit>
  __device__ __forceinline__ void backward(const Visit& visit) const {
    T *rest = work, *next = work + tags;
    LN_NO_UNROLL
    for (int64_t t = length - 1; t >= 0; --t) {
      if (t < length - 1) {
        const T* e = row_value<T>(emissions, t + 1);
        each_tag([&](int64_t j) { next[j] = rest[j] + e[j]; });
        __syncthreads();
      }
      each_tag([&](int64_t i) {
        rest[i] = t == length - 1 ? end[i] : log_sum([&](int64_t j) { return transitions[i * ld + j] + next[j]; });
        visit(t, i, rest[i]);
      });
      __syncthreads();
    }
  }
};
template <class T, class Function>
LN_DEVICE void for_chains(const CrfArgs& args, const Function& f) {
  LN_NO_UNROLL
  for (int64_t member = blockIdx.x; member < args.members.count; member += gridDim.x) f(Chain<T>(args, member), member);
}

template <class T>
LN_DEVICE void crf_forward(const CrfArgs& args) {
  for_chains<T>(args, [](const Chain<T>& chain, int64_t) {
    chain.sum_forward();
    const T total = chain.log_partition();
    if (threadIdx.x == 0) *value_of<T>(chain.result) = total;
  });
}
LN_KERNELS(crf_forward, CrfArgs, kThreads)

// The gradient of an emission is the probability of its tag there.
template <class T>
LN_DEVICE void crf_backward(const CrfArgs& args) {
  for_chains<T>(args, [](const Chain<T>& chain, int64_t) {
    if (!chain.emissions.grad) return;
    const T g = *grad_of<T>(chain.result);
    chain.sum_forward();
    const T total = chain.log_partition();
    chain.backward([&](int64_t t, int64_t j, T rest) {
      row_grad<T>(chain.emissions, t)[j] += g * m::exp(chain.sums[t * chain.tags + j] + rest - total);
    });
  });
}
LN_KERNELS(crf_backward, CrfArgs, kThreads)

// Keeps the sums of both directions for the gradients of shared arguments.
template <class T>
LN_DEVICE void crf_both(const CrfArgs& args) {
  for_chains<T>(args, [&](const Chain<T>& chain, int64_t member) {
    chain.sum_forward();
    const T total = chain.log_partition();
    if (threadIdx.x == 0) static_cast<T*>(args.totals)[member] = total;
    chain.backward(
        [&](int64_t t, int64_t j, T rest) { static_cast<T*>(args.rests)[(chain.first + t) * chain.tags + j] = rest; });
  });
}
LN_KERNELS(crf_both, CrfArgs, kThreads)

// The gradient of a transition is the expected number of its uses: a block a part of all places and kThreads
// transitions.
template <class T>
LN_DEVICE void crf_transitions(const CrfTransitionsArgs& args) {
  const int64_t tags = args.crf.tags, count = tags * tags, tiles = (count + kThreads - 1) / kThreads;
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < tiles * args.parts; unit += gridDim.x) {
    const int64_t part = unit / tiles, element = (unit - part * tiles) * kThreads + threadIdx.x;
    const int64_t from = element / tags, to = element - from * tags, begin = part * args.part_places;
    const int64_t places = args.crf.members.units;
    const int64_t end = begin + args.part_places < places ? begin + args.part_places : places;
    T sum = 0;
    LN_NO_UNROLL
    for (int64_t number = begin; number < end && element < count; ++number) {
      const Place place = place_of(args.crf.members, number);
      if (place.unit == 0) continue;
      const Chain<T> chain(args.crf, place.member);
      const T total = static_cast<const T*>(args.crf.totals)[place.member];
      const T rest = static_cast<const T*>(args.crf.rests)[number * tags + to];
      sum += *grad_of<T>(chain.result) *
             m::exp(chain.sums[(place.unit - 1) * tags + from] - total + chain.transitions[from * chain.ld + to] +
                    row_value<T>(chain.emissions, place.unit)[to] + rest);
    }
    if (element < count) static_cast<T*>(args.partial)[part * count + element] = sum;
  }
}
LN_KERNELS(crf_transitions, CrfTransitionsArgs, kThreads)

// A thread a transition; those of the first tags also the gradients of start and end.
template <class T>
LN_DEVICE void crf_finish(const CrfFinishArgs& args) {
  const int64_t tags = args.crf.tags, count = tags * tags;
  for (int64_t i = thread_number(); i < count; i += thread_count()) {
    if (args.transitions) {
      T sum = 0;
      for (int64_t part = 0; part < args.parts; ++part) sum += static_cast<const T*>(args.partial)[part * count + i];
      static_cast<T*>(args.transitions)[i / tags * args.crf.transitions_ld + i % tags] += sum;
    }
    if (i >= tags) continue;
    T start = 0, end = 0;
    LN_NO_UNROLL
    for (int64_t member = 0; member < args.crf.members.count; ++member) {
      const Chain<T> chain(args.crf, member);
      if (chain.length == 0) continue;
      const T g = *grad_of<T>(chain.result), total = static_cast<const T*>(args.crf.totals)[member];
      const auto probability = [&](int64_t t) {
        const T rest = static_cast<const T*>(args.crf.rests)[(chain.first + t) * tags + i];
        return g * m::exp(chain.sums[t * tags + i] + rest - total);
      };
      start += probability(0);
      end += probability(chain.length - 1);
    }
    if (args.start) static_cast<T*>(args.start)[i] += start;
    if (args.end) static_cast<T*>(args.end)[i] += end;
  }
}
LN_KERNELS(crf_finish, CrfFinishArgs, kThreads)

// The best sequence (Viterbi 1967); of equals the one with the lower tags at the end. The tag before is found again
// from the sums.
template <class T>
LN_DEVICE void crf_best_path(const CrfArgs& args) {
  for_chains<T>(args, [](const Chain<T>& chain, int64_t) {
    chain.forward([&](const T* before, int64_t j) {
      T best = -infinity<T>();
      for (int64_t i = 0; i < chain.tags; ++i)
        best = Max::combine(best, before[i] + chain.transitions[i * chain.ld + j]);
      return best;
    });
    int64_t tag = 0;
    LN_NO_UNROLL
    for (int64_t t = chain.length - 1; t >= 0; --t) {
      const T* now = chain.sums + t * chain.tags;
      const int64_t next = tag;
      const auto score = [&](int64_t j) {
        return now[j] + (t == chain.length - 1 ? chain.end[j] : chain.transitions[j * chain.ld + next]);
      };
      const T best = chain.template fold<Max>(score);
      int64_t first = INT64_MAX;
      chain.each_tag([&](int64_t j) { first = score(j) == best && j < first ? j : first; });
      first = fold_block<First>(first);
      tag = first == INT64_MAX ? 0 : first;  // NaN equals nothing
      if (threadIdx.x == 0) value_of<T>(chain.result)[t * chain.result.ld] = static_cast<T>(tag);
    }
  });
}
LN_KERNELS(crf_best_path, CrfArgs, kThreads)

#else

namespace {

constexpr int64_t kPartPlaces = 64;

CrfArgs args_of(Queue& queue, const Batch& batch) {
  const auto& shared = [&](int argument) -> const Piece& { return batch.arguments[argument].pieces[0]; };
  CrfArgs args{};
  args.members = members_of(queue, batch, 2, [&](int64_t i) { return batch.arguments[0].pieces[i].rows; });
  args.tags = batch.arguments[0].pieces[0].cols;
  args.transitions = shared(1).value;
  args.transitions_ld = shared(1).ld;
  args.start = shared(2).value;
  args.end = shared(3).value;
  args.sums = batch.scratch;
  return args;
}

void launch(Queue& queue, const Batch& batch, const Kernel& kernel) {
  const CrfArgs args = args_of(queue, batch);
  const int64_t warps = (args.tags + kWarp - 1) / kWarp;
  const int threads = static_cast<int>(std::min<int64_t>(std::max<int64_t>(warps, 1) * kWarp, kThreads));
  queue.launch(kernel, blocks_for(batch.members, 1), threads, 0, args);
}

}  // namespace

template <class T>
void crf_log_partition_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "crf", "crf_forward");
  launch(queue, batch, kernel);
}

template <class T>
void crf_log_partition_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "crf", "crf_backward");
  if (batch.arguments[0].wants_grad) launch(queue, batch, kernel);
}

template <class T>
void crf_log_partition_shared(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(both, "crf", "crf_both");
  LN_KERNEL_OF(transitions, "crf", "crf_transitions");
  LN_KERNEL_OF(finish, "crf", "crf_finish");
  const auto grad = [&](int k) { return batch.arguments[k].wants_grad ? batch.arguments[k].pieces[0].grad : nullptr; };
  int64_t places = 0;
  for (int64_t i = 0; i < batch.members; ++i) places += batch.arguments[0].pieces[i].rows;
  const int64_t tags = batch.arguments[0].pieces[0].cols, parts = (places + kPartPlaces - 1) / kPartPlaces;
  const int64_t elements = places * tags + batch.members + parts * tags * tags;
  if (places == 0) return;
  T* scratch = static_cast<T*>(queue.scratch(static_cast<std::size_t>(elements) * sizeof(T)));
  const auto told = [&] {
    CrfArgs args = args_of(queue, batch);
    args.rests = scratch;
    args.totals = scratch + places * tags;
    return args;
  };
  T* partial = scratch + places * tags + batch.members;
  const int64_t warps = (tags + kWarp - 1) / kWarp;
  const int threads = static_cast<int>(std::min<int64_t>(warps * kWarp, kThreads));
  queue.launch(both, blocks_for(batch.members, 1), threads, 0, told());
  if (grad(1)) {
    const CrfTransitionsArgs args{told(), kPartPlaces, parts, partial};
    queue.launch(transitions, blocks_for((tags * tags + kThreads - 1) / kThreads * parts, 1), kThreads, 0, args);
  }
  const CrfFinishArgs args{told(), partial, parts, grad(1), grad(2), grad(3)};
  queue.launch(finish, blocks_for(tags * tags, kThreads), kThreads, 0, args);
}

template <class T>
void crf_best_path_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "crf", "crf_best_path");
  launch(queue, batch, kernel);
}
template <class T>
void crf_best_path_backward(Queue&, const Batch&) {}

LN_INSTANTIATE_SHARED(crf_log_partition)
LN_INSTANTIATE(crf_best_path)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
