#include "scheduler.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "error.h"

namespace lazynet {
namespace {

constexpr const char* kPolicyNames[] = {"depth", "agenda", "lookahead", "none"};

// Calls function(position of producer in needed) for every argument of a node that is itself to be scheduled.
// Ids of `needed` are ascending; `position_of(id)` gives -1 for others.
class Positions {
 public:
  explicit Positions(const std::vector<int32_t>& needed) : first_(needed.empty() ? 0 : needed.front()) {
    if (needed.empty()) return;
    position_.assign(needed.back() - first_ + 1, -1);
    for (std::size_t i = 0; i < needed.size(); ++i) position_[needed[i] - first_] = static_cast<int32_t>(i);
  }
  int32_t operator()(int32_t id) const {
    const int64_t index = int64_t{id} - first_;
    return index < 0 || index >= static_cast<int64_t>(position_.size()) ? -1 : position_[index];
  }

 private:
  int64_t first_;
  std::vector<int32_t> position_;
};

template <class Function>
void for_producers(const NodeStore& nodes, const NodeRecord& node, const Positions& position,
                   const Function& function) {
  const int32_t* arguments = nodes.arguments_of(node);
  for (int32_t k = 0; k < node.argument_count; ++k) {
    const int32_t producer = position(nodes[arguments[k]].root);
    if (producer >= 0) function(producer);
  }
}

std::vector<int32_t> depths(const NodeStore& nodes, const std::vector<int32_t>& needed, const Positions& position) {
  std::vector<int32_t> depth(needed.size(), 0);
  for (std::size_t i = 0; i < needed.size(); ++i)
    for_producers(nodes, nodes[needed[i]], position, [&](int32_t p) { depth[i] = std::max(depth[i], depth[p] + 1); });
  return depth;
}

// Batches of equal (depth, signature), by depth and then by signature, members by id.
Schedule schedule_by_depth(const NodeStore& nodes, const std::vector<int32_t>& needed) {
  const std::vector<int32_t> depth = depths(nodes, needed, Positions(needed));
  std::vector<int32_t> order(needed.size());
  std::iota(order.begin(), order.end(), 0);
  auto key = [&](int32_t i) { return std::make_pair(depth[i], nodes[needed[i]].signature); };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  Schedule result;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || key(order[i]) != key(order[i - 1])) result.batch_begin.push_back(static_cast<int32_t>(i));
    result.order.push_back(needed[order[i]]);
  }
  result.batch_begin.push_back(static_cast<int32_t>(order.size()));
  return result;
}

Schedule schedule_one_by_one(const std::vector<int32_t>& needed) {
  Schedule result;
  result.order = needed;
  result.batch_begin.resize(needed.size() + 1);
  std::iota(result.batch_begin.begin(), result.batch_begin.end(), 0);
  return result;
}

void push(std::vector<int32_t>& heap, int32_t rank) {
  heap.push_back(rank);
  std::push_heap(heap.begin(), heap.end(), std::greater<int32_t>());
}

int32_t pop(std::vector<int32_t>& heap) {
  std::pop_heap(heap.begin(), heap.end(), std::greater<int32_t>());
  const int32_t rank = heap.back();
  heap.pop_back();
  return rank;
}

}  // namespace

Policy policy_from_name(const char* name) {
  for (int i = 0; i < 4; ++i)
    if (std::strcmp(name, kPolicyNames[i]) == 0) return static_cast<Policy>(i);
  fail(LN_VALUE_ERROR, "policy: '", name, "' is given; 'depth', 'agenda', 'lookahead' or 'none' is required");
}

const char* policy_name(Policy policy) { return kPolicyNames[static_cast<int>(policy)]; }

ReadySet::ReadySet(const NodeStore& nodes, const std::vector<int32_t>& needed)
    : nodes_(nodes), needed_(needed), unscheduled_(static_cast<int64_t>(needed.size())) {
  const std::size_t count = needed.size();
  const Positions position(needed);
  group_of_.resize(count);
  waiting_for_.assign(count, 0);
  successor_begin_.assign(count + 1, 0);
  std::vector<int32_t> depth(count, 0);
  for (std::size_t i = 0; i < count; ++i) {
    const NodeRecord& node = nodes[needed[i]];
    for_producers(nodes, node, position, [&](int32_t p) {
      ++waiting_for_[i];
      ++successor_begin_[p + 1];
      depth[i] = std::max(depth[i], depth[p] + 1);
    });
    if (node.signature >= static_cast<int32_t>(group_of_signature_.size()))
      group_of_signature_.resize(node.signature + 1, -1);
    int32_t& group = group_of_signature_[node.signature];
    if (group < 0) {
      group = static_cast<int32_t>(groups_.size());
      groups_.emplace_back();
      groups_.back().signature = node.signature;
    }
    group_of_[i] = group;
    ++groups_[group].total;
    groups_[group].depth_sum += depth[i];
  }
  std::partial_sum(successor_begin_.begin(), successor_begin_.end(), successor_begin_.begin());
  successors_.resize(successor_begin_.back());
  std::vector<int32_t> fill(successor_begin_.begin(), successor_begin_.end() - 1);
  for (std::size_t i = 0; i < count; ++i)
    for_producers(nodes, nodes[needed[i]], position,
                  [&](int32_t p) { successors_[fill[p]++] = static_cast<int32_t>(i); });
  for (Group& group : groups_) group.remaining = group.total;
  for (std::size_t i = 0; i < count; ++i)
    if (waiting_for_[i] == 0) groups_[group_of_[i]].ready.push_back(static_cast<int32_t>(i));
  schedule_.order.reserve(count);
  schedule_.batch_begin.push_back(0);
}

std::vector<ln_ready_signature> ReadySet::ready() const {
  std::vector<ln_ready_signature> result;
  for (const Group& group : groups_)
    if (!group.ready.empty())
      result.push_back({group.signature, nodes_[needed_[group.ready[0]]].op, static_cast<int64_t>(group.ready.size()),
                        group.remaining, group.depth_sum / static_cast<double>(group.total)});
  std::sort(result.begin(), result.end(), [](auto& a, auto& b) { return a.signature < b.signature; });
  return result;
}

void ReadySet::take(int32_t signature, int64_t count) {
  const int32_t group = signature >= 0 && signature < static_cast<int32_t>(group_of_signature_.size())
                            ? group_of_signature_[signature]
                            : -1;
  const int64_t ready = group < 0 ? 0 : static_cast<int64_t>(groups_[group].ready.size());
  if (count < 1 || count > ready)
    fail(LN_VALUE_ERROR, "policy: ", count, " nodes of signature ", signature, " are taken and ", ready,
         " are ready; at least 1 and no more than are ready is required");
  take_group(group, count);
}

void ReadySet::take_group(int32_t group, int64_t count) {
  // The list of ready nodes may grow while successors are released, also this group's own.
  std::vector<int32_t> batch(groups_[group].ready.begin(), groups_[group].ready.begin() + count);
  groups_[group].ready.erase(groups_[group].ready.begin(), groups_[group].ready.begin() + count);
  groups_[group].remaining -= count;
  groups_[group].queued = groups_[group].complete_queued = false;
  unscheduled_ -= count;
  for (int32_t local : batch) schedule_.order.push_back(needed_[local]);
  schedule_.batch_begin.push_back(static_cast<int32_t>(schedule_.order.size()));
  for (int32_t local : batch) release_successors(local);
  if (ranked_) count_ready(group);
}

void ReadySet::release_successors(int32_t local) {
  for (int32_t k = successor_begin_[local]; k < successor_begin_[local + 1]; ++k) {
    const int32_t next = successors_[k];
    if (--waiting_for_[next] > 0) continue;
    groups_[group_of_[next]].ready.push_back(next);
    if (ranked_) count_ready(group_of_[next]);
  }
}

// Puts the group into the heaps in which it now belongs.
void ReadySet::count_ready(int32_t index) {
  Group& group = groups_[index];
  if (group.ready.empty()) return;
  if (!group.queued) {
    group.queued = true;
    push(ready_heap_, rank_of_group_[index]);
  }
  if (!group.complete_queued && static_cast<int64_t>(group.ready.size()) == group.remaining) {
    group.complete_queued = true;
    push(complete_heap_, rank_of_group_[index]);
  }
}

void ReadySet::rank_groups() {
  group_by_rank_.resize(groups_.size());
  std::iota(group_by_rank_.begin(), group_by_rank_.end(), 0);
  auto key = [&](int32_t g) {
    return std::make_pair(groups_[g].depth_sum / static_cast<double>(groups_[g].total), groups_[g].signature);
  };
  std::sort(group_by_rank_.begin(), group_by_rank_.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  rank_of_group_.resize(groups_.size());
  for (std::size_t rank = 0; rank < group_by_rank_.size(); ++rank)
    rank_of_group_[group_by_rank_[rank]] = static_cast<int32_t>(rank);
  ranked_ = true;
  for (std::size_t g = 0; g < groups_.size(); ++g) count_ready(static_cast<int32_t>(g));
}

// agenda: the ready signature of smallest average depth (Neubig et al. 2017, On-the-fly Operation Batching).
// lookahead: before that, a signature whose ready nodes are all that is left of it, because waiting cannot
// make its batch larger (the sufficient condition of Chen et al. 2023, ED-Batch).
void ReadySet::run(Policy policy) {
  rank_groups();
  while (unscheduled_ > 0) {
    int32_t group = -1;
    while (policy == Policy::kLookahead && group < 0 && !complete_heap_.empty()) {
      const int32_t candidate = group_by_rank_[pop(complete_heap_)];
      if (groups_[candidate].complete_queued) group = candidate;
    }
    while (group < 0) {
      const int32_t candidate = group_by_rank_[pop(ready_heap_)];
      if (groups_[candidate].queued) group = candidate;
    }
    take_group(group, static_cast<int64_t>(groups_[group].ready.size()));
  }
}

Schedule schedule(const NodeStore& nodes, const std::vector<int32_t>& needed, Policy policy) {
  if (policy == Policy::kDepth) return schedule_by_depth(nodes, needed);
  if (policy == Policy::kNone) return schedule_one_by_one(needed);
  ReadySet ready(nodes, needed);
  ready.run(policy);
  return ready.finish();
}

int64_t lower_bound(const NodeStore& nodes, const std::vector<int32_t>& needed) {
  const Positions position(needed);
  std::vector<int32_t> signatures;
  for (int32_t id : needed) signatures.push_back(nodes[id].signature);
  std::sort(signatures.begin(), signatures.end());
  signatures.erase(std::unique(signatures.begin(), signatures.end()), signatures.end());
  std::vector<int32_t> chain(needed.size());
  int64_t bound = 0;
  for (int32_t signature : signatures) {
    int32_t longest = 0;
    for (std::size_t i = 0; i < needed.size(); ++i) {
      chain[i] = 0;
      for_producers(nodes, nodes[needed[i]], position, [&](int32_t p) { chain[i] = std::max(chain[i], chain[p]); });
      chain[i] += nodes[needed[i]].signature == signature;
      longest = std::max(longest, chain[i]);
    }
    bound += longest;
  }
  return bound;
}

bool ScheduleCache::find(const NodeStore& nodes, const std::vector<int32_t>& needed, Policy policy, Schedule* found) {
  const Positions position(needed);
  key_.clear();
  key_.push_back(static_cast<int32_t>(policy));
  for (std::size_t i = 0; i < needed.size(); ++i) {
    const NodeRecord& node = nodes[needed[i]];
    key_.push_back(node.signature);
    for_producers(nodes, node, position, [&](int32_t p) { key_.push_back(p - static_cast<int32_t>(i)); });
  }
  hash_ = key_.size();
  for (int32_t word : key_) {
    hash_ = (hash_ ^ static_cast<uint32_t>(word)) * 0xff51afd7ed558ccdu;
    hash_ ^= hash_ >> 32;
  }
  for (Entry& entry : entries_) {
    if (entry.hash != hash_ || entry.key != key_) continue;
    entry.used = ++clock_;
    found->batch_begin = entry.schedule.batch_begin;
    found->order.resize(needed.size());
    for (std::size_t i = 0; i < needed.size(); ++i) found->order[i] = needed[entry.schedule.order[i]];
    return true;
  }
  seen_before_ = std::find(seen_.begin(), seen_.end(), hash_) != seen_.end();
  if (!seen_before_) {
    if (seen_.size() < kSeen)
      seen_.push_back(hash_);
    else
      seen_[next_seen_++ % kSeen] = hash_;
  }
  return false;
}

void ScheduleCache::remember(const std::vector<int32_t>& needed, const Schedule& made) {
  if (!seen_before_ || needed.empty()) return;
  const Positions position(needed);
  Entry entry{hash_, key_, made, ++clock_};
  for (int32_t& id : entry.schedule.order) id = position(id);
  if (entries_.size() < kEntries) {
    entries_.push_back(std::move(entry));
    return;
  }
  *std::min_element(entries_.begin(), entries_.end(), [](auto& a, auto& b) { return a.used < b.used; }) =
      std::move(entry);
}

}  // namespace lazynet
