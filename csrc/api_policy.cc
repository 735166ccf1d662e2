// The C interface's functions about policies: driven from outside, and learned.
#include <sstream>

#include "api.h"

using namespace lazynet;

namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

LearnedPolicy policy_of(const char* text) {
  const std::vector<std::string> lines = split(text, '\n');
  if (lines.empty()) fail(LN_VALUE_ERROR, "policy: an empty text is given; at least the fallback is required");
  std::vector<LearnedPolicy::Rule> rules;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> words = split(lines[i], '\t');
    if (words.empty()) continue;
    LearnedPolicy::Rule rule{{}, words[0]};
    for (std::size_t k = 1; k < words.size(); ++k) rule.state.push_back({words[k].substr(1), words[k][0] == '!'});
    rules.push_back(std::move(rule));
  }
  return {policy_from_name(lines[0].c_str()), std::move(rules)};
}

ln_policy* wrap(LearnedPolicy policy) {
  return new ln_policy{std::make_shared<const LearnedPolicy>(std::move(policy)), {}};
}

}  // namespace

// ---- driven from outside

int ln_schedule_begin(ln_graph* graph, const int64_t* nodes, int64_t count) {
  return with_graph(graph, [&](Graph& core) { core.schedule_begin(nodes, count); });
}
int64_t ln_schedule_ready(ln_graph* graph, ln_ready_signature* out, int64_t capacity) {
  int64_t count = 0;
  const int status = with_graph(graph, [&](Graph& core) {
    const std::vector<ln_ready_signature> ready = core.schedule_in_progress().ready();
    count = static_cast<int64_t>(ready.size());
    std::copy_n(ready.begin(), std::min(count, capacity), out);
  });
  return status < 0 ? status : count;
}
int ln_schedule_take(ln_graph* graph, int32_t signature, int64_t count) {
  return with_graph(graph, [&](Graph& core) { core.schedule_in_progress().take(signature, count); });
}
int ln_schedule_run(ln_graph* graph) {
  return with_graph(graph, [](Graph& core) { core.schedule_run(); });
}

// ---- learned

ln_policy* ln_policy_create(const char* text) {
  return guarded<ln_policy*>(nullptr, [&] { return wrap(policy_of(text)); });
}
void ln_policy_release(ln_policy* policy) { delete policy; }
const char* ln_policy_text(ln_policy* policy) {
  return guarded<const char*>(nullptr, [&] {
    policy->text = policy_name(policy->core->fallback());
    for (const LearnedPolicy::Rule& rule : policy->core->rules()) {
      policy->text += '\n' + rule.choice;
      for (const LearnedPolicy::Ready& ready : rule.state)
        policy->text += (ready.safe ? "\t!" : "\t?") + ready.signature;
    }
    return policy->text.c_str();
  });
}
int ln_graph_set_learned_policy(ln_graph* graph, const ln_policy* policy) {
  return with_graph(graph, [&](Graph& core) { core.set_policy(Policy::kLearned, policy->core); });
}

ln_learner* ln_learner_create(void) {
  return guarded<ln_learner*>(nullptr, [] { return new ln_learner(); });
}
void ln_learner_release(ln_learner* learner) { delete learner; }
int ln_learner_add(ln_learner* learner, ln_graph* graph) {
  return with_graph(graph, [&](Graph& core) { core.learn_from(&learner->core); });
}
ln_policy* ln_learner_run(ln_learner* learner, int trials, uint64_t seed, ln_learning* result) {
  return guarded<ln_policy*>(nullptr, [&] {
    LearningResult found;
    ln_policy* policy = wrap(learner->core.learn(trials, seed, &found));
    *result = {found.learned, found.agenda, found.lookahead, found.lower_bound};
    return policy;
  });
}
