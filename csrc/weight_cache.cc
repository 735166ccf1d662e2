#include "weight_cache.h"

namespace lazynet {

WeightCache::~WeightCache() {
  for (const Entry& entry : entries_) pool_.deallocate(entry.memory);
}

bool WeightCache::Key::operator==(const Key& other) const {
  return identity == other.identity && address == other.address && rows == other.rows && cols == other.cols &&
         ld == other.ld && transposed == other.transposed;
}

void* WeightCache::find(const Key& key) const {
  for (const Entry& entry : entries_)
    if (entry.key == key) return entry.memory;
  return nullptr;
}

void* WeightCache::add(const Key& key, std::size_t bytes) {
  void* memory = pool_.allocate(bytes);
  if (memory) entries_.push_back({key, memory});
  return memory;
}

}  // namespace lazynet
