// Slices of an elementwise result that is read in no other way become results of their own, each of slices of the
// arguments, so that they need not be in memory.
#include <algorithm>

#include "passes.h"

namespace lazynet {

void sink_slices(Cell* cell) {
  // From the last step up, so that chains sink whole.
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

}  // namespace lazynet
