// Linear-chain conditional random fields (Lafferty et al. 2001): sums over all tag sequences, and the best of them. The
// score of a sequence is start[first] + emissions + transitions[tag][next tag] + end[last].
//
// Bound by the T K^2 exponentials of each of the two directions.
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

template <class T>
struct Chain {
  int64_t length, tags;
  const Piece& emissions;
  const Piece& transitions;
  const T *start, *end;
  T* sums;  // (length + 2) x tags: of paths up to every place; then two rows for those from a place on

  // `scratch`: of the batch, where every member has its own part.
  Chain(const Batch& batch, int64_t member, T* scratch)
      : length(batch.arguments[0].pieces[member].rows),
        tags(batch.arguments[0].pieces[member].cols),
        emissions(batch.arguments[0].pieces[member]),
        transitions(batch.arguments[1].pieces[0]),
        start(value_of<T>(batch.arguments[2].pieces[0])),
        end(value_of<T>(batch.arguments[3].pieces[0])),
        sums(scratch) {}

  T* up_to(int64_t place) const { return sums + place * tags; }
  const T* emission(int64_t place) const { return row_value<T>(emissions, place); }
  const T* transition(int64_t tag) const { return row_value<T>(transitions, tag); }

  // log of the sum over tags i of exp(before[i] + transitions[i][j]), for all j.
  void step(const T* before, T* after) const {
    for_column_blocks(tags, [&](int64_t first, int64_t width) {
      T largest[kColumnBlock], sum[kColumnBlock];
      for (int64_t j = 0; j < width; ++j) largest[j] = -kInfinity<T>, sum[j] = T(0);
      for (int64_t i = 0; i < tags; ++i) {
        const T* row = transition(i) + first;
        const T from = before[i];
        LN_IVDEP
        for (int64_t j = 0; j < width; ++j) largest[j] = Max::combine(largest[j], from + row[j]);
      }
      for (int64_t j = 0; j < width; ++j) largest[j] = softmax_shift(largest[j]);
      for (int64_t i = 0; i < tags; ++i) {
        const T* row = transition(i) + first;
        const T from = before[i];
        LN_IVDEP
        for (int64_t j = 0; j < width; ++j) sum[j] += m::exp(from + row[j] - largest[j]);
      }
      for (int64_t j = 0; j < width; ++j) after[first + j] = largest[j] + m::log(sum[j]);
    });
  }

  void forward() const {
    for (int64_t t = 0; t < length; ++t) {
      const T* e = emission(t);
      T* now = up_to(t);
      if (t > 0)
        step(up_to(t - 1), now);
      else
        std::memcpy(now, start, static_cast<std::size_t>(tags) * sizeof(T));
      add_to(tags, e, now);
    }
  }
  // Of no places there is one sequence, with score 0.
  T log_partition() const {
    if (length == 0) return T(0);
    const T *last = up_to(length - 1), *finish = end;
    const T shift = softmax_shift(max_over<T>(tags, [=](int64_t j) { return last[j] + finish[j]; }));
    return shift + m::log(sum_over<T>(tags, [=](int64_t j) { return m::exp(last[j] + finish[j] - shift); }));
  }

  // Calls visit(place, rest) from the last place to the first: rest[j] is the log of the sum over all ways on from tag
  // j.
  template <class Visit>
  void backward(const Visit& visit) const {
    T *rest = sums + length * tags, *next = rest + tags;
    for (int64_t t = length - 1; t >= 0; --t) {
      if (t == length - 1) {
        std::memcpy(rest, end, static_cast<std::size_t>(tags) * sizeof(T));
      } else {
        const T* e = emission(t + 1);
        for (int64_t j = 0; j < tags; ++j) next[j] = rest[j] + e[j];
        for (int64_t i = 0; i < tags; ++i) {
          const T *row = transition(i), *on = next;
          const T shift = softmax_shift(max_over<T>(tags, [=](int64_t j) { return row[j] + on[j]; }));
          rest[i] = shift + m::log(sum_over<T>(tags, [=](int64_t j) { return m::exp(row[j] + on[j] - shift); }));
        }
      }
      visit(t, rest);
    }
  }
};

// Calls function(chain, member), every chain with its part of the scratch.
template <class T, class Function>
void for_chains(const Batch& batch, int64_t begin, int64_t stop, const Function& function) {
  const Piece* emissions = batch.arguments[0].pieces;
  T* scratch = static_cast<T*>(batch.scratch);
  for (int64_t i = 0; i < begin; ++i) scratch += (emissions[i].rows + 2) * emissions[i].cols;
  for (int64_t i = begin; i < stop; ++i) {
    function(Chain<T>(batch, i, scratch), i);
    scratch += (emissions[i].rows + 2) * emissions[i].cols;
  }
}

int64_t grain_of(const Batch& batch) {
  const Piece& first = batch.arguments[0].pieces[0];
  return 1 + kGrainElements / (first.cols * first.cols * (batch.result.matrix.rows + 1) + 1);
}

}  // namespace

template <class T>
void crf_log_partition_forward(const Batch& batch) {
  parallel_for(batch.members, grain_of(batch), [&](int64_t begin, int64_t stop) {
    for_chains<T>(batch, begin, stop, [&](const Chain<T>& chain, int64_t i) {
      chain.forward();
      *value_of<T>(batch.result.pieces[i]) = chain.log_partition();
    });
  });
}

// The gradient of an emission is the probability of its tag there.
template <class T>
void crf_log_partition_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  const auto run = [&](int64_t begin, int64_t stop) {
    for_chains<T>(batch, begin, stop, [&](const Chain<T>& chain, int64_t i) {
      const Piece& x = batch.arguments[0].pieces[i];
      if (!x.grad) return;
      const T g = *grad_of<T>(batch.result.pieces[i]);
      chain.forward();
      const T total = chain.log_partition();
      chain.backward([&](int64_t t, const T* rest) {
        const T* now = chain.up_to(t);
        T* dx = row_grad<T>(x, t);
        LN_IVDEP
        for (int64_t j = 0; j < chain.tags; ++j) dx[j] += g * m::exp(now[j] + rest[j] - total);
      });
    });
  };
  if (batch.arguments[0].overlapping) return run(0, batch.members);
  parallel_for(batch.members, grain_of(batch), run);
}

// The gradient of a transition is the expected number of its uses.
template <class T>
void crf_log_partition_shared(const Batch& batch) {
  const auto grad = [&](int k) {
    const Operand& operand = batch.arguments[k];
    return operand.wants_grad ? grad_of<T>(operand.pieces[0]) : nullptr;
  };
  T *transitions = grad(1), *start = grad(2), *end = grad(3);
  for_chains<T>(batch, 0, batch.members, [&](const Chain<T>& chain, int64_t i) {
    if (chain.length == 0) return;
    const T g = *grad_of<T>(batch.result.pieces[i]);
    chain.forward();
    const T total = chain.log_partition();
    chain.backward([&](int64_t t, const T* rest) {
      const T *now = chain.up_to(t), *e = chain.emission(t);
      const auto add = [&](T* to) {
        LN_IVDEP
        for (int64_t j = 0; j < chain.tags; ++j) to[j] += g * m::exp(now[j] + rest[j] - total);
      };
      if (t == 0 && start) add(start);
      if (t == chain.length - 1 && end) add(end);
      if (t == 0 || !transitions) return;
      const T* before = chain.up_to(t - 1);
      for (int64_t from = 0; from < chain.tags; ++from) {
        const T *row = chain.transition(from), base = before[from] - total;
        T* to = transitions + from * chain.transitions.ld;
        LN_IVDEP
        for (int64_t j = 0; j < chain.tags; ++j) to[j] += g * m::exp(base + row[j] + e[j] + rest[j]);
      }
    });
  });
}
LN_INSTANTIATE_SHARED(crf_log_partition)

// The best sequence (Viterbi 1967); of equals the one with the lower tags at the end.
template <class T>
void crf_best_path_forward(const Batch& batch) {
  parallel_for(batch.members, grain_of(batch), [&](int64_t begin, int64_t stop) {
    for_chains<T>(batch, begin, stop, [&](const Chain<T>& chain, int64_t i) {
      const int64_t tags = chain.tags;
      for (int64_t t = 0; t < chain.length; ++t) {
        T* now = chain.up_to(t);
        if (t == 0) {
          std::memcpy(now, chain.start, static_cast<std::size_t>(tags) * sizeof(T));
        } else {
          const T* before = chain.up_to(t - 1);
          for (int64_t j = 0; j < tags; ++j) now[j] = -kInfinity<T>;
          for (int64_t from = 0; from < tags; ++from) {
            const T *row = chain.transition(from), base = before[from];
            LN_IVDEP
            for (int64_t j = 0; j < tags; ++j) now[j] = Max::combine(now[j], base + row[j]);
          }
        }
        add_to(tags, chain.emission(t), now);
      }
      // The tag before is found again from the sums: cheaper than to keep one for every tag and place.
      const Piece& result = batch.result.pieces[i];
      int64_t tag = 0;
      for (int64_t t = chain.length - 1; t >= 0; --t) {
        const T* now = chain.up_to(t);
        const int64_t next = tag;
        const auto score = [&](int64_t j) {
          return t == chain.length - 1 ? now[j] + chain.end[j] : now[j] + chain.transition(j)[next];
        };
        tag = 0;
        for (int64_t j = 1; j < tags; ++j)
          if (score(j) > score(tag)) tag = j;
        value_of<T>(result)[t * result.ld] = static_cast<T>(tag);
      }
    });
  });
}
template <class T>
void crf_best_path_backward(const Batch&) {}
LN_INSTANTIATE(crf_best_path)

}  // namespace lazynet::cpu::LN_UNIT
