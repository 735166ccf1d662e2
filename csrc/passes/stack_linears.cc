// Linears of the same input become one product: their weights side by side, the results slices of one result. To the
// user, the optimizer and state dicts the parameters stay what they are; cell_run.cc puts copies of them together.
#include <algorithm>

#include "passes.h"

namespace lazynet {
namespace {

bool joins(const Cell& cell, const CellStep& first, const CellStep& step) {
  if (step.op != kOp_linear || step.attributes != first.attributes || step.arguments.size() != first.arguments.size())
    return false;
  const CellValue &a = cell.values[first.arguments[0]], &b = cell.values[step.arguments[0]];
  return a.root == b.root && a.col == b.col && a.cols == b.cols;
}

}  // namespace

void stack_linears(Cell* cell) {
  for (std::size_t s = 0; s < cell->steps.size(); ++s) {
    if (cell->steps[s].op != kOp_linear) continue;
    std::vector<std::size_t> members;
    for (std::size_t t = s; t < cell->steps.size(); ++t)
      if (joins(*cell, cell->steps[s], cell->steps[t])) members.push_back(t);
    if (members.size() < 2) continue;
    CellStep stack = cell->steps[s];
    stack.result = static_cast<int32_t>(cell->values.size());
    stack.arguments.resize(1);
    CellValue whole;
    whole.root = stack.result;
    for (const std::size_t t : members) {
      const CellStep& step = stack.stacked.emplace_back(cell->steps[t]);
      stack.arguments.insert(stack.arguments.end(), step.arguments.begin() + 1, step.arguments.end());
      const int32_t cols = cell->values[step.result].cols;
      for (CellValue& part : cell->values)  // the result and slices of it
        if (part.root == step.result) {
          part.root = stack.result;
          part.col += whole.cols;
        }
      whole.cols += cols;
    }
    cell->values.push_back(whole);
    // All of them depend on nothing but the input of the first, so that they can run where it did.
    for (auto t = members.rbegin(); t != members.rend(); ++t)
      cell->steps.erase(cell->steps.begin() + static_cast<std::ptrdiff_t>(*t));
    cell->steps.insert(cell->steps.begin() + static_cast<std::ptrdiff_t>(s), std::move(stack));
  }
}

}  // namespace lazynet
