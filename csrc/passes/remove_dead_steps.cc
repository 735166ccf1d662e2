// Steps whose results nothing reads go.
#include <algorithm>

#include "passes.h"

namespace lazynet {
void remove_dead_steps(Cell* cell) {
  std::vector<uint8_t> live(cell->values.size(), 0);
  for (const int32_t value : cell->outputs) live[cell->values[value].root] = 1;
  for (auto step = cell->steps.rbegin(); step != cell->steps.rend(); ++step)
    if (live[step->result])
      for (const int32_t value : step->arguments) live[cell->values[value].root] = 1;
  auto dead = [&](const CellStep& step) { return !live[step.result]; };
  cell->steps.erase(std::remove_if(cell->steps.begin(), cell->steps.end(), dead), cell->steps.end());
}

}  // namespace lazynet
