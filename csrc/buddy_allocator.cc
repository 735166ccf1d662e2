#include "buddy_allocator.h"

#include <algorithm>

#include "error.h"

namespace lazynet {
namespace {

// Units are counted in 32 bits: a chunk is at most 2^31 minimum blocks.
constexpr int kLargestOrder = 31;

int floor_log2(std::size_t x) { return 63 - __builtin_clzll(x); }
int ceil_log2(std::size_t x) { return x <= 1 ? 0 : floor_log2(x - 1) + 1; }

std::size_t units_for(std::size_t bytes) {
  if (bytes == 0) return 1;
  return (bytes - 1) / BuddyAllocator::kMinimumBlock + 1;
}

}  // namespace

BuddyAllocator::BuddyAllocator(MemoryResource& resource, std::size_t chunk_bytes, std::size_t limit)
    : resource_(resource), chunk_bytes_(std::max(chunk_bytes, kMinimumBlock)), limit_(limit) {}

BuddyAllocator::~BuddyAllocator() {
  for (auto& [address, chunk] : chunks_) resource_.deallocate(chunk->memory, chunk->bytes());
}

void BuddyAllocator::insert_free(Chunk& chunk, std::size_t unit, int order) {
  const int32_t head = chunk.first_free[order];
  chunk.free_order[unit] = static_cast<int8_t>(order);
  chunk.next[unit] = head;
  chunk.previous[unit] = -1;
  if (head >= 0) chunk.previous[head] = static_cast<int32_t>(unit);
  chunk.first_free[order] = static_cast<int32_t>(unit);
  chunk.free_orders |= uint64_t{1} << order;
}

void BuddyAllocator::remove_free(Chunk& chunk, std::size_t unit, int order) {
  const int32_t next = chunk.next[unit], previous = chunk.previous[unit];
  if (previous >= 0)
    chunk.next[previous] = next;
  else
    chunk.first_free[order] = next;
  if (next >= 0) chunk.previous[next] = previous;
  if (chunk.first_free[order] < 0) chunk.free_orders &= ~(uint64_t{1} << order);
  chunk.free_order[unit] = -1;
}

void BuddyAllocator::free_block(Chunk& chunk, std::size_t unit, int order) {
  while (order < chunk.order) {
    const std::size_t buddy = unit ^ (std::size_t{1} << order);
    if (chunk.free_order[buddy] != order) break;
    remove_free(chunk, buddy, order);
    unit = std::min(unit, buddy);
    ++order;
  }
  insert_free(chunk, unit, order);
}

void BuddyAllocator::free_range(Chunk& chunk, std::size_t unit, std::size_t count) {
  while (count > 0) {
    // The largest block that may start here and is no longer than what is left.
    const int aligned = unit == 0 ? chunk.order : __builtin_ctzll(unit);
    const int order = std::min(aligned, floor_log2(count));
    free_block(chunk, unit, order);
    unit += std::size_t{1} << order;
    count -= std::size_t{1} << order;
  }
}

int BuddyAllocator::tightest(const Chunk& chunk, std::size_t units) {
  const int wanted = ceil_log2(units);
  const uint64_t large_enough = wanted > chunk.order ? 0 : chunk.free_orders >> wanted << wanted;
  return large_enough ? __builtin_ctzll(large_enough) : kNone;
}

void* BuddyAllocator::take(Chunk& chunk, int order, std::size_t units) {
  const std::size_t unit = static_cast<std::size_t>(chunk.first_free[order]);
  remove_free(chunk, unit, order);
  chunk.used_units[unit] = static_cast<uint32_t>(units);
  chunk.units_in_use += units;
  // What lies behind the request in the block is free again at once.
  free_range(chunk, unit + units, (std::size_t{1} << order) - units);
  return chunk.memory + unit * kMinimumBlock;
}

BuddyAllocator::Chunk* BuddyAllocator::grow(std::size_t units) {
  const int least = ceil_log2(units);
  if (least > kLargestOrder) return nullptr;
  const std::size_t wish = std::max(chunk_bytes_, reserved_) / kMinimumBlock;
  for (int order = std::clamp(ceil_log2(wish), least, kLargestOrder); order >= least; --order) {
    const std::size_t bytes = kMinimumBlock << order;
    if (limit_ && (bytes > limit_ || reserved_ > limit_ - bytes)) continue;
    auto chunk = std::make_unique<Chunk>();
    chunk->order = order;
    chunk->free_order.assign(chunk->units(), -1);
    chunk->used_units.assign(chunk->units(), 0);
    chunk->next.resize(chunk->units());
    chunk->previous.resize(chunk->units());
    chunk->first_free.assign(order + 1, -1);
    chunk->memory = static_cast<char*>(resource_.allocate(bytes));
    if (!chunk->memory) continue;
    insert_free(*chunk, 0, order);
    reserved_ += bytes;
    return (chunks_[chunk->memory] = std::move(chunk)).get();
  }
  return nullptr;
}

void* BuddyAllocator::allocate(std::size_t bytes) {
  const std::size_t units = units_for(bytes);
  Chunk* from = nullptr;
  int order = kNone;
  // The tightest block of all chunks, so that what is small does not break up the large ones.
  for (auto& [address, chunk] : chunks_)
    if (const int fit = tightest(*chunk, units); fit < order) {
      from = chunk.get();
      order = fit;
    }
  if (!from) {
    from = grow(units);
    if (!from) {
      trim();  // whole chunks that are free but too small may stand in the way of a larger one
      from = grow(units);
    }
    if (!from) return nullptr;
    order = tightest(*from, units);
  }
  void* memory = take(*from, order, units);
  bytes_in_use_ += units * kMinimumBlock;
  peak_ = std::max(peak_, bytes_in_use_);
  ++allocations_;
  ++live_;
  return memory;
}

BuddyAllocator::Chunk* BuddyAllocator::find(const void* address) {
  const char* byte = static_cast<const char*>(address);
  auto after = chunks_.upper_bound(byte);
  if (after == chunks_.begin()) return nullptr;
  Chunk* chunk = std::prev(after)->second.get();
  return byte < chunk->memory + chunk->bytes() ? chunk : nullptr;
}

void BuddyAllocator::deallocate(void* address) {
  Chunk* chunk = find(address);
  const std::size_t distance = chunk ? static_cast<char*>(address) - chunk->memory : 1;
  const std::size_t unit = distance / kMinimumBlock;
  if (distance % kMinimumBlock != 0 || chunk->used_units[unit] == 0)
    fail(LN_GRAPH_ERROR, "pool: address ", address, " is given back; one that is in use is required");
  const std::size_t units = chunk->used_units[unit];
  chunk->used_units[unit] = 0;
  chunk->units_in_use -= units;
  free_range(*chunk, unit, units);
  bytes_in_use_ -= units * kMinimumBlock;
  --live_;
}

void BuddyAllocator::trim() {
  for (auto place = chunks_.begin(); place != chunks_.end();) {
    Chunk& chunk = *place->second;
    if (chunk.units_in_use > 0) {
      ++place;
      continue;
    }
    resource_.deallocate(chunk.memory, chunk.bytes());
    reserved_ -= chunk.bytes();
    place = chunks_.erase(place);
  }
}

PoolStatistics BuddyAllocator::statistics() const {
  PoolStatistics result;
  result.bytes_in_use = bytes_in_use_;
  result.peak_bytes_in_use = peak_;
  result.bytes_reserved = reserved_;
  result.limit = limit_;
  result.allocations = allocations_;
  result.live_allocations = live_;
  result.chunks = static_cast<std::int64_t>(chunks_.size());
  for (const auto& [address, chunk] : chunks_)
    if (chunk->free_orders)
      result.largest_free_block = std::max(result.largest_free_block, kMinimumBlock << floor_log2(chunk->free_orders));
  const std::size_t free_bytes = reserved_ - bytes_in_use_;
  if (free_bytes > 0)
    result.fragmentation = 1 - static_cast<double>(result.largest_free_block) / static_cast<double>(free_bytes);
  return result;
}

void BuddyAllocator::reset_peak() { peak_ = bytes_in_use_; }

void BuddyAllocator::set_limit(std::size_t bytes) { limit_ = bytes; }

void BuddyAllocator::check() const {
  std::size_t reserved = 0, used = 0;
  for (const auto& [address, chunk] : chunks_) {
    check_chunk(*chunk);
    reserved += chunk->bytes();
    used += chunk->units_in_use * kMinimumBlock;
  }
  if (reserved != reserved_ || used != bytes_in_use_)
    fail(LN_INTERNAL_ERROR, "pool: chunks hold ", reserved, " bytes, ", used, " in use; ", reserved_, " and ",
         bytes_in_use_, " are counted");
}

void BuddyAllocator::check_chunk(const Chunk& chunk) const {
  std::size_t used = 0, listed = 0, free_blocks = 0;
  for (std::size_t unit = 0; unit < chunk.units();) {
    const int order = chunk.free_order[unit];
    std::size_t size = chunk.used_units[unit];
    if ((order >= 0) == (size > 0))
      fail(LN_INTERNAL_ERROR, "pool: unit ", unit, " starts neither or both kinds of block");
    if (order >= 0) {
      size = std::size_t{1} << order;
      const std::size_t buddy = unit ^ size;
      if (unit % size != 0) fail(LN_INTERNAL_ERROR, "pool: free block ", unit, " of order ", order, " is not aligned");
      if (order < chunk.order && chunk.free_order[buddy] == order)
        fail(LN_INTERNAL_ERROR, "pool: free buddies ", unit, " and ", buddy, " are not merged");
      ++free_blocks;
    } else {
      used += size;
    }
    for (std::size_t inside = unit + 1; inside < unit + size; ++inside)
      if (chunk.free_order[inside] >= 0 || chunk.used_units[inside] > 0)
        fail(LN_INTERNAL_ERROR, "pool: blocks ", unit, " and ", inside, " overlap");
    unit += size;
  }
  for (int order = 0; order <= chunk.order; ++order) {
    if ((chunk.first_free[order] >= 0) != ((chunk.free_orders >> order & 1) != 0))
      fail(LN_INTERNAL_ERROR, "pool: the mask of order ", order, " is wrong");
    for (int32_t unit = chunk.first_free[order]; unit >= 0; unit = chunk.next[unit], ++listed)
      if (chunk.free_order[unit] != order) fail(LN_INTERNAL_ERROR, "pool: unit ", unit, " is in the wrong list");
  }
  if (used != chunk.units_in_use || listed != free_blocks)
    fail(LN_INTERNAL_ERROR, "pool: ", used, " units in use and ", free_blocks, " free blocks are found, ",
         chunk.units_in_use, " and ", listed, " counted");
}

}  // namespace lazynet
