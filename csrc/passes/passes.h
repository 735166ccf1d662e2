// What makes fewer and larger steps of a traced cell, a file each. Every pass leaves a cell that computes the same.
#pragma once

#include "../cell.h"

namespace lazynet {

void merge_equal_steps(Cell* cell);
void remove_dead_steps(Cell* cell);
void sink_slices(Cell* cell);  // and merges steps that became equal
void gather_concatenations(Cell* cell);
void stack_linears(Cell* cell);
void fuse_elementwise(Cell* cell);  // the last: other passes do not know fused steps

}  // namespace lazynet
