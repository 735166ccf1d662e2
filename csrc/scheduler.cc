#include "scheduler.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <unordered_map>

#include "error.h"
#include "learned_policy.h"

namespace lazynet {
namespace {

constexpr const char* kPolicyNames[] = {"depth", "agenda", "lookahead", "none", "learned"};

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

ReadySet::ReadySet(const NodeStore& nodes, const std::vector<int32_t>& needed, bool with_chains)
    : unscheduled_(static_cast<int64_t>(needed.size())) {
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
      groups_.back().op = node.op;
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
  if (with_chains) {
    chains_ = chains_of_own_signature(nodes, needed);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<int64_t>& left = groups_[group_of_[i]].left_by_chain;
      const auto chain = static_cast<std::size_t>(chains_[i]);
      if (left.size() <= chain) left.resize(chain + 1);
      ++left[chain];
    }
    for (Group& group : groups_) count_heads(&group);
  }
  schedule_.order.reserve(count);
  schedule_.batch_begin.push_back(0);
}

std::vector<ln_ready_signature> ReadySet::ready() const {
  std::vector<ln_ready_signature> result;
  for (const Group& group : groups_)
    if (!group.ready.empty())
      result.push_back({group.signature, group.op, static_cast<int64_t>(group.ready.size()), group.remaining,
                        group.left_by_chain.empty() ? 0 : group.left_by_chain.back(), group.ready_heads,
                        group.depth_sum / static_cast<double>(group.total)});
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

void ReadySet::count_heads(Group* group) {
  group->ready_heads = 0;
  const auto longest = static_cast<int32_t>(group->left_by_chain.size()) - 1;
  for (const int32_t local : group->ready) group->ready_heads += chains_[local] == longest;
}

void ReadySet::take_group(int32_t index, int64_t count) {
  Group& group = groups_[index];
  // The list of ready nodes may grow while successors are released, also this group's own.
  std::vector<int32_t> batch(group.ready.begin(), group.ready.begin() + count);
  group.ready.erase(group.ready.begin(), group.ready.begin() + count);
  group.remaining -= count;
  if (group.queued) state_ -= LearnedPolicy::part_of_state(group.key, group.safe_queued);
  group.queued = group.safe_queued = false;
  if (!chains_.empty()) {
    for (const int32_t local : batch) --group.left_by_chain[chains_[local]];
    while (group.left_by_chain.size() > 1 && group.left_by_chain.back() == 0) group.left_by_chain.pop_back();
    count_heads(&group);
  }
  unscheduled_ -= count;
  schedule_.order.insert(schedule_.order.end(), batch.begin(), batch.end());
  schedule_.batch_begin.push_back(static_cast<int32_t>(schedule_.order.size()));
  for (int32_t local : batch) release_successors(local);
  if (ranked_) count_ready(index);
}

void ReadySet::release_successors(int32_t local) {
  for (int32_t k = successor_begin_[local]; k < successor_begin_[local + 1]; ++k) {
    const int32_t next = successors_[k];
    if (--waiting_for_[next] > 0) continue;
    Group& group = groups_[group_of_[next]];
    group.ready.push_back(next);
    if (!chains_.empty()) group.ready_heads += chains_[next] + 1 == static_cast<int32_t>(group.left_by_chain.size());
    if (ranked_) count_ready(group_of_[next]);
  }
}

// Puts the group into the heaps in which it now belongs.
void ReadySet::count_ready(int32_t index) {
  Group& group = groups_[index];
  if (group.ready.empty()) return;
  if (!group.queued) {
    group.queued = true;
    state_ += LearnedPolicy::part_of_state(group.key, false);
    push(ready_heap_, rank_of_group_[index]);
  }
  if (!group.safe_queued && group.safe()) {
    group.safe_queued = true;
    state_ += LearnedPolicy::part_of_state(group.key, true) - LearnedPolicy::part_of_state(group.key, false);
    push(safe_heap_, rank_of_group_[index]);
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
// lookahead: before that, a signature that is safe to run: with all heads of its longest chains ready, the batch makes
// the lower bound of what is left smaller by one, so that nothing is lost (the sufficient condition of Chen et al.
// 2023, ED-Batch).
int32_t ReadySet::next_group(Policy policy) {
  while (policy == Policy::kLookahead && !safe_heap_.empty()) {
    const int32_t candidate = group_by_rank_[pop(safe_heap_)];
    if (groups_[candidate].safe_queued) return candidate;
  }
  while (true) {
    const int32_t candidate = group_by_rank_[pop(ready_heap_)];
    if (groups_[candidate].queued) return candidate;
  }
}

void ReadySet::run(Policy policy) {
  rank_groups();
  while (unscheduled_ > 0) {
    const int32_t group = next_group(policy);
    take_group(group, static_cast<int64_t>(groups_[group].ready.size()));
  }
}

void ReadySet::run(const LearnedPolicy& policy, const std::vector<uint64_t>& signature_keys) {
  std::unordered_map<uint64_t, int32_t> group_of_key;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].key = signature_keys[groups_[g].signature];
    group_of_key[groups_[g].key] = static_cast<int32_t>(g);
  }
  rank_groups();
  while (unscheduled_ > 0) {
    const auto chosen = group_of_key.find(policy.choose(state_));
    const bool known = chosen != group_of_key.end() && !groups_[chosen->second].ready.empty();
    const int32_t group = known ? chosen->second : next_group(policy.fallback());
    take_group(group, static_cast<int64_t>(groups_[group].ready.size()));
  }
}

Schedule ReadySet::finish(const std::vector<int32_t>& needed) {
  for (int32_t& position : schedule_.order) position = needed[position];
  return std::move(schedule_);
}

Schedule schedule(const NodeStore& nodes, const std::vector<int32_t>& needed, Policy policy) {
  if (policy == Policy::kDepth) return schedule_by_depth(nodes, needed);
  if (policy == Policy::kNone) return schedule_one_by_one(needed);
  ReadySet ready(nodes, needed, policy == Policy::kLookahead);
  ready.run(policy);
  return ready.finish(needed);
}

std::vector<int32_t> chains_of_own_signature(const NodeStore& nodes, const std::vector<int32_t>& needed) {
  const Positions position(needed);
  // One way down from the last node follows the chains of kLanes signatures at once.
  constexpr int32_t kLanes = 16;
  struct alignas(64) Lanes {
    int32_t chain[kLanes];  // the longest that begins with the node or after it
  };
  std::vector<int32_t> lane_of_signature;
  int32_t lanes = 0;
  for (int32_t id : needed) {
    const auto signature = static_cast<std::size_t>(nodes[id].signature);
    if (lane_of_signature.size() <= signature) lane_of_signature.resize(signature + 1, -1);
    if (lane_of_signature[signature] < 0) lane_of_signature[signature] = lanes++;
  }
  std::vector<int32_t> result(needed.size());
  std::vector<Lanes> after(needed.size());
  for (int32_t first = 0; first < lanes; first += kLanes) {
    if (first > 0) std::fill(after.begin(), after.end(), Lanes{});
    for (std::size_t i = needed.size(); i-- > 0;) {
      const NodeRecord& node = nodes[needed[i]];
      const int32_t lane = lane_of_signature[node.signature] - first;
      if (lane >= 0 && lane < kLanes) result[i] = ++after[i].chain[lane];
      for_producers(nodes, node, position, [&](int32_t p) {
        for (int32_t k = 0; k < kLanes; ++k) after[p].chain[k] = std::max(after[p].chain[k], after[i].chain[k]);
      });
    }
  }
  return result;
}

int64_t lower_bound(const NodeStore& nodes, const std::vector<int32_t>& needed) {
  const std::vector<int32_t> chains = chains_of_own_signature(nodes, needed);
  std::unordered_map<int32_t, int32_t> longest;
  for (std::size_t i = 0; i < needed.size(); ++i) {
    int32_t& known = longest[nodes[needed[i]].signature];
    known = std::max(known, chains[i]);
  }
  int64_t bound = 0;
  for (const auto& [signature, length] : longest) bound += length;
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
