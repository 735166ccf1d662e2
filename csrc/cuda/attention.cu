// Attention of several heads, each member with its own numbers of queries and keys, and rotary positions.
//
// A block has a tile of queries of one head (or of keys, for their gradients) and goes over the other side tile by
// tile: scores exist in registers alone, sums are rescaled as the maximum grows, and backward computes the scores
// again. Operations: 4 n m d forward; backward 6 n m d for queries and 8 n m d for keys and values (4 n m d more for a
// bias), for (n + m) d numbers read: bound by arithmetic, and for short sequences by the latency of a tile's steps, so
// that tiles are small where large ones would not fill the device. Nothing is added by two blocks to one place.
//
// Rotary: bound by memory, as the angles, which need double precision, are made once for all heads.
#include "../ops/random.h"
#include "band.h"
#include "kernel.h"
#include "rows.h"
#include "strips.h"

namespace lazynet::cuda {

struct AttentionArgs {
  Members members;  // a unit is what a block does at a time: see each kernel
  int64_t heads;
  int64_t has_bias;
  Band band;
  double scale;
  const int64_t* dropout_keys;  // two a member; null without dropout
  uint32_t threshold;
  double kept_scale;
  void* sums;                // backward: RowSums of every query of every head
  const int64_t* first_sum;  // of a member; null where there is one
};

struct RotaryArgs {
  Members members;       // a unit is a pair of columns in one row
  const int64_t* first;  // position of each member's first row
  const double* angles;  // by pair: of one position to the next
  int64_t heads, dim;
  int64_t interleaved;
};

constexpr int kAttentionThreads = 128;
constexpr int kLargeTile = 64, kSmallTile = 32;
constexpr int kChunk = 64;  // columns of a result that a block computes at a time

#ifdef LN_DEVICE_CODE

// What softmax makes of a query's scores: probabilities are exp(score - shift) factor; dot: of the result and its
// gradient.
template <class T>
struct RowSums {
  T shift, factor, dot;
};

// The columns of one head.
template <class T>
struct Columns {
  T *value, *grad;
  int64_t ld, rows, cols;
};
template <class T>
LN_DEVICE Columns<T> columns_of(const Piece& piece, int64_t head, int64_t heads) {
  const int64_t cols = piece.cols / heads, first = head * cols;
  return {value_of<T>(piece) + first, piece.grad ? grad_of<T>(piece) + first : nullptr, piece.ld, piece.rows, cols};
}

// One head of one member.
template <class T>
struct Head {
  Columns<T> q, k, v, y, bias;
  int64_t number, first_sum;
  uint32_t key_low, key_high;    // of dropout
  int64_t first_row, first_col;  // of the unit's tile; see each kernel
};
template <class T>
LN_DEVICE void read_head(const AttentionArgs& args, int64_t member, int64_t number, Head<T>& head) {
  head.number = number;
  head.y = columns_of<T>(piece_of(args.members, 0, member), number, args.heads);
  head.q = columns_of<T>(piece_of(args.members, 1, member), number, args.heads);
  head.k = columns_of<T>(piece_of(args.members, 2, member), number, args.heads);
  head.v = columns_of<T>(piece_of(args.members, 3, member), number, args.heads);
  // One for all heads, or one below another.
  head.bias = args.has_bias ? columns_of<T>(piece_of(args.members, 4, member), 0, 1) : Columns<T>{};
  if (args.has_bias && head.bias.rows != head.q.rows) {
    head.bias.value += number * head.q.rows * head.bias.ld;
    if (head.bias.grad) head.bias.grad += number * head.q.rows * head.bias.ld;
  }
  head.first_sum = (args.first_sum ? args.first_sum[member] : 0) + number * head.q.rows;
  if (args.dropout_keys) {
    head.key_low = static_cast<uint32_t>(args.dropout_keys[2 * member]);
    head.key_high = static_cast<uint32_t>(args.dropout_keys[2 * member + 1]);
  }
}

// A block's tile of kRows x kCols scores, kRows / 8 x kCols / 16 a thread, and what it makes of it: kRows x kChunk
// elements of a result.
template <class T, int kRows_, int kCols_>
struct Tile {
  static constexpr int kRows = kRows_, kCols = kCols_, kDepth = 16;
  static constexpr int kAcross = 16, kDown = kAttentionThreads / kAcross;
  static constexpr int kThreadRows = kRows / kDown, kThreadCols = kCols / kAcross, kThreadChunk = kChunk / kAcross;
  using RowStrip = Strip<T, kRows, kDepth, kAttentionThreads>;
  using ColStrip = Strip<T, kCols, kDepth, kAttentionThreads>;
  using ChunkStrip = Strip<T, kChunk, kDepth, kAttentionThreads>;
  using Rows = Share<T, kThreadRows, kDown>;
  using Cols = Share<T, kThreadCols, kAcross>;
  using Chunk = Share<T, kThreadChunk, kAcross>;
  using Scores = T[kThreadRows][kThreadCols];
  using Result = T[kThreadRows][kThreadChunk];
  static constexpr int kPack = Pack<T>::kCount;
  static constexpr int kWidest =
      ChunkStrip::kElements > ColStrip::kElements ? ChunkStrip::kElements : ColStrip::kElements;
  static constexpr int kLongest = kRows > kCols ? kRows : kCols;

  struct Shared {
    // Strips of rows; or weights, column by column: the left factor of what follows.
    Pack<T> left[(2 * kDepth > kCols ? 2 * kDepth : kCols) * RowStrip::kDistance / kPack];
    Pack<T> right[2 * kWidest / kPack];
    RowSums<T> sums[kLongest];
    uint8_t kept[kRows * kCols / 8];
    Head<T> head;
  };

  Shared& shared;
  const int across, down;
  int half;  // see multiply_factors()

  __device__ __forceinline__ explicit Tile(Shared* of)
      : shared(*of),
        across(static_cast<int>(threadIdx.x) % kAcross),
        down(static_cast<int>(threadIdx.x) / kAcross),
        half(0) {}

  __device__ __forceinline__ int row(int i) const { return Rows::place(i / Rows::kWidth, down) + i % Rows::kWidth; }
  __device__ __forceinline__ int col(int j) const { return Cols::place(j / Cols::kWidth, across) + j % Cols::kWidth; }

  // scores = rows from first_row on of a times those from first_col on of b, transposed.
  __device__ __forceinline__ void multiply(const T* a, int64_t a_ld, int64_t first_row, int64_t rows, const T* b,
                                           int64_t b_ld, int64_t first_col, int64_t cols, int64_t depth,
                                           Scores& scores) {
    set_zero(scores);
    const Factor<T> left{a, a_ld, first_row, rows, depth, true, moves_packed(a, a_ld)};
    const Factor<T> right{b, b_ld, first_col, cols, depth, true, moves_packed(b, b_ld)};
    multiply_factors<RowStrip, ColStrip, Rows, Cols, kWidest>(left, right, shared.left[0].of, shared.right[0].of, down,
                                                              across, half, scores);
  }

  // result += weights times kChunk columns, from first_col on, of rows first_row to end of b, no more than kCols. The
  // weights are written by keep() before.
  __device__ __forceinline__ void add_weighted(const T* b, int64_t b_ld, int64_t first_row, int64_t end,
                                               int64_t first_col, int64_t cols, Result& result) {
    const int64_t depth = end - first_row < kCols ? end - first_row : kCols;
    b += first_row * b_ld;
    const Factor<T> right{b, b_ld, first_col, cols, depth, false, moves_packed(b, b_ld)};
    ChunkStrip strip;
    load_strip(right, 0, strip);
    LN_NO_UNROLL
    for (int done = 0; done < depth; done += kDepth) {
      T* to = shared.right[0].of + half * kWidest;
      half ^= 1;
      store_strip(strip, false, to);
      __syncthreads();
      if (done + kDepth < depth) load_strip(right, done + kDepth, strip);
      multiply_strips<RowStrip, ChunkStrip, Rows, Chunk>(shared.left[0].of + done * RowStrip::kDistance, to, down,
                                                         across, result);
    }
  }

  __device__ __forceinline__ void keep(const Scores& weights) {
    __syncthreads();  // strips of rows are read
    LN_UNROLL
    for (int j = 0; j < kThreadCols; ++j) {
      T* to = shared.left[0].of + col(j) * RowStrip::kDistance;
      LN_UNROLL
      for (int run = 0; run < Rows::kRuns; ++run) {
        LN_UNROLL
        for (int e = 0; e < Rows::kWidth; ++e) to[Rows::place(run, down) + e] = weights[run * Rows::kWidth + e][j];
      }
    }
  }

  // Whether dropout keeps the element of query `query` and key `key` of the tile.
  template <int kKeys>
  __device__ __forceinline__ bool keeps_at(int query, int key) const {
    return (shared.kept[query * (kKeys / 8) + key / 8] >> key % 8 & 1) != 0;
  }
  // Draws for kQueries queries and kKeys keys, eight a thread, from the numbers of up to three counters.
  template <int kQueries, int kKeys>
  __device__ __forceinline__ void draw(const AttentionArgs& args, int64_t first_query, int64_t first_key) {
    const Head<T>& head = shared.head;
    LN_NO_UNROLL
    for (int unit = static_cast<int>(threadIdx.x); unit < kQueries * kKeys / 8; unit += kAttentionThreads) {
      const int64_t query = first_query + unit / (kKeys / 8), key = first_key + unit % (kKeys / 8) * 8;
      const auto element = static_cast<uint64_t>((head.number * head.q.rows + query) * head.k.rows + key);
      unsigned bits = 0;
      LN_UNROLL
      for (unsigned c = 0; c < 3; ++c) {
        const RandomBits random = random_bits(head.key_low, head.key_high, element / 4 + c);
        LN_UNROLL
        for (unsigned k = 0; k < 4; ++k) bits |= (keeps(random.of[k], args.threshold) ? 1u : 0u) << (4 * c + k);
      }
      shared.kept[unit] = static_cast<uint8_t>(bits >> element % 4);
    }
  }

  // Adds the bias to scaled products, and hides what the window does not show or does not exist. kKeyRows: rows of the
  // tile are keys.
  template <bool kKeyRows>
  __device__ __forceinline__ void finish_scores(const AttentionArgs& args, int64_t first_row, int64_t first_col,
                                                Scores& scores) const {
    constexpr int kQueryCount = kKeyRows ? kThreadCols : kThreadRows, kKeyCount = kKeyRows ? kThreadRows : kThreadCols;
    constexpr int kKeys = kKeyRows ? kRows : kCols;
    const Head<T>& head = shared.head;
    const T scale = static_cast<T>(args.scale);
    const int64_t queries = head.q.rows, keys = head.k.rows, first_key = kKeyRows ? first_row : first_col;
    LN_UNROLL
    for (int a = 0; a < kQueryCount; ++a) {
      const int64_t query = kKeyRows ? first_col + col(a) : first_row + row(a);
      int begin = 0, end = 0;  // of the tile's keys that it sees
      if (query < queries) {
        begin = within(args.band.begin(query, queries, keys) - first_key, kKeys);
        end = within(args.band.end(query, queries, keys) - first_key, kKeys);
      }
      const T* bias = head.bias.value ? head.bias.value + query * head.bias.ld + first_key : nullptr;
      LN_UNROLL
      for (int b = 0; b < kKeyCount; ++b) {
        T& score = kKeyRows ? scores[b][a] : scores[a][b];
        const int key = kKeyRows ? row(b) : col(b);
        const bool seen = key >= begin && key < end;
        const T added = bias && seen ? bias[key] : T(0);
        score = seen ? score * scale + added : -infinity<T>();
      }
    }
  }

  // Over the threads that share rows.
  template <class Fold>
  static __device__ __forceinline__ T fold_across(T x) {
    for (int step = kAcross / 2; step > 0; step /= 2) x = Fold::combine(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
  }

  // Takes a tile's scores into the largest and the sums of rows, of which each thread has a part, and leaves
  // exp(score - shift); `result`, made of earlier tiles, is rescaled.
  __device__ __forceinline__ void add_scores(Scores& scores, T (&largest)[kThreadRows], T (&sum)[kThreadRows],
                                             Result& result) {
    LN_UNROLL
    for (int i = 0; i < kThreadRows; ++i) {
      T found = scores[i][0];
      LN_UNROLL
      for (int j = 1; j < kThreadCols; ++j) found = Max::combine(found, scores[i][j]);
      const T before = largest[i];
      largest[i] = Max::combine(before, fold_across<Max>(found));
      const T to = softmax_shift(largest[i]);
      const T factor = before == -infinity<T>() ? T(0) : m::exp(softmax_shift(before) - to);
      sum[i] *= factor;
      LN_UNROLL
      for (int j = 0; j < kThreadCols; ++j) {
        scores[i][j] = m::exp(scores[i][j] - to);
        sum[i] += scores[i][j];
      }
      LN_UNROLL
      for (int c = 0; c < kThreadChunk; ++c) result[i][c] *= factor;
    }
  }

  // to = or += factor times the thread's part of the result, whose rows begin at first_row and are those of `to`.
  template <class Factors>
  __device__ __forceinline__ void write(const Columns<T>& of, T* to, int64_t first_row, int64_t first_col, bool add,
                                        Result& result, const Factors& factor) const {
    const bool packed = moves_packed(to, of.ld);
    LN_UNROLL
    for (int i = 0; i < kThreadRows; ++i) {
      LN_UNROLL
      for (int c = 0; c < kThreadChunk; ++c) result[i][c] *= factor(i);
      const int64_t at = first_row + row(i);
      if (at < of.rows)
        write_share<Chunk>(to + at * of.ld + first_col, of.cols - first_col, across, result[i], packed, add);
    }
  }

 private:
  static __device__ __forceinline__ int within(int64_t x, int most) {
    return x < 0 ? 0 : (x < most ? static_cast<int>(x) : most);
  }
  static __device__ __forceinline__ bool moves_packed(const T* address, int64_t ld) {
    return aligned(address) && ld * static_cast<int64_t>(sizeof(T)) % 16 == 0;
  }
};

// The first thread reads what the unit is about: a chunk of columns, a head, a tile of the rows of `operand`.
template <class Tile, class T>
LN_DEVICE void begin_unit(const AttentionArgs& args, int64_t unit, int operand, Head<T>& head) {
  __syncthreads();  // the last unit is done
  if (threadIdx.x == 0) {
    const Place place = place_of(args.members, unit);
    const int64_t tiles = (piece_of(args.members, operand, place.member).rows + Tile::kRows - 1) / Tile::kRows;
    read_head(args, place.member, place.unit / tiles % args.heads, head);
    head.first_row = place.unit % tiles * Tile::kRows;
    head.first_col = place.unit / tiles / args.heads * kChunk;
  }
  __syncthreads();
}

// The end of what any row of a tile sees.
template <class Tile>
LN_DEVICE int64_t end_of_tile(const Band& band, int64_t first_row, int64_t rows, int64_t cols) {
  return band.end((first_row + Tile::kRows < rows ? first_row + Tile::kRows : rows) - 1, rows, cols);
}

// A unit: a tile of queries, a head, a chunk of the values' columns.
template <class T, class Tile>
LN_DEVICE void attend(const AttentionArgs& args) {
  LN_SHARED(typename Tile::Shared, shared, 1);
  Tile tile(shared);
  const Head<T>& head = shared->head;
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    begin_unit<Tile>(args, unit, 1, shared->head);
    T largest[Tile::kThreadRows], sum[Tile::kThreadRows];
    typename Tile::Result y;
    set_zero(y);
    LN_UNROLL
    for (int i = 0; i < Tile::kThreadRows; ++i) largest[i] = -infinity<T>(), sum[i] = T(0);
    const int64_t last = end_of_tile<Tile>(args.band, head.first_row, head.q.rows, head.k.rows);
    LN_NO_UNROLL
    for (int64_t key = args.band.begin(head.first_row, head.q.rows, head.k.rows); key < last; key += Tile::kCols) {
      __syncthreads();  // the last tile's weights are read
      if (args.dropout_keys) tile.template draw<Tile::kRows, Tile::kCols>(args, head.first_row, key);
      typename Tile::Scores scores;
      tile.multiply(head.q.value, head.q.ld, head.first_row, head.q.rows, head.k.value, head.k.ld, key, head.k.rows,
                    head.q.cols, scores);
      tile.template finish_scores<false>(args, head.first_row, key, scores);
      tile.add_scores(scores, largest, sum, y);
      if (args.dropout_keys) {
        if (head.q.cols == 0) __syncthreads();  // what is drawn is there
        const T scale = static_cast<T>(args.kept_scale);
        LN_UNROLL
        for (int i = 0; i < Tile::kThreadRows; ++i) {
          LN_UNROLL
          for (int j = 0; j < Tile::kThreadCols; ++j)
            scores[i][j] = tile.template keeps_at<Tile::kCols>(tile.row(i), tile.col(j)) ? scores[i][j] * scale : T(0);
        }
      }
      tile.keep(scores);
      tile.add_weighted(head.v.value, head.v.ld, key, last, head.first_col, head.v.cols, y);
    }
    LN_UNROLL
    for (int i = 0; i < Tile::kThreadRows; ++i) {
      sum[i] = Tile::template fold_across<Add>(sum[i]);
      sum[i] = sum[i] == T(0) ? T(0) : T(1) / sum[i];
    }
    tile.write(head.y, head.y.value, head.first_row, head.first_col, false, y, [&](int i) { return sum[i]; });
  }
}

// With p the probabilities, m the mask of dropout, w = m p: dv = wᵀ dy, ds = p (m (dy vᵀ) - dy y), dq = ds k, dk = dsᵀ
// q. From products of dy and v to ds; `p` are probabilities or multiples of them.
template <class T>
LN_DEVICE T slope_of(T p, T product, T dot) {
  return p == T(0) ? T(0) : p * (product - dot);
}

// dq, and every query's RowSums. A unit: a tile of queries, a head, a chunk of their columns.
template <class T, class Tile>
LN_DEVICE void attend_queries(const AttentionArgs& args) {
  LN_SHARED(typename Tile::Shared, shared, 1);
  Tile tile(shared);
  const Head<T>& head = shared->head;
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    begin_unit<Tile>(args, unit, 1, shared->head);
    T largest[Tile::kThreadRows], sum[Tile::kThreadRows], dot[Tile::kThreadRows];
    typename Tile::Result dq;
    set_zero(dq);
    LN_UNROLL
    for (int i = 0; i < Tile::kThreadRows; ++i) largest[i] = -infinity<T>(), sum[i] = dot[i] = T(0);
    LN_NO_UNROLL
    for (int64_t col = tile.across; col < head.y.cols; col += Tile::kAcross) {
      LN_UNROLL
      for (int i = 0; i < Tile::kThreadRows; ++i) {
        const int64_t at = (head.first_row + tile.row(i)) * head.y.ld + col;
        if (head.first_row + tile.row(i) < head.y.rows) dot[i] += head.y.value[at] * head.y.grad[at];
      }
    }
    LN_UNROLL
    for (int i = 0; i < Tile::kThreadRows; ++i) dot[i] = Tile::template fold_across<Add>(dot[i]);
    const int64_t last = end_of_tile<Tile>(args.band, head.first_row, head.q.rows, head.k.rows);
    LN_NO_UNROLL
    for (int64_t key = args.band.begin(head.first_row, head.q.rows, head.k.rows); key < last; key += Tile::kCols) {
      __syncthreads();  // the last tile's weights are read
      if (args.dropout_keys) tile.template draw<Tile::kRows, Tile::kCols>(args, head.first_row, key);
      typename Tile::Scores scores, slopes;
      tile.multiply(head.q.value, head.q.ld, head.first_row, head.q.rows, head.k.value, head.k.ld, key, head.k.rows,
                    head.q.cols, scores);
      tile.template finish_scores<false>(args, head.first_row, key, scores);
      tile.add_scores(scores, largest, sum, dq);
      if (!head.q.grad) continue;
      tile.multiply(head.y.grad, head.y.ld, head.first_row, head.y.rows, head.v.value, head.v.ld, key, head.v.rows,
                    head.v.cols, slopes);
      const T scale = static_cast<T>(args.kept_scale);
      LN_UNROLL
      for (int i = 0; i < Tile::kThreadRows; ++i) {
        LN_UNROLL
        for (int j = 0; j < Tile::kThreadCols; ++j) {
          T product = slopes[i][j];
          if (args.dropout_keys)
            product = tile.template keeps_at<Tile::kCols>(tile.row(i), tile.col(j)) ? product * scale : T(0);
          scores[i][j] = slope_of(scores[i][j], product, dot[i]);
        }
      }
      tile.keep(scores);
      tile.add_weighted(head.k.value, head.k.ld, key, last, head.first_col, head.k.cols, dq);
    }
    LN_UNROLL
    for (int i = 0; i < Tile::kThreadRows; ++i) {
      sum[i] = Tile::template fold_across<Add>(sum[i]);
      sum[i] = sum[i] == T(0) ? T(0) : T(1) / sum[i];
      const int64_t query = head.first_row + tile.row(i);
      if (head.first_col == 0 && tile.across == 0 && query < head.q.rows)
        static_cast<RowSums<T>*>(args.sums)[head.first_sum + query] = {softmax_shift(largest[i]), sum[i], dot[i]};
    }
    const T scale = static_cast<T>(args.scale);
    if (head.q.grad)
      tile.write(head.q, head.q.grad, head.first_row, head.first_col, true, dq, [&](int i) { return scale * sum[i]; });
  }
}

template <class T, class Shared>
LN_DEVICE void read_sums(const AttentionArgs& args, int64_t first_query, int64_t queries, Shared& shared) {
  const Head<T>& head = shared.head;
  for (int i = static_cast<int>(threadIdx.x); i < queries; i += kAttentionThreads) {
    RowSums<T> sums{T(0), T(0), T(0)};
    if (first_query + i < head.q.rows)
      sums = static_cast<const RowSums<T>*>(args.sums)[head.first_sum + first_query + i];
    shared.sums[i] = sums;
  }
}

// dk and dv. A unit: a tile of keys, a head, a chunk of the columns of both.
template <class T, class Tile>
LN_DEVICE void attend_keys(const AttentionArgs& args) {
  LN_SHARED(typename Tile::Shared, shared, 1);
  Tile tile(shared);
  const Head<T>& head = shared->head;
  const Band shown_to{args.band.after, args.band.before};  // the queries that see a key
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    begin_unit<Tile>(args, unit, 2, shared->head);
    typename Tile::Result dk, dv;
    set_zero(dk);
    set_zero(dv);
    const bool wants_k = head.k.grad && head.first_col < head.k.cols;
    const bool wants_v = head.v.grad && head.first_col < head.v.cols;
    if (!wants_k && !wants_v) continue;
    const int64_t last = end_of_tile<Tile>(shown_to, head.first_row, head.k.rows, head.q.rows);
    LN_NO_UNROLL
    for (int64_t query = shown_to.begin(head.first_row, head.k.rows, head.q.rows); query < last; query += Tile::kCols) {
      __syncthreads();  // the last tile's weights and sums are read
      if (args.dropout_keys) tile.template draw<Tile::kCols, Tile::kRows>(args, query, head.first_row);
      read_sums<T>(args, query, Tile::kCols, *shared);
      __syncthreads();
      const T scale = static_cast<T>(args.kept_scale);
      typename Tile::Scores scores, slopes;
      tile.multiply(head.k.value, head.k.ld, head.first_row, head.k.rows, head.q.value, head.q.ld, query, head.q.rows,
                    head.q.cols, scores);
      tile.template finish_scores<true>(args, head.first_row, query, scores);
      LN_UNROLL
      for (int i = 0; i < Tile::kThreadRows; ++i) {
        LN_UNROLL
        for (int j = 0; j < Tile::kThreadCols; ++j) {
          const RowSums<T>& sums = shared->sums[tile.col(j)];
          scores[i][j] = m::exp(scores[i][j] - sums.shift) * sums.factor;
          slopes[i][j] = scores[i][j];
          if (args.dropout_keys)
            slopes[i][j] = tile.template keeps_at<Tile::kRows>(tile.col(j), tile.row(i)) ? slopes[i][j] * scale : T(0);
        }
      }
      if (wants_v) {
        tile.keep(slopes);
        tile.add_weighted(head.y.grad, head.y.ld, query, last, head.first_col, head.y.cols, dv);
        __syncthreads();  // the weights are read
      }
      if (!wants_k) continue;
      tile.multiply(head.v.value, head.v.ld, head.first_row, head.v.rows, head.y.grad, head.y.ld, query, head.y.rows,
                    head.v.cols, slopes);
      LN_UNROLL
      for (int i = 0; i < Tile::kThreadRows; ++i) {
        LN_UNROLL
        for (int j = 0; j < Tile::kThreadCols; ++j) {
          T product = slopes[i][j];
          if (args.dropout_keys)
            product = tile.template keeps_at<Tile::kRows>(tile.col(j), tile.row(i)) ? product * scale : T(0);
          scores[i][j] = slope_of(scores[i][j], product, shared->sums[tile.col(j)].dot);
        }
      }
      tile.keep(scores);
      tile.add_weighted(head.q.value, head.q.ld, query, last, head.first_col, head.q.cols, dk);
    }
    const T scale = static_cast<T>(args.scale);
    if (wants_k) tile.write(head.k, head.k.grad, head.first_row, head.first_col, true, dk, [&](int) { return scale; });
    if (wants_v) tile.write(head.v, head.v.grad, head.first_row, head.first_col, true, dv, [&](int) { return T(1); });
  }
}

// The gradient of a bias. A unit: a tile of queries, a tile of keys, and a head or, of one bias for all, all heads.
template <class T, class Tile>
LN_DEVICE void attend_bias(const AttentionArgs& args) {
  LN_SHARED(typename Tile::Shared, shared, 1);
  Tile tile(shared);
  const Head<T>& head = shared->head;
  LN_NO_UNROLL
  for (int64_t unit = blockIdx.x; unit < args.members.units; unit += gridDim.x) {
    const Place place = place_of(args.members, unit);
    const Piece bias = piece_of(args.members, 4, place.member);
    if (!bias.grad) continue;
    const int64_t queries = piece_of(args.members, 1, place.member).rows;
    const int64_t down = (queries + Tile::kRows - 1) / Tile::kRows,
                  across = (bias.cols + Tile::kCols - 1) / Tile::kCols;
    const int64_t first_query = place.unit % down * Tile::kRows, first_key = place.unit / down % across * Tile::kCols;
    const int64_t first_head = place.unit / down / across;
    const int64_t end_head = bias.rows == queries ? args.heads : first_head + 1;
    typename Tile::Scores sum;
    set_zero(sum);
    LN_NO_UNROLL
    for (int64_t number = first_head; number < end_head; ++number) {
      __syncthreads();  // the last head is done
      if (threadIdx.x == 0) read_head(args, place.member, number, shared->head);
      __syncthreads();
      read_sums<T>(args, first_query, Tile::kRows, *shared);
      if (args.dropout_keys) tile.template draw<Tile::kRows, Tile::kCols>(args, first_query, first_key);
      __syncthreads();
      typename Tile::Scores scores, slopes;
      tile.multiply(head.q.value, head.q.ld, first_query, head.q.rows, head.k.value, head.k.ld, first_key, head.k.rows,
                    head.q.cols, scores);
      tile.template finish_scores<false>(args, first_query, first_key, scores);
      tile.multiply(head.y.grad, head.y.ld, first_query, head.y.rows, head.v.value, head.v.ld, first_key, head.v.rows,
                    head.v.cols, slopes);
      const T scale = static_cast<T>(args.kept_scale);
      LN_UNROLL
      for (int i = 0; i < Tile::kThreadRows; ++i) {
        const RowSums<T>& sums = shared->sums[tile.row(i)];
        LN_UNROLL
        for (int j = 0; j < Tile::kThreadCols; ++j) {
          T product = slopes[i][j];
          if (args.dropout_keys)
            product = tile.template keeps_at<Tile::kCols>(tile.row(i), tile.col(j)) ? product * scale : T(0);
          sum[i][j] += slope_of(m::exp(scores[i][j] - sums.shift) * sums.factor, product, sums.dot);
        }
      }
    }
    T* to = grad_of<T>(bias) + (bias.rows == queries ? 0 : first_head * queries * bias.ld);
    LN_UNROLL
    for (int i = 0; i < Tile::kThreadRows; ++i) {
      const int64_t query = first_query + tile.row(i);
      if (query < queries)
        write_share<typename Tile::Cols>(to + query * bias.ld + first_key, bias.cols - first_key, tile.across, sum[i],
                                         false, true);
    }
  }
}

// A kernel for small tiles of both types and one for large tiles of floats: doubles would not fit. As many blocks of
// floats are resident in a multiprocessor as there are registers for.
#define LN_ATTENTION_KERNELS(name, function, large_cols, small_blocks, large_blocks)                  \
  template <class T>                                                                                  \
  LN_DEVICE void name##_small(const AttentionArgs& args) {                                            \
    function<T, Tile<T, kSmallTile, kSmallTile> >(args);                                              \
  }                                                                                                   \
  template <class T>                                                                                  \
  LN_DEVICE void name##_large(const AttentionArgs& args) {                                            \
    function<T, Tile<T, kLargeTile, large_cols> >(args);                                              \
  }                                                                                                   \
  LN_RESIDENT_FLOAT_ENTRY(name##_small, name##_small, AttentionArgs, kAttentionThreads, small_blocks) \
  LN_DOUBLE_ENTRY(name##_small, name##_small, AttentionArgs, kAttentionThreads)                       \
  LN_RESIDENT_FLOAT_ENTRY(name##_large, name##_large, AttentionArgs, kAttentionThreads, large_blocks)
LN_ATTENTION_KERNELS(attention_forward, attend, kLargeTile, 4, 3)
LN_ATTENTION_KERNELS(attention_queries, attend_queries, kSmallTile, 4, 3)
LN_ATTENTION_KERNELS(attention_keys, attend_keys, kSmallTile, 3, 2)

template <class T>
LN_DEVICE void attention_bias(const AttentionArgs& args) {
  attend_bias<T, Tile<T, kSmallTile, kSmallTile> >(args);
}
LN_RESIDENT_FLOAT_ENTRY(attention_bias, attention_bias, AttentionArgs, kAttentionThreads, 4)
LN_DOUBLE_ENTRY(attention_bias, attention_bias, AttentionArgs, kAttentionThreads)

// Rotates pairs of columns of every head: neighbours, or column j with column j + dim / 2 of its head. Calls
// apply(member, row, first, second, cosine, sine) for the two columns.
template <class T, class Apply>
LN_DEVICE void rotate(const RotaryArgs& args, const Apply& apply) {
  constexpr double kTurn = 6.283185307179586;
  const int64_t half = args.dim / 2;
  for (int64_t unit = thread_number(); unit < args.members.units; unit += thread_count()) {
    const Place place = place_of(args.members, unit);
    const int64_t row = place.unit / half, pair = place.unit % half;
    double turned = static_cast<double>(args.first[place.member] + row) * args.angles[pair];
    // What is left of a turn is small enough for functions of floats.
    if (sizeof(T) == sizeof(float)) turned -= kTurn * ::rint(turned / kTurn);
    const T angle = static_cast<T>(turned);
    apply(place.member, row, args.interleaved ? 2 * pair : pair, args.interleaved ? 2 * pair + 1 : pair + half,
          m::cos(angle), m::sin(angle));
  }
}

template <class T>
LN_DEVICE void rotary_forward(const RotaryArgs& args) {
  rotate<T>(args, [&](int64_t member, int64_t row, int64_t first, int64_t second, T c, T s) {
    const T* x = row_value<T>(piece_of(args.members, 1, member), row);
    const Piece result = piece_of(args.members, 0, member);
    T* y = value_of<T>(result) + row * result.ld;
    LN_UNROLL_BY(4)
    for (int64_t head = 0; head < args.heads; ++head) {
      const int64_t base = head * args.dim;
      const T a = x[base + first], b = x[base + second];
      y[base + first] = a * c - b * s;
      y[base + second] = a * s + b * c;
    }
  });
}
LN_KERNELS(rotary_forward, RotaryArgs, kThreads)

template <class T>
LN_DEVICE void rotary_backward(const RotaryArgs& args) {
  rotate<T>(args, [&](int64_t member, int64_t row, int64_t first, int64_t second, T c, T s) {
    const Piece x = piece_of(args.members, 1, member);
    if (!x.grad) return;
    const T* dy = row_grad<T>(piece_of(args.members, 0, member), row);
    T* dx = row_grad<T>(x, row);
    LN_UNROLL_BY(4)
    for (int64_t head = 0; head < args.heads; ++head) {
      const int64_t base = head * args.dim;
      const T a = dy[base + first], b = dy[base + second];
      dx[base + first] += a * c + b * s;
      dx[base + second] += b * c - a * s;
    }
  });
}
LN_KERNELS(rotary_backward, RotaryArgs, kThreads)

#else

namespace {

int64_t quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

class Attention {
 public:
  Attention(Queue& queue, const Batch& batch)
      : queue_(queue), batch_(batch), heads_(static_cast<int64_t>(batch.attributes[0])) {}

  int64_t queries(int64_t i) const { return batch_.arguments[0].pieces[i].rows; }
  int64_t keys(int64_t i) const { return batch_.arguments[1].pieces[i].rows; }
  int64_t heads() const { return heads_; }
  // Of the columns of a head of argument k.
  int64_t chunks(int k, int64_t i) const { return quotient(batch_.arguments[k].pieces[i].cols / heads_, kChunk); }

  // Whether large tiles are done first, `over` being the side that blocks divide and `along` the one that they go
  // along: small ones fit better and are more, but read twice as much from shared memory for each operation.
  template <class Over, class Along>
  bool prefers_large(const Over& over, const Along& along) const {
    constexpr double kAtATime = 300;  // blocks, of a large device
    const auto time = [&](int size, double element) {
      double longest = 0, all = 0;
      for (int64_t i = 0; i < batch_.members; ++i) {
        const double cols = static_cast<double>(batch_.arguments[0].pieces[i].cols) / static_cast<double>(heads_);
        const double one = static_cast<double>(size * quotient(along(i), size) * size) * cols;
        all += one * static_cast<double>(quotient(over(i), size) * heads_);
        longest = std::max(longest, one);
      }
      return element * std::max(all / kAtATime, longest);
    };
    return time(kLargeTile, 1) < time(kSmallTile, 1.6);
  }

  template <class Units>
  void launch(const Kernel& kernel, void* sums, const Units& units_of) {
    AttentionArgs args{};
    args.members = members_of(queue_, batch_, 1 + batch_.argument_count, units_of);
    args.heads = heads_;
    args.has_bias = batch_.argument_count == 4;
    args.scale = batch_.attributes[1];
    args.band = band_of(batch_.attributes[2], batch_.attributes[3]);
    if (batch_.attributes[4] > 0) {
      int64_t* keys = queue_.room(2 * batch_.members, &args.dropout_keys);
      for (int64_t i = 0; i < batch_.members; ++i) {
        keys[2 * i] = batch_.payload[i][0];
        keys[2 * i + 1] = batch_.payload[i][1];
      }
      const auto mask = mask_of<double>(batch_.payload[0], batch_.attributes[4]);
      args.threshold = mask.threshold;
      args.kept_scale = mask.scale;
    }
    args.sums = sums;
    if (sums && batch_.members > 1) {
      int64_t* first = queue_.room(batch_.members, &args.first_sum);
      int64_t next = 0;
      for (int64_t i = 0; i < batch_.members; ++i) {
        first[i] = next;
        next += heads_ * queries(i);
      }
    }
    queue_.launch(kernel, blocks_for(args.members.units, 1), kAttentionThreads, 0, args);
  }

 private:
  Queue& queue_;
  const Batch& batch_;
  const int64_t heads_;
};

}  // namespace

// The kernels for both sizes of tiles, of which doubles have one.
#define LN_ATTENTION_KERNELS_OF(name)                                   \
  LN_KERNEL_OF(name##_small, "attention", "attention_" #name "_small"); \
  LN_KERNEL_OF(name##_large, "attention", "attention_" #name "_large")

template <class T>
void attention_forward(Queue& queue, const Batch& batch) {
  LN_ATTENTION_KERNELS_OF(forward);
  Attention op(queue, batch);
  const auto queries = [&](int64_t i) { return op.queries(i); };
  const auto keys = [&](int64_t i) { return op.keys(i); };
  const bool large = sizeof(T) == 4 && op.prefers_large(queries, keys);
  const int rows = large ? kLargeTile : kSmallTile;
  op.launch(large ? forward_large : forward_small, nullptr,
            [&](int64_t i) { return quotient(op.queries(i), rows) * op.heads() * op.chunks(2, i); });
}

template <class T>
void attention_backward(Queue& queue, const Batch& batch) {
  LN_ATTENTION_KERNELS_OF(queries);
  LN_ATTENTION_KERNELS_OF(keys);
  LN_KERNEL_OF(bias, "attention", "attention_bias");
  Attention op(queue, batch);
  const bool wants_q = batch.arguments[0].wants_grad;
  const bool wants_k = batch.arguments[1].wants_grad, wants_v = batch.arguments[2].wants_grad;
  const bool wants_bias = batch.argument_count == 4 && batch.arguments[3].wants_grad;
  const auto queries = [&](int64_t i) { return op.queries(i); };
  const auto keys = [&](int64_t i) { return op.keys(i); };

  int64_t all = 0;
  for (int64_t i = 0; i < batch.members; ++i) all += op.heads() * op.queries(i);
  void* sums = queue.scratch(static_cast<std::size_t>(3 * all) * sizeof(T));
  const bool large = sizeof(T) == 4 && op.prefers_large(queries, keys);
  const int rows = large ? kLargeTile : kSmallTile;
  op.launch(large ? queries_large : queries_small, sums, [&](int64_t i) {
    const int64_t chunks = wants_q ? std::max<int64_t>(op.chunks(0, i), 1) : 1;
    return quotient(op.queries(i), rows) * op.heads() * chunks;
  });
  if (wants_k || wants_v) {
    const bool large_keys = sizeof(T) == 4 && op.prefers_large(keys, queries);
    const int key_rows = large_keys ? kLargeTile : kSmallTile;
    op.launch(large_keys ? keys_large : keys_small, sums, [&](int64_t i) {
      const int64_t chunks = std::max(wants_k ? op.chunks(1, i) : 0, wants_v ? op.chunks(2, i) : 0);
      return quotient(op.keys(i), key_rows) * op.heads() * chunks;
    });
  }
  if (wants_bias)
    op.launch(bias, sums, [&](int64_t i) {
      const int64_t tiles = quotient(op.queries(i), kSmallTile) * quotient(op.keys(i), kSmallTile);
      return tiles * (batch.arguments[3].pieces[i].rows == op.queries(i) ? 1 : op.heads());
    });
}
LN_INSTANTIATE(attention)

namespace {

RotaryArgs rotary_args(Queue& queue, const Batch& batch) {
  RotaryArgs args{};
  args.heads = static_cast<int64_t>(batch.attributes[0]);
  args.dim = batch.result.pieces[0].cols / args.heads;
  args.interleaved = batch.attributes[2] != 0;
  const int64_t half = args.dim / 2;
  const double step = -2.0 * __builtin_log(batch.attributes[1]) / static_cast<double>(args.dim);
  double* angles = queue.room(half, &args.angles);
  for (int64_t pair = 0; pair < half; ++pair) angles[pair] = __builtin_exp(step * static_cast<double>(pair));
  int64_t* first = queue.room(batch.members, &args.first);
  for (int64_t i = 0; i < batch.members; ++i) first[i] = batch.payload[i][0];
  args.members = members_of(queue, batch, 2, [&](int64_t i) { return batch.result.pieces[i].rows * half; });
  return args;
}

}  // namespace

template <class T>
void rotary_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "attention", "rotary_forward");
  const RotaryArgs args = rotary_args(queue, batch);
  queue.launch(kernel, blocks_for(args.members.units, kThreads), kThreads, 0, args);
}

template <class T>
void rotary_backward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "attention", "rotary_backward");
  if (!batch.arguments[0].wants_grad) return;
  const RotaryArgs args = rotary_args(queue, batch);
  queue.launch(kernel, blocks_for(args.members.units, kThreads), kThreads, 0, args);
}
LN_INSTANTIATE(rotary)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
