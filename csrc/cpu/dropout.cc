// dropout(x, rate).
#include "random.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

// Calls function(row of x, row of the result, first element's number, count) for the spans of a
// member.
template <class Function>
void for_spans(const Piece& x, const Piece& result, const Function& function) {
  const bool one = contiguous(x) && contiguous(result);
  const int64_t rows = one ? 1 : x.rows, cols = one ? x.rows * x.cols : x.cols;
  for (int64_t r = 0; r < rows; ++r)
    parallel_for(cols, kGrainElements, [&](int64_t begin, int64_t end) {
      function(r * x.ld + begin, r * result.ld + begin, r * cols + begin, end - begin);
    });
}

}  // namespace

template <class T>
void dropout_forward(const Batch& batch) {
  for_members(batch, false, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    const DropoutMask<T> mask = mask_of<T>(batch.payload[i], batch.attributes[0]);
    const T scale = mask.scale;
    for_spans(x, result, [&](int64_t from, int64_t to, int64_t element, int64_t count) {
      const T* in = value_of<T>(x) + from;
      T* y = value_of<T>(result) + to;
      for_dropout(mask, element, count, [=](int64_t k, bool keep) {
        const T kept = in[k] * scale;  // loaded in any case, so that the choice is a blend
        y[k] = keep ? kept : T(0);
      });
    });
  });
}

template <class T>
void dropout_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  for_members(batch, true, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    if (!x.grad) return;
    const DropoutMask<T> mask = mask_of<T>(batch.payload[i], batch.attributes[0]);
    const T scale = mask.scale;
    for_spans(x, result, [&](int64_t to, int64_t from, int64_t element, int64_t count) {
      const T* g = grad_of<T>(result) + from;
      T* dx = grad_of<T>(x) + to;
      for_dropout(mask, element, count, [=](int64_t k, bool keep) {
        const T kept = g[k] * scale;
        dx[k] += keep ? kept : T(0);
      });
    });
  });
}
LN_INSTANTIATE(dropout)

}  // namespace lazynet::cpu::LN_UNIT
