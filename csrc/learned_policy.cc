#include "learned_policy.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "error.h"

namespace lazynet {
namespace {

constexpr double kLearningRate = 0.2, kDiscount = 0.9, kExploration = 0.1;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xff51afd7ed558ccdu;
  return x ^ (x >> 29);
}

}  // namespace

uint64_t signature_key(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return mix(hash) | 1;
}

uint64_t LearnedPolicy::part_of_state(uint64_t signature_key, bool safe) {
  return mix(signature_key * (safe ? 0x9e3779b97f4a7c15u : 0xc4ceb9fe1a85ec53u));
}

LearnedPolicy::LearnedPolicy(Policy fallback, std::vector<Rule> rules) : fallback_(fallback), rules_(std::move(rules)) {
  if (fallback != Policy::kAgenda && fallback != Policy::kLookahead)
    fail(LN_VALUE_ERROR, "policy: '", policy_name(fallback),
         "' as fallback is given; 'agenda' or 'lookahead' is required");
  for (const Rule& rule : rules_) {
    uint64_t state = 0;
    bool there = false;
    for (const Ready& ready : rule.state) {
      state += part_of_state(signature_key(ready.signature), ready.safe);
      there = there || ready.signature == rule.choice;
    }
    if (!there) fail(LN_VALUE_ERROR, "policy: a rule chooses '", rule.choice, "', which is not in its state");
    choices_[state] = signature_key(rule.choice);
  }
}

// One graph being scheduled.
class PolicyLearner::Episode {
 public:
  // What can run, ascending: the number of the signature times two, plus one where it is safe.
  using State = std::vector<int32_t>;

  explicit Episode(const Example& example) : example_(example), set_(example.start) { look(); }

  bool done() const { return set_.unscheduled() == 0; }
  int64_t batches() const { return set_.batches(); }
  const State& state() const { return state_; }
  // Runs the signature of an element of the state; returns what it costs.
  double take(int32_t element) {
    const ln_ready_signature taken = *std::find_if(
        ready_.begin(), ready_.end(), [&](const ln_ready_signature& each) { return element_of(each) == element; });
    set_.take(taken.signature, taken.ready);
    look();
    return 1.0 - static_cast<double>(taken.ready_heads) / static_cast<double>(taken.heads);
  }

 private:
  int32_t element_of(const ln_ready_signature& ready) const {
    return example_.number_of[ready.signature] * 2 + (ready.ready_heads == ready.heads);
  }
  void look() {
    ready_ = set_.ready();
    state_.clear();
    for (const ln_ready_signature& each : ready_) state_.push_back(element_of(each));
    std::sort(state_.begin(), state_.end());
  }

  const Example& example_;
  ReadySet set_;
  std::vector<ln_ready_signature> ready_;
  State state_;
};

void PolicyLearner::add(const NodeStore& nodes, const std::vector<int32_t>& needed,
                        const std::vector<std::string>& texts) {
  Example example{ReadySet(nodes, needed, true), {}};
  for (const std::string& text : texts) {
    const auto [found, fresh] = number_of_text_.emplace(text, static_cast<int32_t>(texts_.size()));
    if (fresh) texts_.push_back(text);
    example.number_of.push_back(found->second);
  }
  others_.agenda += schedule(nodes, needed, Policy::kAgenda).batches();
  others_.lookahead += schedule(nodes, needed, Policy::kLookahead).batches();
  others_.lower_bound += lower_bound(nodes, needed);
  examples_.push_back(std::move(example));
}

LearnedPolicy PolicyLearner::learn(int trials, uint64_t seed, LearningResult* result) const {
  using State = Episode::State;
  if (examples_.empty()) fail(LN_VALUE_ERROR, "learn: no graphs are given; at least one is required");
  std::map<State, std::vector<double>> cost;  // of each choice in a state, what it and what follows costs
  auto costs_of = [&](const State& state) -> std::vector<double>& {
    std::vector<double>& costs = cost[state];
    costs.resize(state.size());  // 0, the best there is: everything is tried
    return costs;
  };
  auto best = [](const std::vector<double>& costs) {
    return std::min_element(costs.begin(), costs.end()) - costs.begin();
  };
  std::mt19937_64 random(seed);

  *result = others_;
  const Policy fallback = others_.agenda < others_.lookahead ? Policy::kAgenda : Policy::kLookahead;
  const int64_t unlearned = std::min(others_.agenda, others_.lookahead);
  result->learned = unlearned + 1;
  std::map<State, int32_t> chosen, found;
  for (int trial = 0; trial < trials && result->learned > others_.lower_bound; ++trial) {
    for (const Example& example : examples_) {
      Episode episode(example);
      while (!episode.done()) {
        const State state = episode.state();
        const std::vector<double>& costs = costs_of(state);
        const bool explores = std::generate_canonical<double, 32>(random) < kExploration;
        const std::size_t choice = explores ? random() % costs.size() : best(costs);
        double target = episode.take(state[choice]);
        if (!episode.done()) {
          const std::vector<double>& after = costs_of(episode.state());
          target += kDiscount * after[best(after)];
        }
        double& known = cost[state][choice];
        known += kLearningRate * (target - known);
      }
    }
    int64_t batches = 0;
    found.clear();
    for (const Example& example : examples_) {
      Episode episode(example);
      while (!episode.done()) {
        const State state = episode.state();
        const int32_t choice = found[state] = state[best(costs_of(state))];
        episode.take(choice);
      }
      batches += episode.batches();
    }
    if (batches >= result->learned) continue;
    result->learned = batches;
    chosen = found;
  }

  std::vector<LearnedPolicy::Rule> rules;
  for (const auto& [state, choice] : chosen) {
    LearnedPolicy::Rule rule{{}, texts_[choice / 2]};
    for (const int32_t element : state) rule.state.push_back({texts_[element / 2], element % 2 == 1});
    rules.push_back(std::move(rule));
  }
  result->learned = std::min(result->learned, unlearned);
  return {fallback, std::move(rules)};
}

}  // namespace lazynet
