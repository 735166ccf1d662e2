#include "device.h"

#include "table.h"
#include "transfer.h"

namespace lazynet::cuda {

Device::Device(const ln_device_options& options)
    : name_(options.name),
      options_(options),
      driver_(options.driver, options.blas),
      context_(open_context()),
      queue_(driver_, *this, *this) {}

Context Device::open_context() {
  int device = 0;
  Context context = nullptr;
  driver_.check(driver_.init(0), "starting the driver");
  driver_.check(driver_.device(&device, options_.ordinal), "finding the device");
  driver_.check(driver_.retain_context(&context, device), "opening the device's context");
  driver_.check(driver_.set_context(context), "entering the device's context");
  return context;
}

// ---- memory and kernels from outside

void* Device::allocate(std::size_t bytes) {
  void* memory = options_.allocate(options_.self, bytes);
  if (!memory) return nullptr;
  std::lock_guard<std::mutex> lock(allocations_mutex_);
  allocations_[static_cast<const char*>(memory)] = bytes;
  return memory;
}

bool Device::in_one_allocation(const void* begin, std::size_t bytes) {
  const char* first = static_cast<const char*>(begin);
  std::lock_guard<std::mutex> lock(allocations_mutex_);
  auto after = allocations_.upper_bound(first);
  if (after == allocations_.begin()) return false;
  --after;
  return first + bytes <= after->first + after->second;
}

void Device::deallocate(void* address, std::size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(allocations_mutex_);
    allocations_.erase(static_cast<const char*>(address));
  }
  // Others may get the memory next, who know nothing of the order of this device's work.
  Turn turn(*this);
  if (closed_) return;
  queue_.finish();
  options_.deallocate(options_.self, address, bytes);
}

Function Device::find(const Kernel& kernel) {
  if (kernel.number >= static_cast<int>(functions_.size())) functions_.resize(kernel.number + 1, nullptr);
  Function& function = functions_[kernel.number];
  if (!function)
    driver_.check(driver_.find_function(&function, load(kernel), kernel.entry.c_str()), kernel.entry.c_str());
  return function;
}

Module Device::load(const Kernel& kernel) {
  const std::string only = kernel.dtype == LN_FLOAT64 ? "LN_ONLY_DOUBLE" : "LN_ONLY_FLOAT";
  const std::string defines = kernel.pick.empty() ? only : only + " LN_PICK=" + kernel.pick;
  const char* source = kernel.source.empty() ? nullptr : kernel.source.c_str();
  Module& module = modules_[source ? kernel.source : kernel.family + ' ' + defines];
  if (module) return module;
  char error[4096] = "";
  const void* image =
      options_.compile(options_.self, kernel.family.c_str(), source, defines.c_str(), error, sizeof error);
  if (!image) fail(LN_DEVICE_ERROR, name_, ": the kernels of ", kernel.family, " cannot be compiled: ", error);
  driver_.check(driver_.load_module(&module, image), "loading kernels");
  return module;
}

// ---- work

void Device::forward(int dtype, const Batch& batch) {
  Turn turn(*this);
  table(dtype).forward[batch.op](queue_, batch);
}

void Device::backward(int dtype, const Batch& batch) {
  Turn turn(*this);
  table(dtype).backward[batch.op](queue_, batch);
}

void Device::shared(int dtype, const Batch& batch) {
  Turn turn(*this);
  table(dtype).shared[batch.op](queue_, batch);
}

void Device::settle() {
  Turn turn(*this);
  queue_.settle();
}

void Device::finish() {
  Turn turn(*this);
  queue_.finish();
}

void Device::zero(void* address, std::size_t bytes) {
  Turn turn(*this);
  queue_.zero(address, bytes);
}

void Device::read(void* to, const void* from, std::size_t bytes) {
  Turn turn(*this);
  queue_.read(to, from, bytes);
}

void Device::write(void* to, const void* from, std::size_t bytes) {
  Turn turn(*this);
  queue_.write(to, from, bytes);
}

void Device::copy(void* to, const void* from, std::size_t bytes) {
  Turn turn(*this);
  queue_.copy(to, from, bytes);
}

void Device::read_rows(void* to, const void* from, int64_t rows, int64_t row_bytes, int64_t stride) {
  Turn turn(*this);
  if (row_bytes == stride || rows <= 1) return queue_.read(to, from, static_cast<std::size_t>(rows * row_bytes));
  // Elements of any type are made of floats.
  constexpr int64_t kUnit = sizeof(float);
  const Piece piece{const_cast<void*>(from), nullptr, rows, row_bytes / kUnit, stride / kUnit};
  void* packed = queue_.scratch(static_cast<std::size_t>(rows * row_bytes));
  cuda::gather<float>(queue_, &piece, 1, packed, piece.cols);
  queue_.read(to, packed, static_cast<std::size_t>(rows * row_bytes));
}

void Device::close() {
  finish();
  closed_ = true;
}

void Device::set_tensor_float(bool on) {
  Turn turn(*this);
  queue_.set_tensor_float(on);
}

void Device::begin_step() {
  Turn turn(*this);
  queue_.begin_step();
}

void Device::set_replay(bool on) {
  Turn turn(*this);
  queue_.set_replay(on);
}

ln_device_statistics Device::statistics() {
  Turn turn(*this);
  return {queue_.launches(), queue_.replays(), queue_.uploaded_bytes()};
}

// ---- what is not in the operator table: one launcher each

#define LN_BY_TYPE(dtype, function, ...) \
  ((dtype) == LN_FLOAT64 ? function<double>(__VA_ARGS__) : function<float>(__VA_ARGS__))

void Device::gather(int dtype, const Piece* pieces, int64_t count, void* matrix, int64_t ld) {
  Turn turn(*this);
  LN_BY_TYPE(dtype, cuda::gather, queue_, pieces, count, matrix, ld);
}

void Device::scatter_add(int dtype, const void* matrix, int64_t ld, const Piece* pieces, int64_t count,
                         bool overlapping) {
  Turn turn(*this);
  LN_BY_TYPE(dtype, cuda::scatter_add, queue_, matrix, ld, pieces, count, overlapping);
}

void Device::fused_forward(int dtype, const Fused& fused) {
  Turn turn(*this);
  LN_BY_TYPE(dtype, cuda::fused_forward, queue_, fused);
}

void Device::fused_backward(int dtype, const Fused& fused) {
  Turn turn(*this);
  LN_BY_TYPE(dtype, cuda::fused_backward, queue_, fused);
}

void Device::add_column_sums(int dtype, const void* matrix, int64_t rows, int64_t cols, int64_t ld, bool all,
                             void* sums) {
  Turn turn(*this);
  LN_BY_TYPE(dtype, cuda::add_column_sums, queue_, matrix, rows, cols, ld, all, sums);
}

void Device::add_one(int dtype, void* element) {
  Turn turn(*this);
  LN_BY_TYPE(dtype, cuda::add_one, queue_, element);
}

int64_t Device::first_non_finite(int dtype, const void* matrix, int64_t rows, int64_t cols, int64_t ld) {
  Turn turn(*this);
  return LN_BY_TYPE(dtype, cuda::first_non_finite, queue_, matrix, rows, cols, ld);
}

void Device::update(int dtype, int optimizer, const Update* updates, int64_t count) {
  Turn turn(*this);
  LN_BY_TYPE(dtype, cuda::update, queue_, optimizer, updates, count);
}

double Device::sum_of_squares(int dtype, const Stretch* stretches, int64_t count) {
  Turn turn(*this);
  return LN_BY_TYPE(dtype, cuda::sum_of_squares, queue_, stretches, count);
}

}  // namespace lazynet::cuda
