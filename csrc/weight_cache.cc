#include "weight_cache.h"

namespace lazynet {

void WeightCache::clear() {
  for (const Entry& entry : entries_) pool_.deallocate(entry.memory);
  entries_.clear();
}

void WeightCache::end_run() {
  std::size_t kept = 0;
  for (Entry& entry : entries_) {
    if (entry.used && entry.key.identity < 0)
      entries_[kept++] = {entry.key, entry.memory, false};
    else
      pool_.deallocate(entry.memory);
  }
  entries_.resize(kept);
}

bool WeightCache::Key::operator==(const Key& other) const {
  return identity == other.identity && address == other.address && rows == other.rows && cols == other.cols &&
         ld == other.ld && transposed == other.transposed;
}

void* WeightCache::find(const Key& key) {
  for (Entry& entry : entries_)
    if (entry.key == key) {
      entry.used = true;
      return entry.memory;
    }
  return nullptr;
}

void* WeightCache::add(const Key& key, std::size_t bytes) {
  void* memory = pool_.allocate(bytes);
  if (memory) entries_.push_back({key, memory, true});
  return memory;
}

}  // namespace lazynet
