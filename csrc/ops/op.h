// The operator table as the core reads it: ops.def turned into records.
#pragma once

#include <cstdint>
#include <vector>

namespace lazynet {

struct Shape {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t elements() const { return rows * cols; }
  bool operator==(const Shape& other) const { return rows == other.rows && cols == other.cols; }
  bool operator!=(const Shape& other) const { return !(*this == other); }
};

enum class Role : uint8_t { kShared, kRagged, kFlat, kFree };
enum class OpKind : uint8_t { kKernel, kView, kSource };

// What a shape rule is told. `payload` are the integers of the member.
struct ShapeRequest {
  const char* op;
  const Shape* arguments;
  int count;
  const double* attributes;
  int attribute_count;
  const int64_t* payload;
  int64_t payload_count;
};
// Returns the result's shape or throws Error(LN_SHAPE_ERROR / LN_INDEX_ERROR / LN_VALUE_ERROR).
using ShapeRule = Shape (*)(const ShapeRequest&);

struct ArgumentInfo {
  Role role;
  bool packed;  // the kernel needs one matrix with all rows
  bool optional;
  bool list;     // the last argument may be a list ...
  bool counted;  // ... whose every member adds to the signature
};

struct OpInfo {
  int id;
  const char* name;
  const char* family;
  const char* roles;
  const char* attributes;
  const char* backward_reads;
  OpKind kind;
  bool has_shared;       // has a kernel for the gradients of shared arguments
  bool matrices;         // every argument is packed or shared: the kernels read no member by itself
  bool flat;             // elementwise: every argument is flat
  bool reads_arguments;  // in backward
  bool reads_result;     // in backward
  ShapeRule shape_rule;
  std::vector<ArgumentInfo> arguments;
  int minimum_arguments;
  int maximum_arguments;  // -1: a list
  int attribute_count;
};

// Ids of operators: constants of the C++ side only; Python asks by name.
enum Op : int {
#define LN_KERNEL(name, ...) kOp_##name,
#define LN_SHARED(name, ...) kOp_##name,
#define LN_COMPOSITE(name, ...) kOp_##name,
#define LN_VIEW(name, ...) kOp_##name,
#define LN_SOURCE(name, ...) kOp_##name,
#include "ops.def"
  kOpCount
};

const OpInfo& op_info(int op);

}  // namespace lazynet
