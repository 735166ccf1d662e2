// A backend is a table of function pointers. The planner and the executor know nothing else of a device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel.h"
#include "memory_resource.h"
#include "ops/op.h"

namespace lazynet {

struct KernelTable {
  Kernel forward[kOpCount];
  Kernel backward[kOpCount];
  Kernel shared[kOpCount];
};

struct Backend {
  const char* name;
  MemoryResource* memory;
  const KernelTable* kernels[2];  // by ln_dtype
  // Copies pieces of equal cols one below another into a matrix with row stride `ld` (gather), or adds such a matrix
  // to the pieces' gradients where they have one (scatter_add); `overlapping`: pieces may share memory.
  void (*gather[2])(const Piece* pieces, int64_t count, void* matrix, int64_t ld);
  void (*scatter_add[2])(const void* matrix, int64_t ld, const Piece* pieces, int64_t count, bool overlapping);
  // Computes all registers and stores results; or, with results' values there, gradients of the operands.
  void (*fused_forward[2])(const Fused& fused);
  void (*fused_backward[2])(const Fused& fused);
  // sums[c] += the sum of column c of a rows x cols matrix; or, with `all`, of every element to sums[0].
  void (*add_column_sums[2])(const void* matrix, int64_t rows, int64_t cols, int64_t ld, bool all, void* sums);
  void (*zero)(void* address, std::size_t bytes);
  // The number of the first element that is not finite in a rows x cols matrix, or -1.
  int64_t (*first_non_finite[2])(const void* matrix, int64_t rows, int64_t cols, int64_t ld);
  // Optimizer updates over `count` elements; m and v may be null where the kind has none. `h` holds the
  // hyperparameters with bias correction folded in, see optimizer.cc.
  void (*update[2])(int kind, const struct UpdateConstants& h, int64_t count, void* value, void* grad, void* m,
                    void* v);
  double (*sum_of_squares[2])(const void* data, int64_t count);
};

struct UpdateConstants {
  double learning_rate, weight_decay, momentum, dampening, beta1, beta2, epsilon;
  double correction1, correction2;  // Adam: 1 - beta1^t, 1 - beta2^t
  double scale;                     // gradients are multiplied by this first
  bool nesterov;
  bool first;  // SGD: the momentum buffer starts as the gradient
};

// The CPU with the widest vector unit of this machine, or the one chosen by set_vector_unit().
const Backend& cpu_backend();
const char* vector_unit();
void set_vector_unit(const char* name);  // throws Error(LN_VALUE_ERROR)

}  // namespace lazynet
