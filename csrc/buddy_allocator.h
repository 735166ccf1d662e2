// The pool that every buffer of a graph comes from: a buddy allocator over large chunks of a
// MemoryResource (Knuth, The Art of Computer Programming, vol. 1, 2.5), which gives the unused tail
// of a block back at once, so that a request wastes less than kMinimumBlock bytes and not up to half
// of its block. All bookkeeping lives outside the chunks, which may be device memory. Not thread-safe:
// every graph owns one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "memory_resource.h"

namespace lazynet {

struct PoolStatistics {
  std::size_t bytes_in_use = 0;       // handed out, rounded up to kMinimumBlock
  std::size_t peak_bytes_in_use = 0;  // since construction or reset_peak()
  std::size_t bytes_reserved = 0;     // held from the resource
  std::size_t largest_free_block = 0;
  std::size_t limit = 0;         // 0: none
  std::int64_t allocations = 0;  // since construction
  std::int64_t live_allocations = 0;
  std::int64_t chunks = 0;
  double fragmentation = 0;  // 1 - largest_free_block / free bytes; 0 when nothing is free
};

class BuddyAllocator {
 public:
  static constexpr std::size_t kMinimumBlock = 256;  // bytes, a power of two
  static constexpr std::size_t kDefaultChunk = std::size_t{4} << 20;

  // A chunk is at least `chunk_bytes` (rounded up to a power of two) and doubles with the bytes reserved,
  // so that the number of chunks stays logarithmic. `limit` bounds bytes_reserved; 0 means no bound.
  explicit BuddyAllocator(MemoryResource& resource, std::size_t chunk_bytes = kDefaultChunk, std::size_t limit = 0);
  ~BuddyAllocator();
  BuddyAllocator(const BuddyAllocator&) = delete;
  BuddyAllocator& operator=(const BuddyAllocator&) = delete;

  // Returns `bytes` bytes aligned to kAlignment, or nullptr when the limit or the resource has no more;
  // then nothing has changed. Zero bytes give a valid unique address.
  void* allocate(std::size_t bytes);
  // `address` must have come from allocate() and not been given back; else throws Error(LN_GRAPH_ERROR).
  void deallocate(void* address);
  // Gives chunks in which nothing is in use back to the resource.
  void trim();

  PoolStatistics statistics() const;
  void reset_peak();
  void set_limit(std::size_t bytes);
  // Checks every invariant (blocks tile the chunks, free buddies are merged, counts agree); throws
  // Error(LN_INTERNAL_ERROR) that names the first one broken. For tests.
  void check() const;

 private:
  // A chunk is 2^order minimum blocks. Blocks are named by their first unit (minimum block).
  struct Chunk {
    char* memory = nullptr;
    int order = 0;
    std::vector<int8_t> free_order;       // a unit: order of the free block that starts there, else -1
    std::vector<uint32_t> used_units;     // a unit: size of the allocation that starts there, else 0
    std::vector<int32_t> next, previous;  // links of the free lists, -1 at the ends
    std::vector<int32_t> first_free;      // by order
    uint64_t free_orders = 0;             // bit k: a free block of order k exists
    std::size_t units_in_use = 0;
    std::size_t units() const { return std::size_t{1} << order; }
    std::size_t bytes() const { return units() * kMinimumBlock; }
  };
  void insert_free(Chunk& chunk, std::size_t unit, int order);
  void remove_free(Chunk& chunk, std::size_t unit, int order);
  void free_block(Chunk& chunk, std::size_t unit, int order);          // merges with its buddy as far as it goes
  void free_range(Chunk& chunk, std::size_t unit, std::size_t count);  // any units, in power-of-two pieces
  static constexpr int kNone = 64;
  static int tightest(const Chunk& chunk, std::size_t units);  // order of a free block that is large enough, or kNone
  void* take(Chunk& chunk, int order, std::size_t units);      // from a free block of that order
  Chunk* grow(std::size_t units);
  Chunk* find(const void* address);
  void check_chunk(const Chunk& chunk) const;

  MemoryResource& resource_;
  std::size_t chunk_bytes_;
  std::size_t limit_;
  std::map<const char*, std::unique_ptr<Chunk>> chunks_;  // by address of their memory
  std::size_t bytes_in_use_ = 0, peak_ = 0, reserved_ = 0;
  std::int64_t allocations_ = 0, live_ = 0;
};

}  // namespace lazynet
