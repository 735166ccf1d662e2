// Scaled dot-product attention of several heads (Vaswani et al. 2017), each member with its own numbers of queries and
// keys. The scores of a tile of queries and a tile of keys are all that exists at a time: sums are rescaled as the
// maximum grows (Milakov and Gimelshein 2018, Rabe and Staats 2021), and backward computes the scores again (Dao et
// al. 2022).
//
// Bound by arithmetic: 4 n m d operations forward and 10 n m d backward for (n + m) d numbers read, for each head.
#include "../blas.h"
#include "band.h"
#include "random.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

constexpr int64_t kQueries = 32, kKeys = 128;  // of a tile
constexpr int64_t kGrainOperations = 100000;   // below, a second thread costs more than it brings

// One head of one member.
template <class T>
struct Head {
  int64_t queries, keys, dim, value_dim, number;
  const T *q, *k, *v, *bias;
  T *dq, *dk, *dv, *dbias;
  int64_t q_ld, k_ld, v_ld, bias_ld, y_ld;
  T *y, *dy;
  T scale;
  Band band;
  double rate;
  const int64_t* key;  // of dropout

  Head(const Batch& batch, int64_t member, int64_t head) : number(head) {
    const int64_t heads = static_cast<int64_t>(batch.attributes[0]);
    const Piece &pq = batch.arguments[0].pieces[member], &pk = batch.arguments[1].pieces[member],
                &pv = batch.arguments[2].pieces[member], &result = batch.result.pieces[member];
    queries = pq.rows, keys = pk.rows, dim = pq.cols / heads, value_dim = pv.cols / heads;
    q_ld = pq.ld, k_ld = pk.ld, v_ld = pv.ld, y_ld = result.ld;
    q = value_of<T>(pq) + head * dim, k = value_of<T>(pk) + head * dim, v = value_of<T>(pv) + head * value_dim;
    dq = gradient(batch, 0, pq, head * dim), dk = gradient(batch, 1, pk, head * dim);
    dv = gradient(batch, 2, pv, head * value_dim);
    bias = nullptr, dbias = nullptr, bias_ld = 0;
    if (batch.argument_count == 4) {
      const Piece& piece = batch.arguments[3].pieces[member];
      const int64_t first = piece.rows == queries ? 0 : head * queries * piece.ld;  // one for all heads, or one each
      bias = value_of<T>(piece) + first, bias_ld = piece.ld;
      dbias = gradient(batch, 3, piece, first);
    }
    y = value_of<T>(result) + head * value_dim;
    dy = offset(grad_of<T>(result), head * value_dim);
    scale = static_cast<T>(batch.attributes[1]);
    band = {batch.attributes[2], batch.attributes[3]};
    rate = batch.attributes[4];
    key = rate > 0 ? batch.payload[member] : nullptr;
  }

  // The keys that a query sees.
  int64_t first_key(int64_t query) const { return band.begin(query, queries, keys); }
  int64_t last_key(int64_t query) const { return band.end(query, queries, keys); }

 private:
  static T* gradient(const Batch& batch, int argument, const Piece& piece, int64_t first) {
    return batch.arguments[argument].wants_grad ? offset(grad_of<T>(piece), first) : nullptr;
  }
};

// Scores of a tile of queries against a tile of keys, and what softmax makes of them.
template <class T>
struct Tile {
  const Head<T>& head;
  int64_t query, queries;  // the first, and how many
  int64_t key = 0, keys = 0;
  T scores[kQueries * kKeys];
  T largest[kQueries], sum[kQueries];  // of all keys so far: exp(score - softmax_shift(largest)) adds up to sum

  Tile(const Head<T>& of, int64_t first) : head(of), query(first) {
    queries = head.queries - query < kQueries ? head.queries - query : kQueries;
    for (int64_t i = 0; i < queries; ++i) largest[i] = -kInfinity<T>, sum[i] = T(0);
  }

  int64_t first_key() const { return head.first_key(query); }
  int64_t last_key() const { return head.last_key(query + queries - 1); }

  void compute_scores(int64_t first, int64_t end) {
    key = first;
    keys = end - first < kKeys ? end - first : kKeys;
    gemm_serial<T>(false, true, queries, keys, head.dim, head.scale, head.q + query * head.q_ld, head.q_ld,
                   head.k + key * head.k_ld, head.k_ld, T(0), scores, kKeys);
    for (int64_t i = 0; i < queries; ++i) {
      T* row = scores + i * kKeys;
      if (head.bias) add_to(keys, head.bias + (query + i) * head.bias_ld + key, row);
      const int64_t begin = head.first_key(query + i) - key, stop = head.last_key(query + i) - key;
      for (int64_t j = 0; j < begin && j < keys; ++j) row[j] = -kInfinity<T>;
      for (int64_t j = stop < 0 ? 0 : stop; j < keys; ++j) row[j] = -kInfinity<T>;
    }
  }

  // Takes this tile's keys into the sums and leaves exponentials where the scores were; what was summed before is to be
  // multiplied by factor[i].
  void add_keys(T* factor) {
    for (int64_t i = 0; i < queries; ++i) {
      T* row = scores + i * kKeys;
      const T before = largest[i];
      largest[i] = Max::combine(before, max_over<T>(keys, [=](int64_t j) { return row[j]; }));
      const T from = softmax_shift(before), to = softmax_shift(largest[i]);
      LN_IVDEP
      for (int64_t j = 0; j < keys; ++j) row[j] = m::exp(row[j] - to);
      factor[i] = sum[i] == T(0) ? T(0) : m::exp(from - to);
      sum[i] = sum[i] * factor[i] + sum_over<T>(keys, [=](int64_t j) { return row[j]; });
    }
  }

  // The sums over all keys are known: turns scores into probabilities, or, where these are all the keys, what
  // add_keys() has left.
  void normalize(bool all) {
    for (int64_t i = 0; i < queries; ++i) {
      T* row = scores + i * kKeys;
      const T to = softmax_shift(largest[i]), factor = sum[i] == T(0) ? T(0) : T(1) / sum[i];
      if (!all) {
        LN_IVDEP
        for (int64_t j = 0; j < keys; ++j) row[j] = m::exp(row[j] - to);
      }
      LN_IVDEP
      for (int64_t j = 0; j < keys; ++j) row[j] *= factor;
    }
  }

  // Calls apply(row, column, keep) for the elements of the tile.
  template <class Apply>
  void for_mask(const DropoutMask<T>& mask, const Apply& apply) const {
    for (int64_t i = 0; i < queries; ++i)
      for_dropout(mask, (head.number * head.queries + query + i) * head.keys + key, keys,
                  [&](int64_t j, bool keep) { apply(i * kKeys + j, keep); });
  }
};

template <class T>
void attend(const Head<T>& head, int64_t query) {
  Tile<T> tile(head, query);
  T* y = head.y + query * head.y_ld;
  T factor[kQueries];
  const int64_t first = tile.first_key(), last = tile.last_key();
  if (first >= last)
    for (int64_t i = 0; i < tile.queries; ++i)
      std::memset(y + i * head.y_ld, 0, static_cast<std::size_t>(head.value_dim) * sizeof(T));
  for (int64_t key = first; key < last; key += kKeys) {
    tile.compute_scores(key, last);
    tile.add_keys(factor);
    if (head.rate > 0) {
      const DropoutMask<T> mask = mask_of<T>(head.key, head.rate);
      T* scores = tile.scores;
      const T scale = mask.scale;
      tile.for_mask(mask, [=](int64_t at, bool keep) {
        const T kept = scores[at] * scale;
        scores[at] = keep ? kept : T(0);
      });
    }
    if (key > first)
      for (int64_t i = 0; i < tile.queries; ++i)
        for (int64_t j = 0; j < head.value_dim; ++j) y[i * head.y_ld + j] *= factor[i];
    gemm_serial<T>(false, false, tile.queries, head.value_dim, tile.keys, T(1), tile.scores, kKeys,
                   head.v + key * head.v_ld, head.v_ld, key > first ? T(1) : T(0), y, head.y_ld);
  }
  for (int64_t i = 0; i < tile.queries && first < last; ++i) {
    const T scale = tile.sum[i] == T(0) ? T(0) : T(1) / tile.sum[i];
    for (int64_t j = 0; j < head.value_dim; ++j) y[i * head.y_ld + j] *= scale;
  }
}

// With p the probabilities, m the mask of dropout, w = m p: dv = wᵀ dy, ds = p (m (dy vᵀ) - dy y), dq = ds k, dk = dsᵀ
// q.
template <class T>
void attend_backward(const Head<T>& head, int64_t query) {
  Tile<T> tile(head, query);
  const int64_t first = tile.first_key(), last = tile.last_key(), n = tile.queries;
  const T *y = head.y + query * head.y_ld, *dy = head.dy + query * head.y_ld;
  T dots[kQueries], factor[kQueries], weights[kQueries * kKeys], slopes[kQueries * kKeys];
  for (int64_t i = 0; i < n; ++i) {
    const T *a = y + i * head.y_ld, *b = dy + i * head.y_ld;
    dots[i] = sum_over<T>(head.value_dim, [=](int64_t j) { return a[j] * b[j]; });
  }
  for (int64_t key = first; key < last; key += kKeys) {
    tile.compute_scores(key, last);
    tile.add_keys(factor);
  }
  for (int64_t key = first; key < last; key += kKeys) {
    const bool all = last - first <= kKeys;
    if (!all) tile.compute_scores(key, last);
    tile.normalize(all);
    const int64_t m = tile.keys;
    const T* p = tile.scores;
    gemm_serial<T>(false, true, n, m, head.value_dim, T(1), dy, head.y_ld, head.v + key * head.v_ld, head.v_ld, T(0),
                   slopes, kKeys);
    const T* w = p;
    if (head.rate > 0) {
      const DropoutMask<T> mask = mask_of<T>(head.key, head.rate);
      const T scale = mask.scale;
      T *kept = weights, *slope = slopes;
      tile.for_mask(mask, [=](int64_t at, bool keep) {
        const T weight = p[at] * scale, scaled = slope[at] * scale;
        kept[at] = keep ? weight : T(0);
        slope[at] = keep ? scaled : T(0);
      });
      w = weights;
    }
    if (head.dv)
      gemm_serial<T>(true, false, m, head.value_dim, n, T(1), w, kKeys, dy, head.y_ld, T(1), head.dv + key * head.v_ld,
                     head.v_ld);
    for (int64_t i = 0; i < n; ++i) {
      T* slope = slopes + i * kKeys;
      const T *row = p + i * kKeys, dot = dots[i];
      LN_IVDEP
      for (int64_t j = 0; j < m; ++j) slope[j] = row[j] == T(0) ? T(0) : row[j] * (slope[j] - dot);
      if (head.dbias) add_to(m, slope, head.dbias + (query + i) * head.bias_ld + key);
    }
    if (head.dq)
      gemm_serial<T>(false, false, n, head.dim, m, head.scale, slopes, kKeys, head.k + key * head.k_ld, head.k_ld, T(1),
                     head.dq + query * head.q_ld, head.q_ld);
    if (head.dk)
      gemm_serial<T>(true, false, m, head.dim, n, head.scale, slopes, kKeys, head.q + query * head.q_ld, head.q_ld,
                     T(1), head.dk + key * head.k_ld, head.k_ld);
  }
}

// Operations of one head of the average member.
int64_t operations(const Batch& batch) {
  int64_t total = 0;
  for (int64_t i = 0; i < batch.members; ++i)
    total +=
        4 * batch.arguments[0].pieces[i].rows * batch.arguments[1].pieces[i].rows * batch.arguments[0].pieces[i].cols;
  return total / (batch.members * static_cast<int64_t>(batch.attributes[0])) + 1;
}

}  // namespace

template <class T>
void attention_forward(const Batch& batch) {
  const int64_t heads = static_cast<int64_t>(batch.attributes[0]), each = operations(batch);
  parallel_for(batch.members * heads, 1 + kGrainOperations / each, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const Head<T> head(batch, unit / heads, unit % heads);
      // Only where no other loop has the threads: few members with many queries.
      parallel_for((head.queries + kQueries - 1) / kQueries, 1 + kGrainOperations * kQueries / (each + 1),
                   [&](int64_t first, int64_t last) {
                     for (int64_t tile = first; tile < last; ++tile) attend(head, tile * kQueries);
                   });
    }
  });
}

template <class T>
void attention_backward(const Batch& batch) {
  const int64_t heads = static_cast<int64_t>(batch.attributes[0]);
  bool serial = false;
  for (int k = 0; k < batch.argument_count; ++k)
    serial = serial || (batch.arguments[k].wants_grad && batch.arguments[k].overlapping);
  // Heads write other columns of dq, dk and dv; the gradient of a bias may be one for all of them.
  const bool by_member = batch.argument_count == 4 && batch.arguments[3].wants_grad;
  const int64_t units = by_member ? batch.members : batch.members * heads;
  const auto run = [&](int64_t begin, int64_t end) {
    if (by_member) begin *= heads, end *= heads;
    for (int64_t unit = begin; unit < end; ++unit) {
      const Head<T> head(batch, unit / heads, unit % heads);
      for (int64_t query = 0; query < head.queries; query += kQueries) attend_backward(head, query);
    }
  };
  if (serial) return run(0, units);
  parallel_for(units, 1 + kGrainOperations / (operations(batch) * (by_member ? heads : 1)), run);
}
LN_INSTANTIATE(attention)

namespace {

// Rotates pairs of columns of every head by an angle that grows with the row's position (Su et al. 2021, RoFormer):
// neighbours, or column j with column j + dim / 2 of its head. `turn` 1 or, for gradients, -1.
template <class T, class Row, class Result>
void rotate(const Batch& batch, int64_t member, int64_t rows, int64_t cols, T turn, const Row& row,
            const Result& write) {
  const int64_t heads = static_cast<int64_t>(batch.attributes[0]), dim = cols / heads, half = dim / 2;
  const bool interleaved = batch.attributes[2] != 0;
  const double step = -2.0 * __builtin_log(batch.attributes[1]) / static_cast<double>(dim);
  for (int64_t r = 0; r < rows; ++r) {
    const double position = static_cast<double>(batch.payload[member][0] + r);
    const T* x = row(r);
    T* y = write(r);
    for (int64_t pair = 0; pair < half; ++pair) {
      const double angle = position * __builtin_exp(step * static_cast<double>(pair));
      const T c = static_cast<T>(__builtin_cos(angle)), s = turn * static_cast<T>(__builtin_sin(angle));
      const int64_t first = interleaved ? 2 * pair : pair, second = interleaved ? first + 1 : pair + half;
      for (int64_t base = 0; base < cols; base += dim) {
        const T a = x[base + first], b = x[base + second];
        y[base + first] += a * c - b * s;
        y[base + second] += a * s + b * c;
      }
    }
  }
}

}  // namespace

template <class T>
void rotary_forward(const Batch& batch) {
  for_members(batch, false, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    for (int64_t r = 0; r < x.rows; ++r)
      std::memset(value_of<T>(result) + r * result.ld, 0, static_cast<std::size_t>(x.cols) * sizeof(T));
    rotate<T>(
        batch, i, x.rows, x.cols, T(1), [&](int64_t r) { return row_value<T>(x, r); },
        [&](int64_t r) { return value_of<T>(result) + r * result.ld; });
  });
}

template <class T>
void rotary_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  for_members(batch, true, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    if (!x.grad) return;
    rotate<T>(
        batch, i, x.rows, x.cols, T(-1), [&](int64_t r) { return row_grad<T>(result, r); },
        [&](int64_t r) { return row_grad<T>(x, r); });
  });
}
LN_INSTANTIATE(rotary)

}  // namespace lazynet::cpu::LN_UNIT
