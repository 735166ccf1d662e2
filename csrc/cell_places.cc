// Where the values and gradients of a cell lie, and which gradients are written rather than added to.
#include <algorithm>

#include "cell.h"

namespace lazynet {
namespace {

using Place = CellValue::Place;

// Columns of a root whose gradient has been written, as backward goes through the steps.
class Coverage {
 public:
  struct Range {
    int32_t begin, end;
  };
  // Of [begin, end): 0 nothing, 2 all, 1 part has been touched.
  int touched(int32_t begin, int32_t end) const {
    int32_t covered = 0;
    for (const Range& range : ranges_) covered += std::max(0, std::min(end, range.end) - std::max(begin, range.begin));
    return covered == 0 ? 0 : covered == end - begin ? 2 : 1;
  }
  void touch(int32_t begin, int32_t end) {
    ranges_.push_back({begin, end});
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    std::vector<Range> merged;
    for (const Range& range : ranges_) {
      if (!merged.empty() && range.begin <= merged.back().end)
        merged.back().end = std::max(merged.back().end, range.end);
      else
        merged.push_back(range);
    }
    ranges_ = std::move(merged);
  }

 private:
  std::vector<Range> ranges_;  // disjoint, ascending
};

int32_t add_copy(Cell* cell, int32_t value) {
  const auto made = static_cast<int32_t>(cell->values.size());
  CellValue copy;
  copy.cols = cell->values[value].cols;
  copy.root = made;
  cell->values.push_back(copy);
  CellStep step;
  step.arguments = {value};
  step.broadcast = {kFull};
  step.fused = {{kOp_add_scalar, 0, -1, 1, {0, 0}}};
  step.stored = {{1, made, false}};
  step.registers = 2;
  step.result = made;
  cell->steps.push_back(std::move(step));
  return made;
}

// Outputs lie side by side in the result; one that cannot be written there is copied.
void place_outputs(Cell* cell) {
  const bool single = cell->outputs.size() == 1;
  for (int32_t& output : cell->outputs) {
    bool direct = cell->values[output].root == output && cell->values[output].place == Place::kNowhere;  // not yet
    const CellStep* maker = nullptr;
    for (const CellStep& step : cell->steps) {
      if (step.is_fused()) {
        for (const CellStep::Stored& stored : step.stored)
          if (stored.value == output) maker = &step;
      } else if (step.result == output) {
        maker = &step;
      }
    }
    direct = direct && maker && (maker->is_fused() || single);
    if (!direct) output = add_copy(cell, output);
    CellValue& v = cell->values[output];
    v.place = Place::kResult;
    v.value_col = cell->result_cols;
    cell->output_cols.push_back(cell->result_cols);
    cell->result_cols += v.cols;
  }
}

// Inputs that no kernel reads as a matrix need not be gathered.
void leave_inputs(Cell* cell) {
  std::vector<uint8_t> needs_matrix(cell->values.size(), 0);
  for (const CellStep& step : cell->steps)
    for (const int32_t value : step.arguments) needs_matrix[cell->values[value].root] |= !step.is_fused();
  for (const int32_t input : cell->inputs) {
    CellValue& v = cell->values[input];
    if (v.root == input && !needs_matrix[input]) v.place = Place::kArgument;
  }
}

void keep(Cell* cell, int32_t root, bool gradient) {
  CellValue& v = cell->values[root];
  if (v.place != Place::kNowhere || v.kind == CellValue::Kind::kParameter) return;
  v.place = Place::kKept;
  v.value_col = cell->kept_cols;
  cell->kept_cols += v.cols;
  if (!gradient) return;
  int64_t& cols = v.keeps_gradient ? cell->kept_grad_cols : cell->passing_grad_cols;
  v.grad_col = cols;
  cols += v.cols;
}

void place_gradients(Cell* cell) {
  std::vector<Coverage> coverage(cell->values.size());
  for (const int32_t output : cell->outputs) coverage[output].touch(0, cell->values[output].cols);
  for (auto step = cell->steps.rbegin(); step != cell->steps.rend(); ++step) {
    step->overwrites.assign(step->arguments.size(), 0);
    step->parameter_grad_col.assign(step->arguments.size(), -1);
    const bool writes = step->is_fused() || step->op == kOp_linear;
    for (std::size_t k = 0; k < step->arguments.size(); ++k) {
      const CellValue& v = cell->values[step->arguments[k]];
      if (v.kind == CellValue::Kind::kParameter) {
        if (!step->is_fused()) continue;
        step->parameter_grad_col[k] = cell->passing_grad_cols;
        cell->passing_grad_cols += cell->values[step->result].cols;
        continue;
      }
      const int touched = coverage[v.root].touched(v.col, v.col + v.cols);
      // Two operands of one step that share columns are written block by block, in no order.
      bool shared = false;
      for (std::size_t j = 0; j < step->arguments.size(); ++j) {
        const CellValue& other = cell->values[step->arguments[j]];
        shared =
            shared || (j != k && other.root == v.root && other.col < v.col + v.cols && v.col < other.col + other.cols);
      }
      const bool elsewhere = cell->values[v.root].place == Place::kArgument;  // in the gradient of another node
      step->overwrites[k] = writes && touched == 0 && !shared && !elsewhere;
      if (!step->overwrites[k] && touched != 2) cell->values[v.root].zero_first = true;
    }
    for (const int32_t value : step->arguments) {
      const CellValue& v = cell->values[value];
      if (v.kind != CellValue::Kind::kParameter) coverage[v.root].touch(v.col, v.col + v.cols);
    }
  }
  for (std::size_t v = 0; v < cell->values.size(); ++v) {
    CellValue& value = cell->values[v];
    if (value.grad_col >= 0 && coverage[v].touched(0, value.cols) != 2) value.zero_first = true;
  }
}

}  // namespace

void place_values(Cell* cell) {
  place_outputs(cell);
  leave_inputs(cell);
  std::vector<uint8_t> read(cell->values.size(), 0);
  for (const CellStep& step : cell->steps) {
    for (const int32_t value : step.arguments) read[cell->values[value].root] = 1;
    if (!step.is_fused() && step.op == kOp_linear) cell->values[step.result].keeps_gradient = true;
  }
  for (std::size_t v = 0; v < cell->values.size(); ++v)
    if (read[v]) keep(cell, static_cast<int32_t>(v), true);
  for (const CellStep& step : cell->steps)
    for (const CellStep::Stored& stored : step.stored) keep(cell, stored.value, !stored.for_backward);
  place_gradients(cell);
}

}  // namespace lazynet
