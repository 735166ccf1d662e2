#include "gradient_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

#include "memory_resource.h"

namespace lazynet {
namespace {

// Free stretches by offset.
class FreeSpace {
 public:
  // The smallest stretch that is large enough.
  int64_t take(int64_t bytes) {
    auto best = stretches_.end();
    for (auto at = stretches_.begin(); at != stretches_.end(); ++at)
      if (at->second >= bytes && (best == stretches_.end() || at->second < best->second)) best = at;
    const auto [offset, size] = *best;
    stretches_.erase(best);
    if (size > bytes) stretches_[offset + bytes] = size - bytes;
    return offset;
  }

  void give(int64_t offset, int64_t bytes) {
    auto next = stretches_.lower_bound(offset);
    if (next != stretches_.end() && next->first == offset + bytes) {
      bytes += next->second;
      next = stretches_.erase(next);
    }
    if (next != stretches_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    stretches_[offset] = bytes;
  }

 private:
  std::map<int64_t, int64_t> stretches_ = {{0, INT64_MAX}};
};

}  // namespace

int64_t place(std::vector<Lifetime>* lifetimes) {
  std::vector<std::size_t> by_first(lifetimes->size()), by_last;
  std::iota(by_first.begin(), by_first.end(), 0);
  by_last = by_first;
  const auto& all = *lifetimes;
  // Of those that begin together the largest first: the others fit in what it leaves.
  std::stable_sort(by_first.begin(), by_first.end(), [&](std::size_t a, std::size_t b) {
    return all[a].first != all[b].first ? all[a].first < all[b].first : all[a].bytes > all[b].bytes;
  });
  std::stable_sort(by_last.begin(), by_last.end(),
                   [&](std::size_t a, std::size_t b) { return all[a].last < all[b].last; });
  FreeSpace space;
  int64_t total = 0;
  auto ended = by_last.begin();
  for (const std::size_t i : by_first) {
    Lifetime& lifetime = (*lifetimes)[i];
    lifetime.offset = 0;
    if (lifetime.bytes == 0) continue;
    for (; ended != by_last.end() && all[*ended].last < lifetime.first; ++ended)
      if (all[*ended].bytes > 0) space.give(all[*ended].offset, aligned(all[*ended].bytes));
    lifetime.offset = space.take(aligned(lifetime.bytes));
    total = std::max(total, lifetime.offset + aligned(lifetime.bytes));
  }
  return total;
}

}  // namespace lazynet
