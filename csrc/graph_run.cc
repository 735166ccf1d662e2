// The running half of Graph: what is needed, its plan, values and gradients. The building half is graph.cc.
#include <algorithm>
#include <chrono>
#include <sstream>

#include "cell.h"
#include "error.h"
#include "executor.h"
#include "graph.h"
#include "learned_policy.h"

namespace lazynet {
namespace {

class Timer {
 public:
  explicit Timer(double* seconds) : seconds_(seconds), start_(std::chrono::steady_clock::now()) {}
  ~Timer() { *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  double* seconds_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

std::vector<int32_t> Graph::needed_for(const int64_t* handles, int64_t count, bool mark_targets) {
  std::vector<int32_t> needed;
  mark_.resize(nodes.size(), 0);
  if (count == 0) {
    for (int32_t id = first_uncomputed_; id < nodes.size(); ++id)
      if (nodes[id].signature >= 0 && !nodes[id].has(kComputed)) needed.push_back(id);
    return needed;
  }
  // Arguments have smaller ids, so one way down from the highest meets every node after all that read it. It
  // ends where nothing marked is left below.
  int64_t open = 0;
  auto mark = [&](int32_t id) {
    const int32_t root = nodes[id].root;
    if (nodes[root].has(kComputed) || mark_[root]) return;
    mark_[root] = 1;
    ++open;
  };
  int32_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = resolve(handles[i]);
    if (mark_targets) nodes.root_of(id).flags |= kTarget;
    mark(id);
    next = std::max(next, nodes[id].root);
  }
  for (; open > 0; --next) {
    if (!mark_[next]) continue;
    mark_[next] = 0;
    --open;
    needed.push_back(next);
    const NodeRecord& node = nodes[next];
    const int32_t* arguments = nodes.arguments_of(node);
    for (int32_t k = 0; k < node.argument_count; ++k) mark(arguments[k]);
  }
  std::reverse(needed.begin(), needed.end());
  return needed;
}

std::unique_ptr<Plan> Graph::make_plan(const int64_t* handles, int64_t count, bool mark_targets) {
  std::vector<int32_t> needed;
  Schedule made;
  bool cached;
  {
    Timer timer(&counters.statistics.schedule_seconds);
    needed = needed_for(handles, count, mark_targets);
    if (needed.empty()) return nullptr;
    cached = needed.size() > 1 && cache_.find(nodes, needed, policy_, &made);
    if (!cached) {
      made = learned_ ? schedule_by_learned(needed) : schedule(nodes, needed, policy_);
      if (needed.size() > 1) cache_.remember(needed, made);
    }
  }
  ++counters.statistics.schedules;
  counters.statistics.schedule_cache_hits += cached;
  auto plan = plan_for(std::move(made));
  plan->from_cache = cached;
  return plan;
}

Schedule Graph::schedule_by_learned(const std::vector<int32_t>& needed) {
  std::vector<uint64_t> keys;
  for (int32_t signature = 0; signature < signatures.size(); ++signature)
    keys.push_back(signature_key(stable_text(signature)));
  ReadySet ready(nodes, needed, true);
  ready.run(*learned_, keys);
  return ready.finish(needed);
}

void Graph::set_policy(Policy policy, std::shared_ptr<const LearnedPolicy> learned) {
  policy_ = policy;
  learned_ = std::move(learned);
  cache_.clear();
}

void Graph::learn_from(PolicyLearner* learner) {
  const std::vector<int32_t> needed = needed_for(nullptr, 0, false);
  if (needed.empty())
    fail(LN_GRAPH_ERROR, "learn: the graph has nothing to compute; build a minibatch and do not run it");
  std::vector<std::string> texts;
  for (int32_t signature = 0; signature < signatures.size(); ++signature) texts.push_back(stable_text(signature));
  learner->add(nodes, needed, texts);
}

// Parameters by name, and cells by name, parameters and columns: numbers change from graph to graph.
std::string Graph::stable_text(int32_t signature) const {
  auto named = [](const Parameter& parameter) {
    std::ostringstream text;
    text << ' ' << parameter.name << " (" << parameter.shape().rows << ", " << parameter.shape().cols << ')';
    return text.str();
  };
  std::string text = signatures.text(signature, [&](int32_t id) {
    const auto found = std::find(parameter_nodes.begin(), parameter_nodes.end(), id);
    return found == parameter_nodes.end() ? std::string(" node") : named(*parameters[found - parameter_nodes.begin()]);
  });
  if (signatures.op(signature) == kOp_cell) {
    const Cell& cell = *cell_of(signature).cell;
    for (int32_t input : cell.inputs) text += ' ' + std::to_string(cell.values[input].cols);
    for (const auto& parameter : cell.parameters) text += named(*parameter);
  }
  std::replace_if(text.begin(), text.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return text;
}

std::unique_ptr<Plan> Graph::plan_for(Schedule made) {
  Timer timer(&counters.statistics.plan_seconds);
  return std::make_unique<Plan>(plan_memory(nodes, signatures, std::move(made),
                                            {element_bytes(), backend.adds_in_turn(), backend.makes_early_gradients()},
                                            readers));
}

void Graph::run(std::unique_ptr<Plan> plan) {
  Timer timer(&counters.statistics.forward_seconds);
  run_forward(*this, *plan);
  rounds.push_back(std::move(plan));
}

void Graph::forward(const int64_t* handles, int64_t count) {
  pending_.reset();
  scheduling_.reset();
  if (auto plan = make_plan(handles, count, true)) run(std::move(plan));
  if (count == 0 && !releases()) first_uncomputed_ = nodes.size();
}

void Graph::schedule_begin(const int64_t* handles, int64_t count) {
  pending_.reset();
  scheduling_.reset();
  scheduled_needed_ = needed_for(handles, count, true);
  scheduling_ = std::make_unique<ReadySet>(nodes, scheduled_needed_, true);
}

ReadySet& Graph::schedule_in_progress() {
  if (!scheduling_) fail(LN_GRAPH_ERROR, "schedule: none is in progress; begin one, and do not build or run meanwhile");
  return *scheduling_;
}

void Graph::schedule_run() {
  ReadySet& ready = schedule_in_progress();
  if (ready.unscheduled() > 0)
    fail(LN_GRAPH_ERROR, "schedule: ", ready.unscheduled(),
         " nodes are not scheduled yet; take them all before running");
  Schedule made = ready.finish(scheduled_needed_);
  scheduling_.reset();
  if (made.order.empty()) return;
  ++counters.statistics.schedules;
  run(plan_for(std::move(made)));
}

void Graph::plan_pending(const int64_t* handles, int64_t count) {
  pending_.reset();
  pending_ = make_plan(handles, count, false);
  if (!pending_) return;
  std::vector<int32_t> needed = pending_->schedule.order;
  std::sort(needed.begin(), needed.end());
  pending_->lower_bound = lower_bound(nodes, needed);
}

const Plan& Graph::plan(int64_t index) const {
  if (index < 0 || index >= plan_count()) fail(LN_INDEX_ERROR, "plan ", index, ": there are ", plan_count(), " plans");
  return plan_executed(index) ? *rounds[index] : *pending_;
}

void Graph::backward(int64_t loss_handle, bool retain) {
  if (releases()) fail(LN_GRAPH_ERROR, "backward: the graph was made with train=False; nothing was kept for backward");
  const int32_t loss = resolve(loss_handle);
  const NodeRecord& node = nodes[loss];
  if (node.elements() != 1)
    fail(LN_SHAPE_ERROR, "backward: the loss has shape (", node.rows, ", ", node.cols,
         "); a 1 x 1 node is required: sum or average it");
  const int64_t handle = handle_of(loss);
  if (!computed(loss)) forward(&handle, 1);
  Timer timer(&counters.statistics.backward_seconds);
  run_backward(*this, loss, retain);
}

int32_t Graph::computed_node(int64_t handle) {
  const int32_t id = resolve(handle);
  if (!computed(id)) {
    const int64_t own = handle_of(id);
    forward(&own, 1);
  }
  return id;
}

void Graph::read_value(int64_t handle, void* out) {
  const int32_t id = computed_node(handle);
  read_rows(id, nodes.root_of(id).value, out);
}

void Graph::copy_value(int64_t handle, void* out) {
  const int32_t id = computed_node(handle);
  const NodeRecord& node = nodes[id];
  const Piece rows{nodes.root_of(id).value + node.offset * static_cast<int64_t>(element_bytes()), nullptr, node.rows,
                   node.cols, node.ld};
  backend.gather(options.dtype, &rows, 1, out, node.cols);
  backend.finish();
}

bool Graph::read_gradient(int64_t handle, void* out) const {
  const int32_t id = resolve_node(handle);
  const NodeRecord& node = nodes[id];
  const NodeRecord& root = nodes.root_of(id);
  if (!node.has(kReached)) return false;
  if (!root.grad && root.signature >= 0 && root.has(kRequiresGrad))
    fail(LN_GRAPH_ERROR, "grad: the gradient of node ", describe(id),
         " was not kept, only those of inputs and parameters were; backward(loss, retain_grad=True) keeps all");
  if (!root.grad) return false;
  read_rows(id, root.grad, out);
  return true;
}

void Graph::read_rows(int32_t id, const char* root, void* out) const {
  const NodeRecord& node = nodes[id];
  const auto size = static_cast<int64_t>(element_bytes());
  backend.read_rows(out, root + node.offset * size, node.rows, node.cols * size, node.ld * size);
}

std::string Graph::describe(int32_t id) const {
  std::ostringstream text;
  const NodeRecord& node = nodes[id];
  text << '%' << id << ' ' << op_info(node.op).name << " (" << node.rows << ", " << node.cols << ')';
  return text.str();
}

int64_t Graph::identity_of(int32_t id) const {
  if (!releases() || nodes[id].op != kOp_parameter) return int64_t{id} + 1;
  const auto place = std::find(parameter_nodes.begin(), parameter_nodes.end(), id) - parameter_nodes.begin();
  const int64_t version = parameters[place]->version();
  return version ? -version : int64_t{id} + 1;
}

void* Graph::allocate(std::size_t bytes, const char* purpose, const Plan* plan) {
  if (void* memory = pool.allocate(bytes)) return memory;
  weights.clear();  // they can be made again
  if (void* memory = pool.allocate(bytes)) return memory;
  const PoolStatistics now = pool.statistics();
  std::ostringstream text;
  text << "out of memory: " << bytes << " bytes for " << purpose << "; the pool holds " << now.bytes_reserved
       << " bytes, " << now.bytes_in_use << " in use, ";
  if (now.limit)
    text << "and may hold " << now.limit;
  else
    text << "and the machine has no more";
  if (plan) {
    std::vector<std::pair<int64_t, int32_t>> biggest;
    for (const BatchPlan& batch : plan->batches) biggest.emplace_back(batch.bytes, batch.op);
    std::partial_sort(biggest.begin(), biggest.begin() + std::min<std::size_t>(3, biggest.size()), biggest.end(),
                      std::greater<>());
    text << ". The plan of " << plan->batches.size() << " batches needs " << plan->peak_bytes
         << " bytes for values; its biggest batches are";
    for (std::size_t i = 0; i < std::min<std::size_t>(3, biggest.size()); ++i)
      text << (i ? ", " : " ") << op_info(biggest[i].second).name << ' ' << biggest[i].first;
  }
  text << ". Clear the graph, use a smaller minibatch, or raise the limit";
  throw Error(LN_OUT_OF_MEMORY, text.str());
}

}  // namespace lazynet
