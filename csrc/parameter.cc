#include "parameter.h"

#include <algorithm>

#include "error.h"

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

void* allocate_zero(Backend& backend, std::size_t bytes, const std::string& name) {
  void* memory = backend.memory().allocate(bytes);
  if (!memory) fail(LN_OUT_OF_MEMORY, "parameter ", name, ": ", bytes, " bytes are not available on ", backend.name());
  backend.zero(memory, bytes);
  return memory;
}

}  // namespace

SparseRows::~SparseRows() {
  if (values_) backend_.memory().deallocate(values_, capacity_ * row_bytes_);
}

int64_t SparseRows::slot(int64_t row) {
  const auto known = slot_of_.find(static_cast<int32_t>(row));
  if (known != slot_of_.end()) return known->second;
  if (rows_.size() == capacity_) grow();
  const auto slot = static_cast<int32_t>(rows_.size());
  rows_.push_back(static_cast<int32_t>(row));
  slot_of_.emplace(static_cast<int32_t>(row), slot);
  return slot;
}

// Rows that are not in use are zero.
void SparseRows::grow() {
  constexpr std::size_t kFewest = 64;
  const std::size_t capacity = std::max(kFewest, 2 * capacity_), used = capacity_ * row_bytes_;
  auto* values = static_cast<char*>(allocate_zero(backend_, capacity * row_bytes_, "(its sparse gradient)"));
  backend_.copy(values, values_, used);
  if (values_) backend_.memory().deallocate(values_, used);
  values_ = values;
  capacity_ = capacity;
}

void SparseRows::clear() {
  backend_.zero(values_, rows_.size() * row_bytes_);
  slot_of_.clear();
  rows_.clear();
}

Parameter::Parameter(Shape shape, int dtype, bool sparse, std::string name_, Backend& backend)
    : name(std::move(name_)), backend_(backend), shape_(shape), dtype_(dtype), version_(next_version++) {
  if (shape.rows < 0 || shape.cols < 0 || shape.rows >= INT32_MAX || shape.cols >= INT32_MAX)
    fail(LN_SHAPE_ERROR, "parameter ", name, ": shape (", shape.rows, ", ", shape.cols,
         "); sizes from 0 to 2^31 - 2 are required");
  value_ = allocate_zero(backend, bytes(), name);
  if (sparse) sparse_rows_ = std::make_unique<SparseRows>(backend, shape.cols, dtype);
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
  backend_.memory().deallocate(value_, bytes());
  if (gradient_) backend_.memory().deallocate(gradient_, bytes());
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.slots[slot_].reset();
  all.free_slots.push_back(slot_);
}

void* Parameter::dense_gradient() {
  if (!gradient_ && !sparse()) gradient_ = allocate_zero(backend_, bytes(), name);
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
    backend_.zero(gradient_, bytes());
  has_gradient_ = false;
}

std::shared_ptr<Parameter> create_parameter(Shape shape, int dtype, bool sparse, std::string name, Backend& backend) {
  auto parameter = std::make_shared<Parameter>(shape, dtype, sparse, std::move(name), backend);
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
