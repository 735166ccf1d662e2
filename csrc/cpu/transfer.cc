// Moving pieces to and from packed memory, checks, and the optimizers' updates.
#include "transfer.h"

#include "../lazynet.h"
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
struct UpdateArrays {
  T *value, *m, *v;
  const T* grad;
  T scale, decay;  // of gradients; of values, added to the gradient
};

template <class T>
void update_sgd(const UpdateConstants& h, const UpdateArrays<T>& a, int64_t begin, int64_t end) {
  const T rate = static_cast<T>(h.learning_rate), momentum = static_cast<T>(h.momentum);
  const T fresh = h.first ? T(1) : static_cast<T>(1 - h.dampening), kept = h.first ? T(0) : momentum;
  T *value = a.value, *buffer = a.m;
  const T *grad = a.grad, scale = a.scale, decay = a.decay;
  if (h.momentum == 0) {
    LN_IVDEP
    for (int64_t i = begin; i < end; ++i) value[i] -= rate * (grad[i] * scale + decay * value[i]);
    return;
  }
  // The step is momentum * buffer + g with Nesterov's, else the buffer.
  const T from_buffer = h.nesterov ? momentum : T(1), from_gradient = h.nesterov ? T(1) : T(0);
  if (h.first) std::memset(buffer + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(T));
  LN_IVDEP
  for (int64_t i = begin; i < end; ++i) {
    const T g = grad[i] * scale + decay * value[i];
    buffer[i] = kept * buffer[i] + fresh * g;
    value[i] -= rate * (from_gradient * g + from_buffer * buffer[i]);
  }
}

template <class T>
void update_adagrad(const UpdateConstants& h, const UpdateArrays<T>& a, int64_t begin, int64_t end) {
  const T rate = static_cast<T>(h.learning_rate), epsilon = static_cast<T>(h.epsilon);
  T *value = a.value, *squares = a.m;
  const T *grad = a.grad, scale = a.scale, decay = a.decay;
  LN_IVDEP
  for (int64_t i = begin; i < end; ++i) {
    const T g = grad[i] * scale + decay * value[i];
    squares[i] += g * g;
    value[i] -= rate * g / (m::sqrt(squares[i]) + epsilon);
  }
}

// Adam, and AdamW, whose decay shrinks the value instead of adding to the gradient.
template <class T>
void update_adam(const UpdateConstants& h, const UpdateArrays<T>& a, bool decoupled, int64_t begin, int64_t end) {
  const T rate = static_cast<T>(h.learning_rate / h.correction1), epsilon = static_cast<T>(h.epsilon);
  const T beta1 = static_cast<T>(h.beta1), fresh1 = static_cast<T>(1 - h.beta1);
  const T beta2 = static_cast<T>(h.beta2), fresh2 = static_cast<T>(1 - h.beta2);
  const T root = static_cast<T>(1 / __builtin_sqrt(h.correction2));
  const T shrink = decoupled ? static_cast<T>(1 - h.learning_rate * h.weight_decay) : T(1);
  T *value = a.value, *first = a.m, *second = a.v;
  const T *grad = a.grad, scale = a.scale, decay = decoupled ? T(0) : a.decay;
  LN_IVDEP
  for (int64_t i = begin; i < end; ++i) {
    const T g = grad[i] * scale + decay * value[i];
    first[i] = beta1 * first[i] + fresh1 * g;
    second[i] = beta2 * second[i] + fresh2 * g * g;
    value[i] = value[i] * shrink - rate * first[i] / (m::sqrt(second[i]) * root + epsilon);
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
  const UpdateConstants& h = *u.constants;
  const UpdateArrays<T> arrays{static_cast<T*>(u.value),      static_cast<T*>(u.m),    static_cast<T*>(u.v),
                               static_cast<const T*>(u.grad), static_cast<T>(h.scale), static_cast<T>(h.weight_decay)};
  parallel_for(u.count, kGrainElements, [&](int64_t begin, int64_t end) {
    switch (optimizer) {
      case LN_SGD:
        return update_sgd(h, arrays, begin, end);
      case LN_ADAGRAD:
        return update_adagrad(h, arrays, begin, end);
      default:
        return update_adam(h, arrays, optimizer == LN_ADAMW, begin, end);
    }
  });
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
