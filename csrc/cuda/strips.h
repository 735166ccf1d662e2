// Products in tiles, as parts of kernels: a block's strips of both factors go through registers into shared memory, one
// step ahead of the arithmetic.
#pragma once

#include "kernel.h"

#ifdef LN_DEVICE_CODE

namespace lazynet::cuda {

// A strip of a factor, kSpan rows of A or columns of B: in shared memory it lies depth by depth, whose distance keeps
// packs aligned and spreads those that lie below each other over the banks.
template <class T, int kSpan_, int kDepth_, int kBlockThreads_>
struct Strip {
  static constexpr int kSpan = kSpan_, kDepth = kDepth_, kBlockThreads = kBlockThreads_;
  static constexpr int kPack = Pack<T>::kCount;
  static constexpr int kPacks = kSpan * kDepth / kPack / kBlockThreads;  // that a thread brings
  static constexpr int kDistance = kSpan + kPack;
  static constexpr int kElements = kDistance * kDepth;
  static_assert(kPacks * kPack * kBlockThreads == kSpan * kDepth, "every thread brings as much");
  Pack<T> held[kPacks];
};

// A factor as strips see it.
template <class T>
struct Factor {
  const T* from;
  int64_t ld, first, span, depth;  // first: of the tile, among `span` rows of A or columns of B
  bool along_depth;                // whether elements of different depths lie side by side
  bool packed;
};

// Where the `u`th pack of a thread lies in its strip.
struct StripPlace {
  int span, depth;
};
template <class S>
LN_DEVICE StripPlace strip_place(int u, bool along_depth) {
  const int index = static_cast<int>(threadIdx.x) + u * S::kBlockThreads;
  constexpr int kDepthPacks = S::kDepth / S::kPack, kSpanPacks = S::kSpan / S::kPack;
  return along_depth ? StripPlace{index / kDepthPacks, index % kDepthPacks * S::kPack}
                     : StripPlace{index % kSpanPacks * S::kPack, index / kSpanPacks};
}

// Elements outside are zero.
template <class T, class S>
LN_DEVICE void load_strip(const Factor<T>& factor, int64_t depth, S& strip) {
  LN_UNROLL
  for (int u = 0; u < S::kPacks; ++u) {
    const StripPlace place = strip_place<S>(u, factor.along_depth);
    const int64_t s = factor.first + place.span, d = depth + place.depth;
    const int64_t line = factor.along_depth ? s : d, lines = factor.along_depth ? factor.span : factor.depth;
    const int64_t col = factor.along_depth ? d : s, cols = factor.along_depth ? factor.depth : factor.span;
    const T* from = factor.from + line * factor.ld + col;
    if (factor.packed && line < lines && col + S::kPack <= cols) {
      strip.held[u] = pack_at(from);
    } else {
      LN_UNROLL
      for (int e = 0; e < S::kPack; ++e) strip.held[u].of[e] = line < lines && col + e < cols ? from[e] : T(0);
    }
  }
}

template <class T, class S>
LN_DEVICE void store_strip(const S& strip, bool along_depth, T* shared) {
  LN_UNROLL
  for (int u = 0; u < S::kPacks; ++u) {
    const StripPlace place = strip_place<S>(u, along_depth);
    T* to = shared + place.depth * S::kDistance + place.span;
    if (along_depth) {
      LN_UNROLL
      for (int e = 0; e < S::kPack; ++e) to[e * S::kDistance] = strip.held[u].of[e];
    } else {
      pack_at(to) = strip.held[u];
    }
  }
}

// A thread's rows (or columns) of a tile: packs, or less where it has less, dealt to the threads in turn, so that
// threads side by side read and write side by side.
template <class T, int kOwn, int kOthers>
struct Share {
  static constexpr int kWidth = kOwn < Pack<T>::kCount ? kOwn : Pack<T>::kCount;
  static constexpr int kRuns = kOwn / kWidth;
  static constexpr bool kPacked = kWidth == Pack<T>::kCount;
  LN_DEVICE int place(int run, int thread) { return (run * kOthers + thread) * kWidth; }
};

template <class S, class T, int kOwn>
LN_DEVICE void read_share(const T* line, int thread, T (&own)[kOwn]) {
  LN_UNROLL
  for (int run = 0; run < S::kRuns; ++run) {
    const T* from = line + S::place(run, thread);
    if constexpr (S::kPacked) {
      const Pack<T> pack = pack_at(from);
      LN_UNROLL
      for (int e = 0; e < S::kWidth; ++e) own[run * S::kWidth + e] = pack.of[e];
    } else {
      LN_UNROLL
      for (int e = 0; e < S::kWidth; ++e) own[run * S::kWidth + e] = from[e];
    }
  }
}

// Writes a thread's elements of one row of a tile; `to` is where the tile's row begins, of which `cols` exist.
template <class S, class T, int kOwn>
LN_DEVICE void write_share(T* to, int64_t cols, int thread, const T (&own)[kOwn], bool packed, bool add) {
  LN_UNROLL
  for (int run = 0; run < S::kRuns; ++run) {
    const int col = S::place(run, thread);
    if constexpr (S::kPacked) {
      if (packed && col + S::kWidth <= cols) {
        Pack<T> pack{};
        if (add) pack = pack_at(to + col);
        LN_UNROLL
        for (int e = 0; e < S::kWidth; ++e) pack.of[e] += own[run * S::kWidth + e];
        pack_at(to + col) = pack;
        continue;
      }
    }
    LN_UNROLL
    for (int e = 0; e < S::kWidth; ++e) {
      if (col + e < cols) to[col + e] = (add ? to[col + e] : T(0)) + own[run * S::kWidth + e];
    }
  }
}

// sums[i][j] += a thread's part of one strip of A times one of B, both in shared memory; `down` and `across`: which
// rows and columns are the thread's, see Share.
template <class StripA, class StripB, class Rows, class Cols, class T, int kRows, int kCols>
LN_DEVICE void multiply_strips(const T* a, const T* b, int down, int across, T (&sums)[kRows][kCols]) {
  static_assert(StripA::kDepth == StripB::kDepth, "strips of one step");
  LN_UNROLL
  for (int d = 0; d < StripA::kDepth; ++d) {
    T left[kRows], right[kCols];
    read_share<Rows>(a + d * StripA::kDistance, down, left);
    read_share<Cols>(b + d * StripB::kDistance, across, right);
    LN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      LN_UNROLL
      for (int j = 0; j < kCols; ++j) sums[i][j] += left[i] * right[j];
    }
  }
}

// The same of whole factors. `shared_a` and `shared_b` have room for two strips each, one of which is filled while the
// other is read, so that a step needs one barrier; `half` goes from call to call. kRoomB: elements of half of shared_b,
// where strips of other sizes also go.
template <class StripA, class StripB, class Rows, class Cols, int kRoomB = StripB::kElements, class T, int kRows,
          int kCols>
LN_DEVICE void multiply_factors(const Factor<T>& a, const Factor<T>& b, T* shared_a, T* shared_b, int down, int across,
                                int& half, T (&sums)[kRows][kCols]) {
  StripA strip_a;
  StripB strip_b;
  if (a.depth > 0) {
    load_strip(a, 0, strip_a);
    load_strip(b, 0, strip_b);
  }
  LN_NO_UNROLL
  for (int64_t depth = 0; depth < a.depth; depth += StripA::kDepth) {
    T *to_a = shared_a + half * StripA::kElements, *to_b = shared_b + half * kRoomB;
    half ^= 1;
    store_strip(strip_a, a.along_depth, to_a);
    store_strip(strip_b, b.along_depth, to_b);
    __syncthreads();
    if (depth + StripA::kDepth < a.depth) {
      load_strip(a, depth + StripA::kDepth, strip_a);
      load_strip(b, depth + StripA::kDepth, strip_b);
    }
    multiply_strips<StripA, StripB, Rows, Cols>(to_a, to_b, down, across, sums);
  }
}

template <class T, int kRows, int kCols>
LN_DEVICE void set_zero(T (&sums)[kRows][kCols]) {
  LN_UNROLL
  for (int i = 0; i < kRows; ++i) {
    LN_UNROLL
    for (int j = 0; j < kCols; ++j) sums[i][j] = T(0);
  }
}

}  // namespace lazynet::cuda

#endif  // LN_DEVICE_CODE
