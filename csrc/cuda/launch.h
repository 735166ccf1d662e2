// What the launchers of all families share: from a Batch to what kernels are told. Part of the core only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../lazynet.h"
#include "kernels.h"
#include "queue.h"

namespace lazynet::cuda {

template <class T>
constexpr int kDtype = sizeof(T) == 8 ? LN_FLOAT64 : LN_FLOAT32;

inline std::size_t size_of(int dtype) { return dtype == LN_FLOAT64 ? 8 : 4; }

// A kernel's name as a static object of a function template with element type T.
#define LN_KERNEL_OF(variable, family, name) static const Kernel variable(family, name, kDtype<T>)

// Blocks for `units` of which a block does `per_block` at a time: more than fill any device bring nothing, kernels
// loop.
inline int64_t blocks_for(int64_t units, int64_t per_block) {
  constexpr int64_t kMost = 4096;
  return std::min((units + per_block - 1) / per_block, kMost);
}

inline int64_t element_units(const Piece& piece) { return (piece.rows * piece.cols + kElements - 1) / kElements; }

inline bool aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }
// Whether all rows of a matrix can be read 16 bytes at a time.
template <class T>
bool in_packs(const void* matrix, int64_t ld, int64_t cols) {
  constexpr int64_t kPack = 16 / sizeof(T);
  return aligned(matrix) && ld % kPack == 0 && cols % kPack == 0;
}
// Of the number of threads of a block that share `steps`: a power of two.
inline int lanes_log2_for(int64_t steps) {
  int lanes_log2 = 0;
  while ((1 << lanes_log2) < steps && (1 << lanes_log2) < kThreads) ++lanes_log2;
  return lanes_log2;
}

// The operand of a batch: 0 the result, k + 1 argument k.
inline const Operand& operand_of(const Batch& batch, int operand) {
  return operand == 0 ? batch.result : batch.arguments[operand - 1];
}

// The members of a batch, member i with units_of(i) units, and the pieces of its `operands` first operands, lists and
// shared ones excepted.
template <class Units>
Members members_of(Queue& queue, const Batch& batch, int operands, const Units& units_of) {
  Members members{};
  members.count = batch.members;
  if (batch.members == 1) {
    members.units = units_of(0);
    for (int o = 0; o < operands; ++o)
      if (operand_of(batch, o).count == 1) members.single[o] = operand_of(batch, o).pieces[0];
    return members;
  }
  int64_t* begin = queue.room(batch.members + 1, &members.begin);
  begin[0] = 0;
  for (int64_t i = 0; i < batch.members; ++i) begin[i + 1] = begin[i] + units_of(i);
  members.units = begin[batch.members];
  for (int o = 0; o < operands; ++o) {
    const Operand& operand = operand_of(batch, o);
    if (operand.count == batch.members) members.pieces[o] = queue.upload(operand.pieces, operand.count);
  }
  return members;
}

// The same of a kernel that does row by row, whose unit is a row of the result and of each operand: members that lie
// one below another are one.
inline Members rows_of(Queue& queue, const Batch& batch, int operands, bool backward) {
  Members members{};
  members.count = 1;
  bool one = true;
  for (int o = 0; o < operands && one; ++o) {
    const Operand& operand = operand_of(batch, o);
    const bool shared = batch.members > 1 && operand.count == 1;
    if (shared) continue;
    members.single[o] = operand.matrix;
    const bool wanted = backward && (o == 0 || operand.wants_grad);
    one = operand.matrix.value && (!wanted || operand.matrix.grad) && operand.matrix.rows == batch.result.matrix.rows &&
          (operand.count == 0 || operand.matrix.cols == operand.pieces[0].cols);
  }
  members.units = batch.result.matrix.rows;
  if (one) return members;
  return members_of(queue, batch, operands, [&](int64_t i) { return batch.result.pieces[i].rows; });
}

// Numbers integers that are at least 0 and not large, in the order in which they first come. One for many uses: what it
// takes to forget depends on what came alone.
class Numbering {
 public:
  int32_t of(int64_t integer) {
    if (integer >= static_cast<int64_t>(numbers_.size())) numbers_.resize(static_cast<std::size_t>(integer) + 1, -1);
    int32_t& number = numbers_[static_cast<std::size_t>(integer)];
    if (number < 0) {
      number = static_cast<int32_t>(met_.size());
      met_.push_back(integer);
    }
    return number;
  }
  const std::vector<int64_t>& met() const { return met_; }
  void forget() {
    for (const int64_t integer : met_) numbers_[static_cast<std::size_t>(integer)] = -1;
    met_.clear();
  }

 private:
  std::vector<int32_t> numbers_;  // of each integer; -1: it has not come
  std::vector<int64_t> met_;
};

inline const Piece& shared_piece(const Batch& batch, int argument) { return batch.arguments[argument].pieces[0]; }

}  // namespace lazynet::cuda
