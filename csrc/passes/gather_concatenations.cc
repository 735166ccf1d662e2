// A concatenation of inputs is no step: the inputs are gathered to where it would have put them.
#include <set>

#include "passes.h"

namespace lazynet {

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

}  // namespace lazynet
