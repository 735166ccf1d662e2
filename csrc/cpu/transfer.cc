// Moving pieces to and from packed memory, checks, and the optimizers' updates.
#include "transfer.h"

#include "../lazynet.h"
#include "../ops/updates.h"
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

int64_t rows_of(const Piece* pieces, int64_t begin, int64_t end) {
  int64_t rows = 0;
  for (int64_t i = begin; i < end; ++i) rows += pieces[i].rows;
  return rows;
}

// Calls visit(piece, its first row in the matrix), over the threads when there is much to move. Each range of
// pieces finds its own start.
template <class Visit>
void for_rows_of(const Piece* pieces, int64_t count, bool serial, const Visit& visit) {
  if (count == 0) return;
  const int64_t elements = rows_of(pieces, 0, count) * pieces[0].cols;
  const int64_t grain = serial ? count : 1 + count * 4 * kGrainElements / (elements + 1);
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    int64_t row = rows_of(pieces, 0, begin);
    for (int64_t i = begin; i < end; ++i) {
      visit(pieces[i], row);
      row += pieces[i].rows;
    }
  });
}

// The bits of |x|; those of infinity and NaN are the largest.
inline uint32_t magnitude_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffu;
}
inline uint64_t magnitude_bits(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffffffffffu;
}

// The first element of a row that is not finite, or -1: in blocks, each a loop without exit.
template <class T>
int64_t first_non_finite_in_row(const T* x, int64_t count) {
  constexpr int64_t kBlock = 2048;
  const auto limit = magnitude_bits(kInfinity<T>);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = begin + kBlock < count ? begin + kBlock : count;
    auto largest = limit - limit;
    for (int64_t i = begin; i < end; ++i) {
      const auto bits = magnitude_bits(x[i]);
      largest = bits > largest ? bits : largest;
    }
    if (largest < limit) continue;
    for (int64_t i = begin; i < end; ++i)
      if (magnitude_bits(x[i]) >= limit) return i;
  }
  return -1;
}

template <class T>
void update_range(int optimizer, const Update& u, const UpdateNumbers<T>& numbers, int64_t begin, int64_t end) {
  const UpdateNumbers<T> n = numbers;
  T *value = static_cast<T*>(u.value), *first = static_cast<T*>(u.m), *second = static_cast<T*>(u.v);
  const T* grad = static_cast<const T*>(u.grad);
  if (optimizer == LN_SGD && u.constants->momentum == 0) {
    LN_IVDEP
    for (int64_t i = begin; i < end; ++i) step_sgd(n, value[i], grad[i]);
  } else if (optimizer == LN_SGD) {
    if (u.constants->first) std::memset(first + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(T));
    LN_IVDEP
    for (int64_t i = begin; i < end; ++i) step_momentum(n, value[i], first[i], grad[i]);
  } else if (optimizer == LN_ADAGRAD) {
    LN_IVDEP
    for (int64_t i = begin; i < end; ++i) step_adagrad(n, value[i], first[i], grad[i]);
  } else {
    LN_IVDEP
    for (int64_t i = begin; i < end; ++i) step_adam(n, value[i], first[i], second[i], grad[i]);
  }
}

}  // namespace

template <class T>
void gather(const Piece* pieces, int64_t count, void* matrix, int64_t ld) {
  for_rows_of(pieces, count, false, [=](const Piece& piece, int64_t row) {
    copy_block(value_of<T>(piece), piece.ld, static_cast<T*>(matrix) + row * ld, ld, piece.rows, piece.cols);
  });
}

template <class T>
void scatter_add(const void* matrix, int64_t ld, const Piece* pieces, int64_t count, bool overlapping) {
  for_rows_of(pieces, count, overlapping, [=](const Piece& piece, int64_t row) {
    if (piece.grad)
      add_block(static_cast<const T*>(matrix) + row * ld, ld, grad_of<T>(piece), piece.ld, piece.rows, piece.cols);
  });
}

void zero(void* address, std::size_t bytes) {
  if (bytes == 0) return;
  parallel_for(static_cast<int64_t>(bytes), int64_t{1} << 16, [=](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(address) + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

template <class T>
int64_t first_non_finite(const void* matrix, int64_t rows, int64_t cols, int64_t ld) {
  const T* x = static_cast<const T*>(matrix);
  const bool one = ld == cols || rows == 1;
  // Without gaps, equal lengths of the whole stand for rows, so that one long row is split too.
  const int64_t width = one ? 4 * kGrainElements : cols, total = rows * cols;
  const int64_t count = one ? (total + width - 1) / width : rows, step = one ? width : ld;
  int64_t first = total;
  for_rows(count, width, [&](int64_t r) {
    if (__atomic_load_n(&first, __ATOMIC_RELAXED) < r * width) return;
    const int64_t left = total - r * width;
    const int64_t found = first_non_finite_in_row(x + r * step, left < width ? left : width);
    if (found < 0) return;
    int64_t seen = __atomic_load_n(&first, __ATOMIC_RELAXED);
    while (r * width + found < seen &&
           !__atomic_compare_exchange_n(&first, &seen, r * width + found, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  });
  return first == total ? -1 : first;
}

template <class T>
void update(int optimizer, const Update& u) {
  const UpdateNumbers<T> numbers = numbers_of<T>(optimizer, *u.constants);
  parallel_for(u.count, kGrainElements,
               [&](int64_t begin, int64_t end) { update_range(optimizer, u, numbers, begin, end); });
}

// The cut into parts depends on the count alone, so any number of threads gives the same bits.
template <class T>
double sum_of_squares(const void* data, int64_t count) {
  constexpr int64_t kParts = 64;
  const T* x = static_cast<const T*>(data);
  const int64_t even = (count + kParts - 1) / kParts;
  const int64_t length = even < kGrainElements ? kGrainElements : even;
  double partial[kParts] = {};
  parallel_for((count + length - 1) / length, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const T* from = x + part * length;
      const int64_t left = count - part * length;
      partial[part] = sum_over<double>(left < length ? left : length, [=](int64_t i) {
        return static_cast<double>(from[i]) * static_cast<double>(from[i]);
      });
    }
  });
  return sum_over<double>(kParts, [&](int64_t part) { return partial[part]; });
}

#define LN_INSTANTIATE_TRANSFER(T)                                                 \
  template void gather<T>(const Piece*, int64_t, void*, int64_t);                  \
  template void scatter_add<T>(const void*, int64_t, const Piece*, int64_t, bool); \
  template int64_t first_non_finite<T>(const void*, int64_t, int64_t, int64_t);    \
  template void update<T>(int, const Update&);                                     \
  template double sum_of_squares<T>(const void*, int64_t);
LN_INSTANTIATE_TRANSFER(float)
LN_INSTANTIATE_TRANSFER(double)

}  // namespace lazynet::cpu::LN_UNIT
