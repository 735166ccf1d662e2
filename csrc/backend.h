// What runs kernels on one device, and its memory. The planner and the executor know nothing else of a device.
//
// Work is done in the order in which it is asked for, but perhaps later: only read(), read_rows(), settle(), finish()
// and the functions that return a number wait for it. Memory may therefore be given back, and used again, as soon as
// the last work on it was asked for. Arrays that describe work (pieces, runs, batches) are the caller's again at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel.h"
#include "memory_resource.h"
#include "ops/op.h"

namespace lazynet {

struct UpdateConstants {
  double learning_rate, weight_decay, momentum, dampening, beta1, beta2, epsilon;
  double correction1, correction2;  // Adam: 1 - beta1^t, 1 - beta2^t
  double scale;                     // gradients are multiplied by this first
  bool nesterov;
  bool first;  // SGD: the momentum buffer starts as the gradient
};

// One stretch of elements that an optimizer updates; m and v are null where the kind has none.
struct Update {
  const UpdateConstants* constants;
  int64_t count;
  void* value;
  const void* grad;
  void* m;
  void* v;
};

struct Stretch {
  const void* data;
  int64_t count;  // elements
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;  // as a user writes it
  virtual MemoryResource& memory() = 0;

  // Whether kernels may add to gradients that share memory, which they do one after another where Operand::overlapping
  // and Fused::serial say so. Where not, they never see any: what the operands of one call would share lies apart, and
  // is brought together by scatter_add(); and a gradient that nobody wants is null, not memory that nobody reads.
  virtual bool adds_in_turn() const = 0;
  // Whether forward of early operators makes gradients already; else Batch::kept and Batch::early are null.
  virtual bool makes_early_gradients() const = 0;

  // The kernels of the operator table.
  virtual void forward(int dtype, const Batch& batch) = 0;
  virtual void backward(int dtype, const Batch& batch) = 0;
  virtual void shared(int dtype, const Batch& batch) = 0;
  // Waits until all that kernels found wrong stands in the faults of their batches, which must exist until then.
  virtual void settle() = 0;
  // Waits for all work.
  virtual void finish() = 0;
  // A graph starts over: the same work may follow as the last time.
  virtual void begin_step() = 0;

  // Copies pieces of equal cols one below another into a matrix with row stride `ld`.
  virtual void gather(int dtype, const Piece* pieces, int64_t count, void* matrix, int64_t ld) = 0;
  // Adds such a matrix to the pieces' gradients where they have one, in the order of pieces where they share memory,
  // which only `overlapping` ones may.
  virtual void scatter_add(int dtype, const void* matrix, int64_t ld, const Piece* pieces, int64_t count,
                           bool overlapping) = 0;
  // Computes all registers and stores results; or, with results' values there, gradients of the operands.
  virtual void fused_forward(int dtype, const Fused& fused) = 0;
  virtual void fused_backward(int dtype, const Fused& fused) = 0;
  // sums[c] += the sum of column c of a rows x cols matrix; or, with `all`, of every element to sums[0].
  virtual void add_column_sums(int dtype, const void* matrix, int64_t rows, int64_t cols, int64_t ld, bool all,
                               void* sums) = 0;
  virtual void zero(void* address, std::size_t bytes) = 0;
  virtual void add_one(int dtype, void* element) = 0;
  // The number of the first element that is not finite in a rows x cols matrix, or -1.
  virtual int64_t first_non_finite(int dtype, const void* matrix, int64_t rows, int64_t cols, int64_t ld) = 0;

  virtual void update(int dtype, int optimizer, const Update* updates, int64_t count) = 0;
  // In double precision, in an order that depends on the sizes alone.
  virtual double sum_of_squares(int dtype, const Stretch* stretches, int64_t count) = 0;

  // Between this process's ordinary memory and the device's.
  virtual void read(void* to, const void* from, std::size_t bytes) = 0;
  virtual void write(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;  // within the device's
  // Rows of `row_bytes` that are `stride` bytes apart, to one after another.
  virtual void read_rows(void* to, const void* from, int64_t rows, int64_t row_bytes, int64_t stride) = 0;
};

// The CPU with the widest vector unit of this machine, or the one chosen by set_vector_unit().
Backend& cpu_backend();
const char* vector_unit();
void set_vector_unit(const char* name);  // throws Error(LN_VALUE_ERROR)

}  // namespace lazynet
