// The CPU as a backend: everything is done when it is asked for, by the kernels of the chosen vector unit.
#include <cstring>

#include "../lazynet.h"
#include "unit.h"

namespace lazynet {
namespace {

class CpuBackend final : public Backend {
 public:
  const char* name() const override { return "cpu"; }
  MemoryResource& memory() override { return host_memory(); }
  bool adds_in_turn() const override { return true; }
  bool makes_early_gradients() const override { return true; }
  void settle() override {}
  void finish() override {}
  void begin_step() override {}

  void forward(int dtype, const Batch& batch) override { unit().kernels[dtype]->forward[batch.op](batch); }
  void backward(int dtype, const Batch& batch) override { unit().kernels[dtype]->backward[batch.op](batch); }
  void shared(int dtype, const Batch& batch) override { unit().kernels[dtype]->shared[batch.op](batch); }

  void gather(int dtype, const Piece* pieces, int64_t count, void* matrix, int64_t ld) override {
    unit().gather[dtype](pieces, count, matrix, ld);
  }
  void scatter_add(int dtype, const void* matrix, int64_t ld, const Piece* pieces, int64_t count,
                   bool overlapping) override {
    unit().scatter_add[dtype](matrix, ld, pieces, count, overlapping);
  }
  void fused_forward(int dtype, const Fused& fused) override { unit().fused_forward[dtype](fused); }
  void fused_backward(int dtype, const Fused& fused) override { unit().fused_backward[dtype](fused); }
  void add_column_sums(int dtype, const void* matrix, int64_t rows, int64_t cols, int64_t ld, bool all,
                       void* sums) override {
    unit().add_column_sums[dtype](matrix, rows, cols, ld, all, sums);
  }
  void zero(void* address, std::size_t bytes) override { unit().zero(address, bytes); }
  void add_one(int dtype, void* element) override {
    if (dtype == LN_FLOAT64)
      *static_cast<double*>(element) += 1;
    else
      *static_cast<float*>(element) += 1;
  }
  int64_t first_non_finite(int dtype, const void* matrix, int64_t rows, int64_t cols, int64_t ld) override {
    return unit().first_non_finite[dtype](matrix, rows, cols, ld);
  }

  void update(int dtype, int optimizer, const Update* updates, int64_t count) override {
    for (int64_t i = 0; i < count; ++i) unit().update[dtype](optimizer, updates[i]);
  }
  double sum_of_squares(int dtype, const Stretch* stretches, int64_t count) override {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += unit().sum_of_squares[dtype](stretches[i].data, stretches[i].count);
    return sum;
  }

  void read(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void read_rows(void* to, const void* from, int64_t rows, int64_t row_bytes, int64_t stride) override {
    for (int64_t row = 0; row < rows; ++row)
      copy(static_cast<char*>(to) + row * row_bytes, static_cast<const char*>(from) + row * stride, row_bytes);
  }
  void write(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes) std::memcpy(to, from, bytes);
  }

 private:
  static const cpu::Unit& unit() { return cpu::chosen_unit(); }
};

}  // namespace

Backend& cpu_backend() {
  static CpuBackend* backend = new CpuBackend;  // outlives every parameter, also at exit
  return *backend;
}

}  // namespace lazynet
