// Loops that several kernel files share: folds with a fixed order of additions, block copies, row
// ranges.
#pragma once

#include "../ops/math.h"
#include "kernels.h"

// For loops whose iterations write disjoint memory that none of them reads.
#if defined(__clang__)
#define LN_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define LN_IVDEP _Pragma("GCC ivdep")
#endif

// On functions around a loop over a callable: all that the loop calls is inlined.
#define LN_FLATTEN __attribute__((flatten))

namespace lazynet::cpu::LN_UNIT {

template <class T>
static constexpr T kInfinity = static_cast<T>(__builtin_inf());

// Columns that a kernel handles together when it keeps a number a column on the stack.
static constexpr int64_t kColumnBlock = 64;

// Null stays null: operands that a formula does not read have no memory.
template <class T>
static inline T* offset(T* pointer, int64_t elements) {
  return pointer ? pointer + elements : pointer;
}
template <class T>
static inline const T* row_value(const Piece& piece, int64_t row) {
  return static_cast<const T*>(piece.value) + row * piece.ld;
}
template <class T>
static inline T* row_grad(const Piece& piece, int64_t row) {
  return static_cast<T*>(piece.grad) + row * piece.ld;
}
static inline bool contiguous(const Piece& piece) { return piece.ld == piece.cols || piece.rows <= 1; }
// The piece as one row where its memory allows, so that inner loops are long.
static inline Piece flattened(const Piece& piece) {
  int64_t elements = piece.rows * piece.cols;
  return {piece.value, piece.grad, 1, elements, elements};
}

struct Add {
  template <class T>
  static constexpr T identity() {
    return T(0);
  }
  template <class T>
  static inline T combine(T a, T b) {
    return a + b;
  }
};
// NaN wins.
struct Max {
  template <class T>
  static constexpr T identity() {
    return -kInfinity<T>;
  }
  template <class T>
  static inline T combine(T a, T b) {
    return b > a || b != b ? b : a;
  }
};

// Folds f(begin), ..., f(end - 1): a set of lanes, which the compiler keeps in vector registers,
// and pairwise beyond a few thousand elements. The order depends on the count alone.
template <class Fold, class T, class Function>
LN_FLATTEN static inline T fold_lanes(int64_t begin, int64_t end, const Function& f) {
  constexpr int kLanes = 128 / sizeof(T);
  T lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = Fold::template identity<T>();
  const int64_t full = (end - begin) / kLanes;
  for (int64_t i = 0; i < full; ++i)
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] = Fold::combine(lanes[lane], static_cast<T>(f(begin + i * kLanes + lane)));
  T rest = Fold::template identity<T>();
  const int left = static_cast<int>((end - begin) % kLanes);
  for (int k = 0; k < left; ++k) rest = Fold::combine(rest, static_cast<T>(f(begin + full * kLanes + k)));
  if (full == 0) return rest;
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] = Fold::combine(lanes[lane], lanes[lane + width]);
  return Fold::combine(lanes[0], rest);
}
template <class Fold, class T, class Function>
static T fold_pairwise(int64_t begin, int64_t end, const Function& f) {
  constexpr int64_t kBlock = 4096;
  if (end - begin <= kBlock) return fold_lanes<Fold, T>(begin, end, f);
  int64_t middle = begin + ((end - begin) / kBlock + 1) / 2 * kBlock;
  T first = fold_pairwise<Fold, T>(begin, middle, f);
  return Fold::combine(first, fold_pairwise<Fold, T>(middle, end, f));
}
template <class T, class Function>
static inline T sum_over(int64_t count, const Function& f) {
  return fold_pairwise<Add, T>(0, count, f);
}
template <class T, class Function>
static inline T max_over(int64_t count, const Function& f) {
  return fold_pairwise<Max, T>(0, count, f);
}

// Folds rows begin..end of `width` <= kColumnBlock elements, row(i) being the address of row i,
// pairwise.
template <class Fold, class T, class Row>
static void fold_rows(const Row& row, int64_t begin, int64_t end, int64_t width, T* out) {
  constexpr int64_t kRun = 32;
  if (end - begin > kRun) {
    T second[kColumnBlock];
    int64_t middle = begin + (end - begin) / 2;
    fold_rows<Fold, T>(row, begin, middle, width, out);
    fold_rows<Fold, T>(row, middle, end, width, second);
    LN_IVDEP
    for (int64_t j = 0; j < width; ++j) out[j] = Fold::combine(out[j], second[j]);
    return;
  }
  for (int64_t j = 0; j < width; ++j) out[j] = Fold::template identity<T>();
  for (int64_t i = begin; i < end; ++i) {
    const T* in = row(i);
    LN_IVDEP
    for (int64_t j = 0; j < width; ++j) out[j] = Fold::combine(out[j], in[j]);
  }
}

// Calls function(first column, width) for blocks of at most kColumnBlock columns.
template <class Function>
static inline void for_column_blocks(int64_t cols, const Function& function) {
  for (int64_t first = 0; first < cols; first += kColumnBlock)
    function(first, cols - first < kColumnBlock ? cols - first : kColumnBlock);
}

// Calls function(row), over the threads when the piece is large and no caller has split the work
// already.
template <class Function>
static inline void for_rows(int64_t rows, int64_t cols, const Function& function) {
  parallel_for(rows, 1 + kGrainElements / (cols + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) function(row);
  });
}

template <class T>
static inline void add_to(int64_t count, const T* from, T* to) {
  LN_IVDEP
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}
template <class T>
static inline void copy_block(const T* from, int64_t from_ld, T* to, int64_t to_ld, int64_t rows, int64_t cols) {
  if (rows == 0 || cols == 0) return;
  if (from_ld == cols && to_ld == cols) cols *= rows, rows = 1;
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(to + row * to_ld, from + row * from_ld, static_cast<std::size_t>(cols) * sizeof(T));
}
template <class T>
static inline void add_block(const T* from, int64_t from_ld, T* to, int64_t to_ld, int64_t rows, int64_t cols) {
  if (from_ld == cols && to_ld == cols) cols *= rows, rows = 1;
  for (int64_t row = 0; row < rows; ++row) add_to(cols, from + row * from_ld, to + row * to_ld);
}

// What a softmax over a piece needs: exp(x - shift) sums to `sum`. shift is the maximum, or 0 where
// that is infinite, so that a group of -inf alone has sum 0 and no NaN.
template <class T>
struct SoftmaxSum {
  T shift, sum;
  // exp(x - shift) * scale() is the softmax, zero for a group of -inf alone.
  T scale() const { return sum == T(0) ? T(0) : T(1) / sum; }
  // x - shift - log_scale() is the log-softmax, -inf for such a group.
  T log_scale() const { return sum == T(0) ? T(0) : m::log(sum); }
};
template <class T>
static inline T softmax_shift(T maximum) {
  return m::abs(maximum) == kInfinity<T> ? T(0) : maximum;
}
template <class T>
static inline SoftmaxSum<T> softmax_sum(const T* x, int64_t count) {
  T shift = softmax_shift(max_over<T>(count, [=](int64_t i) { return x[i]; }));
  return {shift, sum_over<T>(count, [=](int64_t i) { return m::exp(x[i] - shift); })};
}

}  // namespace lazynet::cpu::LN_UNIT
