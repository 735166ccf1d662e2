#include "replay.h"

#include <functional>

namespace lazynet::cuda {

ReadyGraph Replay::find(const std::string& launches) {
  const auto found = by_launches_.find(launches);
  if (found == by_launches_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->second;
}

bool Replay::seen(const std::string& launches) {
  if (seen_.size() >= kMostSeen) seen_.clear();
  return !seen_.insert(std::hash<std::string>()(launches)).second;
}

void Replay::keep(const std::string& launches, ReadyGraph graph) {
  if (entries_.size() == kMostGraphs) {
    driver_.destroy_ready(entries_.back().second);  // the driver keeps it until it has run
    by_launches_.erase(entries_.back().first);
    entries_.pop_back();
  }
  entries_.emplace_front(launches, graph);
  by_launches_[launches] = entries_.begin();
}

void Replay::clear() {
  for (const Entry& entry : entries_) driver_.destroy_ready(entry.second);
  by_launches_.clear();
  entries_.clear();
  seen_.clear();
}

}  // namespace lazynet::cuda
