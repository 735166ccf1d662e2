// Copies of shared matrices in the order in which kernels like to read them. A weight is read by many batches of one
// forward or backward and written by nobody meanwhile, so that one copy serves them all; in inference also many runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "buddy_allocator.h"

namespace lazynet {

class WeightCache {
 public:
  explicit WeightCache(BuddyAllocator& pool) : pool_(pool) {}
  ~WeightCache() { clear(); }
  WeightCache(const WeightCache&) = delete;
  WeightCache& operator=(const WeightCache&) = delete;

  struct Key {
    // Positive: the node, which no other matrix of this run is. Negative: minus the version of a parameter, whose copy
    // serves later runs too.
    int64_t identity;
    const void* address;
    int64_t rows, cols, ld;
    bool transposed;
    bool operator==(const Key& other) const;
  };
  // The memory of a matrix's copy, or null.
  void* find(const Key& key);
  // Memory for a copy that find() does not know; null where the pool has no more: then the kernel does without.
  void* add(const Key& key, std::size_t bytes);
  // Gives back what no later run can use, or this one had no use for.
  void end_run();
  void clear();

 private:
  struct Entry {
    Key key;
    void* memory;
    bool used;  // in this run
  };
  BuddyAllocator& pool_;
  std::vector<Entry> entries_;
};

}  // namespace lazynet
