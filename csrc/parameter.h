// Trainable matrices, outside any graph. Thread-safe where lazynet.h says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend.h"
#include "lazynet.h"
#include "ops/op.h"

namespace lazynet {

inline std::size_t element_size(int dtype) { return dtype == LN_FLOAT64 ? 8 : 4; }
inline const char* dtype_name(int dtype) { return dtype == LN_FLOAT64 ? "float64" : "float32"; }

// Rows of a table that have a gradient, and the gradients, in the order in which they were touched.
class SparseRows {
 public:
  SparseRows(Backend& backend, int64_t cols, int dtype) : backend_(backend), row_bytes_(cols * element_size(dtype)) {}
  ~SparseRows();
  SparseRows(const SparseRows&) = delete;
  SparseRows& operator=(const SparseRows&) = delete;
  void* row(int64_t row) { return at(slot(row)); }  // valid until another row is touched
  int64_t slot(int64_t row);                        // of its gradient in values(), zero when first touched
  const std::vector<int32_t>& rows() const { return rows_; }
  char* values() { return values_; }
  char* at(int64_t slot) { return values_ + slot * static_cast<int64_t>(row_bytes_); }
  void clear();

 private:
  void grow();

  Backend& backend_;
  std::size_t row_bytes_;
  std::unordered_map<int32_t, int32_t> slot_of_;
  std::vector<int32_t> rows_;
  char* values_ = nullptr;
  std::size_t capacity_ = 0;  // rows
};

class Parameter {
 public:
  Parameter(Shape shape, int dtype, bool sparse, std::string name, Backend& backend);
  ~Parameter();
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const Shape& shape() const { return shape_; }
  int dtype() const { return dtype_; }
  Backend& backend() const { return backend_; }
  bool sparse() const { return sparse_rows_ != nullptr; }
  std::size_t bytes() const { return shape_.elements() * element_size(dtype_); }
  void* value() const { return value_; }
  void* dense_gradient();  // allocated zero on first use; null for a sparse parameter
  SparseRows* sparse_gradient() { return sparse_rows_.get(); }
  bool has_gradient() const;
  void mark_gradient() { has_gradient_ = true; }
  void zero_gradient();
  int32_t slot() const { return slot_; }

  // Who holds the value to write to it says so. A version stands for the numbers as they are: no other parameter has
  // it, and this one never again once they may have changed. 0 while somebody may write.
  void begin_writing() { ++writers_; }
  void end_writing();
  int64_t version() const { return writers_ ? 0 : version_.load(); }

  std::string name;
  bool trainable = true;
  bool replaced = false;  // by one of another element type, which is the one that the user sees

  std::string label() const;  // for errors

 private:
  Backend& backend_;
  Shape shape_;
  int dtype_;
  void* value_ = nullptr;
  void* gradient_ = nullptr;
  bool has_gradient_ = false;
  std::unique_ptr<SparseRows> sparse_rows_;
  std::atomic<int64_t> writers_{0}, version_;
  int32_t slot_;
};

// Handles name parameters by a slot of a process-wide list: handle = -2 - slot.
std::shared_ptr<Parameter> create_parameter(Shape shape, int dtype, bool sparse, std::string name, Backend& backend);
std::shared_ptr<Parameter> find_parameter(int64_t handle);  // null when there is none

}  // namespace lazynet
