// A finite-state policy, and how it is learned. The state is the set of signatures that have ready nodes, and which of
// them are safe (see ReadySet::run); the policy says which of them runs next (Chen et al. 2023, ED-Batch: Efficient
// Automatic Batching of Dynamic Neural Networks via Learned Finite State Machines). Signatures are known by texts that
// are the same in every graph and process.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "scheduler.h"

namespace lazynet {

// A signature's text as a number. Two texts of one key would cost batches, never right numbers: what a policy chooses
// is taken only where it is ready.
uint64_t signature_key(const std::string& text);

class LearnedPolicy {
 public:
  struct Ready {
    std::string signature;
    bool safe;
  };
  struct Rule {
    std::vector<Ready> state;  // in any order
    std::string choice;        // a signature of it
  };
  LearnedPolicy(Policy fallback, std::vector<Rule> rules);

  // The key of a state is the sum of these over its signatures, so that it can be kept up to date.
  static uint64_t part_of_state(uint64_t signature_key, bool safe);
  // The key of the signature to run, or 0 where the state was never seen.
  uint64_t choose(uint64_t state) const {
    const auto found = choices_.find(state);
    return found == choices_.end() ? 0 : found->second;
  }
  Policy fallback() const { return fallback_; }  // for states that were never seen
  const std::vector<Rule>& rules() const { return rules_; }

 private:
  Policy fallback_;
  std::vector<Rule> rules_;
  std::unordered_map<uint64_t, uint64_t> choices_;
};

// How many batches all graphs together have under each policy, and what none can be below.
struct LearningResult {
  int64_t learned = 0, agenda = 0, lookahead = 0, lower_bound = 0;
};

// Q-learning over the graphs that were shown to it. A batch costs the share of the heads of its signature's longest
// chains that it leaves behind: at a cost of 0 the lower bound of what is left falls by one, so nothing is lost.
class PolicyLearner {
 public:
  // `needed` of the graph is to be scheduled; `texts` are those of its signatures.
  void add(const NodeStore& nodes, const std::vector<int32_t>& needed, const std::vector<std::string>& texts);
  // Goes over all graphs `trials` times, or until the lower bound is reached. The best policy met is the result; where
  // agenda or lookahead had fewer batches on these graphs, it has no rules and falls back to that.
  LearnedPolicy learn(int trials, uint64_t seed, LearningResult* result) const;

 private:
  struct Example {
    ReadySet start;
    std::vector<int32_t> number_of;  // a signature of the graph: its number in texts_
  };
  class Episode;

  std::vector<std::string> texts_;
  std::unordered_map<std::string, int32_t> number_of_text_;
  std::vector<Example> examples_;
  LearningResult others_;
};

}  // namespace lazynet
