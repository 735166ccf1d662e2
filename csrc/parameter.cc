#include "parameter.h"

#include <cstring>

#include "error.h"
#include "memory_resource.h"

namespace lazynet {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Parameter>> slots;
  std::vector<int32_t> free_slots;
};

Registry& registry() {
  static Registry* instance = new Registry;  // outlives every parameter, also at exit
  return *instance;
}

std::atomic<int64_t> next_version{1};

void* allocate_zero(std::size_t bytes, const std::string& name) {
  void* memory = host_memory().allocate(bytes);
  if (!memory) fail(LN_OUT_OF_MEMORY, "parameter ", name, ": ", bytes, " bytes are not available");
  std::memset(memory, 0, bytes);
  return memory;
}

}  // namespace

void* SparseRows::row(int64_t row) {
  auto [place, is_new] = slot_of_.try_emplace(static_cast<int32_t>(row), static_cast<int32_t>(rows_.size()));
  if (is_new) {
    rows_.push_back(static_cast<int32_t>(row));
    values_.resize(values_.size() + row_bytes_);
  }
  return at(place->second);
}

void SparseRows::clear() {
  slot_of_.clear();
  rows_.clear();
  values_.clear();
}

Parameter::Parameter(Shape shape, int dtype, bool sparse, std::string name_)
    : name(std::move(name_)), shape_(shape), dtype_(dtype), version_(next_version++) {
  if (shape.rows < 0 || shape.cols < 0 || shape.rows >= INT32_MAX || shape.cols >= INT32_MAX)
    fail(LN_SHAPE_ERROR, "parameter ", name, ": shape (", shape.rows, ", ", shape.cols,
         "); sizes from 0 to 2^31 - 2 are required");
  value_ = allocate_zero(bytes(), name);
  if (sparse) sparse_rows_ = std::make_unique<SparseRows>(shape.cols, dtype);
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.free_slots.empty()) {
    slot_ = static_cast<int32_t>(all.slots.size());
    all.slots.emplace_back();
  } else {
    slot_ = all.free_slots.back();
    all.free_slots.pop_back();
  }
}

Parameter::~Parameter() {
  host_memory().deallocate(value_, bytes());
  if (gradient_) host_memory().deallocate(gradient_, bytes());
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.slots[slot_].reset();
  all.free_slots.push_back(slot_);
}

void* Parameter::dense_gradient() {
  if (!gradient_ && !sparse()) gradient_ = allocate_zero(bytes(), name);
  return gradient_;
}

void Parameter::end_writing() {
  version_ = next_version++;
  --writers_;
}

std::string Parameter::label() const {
  if (!name.empty()) return "parameter " + name;
  return "a parameter without a name of shape (" + std::to_string(shape_.rows) + ", " + std::to_string(shape_.cols) +
         ")";
}

bool Parameter::has_gradient() const { return sparse() ? !sparse_rows_->rows().empty() : has_gradient_; }

void Parameter::zero_gradient() {
  if (sparse())
    sparse_rows_->clear();
  else if (has_gradient_)
    std::memset(gradient_, 0, bytes());
  has_gradient_ = false;
}

std::shared_ptr<Parameter> create_parameter(Shape shape, int dtype, bool sparse, std::string name) {
  auto parameter = std::make_shared<Parameter>(shape, dtype, sparse, std::move(name));
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().slots[parameter->slot()] = parameter;
  return parameter;
}

std::shared_ptr<Parameter> find_parameter(int64_t handle) {
  const int64_t slot = -2 - handle;
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (slot < 0 || slot >= static_cast<int64_t>(all.slots.size())) return nullptr;
  return all.slots[slot].lock();
}

}  // namespace lazynet
