// Linear-chain conditional random fields: sums over all tag sequences, and the best of them. The score of a sequence is
// start[first] + emissions + transitions[tag][next tag] + end[last].
//
// A chain is done place by place, by one block, several threads a tag, the last place's sums and the transitions in
// shared memory: T K^2 exponentials, bound by the latency of T steps. Gradients need the sums up to every place and
// those from there on: two chains, which two blocks do at the same time; what is made of both is done for all places at
// once.
#include "kernel.h"
#include "rows.h"

namespace lazynet::cuda {

struct CrfArgs {
  Members members;  // operands: the result, emissions; a unit is a place's tag
  int64_t tags;
  Piece transitions, start, end;
  int64_t directions;          // 1: sums up to every place; 2: and those from there on
  int64_t threads_a_tag;       // a power of two
  int64_t copies_transitions;  // to shared memory
  void* up_to;    // log of the sum over the paths up to every place and tag, its emission included; null: not kept
  void* from_on;  // over those from there on, without its emission
  void* totals;   // a number a member; null: not wanted
  void* rows;     // room for two rows each direction and member, where shared memory has none
};

struct CrfGradientArgs {
  Members members;
  int64_t tags;
  Piece transitions, start, end;
  const void *up_to, *from_on, *totals;
  // Of the gradient of transitions: places are split among blocks.
  int64_t parts, part_places;
  void* partial;  // parts x tags x tags; null where there is one
};

#ifdef LN_DEVICE_CODE

// Where unit 0 of a member is.
LN_DEVICE int64_t first_unit(const Members& members, int64_t member) {
  return members.begin ? members.begin[member] : 0;
}

// One chain: from(s) + weight(s, o) are combined over all tags s for every tag o of the next place.
template <class T>
struct Chain {
  int64_t length, tags;
  Piece emissions;
  bool onwards;  // from the first place to the last
  const T* weights;
  int64_t weight_step_s, weight_step_o;
  T *before, *after;  // sums of the last place, its emission included, and those of the next
  T* kept;            // of all places, see CrfArgs; or null

  __device__ __forceinline__ T weight(int64_t s, int64_t o) const {
    return weights[s * weight_step_s + o * weight_step_o];
  }
};

template <class T>
LN_DEVICE Chain<T> chain_of(const CrfArgs& args, int64_t unit, T* shared) {
  const int64_t member = unit / args.directions, tags = args.tags;
  Chain<T> chain;
  chain.onwards = unit % args.directions == 0;
  chain.emissions = piece_of(args.members, 1, member);
  chain.length = chain.emissions.rows;
  chain.tags = tags;
  chain.kept = static_cast<T*>(chain.onwards ? args.up_to : args.from_on);
  if (chain.kept) chain.kept += first_unit(args.members, member);
  const int64_t ld = args.transitions.ld;
  chain.weights = value_of<const T>(args.transitions);
  chain.weight_step_s = chain.onwards ? ld : 1;
  chain.weight_step_o = chain.onwards ? 1 : ld;
  if (args.copies_transitions) {
    const int64_t distance = tags | 1;
    for (int64_t i = threadIdx.x; i < tags * tags; i += blockDim.x) {
      const int64_t row = i / tags, col = i % tags;
      shared[chain.onwards ? row * distance + col : col * distance + row] = chain.weights[row * ld + col];
    }
    chain.weights = shared;
    chain.weight_step_s = distance;
    chain.weight_step_o = 1;
    shared += tags * distance;
  }
  chain.before = args.rows ? static_cast<T*>(args.rows) + 2 * unit * tags : shared;
  chain.after = chain.before + tags;
  return chain;
}

struct LogSum {
  template <class T, class Fold, class Score>
  LN_DEVICE T over(const Fold& fold, const Score& score) {
    const T shift = softmax_shift(fold(Max(), score));
    return shift + m::log(fold(Add(), [&](int64_t s) { return m::exp(score(s) - shift); }));
  }
};
struct Largest {
  template <class T, class Fold, class Score>
  LN_DEVICE T over(const Fold& fold, const Score& score) {
    return fold(Max(), score);
  }
};

// Goes over all places; `before` then has the sums of the last one.
template <class Combine, class T>
LN_DEVICE void run(Chain<T>& chain, const T* first, int threads_a_tag) {
  const int64_t tags = chain.tags;
  const int part = static_cast<int>(threadIdx.x) % threads_a_tag, own = static_cast<int>(threadIdx.x) / threads_a_tag;
  const int step = static_cast<int>(blockDim.x) / threads_a_tag;
  LN_NO_UNROLL
  for (int64_t number = 0; number < chain.length; ++number) {
    const int64_t place = chain.onwards ? number : chain.length - 1 - number;
    const T* emission = row_value<T>(chain.emissions, place);
    LN_NO_UNROLL
    for (int64_t base = 0; base < tags; base += step) {
      // All lanes take part in shuffles.
      const int64_t o = base + own < tags ? base + own : tags - 1;
      const T emitted = emission[o];
      T sum;
      if (number == 0) {
        sum = first[o];
      } else {
        const auto fold = [&](auto by, const auto& score) {
          using Fold = decltype(by);
          T x = Fold::template identity<T>();
          LN_UNROLL_BY(2)
          for (int64_t s = part; s < tags; s += threads_a_tag) x = Fold::combine(x, score(s));
          LN_NO_UNROLL
          for (int distance = threads_a_tag / 2; distance > 0; distance /= 2)
            x = Fold::combine(x, __shfl_xor_sync(0xffffffffu, x, distance));
          return x;
        };
        sum = Combine::template over<T>(fold, [&](int64_t s) { return chain.before[s] + chain.weight(s, o); });
      }
      if (part == 0 && base + own < tags) {
        chain.after[o] = sum + emitted;
        if (chain.kept) chain.kept[place * tags + o] = chain.onwards ? sum + emitted : sum;
      }
    }
    __syncthreads();
    T* const last = chain.before;
    chain.before = chain.after;
    chain.after = last;
  }
}

// Chains, the log of their sums, and what gradients are made of.
template <class T>
LN_DEVICE void crf_sums(const CrfArgs& args) {
  LN_DYNAMIC_SHARED(T, shared);
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.count * args.directions; unit += gridDim.x) {
    Chain<T> chain = chain_of(args, unit, shared);
    __syncthreads();
    run<LogSum>(chain, value_of<const T>(chain.onwards ? args.start : args.end), static_cast<int>(args.threads_a_tag));
    if (chain.onwards) {
      const T *last = chain.before, *end = value_of<const T>(args.end);
      T total = T(0);  // of no places there is one sequence
      if (chain.length > 0)
        total = LogSum::over<T>(
            [&](auto by, const auto& score) { return fold_by<ByBlock, decltype(by), T>(chain.tags, score); },
            [&](int64_t s) { return last[s] + end[s]; });
      const int64_t member = unit / args.directions;
      if (threadIdx.x == 0) {
        if (args.totals)
          static_cast<T*>(args.totals)[member] = total;
        else
          *value_of<T>(piece_of(args.members, 0, member)) = total;
      }
    }
    __syncthreads();  // the next chain takes the same memory
  }
}
LN_KERNELS(crf_sums, CrfArgs, kThreads)

// The tag with the largest score, of equals the first; all lanes get it.
template <class T, class Score>
LN_DEVICE int best_tag(int64_t tags, const Score& score) {
  T best = -infinity<T>();
  int tag = 0;
  for (int64_t j = lane(); j < tags; j += kWarp) {
    const T x = score(j);
    if (x > best) best = x, tag = static_cast<int>(j);
  }
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const T x = __shfl_xor_sync(0xffffffffu, best, step);
    const int other = __shfl_xor_sync(0xffffffffu, tag, step);
    if (x > best || (x == best && other < tag)) best = x, tag = other;
  }
  const T first = score(0);
  return first != first ? 0 : tag;  // nothing is larger than NaN
}

template <class T>
LN_DEVICE void crf_best_path(const CrfArgs& args) {
  LN_DYNAMIC_SHARED(T, shared);
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.count; unit += gridDim.x) {
    Chain<T> chain = chain_of(args, unit, shared);
    __syncthreads();
    run<Largest>(chain, value_of<const T>(args.start), static_cast<int>(args.threads_a_tag));
    // The tag before is found again from the sums: cheaper than to keep one for every tag and place.
    if (threadIdx.x < kWarp) {
      const Piece result = piece_of(args.members, 0, unit);
      const T* end = value_of<const T>(args.end);
      int tag = 0;
      LN_NO_UNROLL
      for (int64_t place = chain.length - 1; place >= 0; --place) {
        const T* now = chain.kept + place * chain.tags;
        const int next = tag;
        tag = best_tag<T>(chain.tags, [&](int64_t j) {
          return now[j] + (place == chain.length - 1 ? end[j] : chain.weight(j, next));
        });
        if (lane() == 0) value_of<T>(result)[place * result.ld] = static_cast<T>(tag);
      }
    }
    __syncthreads();  // the next chain takes the same memory
  }
}
LN_KERNELS(crf_best_path, CrfArgs, kThreads)

// The gradient of an emission is the probability of its tag there.
template <class T>
LN_DEVICE void crf_emissions(const CrfGradientArgs& args) {
  for (int64_t unit = thread_number(); unit < args.members.units; unit += thread_count()) {
    const Place place = place_of(args.members, unit);
    const Piece x = piece_of(args.members, 1, place.member);
    if (!x.grad) continue;
    const T g = *grad_of<T>(piece_of(args.members, 0, place.member));
    const T score = static_cast<const T*>(args.up_to)[unit] + static_cast<const T*>(args.from_on)[unit];
    row_grad<T>(x, place.unit / args.tags)[place.unit % args.tags] +=
        g * m::exp(score - static_cast<const T*>(args.totals)[place.member]);
  }
}
LN_KERNELS(crf_emissions, CrfGradientArgs, kThreads)

// The expected number of uses of the transition `from`, `to` into the places from `first` to `end`, counted over all
// members.
template <class T>
LN_DEVICE T uses_of(const CrfGradientArgs& args, int64_t from, int64_t to, int64_t first, int64_t end) {
  const T *up_to = static_cast<const T*>(args.up_to), *from_on = static_cast<const T*>(args.from_on);
  const T weight = row_value<T>(args.transitions, from)[to];
  T sum = T(0);
  Place at = place_of(args.members, first * args.tags);
  int64_t place = at.unit / args.tags;
  LN_NO_UNROLL
  for (int64_t number = first; number < end; ++at.member, place = 0) {
    const Piece emissions = piece_of(args.members, 1, at.member);
    const int64_t left = emissions.rows - place, count = left < end - number ? left : end - number;
    const T g = *grad_of<T>(piece_of(args.members, 0, at.member));
    const T total = static_cast<const T*>(args.totals)[at.member];
    LN_UNROLL_BY(4)
    for (int64_t i = place == 0 ? 1 : 0; i < count; ++i) {
      const int64_t row = (number + i) * args.tags;
      const T score = up_to[row - args.tags + from] - total + weight + row_value<T>(emissions, place + i)[to];
      sum += g * m::exp(score + from_on[row + to]);
    }
    number += count;
  }
  return sum;
}

// The gradients of start and end: the probabilities of the tags of first or last places.
template <class T>
LN_DEVICE T uses_at_ends(const CrfGradientArgs& args, bool last, int64_t tag) {
  return fold_by_warp<Add, T>(args.members.count, [&](int64_t member) {
    const int64_t length = piece_of(args.members, 1, member).rows;
    if (length == 0) return T(0);
    const int64_t unit = first_unit(args.members, member) + (last ? (length - 1) * args.tags : 0) + tag;
    const T score = static_cast<const T*>(args.up_to)[unit] + static_cast<const T*>(args.from_on)[unit];
    return *grad_of<T>(piece_of(args.members, 0, member)) * m::exp(score - static_cast<const T*>(args.totals)[member]);
  });
}

// A block does a part of the places for kThreads transitions, or, a warp each, start and end of some tags.
template <class T>
LN_DEVICE void crf_transitions(const CrfGradientArgs& args) {
  const int64_t tags = args.tags, all = args.transitions.grad ? tags * tags : 0;
  const int64_t blocks = (all + blockDim.x - 1) / blockDim.x * args.parts;
  const int64_t places = args.members.units / tags, warps = blockDim.x / kWarp;
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < blocks + (2 * tags + warps - 1) / warps; unit += gridDim.x) {
    if (unit < blocks) {
      const int64_t part = unit % args.parts, transition = unit / args.parts * blockDim.x + threadIdx.x;
      if (transition >= all) continue;
      const int64_t from = transition / tags, to = transition % tags, first = part * args.part_places;
      const int64_t end = first + args.part_places < places ? first + args.part_places : places;
      const T uses = first < end ? uses_of<T>(args, from, to, first, end) : T(0);
      if (args.partial)
        static_cast<T*>(args.partial)[part * all + transition] = uses;
      else
        row_grad<T>(args.transitions, from)[to] += uses;
    } else {
      const int64_t number = (unit - blocks) * warps + threadIdx.x / kWarp;
      const bool last = number >= tags;
      const Piece& of = last ? args.end : args.start;
      if (number >= 2 * tags || !of.grad) continue;
      const T uses = uses_at_ends<T>(args, last, number % tags);
      if (lane() == 0) grad_of<T>(of)[number % tags] += uses;
    }
  }
}
LN_KERNELS(crf_transitions, CrfGradientArgs, kThreads)

// Adds the parts of the gradient of transitions, in their order.
template <class T>
LN_DEVICE void crf_add_parts(const CrfGradientArgs& args) {
  const int64_t all = args.tags * args.tags;
  for (int64_t i = thread_number(); i < all; i += thread_count()) {
    T sum = T(0);
    LN_UNROLL_BY(4)
    for (int64_t part = 0; part < args.parts; ++part) sum += static_cast<const T*>(args.partial)[part * all + i];
    row_grad<T>(args.transitions, i / args.tags)[i % args.tags] += sum;
  }
}
LN_KERNELS(crf_add_parts, CrfGradientArgs, kThreads)

#else

namespace {

template <class T>
class Crf {
 public:
  Crf(Queue& queue, const Batch& batch)
      : queue_(queue), batch_(batch), tags_(batch.arguments[0].pieces[0].cols), places_(0) {
    for (int64_t i = 0; i < batch.members; ++i) places_ += batch.arguments[0].pieces[i].rows;
  }

  void log_partition() {
    LN_KERNEL_OF(kernel, "crf", "crf_sums");
    CrfArgs args = chains(1);
    // In the working memory of the batch: the rule of the operator has room for two rows a member.
    if (args.rows) args.rows = static_cast<T*>(batch_.scratch) + places_ * tags_;
    launch_chains(kernel, args);
  }

  void best_path() {
    LN_KERNEL_OF(kernel, "crf", "crf_best_path");
    CrfArgs args = chains(1);
    args.up_to = batch_.scratch;
    if (args.rows) args.rows = static_cast<T*>(batch_.scratch) + places_ * tags_;
    launch_chains(kernel, args);
  }

  void emissions_gradient() {
    LN_KERNEL_OF(kernel, "crf", "crf_emissions");
    const CrfGradientArgs args = both_directions(0);
    queue_.launch(kernel, blocks_for(args.members.units, kThreads), kThreads, 0, args);
  }

  void shared_gradients() {
    LN_KERNEL_OF(transitions, "crf", "crf_transitions");
    LN_KERNEL_OF(add_parts, "crf", "crf_add_parts");
    // Enough blocks for a large device, each of which has some places.
    constexpr int64_t kBlocks = 512, kLeastPlaces = 32;
    const int64_t all = tags_ * tags_, blocks = (all + kThreads - 1) / kThreads;
    const int64_t most = std::max<int64_t>(1, std::min(kBlocks / blocks, places_ / kLeastPlaces));
    const int64_t part_places = (places_ + most - 1) / most;
    const int64_t parts = part_places > 0 ? (places_ + part_places - 1) / part_places : 1;
    const bool several = parts > 1 && batch_.arguments[1].wants_grad;
    CrfGradientArgs args = both_directions(several ? parts * all : 0);
    args.parts = parts;
    args.part_places = part_places;
    if (!several) args.partial = nullptr;
    const int64_t of_transitions = batch_.arguments[1].wants_grad ? blocks * parts : 0;
    constexpr int64_t kWarps = kThreads / kWarp;
    queue_.launch(transitions, blocks_for(of_transitions + (2 * tags_ + kWarps - 1) / kWarps, 1), kThreads, 0, args);
    if (several) {
      args.members = Members{};
      queue_.launch(add_parts, blocks_for(all, kThreads), kThreads, 0, args);
    }
  }

 private:
  Piece shared_argument(int k) const {
    Piece piece = shared_piece(batch_, k);
    if (!batch_.arguments[k].wants_grad) piece.grad = nullptr;
    return piece;
  }

  template <class Args>
  void set(Args& args) {
    args.members = members_of(queue_, batch_, 2, [&](int64_t i) { return batch_.arguments[0].pieces[i].rows * tags_; });
    args.tags = tags_;
    args.transitions = shared_argument(1);
    args.start = shared_argument(2);
    args.end = shared_argument(3);
  }

  // `rows` is set where they need memory, which the caller gives.
  CrfArgs chains(int64_t directions) {
    CrfArgs args{};
    set(args);
    args.directions = directions;
    args.threads_a_tag = 1;
    while (2 * args.threads_a_tag * tags_ <= kThreads && args.threads_a_tag < std::min<int64_t>(tags_, kWarp))
      args.threads_a_tag *= 2;
    args.copies_transitions = bytes(tags_ * (tags_ | 1)) <= kMostShared;
    args.rows = bytes(2 * tags_) > kMostShared ? batch_.scratch : nullptr;
    return args;
  }

  void launch_chains(const Kernel& kernel, const CrfArgs& args) {
    const int64_t threads = std::min<int64_t>((tags_ * args.threads_a_tag + kWarp - 1) / kWarp * kWarp, kThreads);
    const int64_t elements = (args.copies_transitions ? tags_ * (tags_ | 1) : 0) + (args.rows ? 0 : 2 * tags_);
    queue_.launch(kernel, blocks_for(batch_.members * args.directions, 1), static_cast<int>(threads), bytes(elements),
                  args);
  }

  // Makes the sums of both directions, and what makes gradients of them, with room for `partial` elements.
  CrfGradientArgs both_directions(int64_t partial) {
    LN_KERNEL_OF(kernel, "crf", "crf_sums");
    CrfArgs sums = chains(2);
    const int64_t all = places_ * tags_, rows = sums.rows ? 4 * batch_.members * tags_ : 0;
    T* room = static_cast<T*>(queue_.scratch(bytes(all + batch_.members + rows + partial)));
    sums.up_to = batch_.scratch;
    sums.from_on = room;
    sums.totals = room + all;
    if (sums.rows) sums.rows = room + all + batch_.members;
    launch_chains(kernel, sums);
    CrfGradientArgs args{};
    set(args);
    args.up_to = sums.up_to;
    args.from_on = sums.from_on;
    args.totals = sums.totals;
    args.partial = room + all + batch_.members + rows;
    return args;
  }

  static std::size_t bytes(int64_t elements) { return static_cast<std::size_t>(elements) * sizeof(T); }

  static constexpr std::size_t kMostShared = 32768;  // for transitions; and for rows
  Queue& queue_;
  const Batch& batch_;
  const int64_t tags_;
  int64_t places_;  // of all members
};

}  // namespace

template <class T>
void crf_log_partition_forward(Queue& queue, const Batch& batch) {
  Crf<T>(queue, batch).log_partition();
}
template <class T>
void crf_log_partition_backward(Queue& queue, const Batch& batch) {
  if (batch.arguments[0].wants_grad) Crf<T>(queue, batch).emissions_gradient();
}
template <class T>
void crf_log_partition_shared(Queue& queue, const Batch& batch) {
  Crf<T>(queue, batch).shared_gradients();
}
LN_INSTANTIATE_SHARED(crf_log_partition)

template <class T>
void crf_best_path_forward(Queue& queue, const Batch& batch) {
  Crf<T>(queue, batch).best_path();
}
template <class T>
void crf_best_path_backward(Queue&, const Batch&) {}
LN_INSTANTIATE(crf_best_path)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
