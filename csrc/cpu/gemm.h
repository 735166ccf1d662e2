// Products of activations with weights: C (m x n) = or += A (m x k) B (k x n), where B has been copied into panels of
// kPanel columns that the innermost loop reads from end to end. The copy is kept for a whole forward or backward
// (weight_cache.h), so that batches of a few rows, of which trees and sequences have many, pay for the
// multiplications alone.
//
// Bound by arithmetic: a tile of kTileRows x kPanel sums stays in registers and does 2 kTileRows multiply-adds of
// vectors for 2 + kTileRows loads.
#pragma once

#include <cstring>
#include <utility>

#include "../weight_cache.h"
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {

#if defined(__AVX512F__)
static constexpr int kVectorBytes = 64;
static constexpr int kTileRows = 12;  // of 32 registers: 24 sums, 2 of B, 1 of A
#elif defined(__AVX2__)
static constexpr int kVectorBytes = 32;
static constexpr int kTileRows = 6;  // of 16 registers: 12 sums, 2 of B, 1 of A
#else
static constexpr int kVectorBytes = 16;
static constexpr int kTileRows = 6;
#endif
template <class T>
static constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
template <class T>
static constexpr int kPanel = 2 * kLanes<T>;

template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));
};

// What the sums are added to: nothing, a row that is the same for all rows of C (a bias), or C itself.
enum class Start { kZero, kBias, kResult };

// kRows x kPanel sums of products; the first `cols` of each row are written.
template <int kRows, class T>
static void gemm_tile(int64_t k, const T* a, int64_t lda, const T* panel, T* c, int64_t ldc, int64_t cols, Start start,
                      const T* bias) {
  using Vector = typename VectorOf<T>::Type;
  constexpr int kLane = kLanes<T>;
  T edge[kPanel<T>];  // of a row that is shorter than the panel
  const bool whole = cols == kPanel<T>;
  Vector sums[kRows][2];
  for (int i = 0; i < kRows; ++i) {
    const T* from = start == Start::kResult ? c + i * ldc : bias;
    if (start == Start::kZero) {
      sums[i][0] = sums[i][1] = Vector{};
      continue;
    }
    if (!whole) {
      for (int64_t j = 0; j < kPanel<T>; ++j) edge[j] = j < cols ? from[j] : T(0);
      from = edge;
    }
    sums[i][0] = *reinterpret_cast<const Vector*>(from);
    sums[i][1] = *reinterpret_cast<const Vector*>(from + kLane);
  }
  for (int64_t l = 0; l < k; ++l, panel += kPanel<T>) {
    const Vector left = *reinterpret_cast<const Vector*>(panel);
    const Vector right = *reinterpret_cast<const Vector*>(panel + kLane);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const Vector x = a[i * lda + l] - Vector{};  // the number in every lane; x - 0 is x, -0 included
      sums[i][0] += x * left;
      sums[i][1] += x * right;
    }
  }
  for (int i = 0; i < kRows; ++i) {
    T* to = whole ? c + i * ldc : edge;
    *reinterpret_cast<Vector*>(to) = sums[i][0];
    *reinterpret_cast<Vector*>(to + kLane) = sums[i][1];
    for (int64_t j = 0; !whole && j < cols; ++j) c[i * ldc + j] = edge[j];
  }
}

template <class T>
using GemmTile = void (*)(int64_t k, const T* a, int64_t lda, const T* panel, T* c, int64_t ldc, int64_t cols,
                          Start start, const T* bias);
template <class T, int... kRows>
static inline GemmTile<T> tile_of(int rows, std::integer_sequence<int, kRows...>) {
  static constexpr GemmTile<T> kTiles[] = {gemm_tile<kRows + 1, T>...};
  return kTiles[rows - 1];
}

template <class T>
static inline int64_t packed_elements(int64_t k, int64_t n) {
  return (n + kPanel<T> - 1) / kPanel<T> * kPanel<T> * k;
}
// One panel of op(B), k rows; columns beyond `width` are zero. Memory is read from end to end, because the optimizer
// has left it in another core's cache; a block of the panel that is written in jumps stays in the first level.
template <class T>
static void pack_panel(bool transposed, int64_t k, int64_t width, const T* b, int64_t ldb, T* out) {
  constexpr int64_t kBlock = 128;
  if (width < kPanel<T>) std::memset(out, 0, static_cast<std::size_t>(k * kPanel<T>) * sizeof(T));
  if (!transposed) {
    for (int64_t l = 0; l < k; ++l)
      std::memcpy(out + l * kPanel<T>, b + l * ldb, static_cast<std::size_t>(width) * sizeof(T));
    return;
  }
  for (int64_t top = 0; top < k; top += kBlock) {
    const int64_t bottom = top + kBlock < k ? top + kBlock : k;
    for (int64_t j = 0; j < width; ++j)
      for (int64_t l = top; l < bottom; ++l) out[l * kPanel<T> + j] = b[j * ldb + l];
  }
}

// Copies op(B), k x n, into panels.
template <class T>
static void pack_panels(bool transposed, int64_t k, int64_t n, const T* b, int64_t ldb, T* packed) {
  parallel_for((n + kPanel<T> - 1) / kPanel<T>, 1 + kGrainElements / (k * kPanel<T> + 1),
               [=](int64_t begin, int64_t end) {
                 for (int64_t panel = begin; panel < end; ++panel) {
                   const int64_t first = panel * kPanel<T>;
                   const int64_t width = n - first < kPanel<T> ? n - first : kPanel<T>;
                   pack_panel<T>(transposed, k, width, b + (transposed ? first * ldb : first), ldb,
                                 packed + panel * k * kPanel<T>);
                 }
               });
}

// The panels of op(B), k x n, of a shared operand; null where there is no copy and `m` rows are too few to make one.
template <class T>
static const T* panels_of(const Batch& batch, const Operand& shared, bool transposed, int64_t m, int64_t k, int64_t n) {
  constexpr int64_t kFewRows = 4;
  const Piece& b = shared.pieces[0];
  if (!batch.weights) return nullptr;
  const WeightCache::Key key{shared.identity, b.value, b.rows, b.cols, b.ld, transposed};
  if (void* known = batch.weights->find(key)) return static_cast<const T*>(known);
  if (m < kFewRows) return nullptr;
  auto* packed =
      static_cast<T*>(batch.weights->add(key, static_cast<std::size_t>(packed_elements<T>(k, n)) * sizeof(T)));
  if (packed) pack_panels<T>(transposed, k, n, value_of<T>(b), b.ld, packed);
  return packed;
}

// Some rows of C against all panels, `depth` of their k rows: `packed` points to the first of those of the first panel.
template <class T>
static void multiply_rows(int64_t rows, int64_t n, int64_t depth, int64_t k, const T* a, int64_t lda, const T* packed,
                          T* c, int64_t ldc, Start start, const T* bias) {
  for (int64_t col = 0; col < n; col += kPanel<T>) {
    const int64_t cols = n - col < kPanel<T> ? n - col : kPanel<T>;
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const int count = static_cast<int>(rows - row < kTileRows ? rows - row : kTileRows);
      tile_of<T>(count, std::make_integer_sequence<int, kTileRows>())(
          depth, a + row * lda, lda, packed + col * k, c + row * ldc + col, ldc, cols, start, offset(bias, col));
    }
  }
}

// A block of C. Rows go in groups that stay in the second-level cache while all panels pass. Where the rows of A lie a
// multiple of a page apart, those of a tile want the same few places of the first-level cache: they are copied, a
// stretch of columns at a time.
template <class T>
static void multiply_block(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* packed, T* c, int64_t ldc,
                           Start start, const T* bias) {
  constexpr int64_t kGroup = 16 * kTileRows, kPage = 4096, kDepth = 256, kApart = kDepth + 64 / sizeof(T);
  const bool in_conflict = m > 4 && k > 0 && lda * static_cast<int64_t>(sizeof(T)) % kPage == 0;
  for (int64_t top = 0; top < m; top += kGroup) {
    const int64_t rows = m - top < kGroup ? m - top : kGroup;
    if (!in_conflict) {
      multiply_rows<T>(rows, n, k, k, a + top * lda, lda, packed, c + top * ldc, ldc, start, bias);
      continue;
    }
    alignas(64) T copy[kGroup * kApart];
    for (int64_t l = 0; l < k; l += kDepth) {
      const int64_t depth = k - l < kDepth ? k - l : kDepth;
      copy_block(a + top * lda + l, lda, copy, kApart, rows, depth);
      multiply_rows<T>(rows, n, depth, k, copy, kApart, packed + l * kPanel<T>, c + top * ldc, ldc,
                       l == 0 ? start : Start::kResult, bias);
    }
  }
}

// The whole product over the threads: blocks of columns, or of rows where those are many.
template <class T>
static void multiply_packed(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* packed, T* c,
                            int64_t ldc, Start start, const T* bias) {
  constexpr int64_t kGrainProducts = int64_t{1} << 15;  // below, a second thread costs more than it brings
  // Panels are many and cut evenly; rows only where a tile more or less on one thread makes no difference.
  const bool by_rows = m >= 32 * kTileRows;
  const int64_t size = by_rows ? m : n, unit = by_rows ? kTileRows : kPanel<T>;
  const int64_t unit_products = unit * (by_rows ? n : m) * k + 1;
  parallel_for((size + unit - 1) / unit, 1 + kGrainProducts / unit_products, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * unit, last = end * unit < size ? end * unit : size;
    if (by_rows)
      multiply_block<T>(last - first, n, k, a + first * lda, lda, packed, c + first * ldc, ldc, start, bias);
    else
      multiply_block<T>(m, last - first, k, a, lda, packed + first * k, c + first, ldc, start, offset(bias, first));
  });
}

}  // namespace lazynet::cpu::LN_UNIT
