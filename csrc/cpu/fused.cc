// Chains of elementwise operations in one pass: a block of a row goes through all of them while it is in the
// first-level cache. Each operation is a loop over the block; the call costs little beside its 256 elements.
#include "../ops/formulas.h"
#include "loops.h"
#include "transfer.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

constexpr int64_t kBlock = 256;

template <class T>
using ValueLoop = void (*)(const T* p, int64_t count, const T* a, const T* b, T* y);
template <class T>
using GradientLoop = void (*)(const T* p, int64_t count, const T* a, const T* b, const T* y, const T* g, T* to,
                              bool add);

template <class Formula, class T>
void value_loop(const T* p, int64_t count, const T* a, const T* b, T* y) {
  const T p0 = Formula::kAttributes > 0 ? p[0] : T(0), p1 = Formula::kAttributes > 1 ? p[1] : T(0);
  const T attributes[2] = {p0, p1};
  LN_IVDEP
  for (int64_t i = 0; i < count; ++i) y[i] = Formula::value(a[i], Formula::kArguments == 2 ? b[i] : T(0), attributes);
}
template <class Formula, int kArgument, class T>
void gradient_loop(const T* p, int64_t count, const T* a, const T* b, const T* y, const T* g, T* to, bool add) {
  const T p0 = Formula::kAttributes > 0 ? p[0] : T(0), p1 = Formula::kAttributes > 1 ? p[1] : T(0);
  const T attributes[2] = {p0, p1};
  constexpr bool kA = Formula::kReadsArguments, kB = kA && Formula::kArguments == 2;
  auto at = [&](int64_t i) __attribute__((always_inline)) {
    return Formula::template gradient<kArgument>(kA ? a[i] : T(0), kB ? b[i] : T(0),
                                                 Formula::kReadsResult ? y[i] : T(0), g[i], attributes);
  };
  if (add) {
    LN_IVDEP
    for (int64_t i = 0; i < count; ++i) to[i] += at(i);
  } else {
    LN_IVDEP
    for (int64_t i = 0; i < count; ++i) to[i] = at(i);
  }
}

template <class T>
struct Loops {
  ValueLoop<T> value;
  GradientLoop<T> gradient[2];
};
template <class Formula, class T>
constexpr Loops<T> loops_of() {
  if constexpr (Formula::kArguments == 2)
    return {value_loop<Formula, T>, {gradient_loop<Formula, 0, T>, gradient_loop<Formula, 1, T>}};
  else
    return {value_loop<Formula, T>, {gradient_loop<Formula, 0, T>, nullptr}};
}
// By the operators' numbers; null for those that are not elementwise.
template <class T>
const Loops<T>& loops(int op) {
  static constexpr Loops<T> kLoops[kOpCount] = {
#define LN_KERNEL(name, ...) {nullptr, {nullptr, nullptr}},
#define LN_SHARED(name, ...) {nullptr, {nullptr, nullptr}},
#define LN_COMPOSITE(name, ...) {nullptr, {nullptr, nullptr}},
#define LN_VIEW(name, ...) {nullptr, {nullptr, nullptr}},
#define LN_SOURCE(name, ...) {nullptr, {nullptr, nullptr}},
#define LN_UNARY(name, ...) loops_of<name##_formula, T>(),
#define LN_BINARY(name, ...) loops_of<name##_formula, T>(),
#include "../ops/ops.def"
  };
  return kLoops[op];
}

// The registers of one block: where their values and gradients are, in memory or on this thread's stack.
template <class T>
class Block {
 public:
  Block(const Fused& fused, int64_t row, int64_t col, int64_t count)
      : fused_(fused), row_(row), col_(col), count_(count) {
    for (int k = 0; k < fused.operand_count; ++k) value_[k] = const_cast<T*>(load(fused.operands[k], k));
    for (int r = fused.operand_count; r < fused.register_count; ++r) value_[r] = values_[r];
    for (int i = 0; i < fused.result_count; ++i) {
      const FusedResult& result = fused.results[i];
      value_[result.reg] = static_cast<T*>(result.value) + row * result.ld + col;
      stored_[result.reg] = true;
    }
  }

  // `only_missing`: values that are kept in memory are there already.
  void compute(bool only_missing) {
    for (int i = 0; i < fused_.op_count; ++i) {
      const FusedOp& op = fused_.ops[i];
      if (only_missing && stored_[op.result]) continue;
      const T p[2] = {static_cast<T>(op.attributes[0]), static_cast<T>(op.attributes[1])};
      loops<T>(op.op).value(p, count_, value_[op.a], op.b < 0 ? nullptr : value_[op.b], value_[op.result]);
    }
  }

  void backward() {
    for (int i = 0; i < fused_.result_count; ++i) {
      const FusedResult& result = fused_.results[i];
      if (!result.grad) continue;
      std::memcpy(grads_[result.reg], static_cast<const T*>(result.grad) + row_ * result.grad_ld + col_,
                  count_ * sizeof(T));
      touched_[result.reg] = true;
    }
    for (int i = fused_.op_count - 1; i >= 0; --i) {
      const FusedOp& op = fused_.ops[i];
      if (!touched_[op.result]) continue;
      const T p[2] = {static_cast<T>(op.attributes[0]), static_cast<T>(op.attributes[1])};
      const int arguments[2] = {op.a, op.b};
      for (int k = 0; k < 2 && arguments[k] >= 0; ++k) {
        const int to = arguments[k];
        if (to < fused_.operand_count && !wants_gradient(fused_.operands[to])) continue;
        loops<T>(op.op).gradient[k](p, count_, value_[op.a], op.b < 0 ? nullptr : value_[op.b], value_[op.result],
                                    grads_[op.result], grads_[to], touched_[to]);
        touched_[to] = true;
      }
    }
    for (int k = 0; k < fused_.operand_count; ++k)
      if (wants_gradient(fused_.operands[k])) store_gradient(fused_.operands[k], touched_[k] ? grads_[k] : nullptr);
  }

 private:
  const T* load(const FusedOperand& operand, int k) {
    const T* value = static_cast<const T*>(operand.value);
    if (operand.value_rows) value = static_cast<const T*>(operand.value_rows[row_]) + operand.first_col;  // ld is 0
    switch (operand.broadcast) {
      case kFull:
        return value + row_ * operand.ld + col_;
      case kRow:
        return value + col_;
      default: {
        const T single = operand.broadcast == kColumn ? value[row_ * operand.ld] : *value;
        for (int64_t i = 0; i < count_; ++i) values_[k][i] = single;
        return values_[k];
      }
    }
  }
  bool wants_gradient(const FusedOperand& operand) const {
    return operand.grad || (operand.grad_rows && operand.grad_rows[row_]);
  }
  // `from` null: no gradient has reached the operand.
  void store_gradient(const FusedOperand& operand, const T* from) const {
    T* to = operand.grad_rows ? static_cast<T*>(operand.grad_rows[row_]) + operand.first_col
                              : static_cast<T*>(operand.grad) + row_ * operand.grad_ld;
    if (operand.broadcast == kColumn) {
      const T sum = from ? sum_over<T>(count_, [=](int64_t i) { return from[i]; }) : T(0);
      *to = operand.add || col_ > 0 ? *to + sum : sum;
      return;
    }
    to += col_;
    if (!from) {
      if (!operand.add) std::memset(to, 0, count_ * sizeof(T));
    } else if (operand.add) {
      add_to(count_, from, to);
    } else {
      std::memcpy(to, from, count_ * sizeof(T));
    }
  }

  const Fused& fused_;
  const int64_t row_, col_, count_;
  T* value_[kMostRegisters];
  bool stored_[kMostRegisters] = {}, touched_[kMostRegisters] = {};
  alignas(64) T values_[kMostRegisters][kBlock];
  alignas(64) T grads_[kMostRegisters][kBlock];
};

template <class Function>
void for_blocks(const Fused& fused, const Function& function) {
  const int64_t work = fused.cols * (fused.op_count + 1);
  const int64_t grain = fused.serial ? fused.rows : 1 + kGrainElements / (work + 1);
  parallel_for(fused.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t col = 0; col < fused.cols; col += kBlock)
        function(row, col, fused.cols - col < kBlock ? fused.cols - col : kBlock);
  });
}

}  // namespace

template <class T>
void fused_forward(const Fused& fused) {
  for_blocks(fused, [&](int64_t row, int64_t col, int64_t count) { Block<T>(fused, row, col, count).compute(false); });
}

template <class T>
void fused_backward(const Fused& fused) {
  for_blocks(fused, [&](int64_t row, int64_t col, int64_t count) {
    Block<T> block(fused, row, col, count);
    block.compute(true);
    block.backward();
  });
}

template <class T>
void add_column_sums(const void* matrix, int64_t rows, int64_t cols, int64_t ld, bool all, void* sums) {
  const T* from = static_cast<const T*>(matrix);
  T* to = static_cast<T*>(sums);
  for_column_blocks(cols, [&](int64_t first, int64_t width) {
    T block[kColumnBlock];
    fold_rows<Add, T>([=](int64_t row) { return from + row * ld + first; }, 0, rows, width, block);
    for (int64_t j = 0; j < width; ++j) to[all ? 0 : first + j] += block[j];
  });
}

template void fused_forward<float>(const Fused&);
template void fused_forward<double>(const Fused&);
template void fused_backward<float>(const Fused&);
template void fused_backward<double>(const Fused&);
template void add_column_sums<float>(const void*, int64_t, int64_t, int64_t, bool, void*);
template void add_column_sums<double>(const void*, int64_t, int64_t, int64_t, bool, void*);

}  // namespace lazynet::cpu::LN_UNIT
