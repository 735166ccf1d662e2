// What makes fewer and larger steps of a traced cell. Each pass leaves a cell that computes the same.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "cell.h"

namespace lazynet {
namespace {

bool same_value(const CellValue& a, const CellValue& b) {
  return a.root == b.root && a.col == b.col && a.cols == b.cols;
}

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

void merge_equal_steps(Cell* cell) {
  std::vector<int32_t> renamed(cell->values.size());
  for (std::size_t v = 0; v < renamed.size(); ++v) renamed[v] = static_cast<int32_t>(v);
  // Slices of what was merged are equal where their roots are.
  auto canonical = [&](int32_t value) {
    CellValue& v = cell->values[value];
    if (v.root != value) {
      v.root = renamed[v.root];
      for (int32_t other = 0; other < value; ++other)
        if (cell->values[other].root != other && same_value(cell->values[other], v)) return other;
      return value;
    }
    return renamed[value];
  };
  std::map<std::tuple<int, std::vector<int32_t>, std::vector<double>>, int32_t> known;
  std::vector<CellStep> kept;
  for (CellStep& step : cell->steps) {
    for (int32_t& value : step.arguments) value = canonical(value);
    const auto [place, is_new] = known.try_emplace({step.op, step.arguments, step.attributes}, step.result);
    if (is_new)
      kept.push_back(std::move(step));
    else
      renamed[step.result] = place->second;
  }
  for (int32_t& value : cell->outputs) value = canonical(value);
  cell->steps = std::move(kept);
}

void remove_dead_steps(Cell* cell) {
  std::vector<uint8_t> live(cell->values.size(), 0);
  for (const int32_t value : cell->outputs) live[cell->values[value].root] = 1;
  for (auto step = cell->steps.rbegin(); step != cell->steps.rend(); ++step)
    if (live[step->result])
      for (const int32_t value : step->arguments) live[cell->values[value].root] = 1;
  auto dead = [&](const CellStep& step) { return !live[step.result]; };
  cell->steps.erase(std::remove_if(cell->steps.begin(), cell->steps.end(), dead), cell->steps.end());
}

void sink_slices(Cell* cell) {
  // Slices of an elementwise result that is read in no other way become results of their own, each of slices of the
  // arguments, so that they need not be in memory. From the last step up, so that chains sink whole.
  for (auto s = static_cast<int32_t>(cell->steps.size()) - 1; s >= 0; --s) {
    const CellStep step = cell->steps[s];
    if (!op_info(step.op).flat) continue;
    const int32_t cols = cell->values[step.result].cols;
    bool sinks = std::count(cell->outputs.begin(), cell->outputs.end(), step.result) == 0;
    std::vector<int32_t> slices;
    for (int32_t v = 0; v < static_cast<int32_t>(cell->values.size()); ++v)
      if (cell->values[v].root == step.result && v != step.result) slices.push_back(v);
    for (const CellStep& reader : cell->steps)
      sinks = sinks && std::count(reader.arguments.begin(), reader.arguments.end(), step.result) == 0;
    for (const int32_t value : step.arguments) {
      const CellValue& v = cell->values[value];
      sinks = sinks && !(v.kind == CellValue::Kind::kParameter && v.cols == cols && cols > 1);
    }
    if (!sinks || slices.empty()) continue;
    std::vector<CellStep> made;
    for (const int32_t slice : slices) {
      const CellValue where = cell->values[slice];
      CellStep part = step;
      part.result = slice;
      for (int32_t& value : part.arguments) {
        if (cell->values[value].cols != cols) continue;
        CellValue argument = cell->values[value];
        argument.kind = CellValue::Kind::kStep;
        argument.col += where.col;
        argument.cols = where.cols;
        value = static_cast<int32_t>(cell->values.size());
        cell->values.push_back(argument);
      }
      cell->values[slice].root = slice;
      cell->values[slice].col = 0;
      made.push_back(std::move(part));
    }
    cell->steps.erase(cell->steps.begin() + s);
    cell->steps.insert(cell->steps.begin() + s, made.begin(), made.end());
  }
  merge_equal_steps(cell);
}

void gather_concatenations(Cell* cell) {
  std::vector<CellStep> kept;
  for (CellStep& step : cell->steps) {
    bool gathered = step.op == kOp_concat_cols;
    std::set<int32_t> seen;
    for (const int32_t value : step.arguments) {
      const CellValue& v = cell->values[value];
      gathered = gathered && v.kind == CellValue::Kind::kInput && v.root == value && seen.insert(value).second;
    }
    if (!gathered) {
      kept.push_back(std::move(step));
      continue;
    }
    int32_t col = 0;
    for (const int32_t value : step.arguments) {
      for (CellValue& slice : cell->values)  // slices of the input, and the input itself
        if (slice.root == value) {
          slice.root = step.result;
          slice.col += col;
        }
      col += cell->values[value].cols;
    }
  }
  cell->steps = std::move(kept);
}

void fuse_elementwise(Cell* cell) { Fusion(cell).run(); }

void optimize_cell(Cell* cell) {
  merge_equal_steps(cell);
  sink_slices(cell);
  remove_dead_steps(cell);
  gather_concatenations(cell);
  fuse_elementwise(cell);
}

}  // namespace lazynet
