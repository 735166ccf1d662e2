// layer_norm(x, weight, bias) and rms_norm(x, weight) over columns. Mean and deviation are computed again in backward:
// reading a row twice is cheaper than keeping two numbers a row for every node.
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

template <class T>
struct RowStatistics {
  T mean, rstd;
  RowStatistics(const T* x, int64_t cols, T epsilon) {
    const T each = T(1) / static_cast<T>(cols);
    const T center = sum_over<T>(cols, [=](int64_t j) { return x[j]; }) * each;
    const T variance = sum_over<T>(cols, [=](int64_t j) { return (x[j] - center) * (x[j] - center); }) * each;
    mean = center;
    rstd = T(1) / m::sqrt(variance + epsilon);
  }
};

template <class T>
T epsilon_of(const Batch& batch) {
  return static_cast<T>(batch.attributes[0]);
}

template <class T>
const T* optional_value(const Batch& batch, int argument) {
  return argument < batch.argument_count ? value_of<T>(batch.arguments[argument].pieces[0]) : nullptr;
}
template <class T>
T* optional_grad(const Batch& batch, int argument) {
  const bool wanted = argument < batch.argument_count && batch.arguments[argument].wants_grad;
  return wanted ? grad_of<T>(batch.arguments[argument].pieces[0]) : nullptr;
}

}  // namespace

template <class T>
void layer_norm_forward(const Batch& batch) {
  const T *weight = optional_value<T>(batch, 1), *bias = optional_value<T>(batch, 2);
  for_members(batch, false, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    for_rows(x.rows, x.cols, [&](int64_t r) {
      const T* in = row_value<T>(x, r);
      T* y = value_of<T>(result) + r * result.ld;
      const RowStatistics<T> row(in, x.cols, epsilon_of<T>(batch));
      LN_IVDEP
      for (int64_t j = 0; j < x.cols; ++j) y[j] = (in[j] - row.mean) * row.rstd;
      if (weight) {
        LN_IVDEP
        for (int64_t j = 0; j < x.cols; ++j) y[j] *= weight[j];
      }
      if (bias) add_to(x.cols, bias, y);
    });
  });
}

// With h = g * weight and n the normalized row: dx = (h - mean(h) - n * mean(h * n)) / deviation.
template <class T>
void layer_norm_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  const T* weight = optional_value<T>(batch, 1);
  const auto row_gradient = [&](const Piece& x, const Piece& result, int64_t r, const auto& h) {
    const T* in = row_value<T>(x, r);
    const T* g = row_grad<T>(result, r);
    T* dx = row_grad<T>(x, r);
    const RowStatistics<T> row(in, x.cols, epsilon_of<T>(batch));
    const T mean = row.mean, rstd = row.rstd, each = T(1) / static_cast<T>(x.cols);
    const T mean_h = sum_over<T>(x.cols, [=](int64_t j) { return h(g, j); }) * each;
    const T mean_hn = sum_over<T>(x.cols, [=](int64_t j) { return h(g, j) * (in[j] - mean); }) * each * rstd;
    LN_IVDEP
    for (int64_t j = 0; j < x.cols; ++j) dx[j] += rstd * (h(g, j) - mean_h - (in[j] - mean) * rstd * mean_hn);
  };
  for_members(batch, true, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    if (!x.grad) return;
    for_rows(x.rows, x.cols, [&](int64_t r) {
      if (weight)
        row_gradient(x, result, r, [=](const T* g, int64_t j) { return g[j] * weight[j]; });
      else
        row_gradient(x, result, r, [](const T* g, int64_t j) { return g[j]; });
    });
  });
}

template <class T>
void layer_norm_shared(const Batch& batch) {
  T *weight = optional_grad<T>(batch, 1), *bias = optional_grad<T>(batch, 2);
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    for (int64_t r = 0; r < x.rows; ++r) {
      const T* g = row_grad<T>(result, r);
      if (weight) {
        const T* in = row_value<T>(x, r);
        const RowStatistics<T> row(in, x.cols, epsilon_of<T>(batch));
        LN_IVDEP
        for (int64_t j = 0; j < x.cols; ++j) weight[j] += g[j] * (in[j] - row.mean) * row.rstd;
      }
      if (bias) add_to(x.cols, g, bias);
    }
  }
}
LN_INSTANTIATE_SHARED(layer_norm)

namespace {

// One over the root of the mean square.
template <class T>
T inverse_rms(const T* x, int64_t cols, T epsilon) {
  const T squares = sum_over<T>(cols, [=](int64_t j) { return x[j] * x[j]; });
  return T(1) / m::sqrt(squares / static_cast<T>(cols) + epsilon);
}

}  // namespace

template <class T>
void rms_norm_forward(const Batch& batch) {
  const T* weight = optional_value<T>(batch, 1);
  for_members(batch, false, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    for_rows(x.rows, x.cols, [&](int64_t r) {
      const T* in = row_value<T>(x, r);
      T* y = value_of<T>(result) + r * result.ld;
      const T scale = inverse_rms(in, x.cols, epsilon_of<T>(batch));
      LN_IVDEP
      for (int64_t j = 0; j < x.cols; ++j) y[j] = in[j] * scale;
      if (weight) {
        LN_IVDEP
        for (int64_t j = 0; j < x.cols; ++j) y[j] *= weight[j];
      }
    });
  });
}

// With h = g * weight and s one over the root: dx = s (h - x s² mean(h x)).
template <class T>
void rms_norm_backward(const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  const T* weight = optional_value<T>(batch, 1);
  for_members(batch, true, [&](int64_t i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    if (!x.grad) return;
    for_rows(x.rows, x.cols, [&](int64_t r) {
      const T *in = row_value<T>(x, r), *g = row_grad<T>(result, r);
      T* dx = row_grad<T>(x, r);
      const T s = inverse_rms(in, x.cols, epsilon_of<T>(batch));
      const T dot = sum_over<T>(x.cols, [=](int64_t j) { return g[j] * (weight ? weight[j] : T(1)) * in[j]; });
      const T factor = s * s * s * dot / static_cast<T>(x.cols);
      LN_IVDEP
      for (int64_t j = 0; j < x.cols; ++j) dx[j] += g[j] * (weight ? weight[j] : T(1)) * s - in[j] * factor;
    });
  });
}

template <class T>
void rms_norm_shared(const Batch& batch) {
  T* weight = optional_grad<T>(batch, 1);
  if (!weight) return;
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece &x = batch.arguments[0].pieces[i], &result = batch.result.pieces[i];
    for (int64_t r = 0; r < x.rows; ++r) {
      const T *in = row_value<T>(x, r), *g = row_grad<T>(result, r);
      const T s = inverse_rms(in, x.cols, epsilon_of<T>(batch));
      LN_IVDEP
      for (int64_t j = 0; j < x.cols; ++j) weight[j] += g[j] * in[j] * s;
    }
  }
}
LN_INSTANTIATE_SHARED(rms_norm)

}  // namespace lazynet::cpu::LN_UNIT
