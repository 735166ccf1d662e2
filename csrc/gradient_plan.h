// Where the gradients of nodes lie during backward. A gradient lives from the first batch that adds to it to the batch
// that made the value, so that most of them share memory with others.
#pragma once

#include <cstdint>
#include <vector>

namespace lazynet {

// Memory that is in use from step `first` to step `last`, both included.
struct Lifetime {
  int64_t bytes;
  int32_t first, last;
  int64_t offset;  // set by place()
};

// Gives each a place such that no two that live at the same time overlap; returns the bytes of all together.
int64_t place(std::vector<Lifetime>* lifetimes);

}  // namespace lazynet
