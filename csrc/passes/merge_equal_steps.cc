// Common subexpressions: steps of the same operator and arguments become one.
#include <map>
#include <tuple>

#include "passes.h"

namespace lazynet {
namespace {

bool same_value(const CellValue& a, const CellValue& b) {
  return a.root == b.root && a.col == b.col && a.cols == b.cols;
}

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

}  // namespace lazynet
