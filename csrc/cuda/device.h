// A CUDA device as a backend. Memory and compiled kernels come from outside (ln_device_options): a process that has
// CuPy shares them with it, and tests have a stand-in. Thread-safe; everything runs in one order.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "../backend.h"
#include "../lazynet.h"
#include "driver.h"
#include "queue.h"

namespace lazynet::cuda {

class Device final : public Backend, private Supplies, private MemoryResource {
 public:
  explicit Device(const ln_device_options& options);  // throws Error(LN_DEVICE_ERROR)

  const char* name() const override { return name_.c_str(); }
  MemoryResource& memory() override { return *this; }
  bool makes_early_gradients() const override { return false; }
  bool adds_in_turn() const override { return false; }

  void forward(int dtype, const Batch& batch) override;
  void backward(int dtype, const Batch& batch) override;
  void shared(int dtype, const Batch& batch) override;
  void settle() override;
  void finish() override;

  void gather(int dtype, const Piece* pieces, int64_t count, void* matrix, int64_t ld) override;
  void scatter_add(int dtype, const void* matrix, int64_t ld, const Piece* pieces, int64_t count,
                   bool overlapping) override;
  void fused_forward(int dtype, const Fused& fused) override;
  void fused_backward(int dtype, const Fused& fused) override;
  void add_column_sums(int dtype, const void* matrix, int64_t rows, int64_t cols, int64_t ld, bool all,
                       void* sums) override;
  void zero(void* address, std::size_t bytes) override;
  void add_one(int dtype, void* element) override;
  int64_t first_non_finite(int dtype, const void* matrix, int64_t rows, int64_t cols, int64_t ld) override;

  void update(int dtype, int optimizer, const Update* updates, int64_t count) override;
  double sum_of_squares(int dtype, const Stretch* stretches, int64_t count) override;

  void read(void* to, const void* from, std::size_t bytes) override;
  void write(void* to, const void* from, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void read_rows(void* to, const void* from, int64_t rows, int64_t row_bytes, int64_t stride) override;

  void close();  // waits, and keeps what memory it has

  void begin_step() override;
  void set_tensor_float(bool on);
  void set_replay(bool on);
  ln_device_statistics statistics();

 private:
  // Keeps other threads out and makes the device's context this thread's.
  class Turn {
   public:
    explicit Turn(Device& device) : lock_(device.mutex_) {
      device.driver_.check(device.driver_.set_context(device.context_), "entering the device's context");
    }

   private:
    std::lock_guard<std::recursive_mutex> lock_;
  };

  void* allocate(std::size_t bytes) override;
  void deallocate(void* address, std::size_t bytes) override;
  Function find(const Kernel& kernel) override;
  bool in_one_allocation(const void* begin, std::size_t bytes) override;
  Module load(const Kernel& kernel);
  Context open_context();

  const std::string name_;
  const ln_device_options options_;
  const Driver driver_;
  bool closed_ = false;
  std::recursive_mutex mutex_;
  Context context_;
  std::mutex allocations_mutex_;  // of its own: while memory is asked for, others may wait for the caller
  std::map<const char*, std::size_t> allocations_;
  Queue queue_;
  std::unordered_map<std::string, Module> modules_;  // by family, pick and element type
  std::vector<Function> functions_;                  // by Kernel::number
};

}  // namespace lazynet::cuda
