// Elementwise steps that follow each other become one pass over memory, a block of columns in registers.
#include <algorithm>
#include <map>
#include <set>

#include "passes.h"

namespace lazynet {
namespace {

std::vector<std::vector<int32_t>> readers_of(const Cell& cell) {
  std::vector<std::vector<int32_t>> readers(cell.values.size());
  for (std::size_t s = 0; s < cell.steps.size(); ++s)
    for (const int32_t value : cell.steps[s].arguments) readers[value].push_back(static_cast<int32_t>(s));
  return readers;
}

// Values that backward would rather read than compute again.
bool is_expensive(int op) {
  switch (op) {
    case kOp_sqrt:
    case kOp_exp:
    case kOp_log:
    case kOp_sin:
    case kOp_cos:
    case kOp_erf:
    case kOp_tanh:
    case kOp_sigmoid:
    case kOp_elu:
    case kOp_gelu:
    case kOp_gelu_tanh:
    case kOp_silu:
    case kOp_softplus:
    case kOp_div:
    case kOp_pow:
    case kOp_rdiv_scalar:
    case kOp_pow_scalar:
    case kOp_rpow_scalar:
    case kOp_binary_cross_entropy_error:
    case kOp_kl_error:
      return true;
    default:
      return false;
  }
}

// A group of elementwise steps on the way to becoming one.
class Fusion {
 public:
  explicit Fusion(Cell* cell) : cell_(*cell), readers_(readers_of(*cell)) {
    is_output_.assign(cell_.values.size(), false);
    for (const int32_t value : cell_.outputs) is_output_[value] = true;
    has_slices_.assign(cell_.values.size(), false);
    for (std::size_t v = 0; v < cell_.values.size(); ++v)
      if (cell_.values[v].root != static_cast<int32_t>(v)) has_slices_[cell_.values[v].root] = true;
  }

  void run() {
    for (std::size_t s = 0; s < cell_.steps.size(); ++s) {
      const CellStep& step = cell_.steps[s];
      if (op_info(step.op).flat) {
        if (!fits(step)) close();
        add(static_cast<int32_t>(s));
      } else {
        if (reads_group(step)) close();
        done_.push_back(step);
      }
    }
    close();
    cell_.steps = std::move(done_);
  }

 private:
  bool in_group(int32_t value) const { return register_of_.count(value) && made_.count(value); }
  bool reads_group(const CellStep& step) const {
    return std::any_of(step.arguments.begin(), step.arguments.end(),
                       [&](int32_t value) { return made_.count(cell_.values[value].root) > 0; });
  }
  bool fits(const CellStep& step) const {
    if (group_.empty()) return true;
    if (cell_.values[step.result].cols != cols_) return false;
    if (static_cast<int>(register_of_.size() + step.arguments.size()) + 1 > kMostRegisters) return false;
    for (const int32_t value : step.arguments) {
      const CellValue& v = cell_.values[value];
      // A slice or a column of what the group makes must be in memory first.
      if (made_.count(v.root) && (v.root != value || v.cols != cols_)) return false;
    }
    return true;
  }
  void add(int32_t s) {
    const CellStep& step = cell_.steps[s];
    cols_ = cell_.values[step.result].cols;
    group_.push_back(s);
    members_.insert(s);
    for (const int32_t value : step.arguments) register_of_.emplace(value, -1);
    register_of_.emplace(step.result, -1);
    made_.insert(step.result);
  }

  void close() {
    if (group_.empty()) return;
    CellStep fused;
    // Operands are the first registers.
    for (const int32_t s : group_)
      for (const int32_t value : cell_.steps[s].arguments) {
        if (made_.count(value) || std::count(fused.arguments.begin(), fused.arguments.end(), value)) continue;
        register_of_[value] = static_cast<int>(fused.arguments.size());
        fused.arguments.push_back(value);
        fused.broadcast.push_back(broadcast_of_operand(value));
      }
    int next = static_cast<int>(fused.arguments.size());
    for (const int32_t s : group_) {
      const CellStep& step = cell_.steps[s];
      FusedOp op{step.op,
                 register_of_[step.arguments[0]],
                 step.arguments.size() > 1 ? register_of_[step.arguments[1]] : -1,
                 next,
                 {0, 0}};
      std::copy(step.attributes.begin(), step.attributes.end(), op.attributes);
      register_of_[step.result] = next;
      fused.fused.push_back(op);
      const bool read_elsewhere = is_output_[step.result] || has_slices_[step.result] ||
                                  std::any_of(readers_[step.result].begin(), readers_[step.result].end(),
                                              [&](int32_t reader) { return !members_.count(reader); });
      if (read_elsewhere || is_expensive(step.op)) fused.stored.push_back({next, step.result, !read_elsewhere});
      ++next;
    }
    fused.registers = next;
    fused.result = cell_.steps[group_.back()].result;
    done_.push_back(std::move(fused));
    group_.clear();
    members_.clear();
    made_.clear();
    register_of_.clear();
  }

  Broadcast broadcast_of_operand(int32_t value) const {
    const CellValue& v = cell_.values[value];
    const bool parameter = v.kind == CellValue::Kind::kParameter;
    if (v.cols == cols_) return parameter ? kRow : kFull;
    return parameter ? kScalar : kColumn;
  }

  Cell& cell_;
  const std::vector<std::vector<int32_t>> readers_;
  std::vector<bool> is_output_, has_slices_;
  std::vector<CellStep> done_;
  std::vector<int32_t> group_;
  std::set<int32_t> members_, made_;    // steps of the group; values that they make
  std::map<int32_t, int> register_of_;  // values that the group reads or makes
  int32_t cols_ = 0;
};

}  // namespace

void fuse_elementwise(Cell* cell) { Fusion(cell).run(); }

}  // namespace lazynet
