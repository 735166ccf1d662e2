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

// What a rule for working memory is told of a batch.
struct ScratchRequest {
  int64_t members;
  int64_t rows;            // of the first argument, all members together
  const Shape* arguments;  // of the first member
  const double* attributes;
};
// Returns how many elements the kernels need.
using ScratchRule = int64_t (*)(const ScratchRequest&);

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
  bool early;            // forward makes gradients, see Batch::early
  bool matrices;         // every argument is packed or shared: the kernels read no member by itself
  bool flat;             // elementwise: every argument is flat
  bool reads_arguments;  // in backward
  bool reads_result;     // in backward
  bool differentiable;
  int rate;  // the attribute that makes it random where it is above 0; -1: none does
  ShapeRule shape_rule;
  ScratchRule scratch_rule;  // null: no working memory
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
