// The kernels of one vector unit: a table of function pointers, by ln_dtype where there are two.
#pragma once

#include "../backend.h"
#include "../kernel.h"

namespace lazynet::cpu {

// forward: writes result.matrix.value. backward: adds to the arguments' gradients where wants_grad.
// shared: adds to the shared arguments' gradients, for all batches of a signature at once.
using Kernel = void (*)(const Batch&);

struct KernelTable {
  Kernel forward[kOpCount];
  Kernel backward[kOpCount];
  Kernel shared[kOpCount];
};

// See Backend for each.
struct Unit {
  const KernelTable* kernels[2];
  void (*gather[2])(const Piece* pieces, int64_t count, void* matrix, int64_t ld);
  void (*scatter_add[2])(const void* matrix, int64_t ld, const Piece* pieces, int64_t count, bool overlapping);
  void (*fused_forward[2])(const Fused& fused);
  void (*fused_backward[2])(const Fused& fused);
  void (*add_column_sums[2])(const void* matrix, int64_t rows, int64_t cols, int64_t ld, bool all, void* sums);
  void (*zero)(void* address, std::size_t bytes);
  int64_t (*first_non_finite[2])(const void* matrix, int64_t rows, int64_t cols, int64_t ld);
  void (*update[2])(int optimizer, const Update& update);
  double (*sum_of_squares[2])(const void* data, int64_t count);
};

const Unit& chosen_unit();

}  // namespace lazynet::cpu
