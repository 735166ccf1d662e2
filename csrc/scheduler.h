// From the nodes to compute to batches in order. Every policy gives a valid topological order; they differ in
// how many batches it has. Time is linear in nodes and edges (times the logarithm of the number of
// signatures), memory linear.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lazynet.h"
#include "node_store.h"

namespace lazynet {

struct Schedule {
  std::vector<int32_t> order;        // node ids, batch after batch
  std::vector<int32_t> batch_begin;  // where each batch starts in order, and order.size() at the end
  int32_t batches() const { return static_cast<int32_t>(batch_begin.size()) - 1; }
};

enum class Policy { kDepth, kAgenda, kLookahead, kNone, kLearned };
Policy policy_from_name(const char* name);  // throws Error(LN_VALUE_ERROR); a learned one has no name
const char* policy_name(Policy);

class LearnedPolicy;

// The nodes still to be scheduled and which of them can run now. Members of a batch stand in the order in
// which they became ready, which is the order of the memory that they read.
class ReadySet {
 public:
  // `needed`: ascending ids of nodes with kernels, none computed, closed under uncomputed arguments.
  // Without chains, which only kAgenda does not ask for, no group is known to be safe.
  ReadySet(const NodeStore& nodes, const std::vector<int32_t>& needed, bool with_chains);

  int64_t unscheduled() const { return unscheduled_; }
  std::vector<ln_ready_signature> ready() const;  // by ascending signature
  // Makes the first `count` ready nodes of `signature` the next batch. Throws Error(LN_VALUE_ERROR).
  void take(int32_t signature, int64_t count);
  // These take until nothing is left.
  void run(Policy policy);  // kAgenda or kLookahead
  void run(const LearnedPolicy& policy, const std::vector<uint64_t>& signature_keys);
  int64_t batches() const { return static_cast<int64_t>(schedule_.batch_begin.size()) - 1; }
  // The batches taken, as ids; the same `needed` as at the beginning.
  Schedule finish(const std::vector<int32_t>& needed);

 private:
  struct Group {  // the nodes of one signature
    int32_t signature = -1, op = -1;
    int64_t total = 0, remaining = 0;
    double depth_sum = 0;
    std::vector<int32_t> ready;  // local numbers
    // Of nodes that are left, by the length of the chain that they begin: its end are the heads of the longest.
    std::vector<int64_t> left_by_chain;
    int64_t ready_heads = 0;
    bool queued = false, safe_queued = false;
    uint64_t key = 0;  // to a learned policy
    bool safe() const { return ready_heads > 0 && ready_heads == left_by_chain.back(); }
  };
  void release_successors(int32_t local);
  void count_ready(int32_t group);
  void take_group(int32_t group, int64_t count);
  void rank_groups();
  int32_t next_group(Policy policy);
  void count_heads(Group* group);

  int64_t unscheduled_;
  std::vector<int32_t> group_of_;     // a node: its group
  std::vector<int32_t> waiting_for_;  // a node: arguments not yet scheduled
  std::vector<int32_t> successor_begin_, successors_;
  std::vector<Group> groups_;
  std::vector<int32_t> group_of_signature_;
  std::vector<int32_t> chains_;  // a node: see chains_of_own_signature
  // Groups by rank of average depth: heaps of ranks that hold ready nodes, and all heads of their longest chains.
  std::vector<int32_t> group_by_rank_, rank_of_group_;
  std::vector<int32_t> ready_heap_, safe_heap_;
  bool ranked_ = false;
  uint64_t state_ = 0;  // the sum over the groups that are queued, see LearnedPolicy::part_of_state
  Schedule schedule_;   // of positions
};

// Any policy but kLearned.
Schedule schedule(const NodeStore& nodes, const std::vector<int32_t>& needed, Policy policy);

// A node, by its position in `needed`: the longest chain of nodes of its own signature that begins with it.
std::vector<int32_t> chains_of_own_signature(const NodeStore& nodes, const std::vector<int32_t>& needed);

// For each signature the longest chain of its nodes, summed: no schedule has fewer batches.
int64_t lower_bound(const NodeStore& nodes, const std::vector<int32_t>& needed);

// Schedules by the structure of what was scheduled (signatures and edges, compared in full). A structure is
// kept from its second sight on, because most minibatches come only once.
class ScheduleCache {
 public:
  // Returns the schedule of this structure with the ids of `needed`, or an empty one; then remember() it.
  bool find(const NodeStore& nodes, const std::vector<int32_t>& needed, Policy policy, Schedule* found);
  void remember(const std::vector<int32_t>& needed, const Schedule& made);
  void clear() { entries_.clear(); }

 private:
  static constexpr std::size_t kEntries = 16, kSeen = 64;
  struct Entry {
    uint64_t hash;
    std::vector<int32_t> key;
    Schedule schedule;  // order as positions in `needed`
    uint64_t used;
  };
  std::vector<Entry> entries_;
  std::vector<uint64_t> seen_;
  std::size_t next_seen_ = 0;
  uint64_t clock_ = 0;
  uint64_t hash_ = 0;  // of key_
  bool seen_before_ = false;
  std::vector<int32_t> key_;  // of the last find()
};

}  // namespace lazynet
