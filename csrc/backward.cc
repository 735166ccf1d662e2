#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "anomaly.h"
#include "batch_builder.h"
#include "cell.h"
#include "cell_run.h"
#include "error.h"
#include "executor.h"
#include "gradient_plan.h"
#include "measure.h"

namespace lazynet {
namespace {

class Backward {
 public:
  Backward(Graph& graph, int32_t loss) : graph_(graph), nodes_(graph.nodes), loss_(loss), builder_(graph) {}
  ~Backward() {
    if (scratch_) graph_.pool.deallocate(scratch_);
  }

  void run() {
    mark_reached();
    place_gradients();
    zero_starting(0);
    seed_loss();
    for (auto round = graph_.rounds.rbegin(); round != graph_.rounds.rend(); ++round) run_round(**round);
    for (std::size_t i = 0; i < graph_.parameters.size(); ++i)
      if (nodes_[graph_.parameter_nodes[i]].has(kReached) && graph_.parameters[i]->trainable)
        graph_.parameters[i]->mark_gradient();
    graph_.counters.statistics.gathers += builder_.gathers;
    graph_.counters.statistics.gathered_bytes += builder_.gathered_bytes;
  }

 private:
  // Which nodes the loss depends on through something that is trained; usually all.
  void mark_reached() {
    int64_t active = 0, all = 0;
    for (NodeRecord& node : nodes_.records) node.flags &= static_cast<uint16_t>(~kReached);
    nodes_[loss_].flags |= kReached;
    for (int32_t id = loss_; id >= 0; --id) {
      const NodeRecord& node = nodes_[id];
      if (!node.has(kReached) || !node.has(kRequiresGrad)) continue;
      nodes_.root_of(id).flags |= kReached;
      if (node.signature >= 0) ++active;
      if (node.op == kOp_cell) {
        mark_cell(id);
        continue;
      }
      const int32_t* arguments = nodes_.arguments_of(node);
      for (int32_t k = 0; k < node.argument_count; ++k) mark(arguments[k]);
    }
    for (const auto& [cell, reads] : cell_reads_) mark_parameters(*cell, reads);
    refuse_replaced();
    for (const auto& round : graph_.rounds) all += static_cast<int64_t>(round->schedule.order.size());
    all_active_ = active == all;
  }

  void mark(int32_t id) {
    if (nodes_[id].has(kRequiresGrad)) nodes_[id].flags |= kReached;
  }

  // What those outputs of a call read that the loss depends on. Several outputs are the views that follow the call.
  void mark_cell(int32_t id) {
    const NodeRecord& node = nodes_[id];
    const CellUse& use = graph_.cell_of(node.signature);
    const std::vector<std::vector<uint8_t>>& reads = use.cell->reads;
    std::vector<uint8_t>& outputs = cell_reads_[&use];
    outputs.resize(reads.size(), 0);
    const int32_t* arguments = nodes_.arguments_of(node);
    for (std::size_t k = 0; k < reads.size(); ++k) {
      if (reads.size() > 1 && !nodes_[id + 1 + static_cast<int32_t>(k)].has(kReached)) continue;
      outputs[k] = 1;
      for (int32_t a = 0; a < node.argument_count; ++a)
        if (reads[k][a]) mark(arguments[a]);
    }
  }

  // A cell reads its parameters without having them as arguments.
  void mark_parameters(const CellUse& use, const std::vector<uint8_t>& outputs) {
    const Cell& cell = *use.cell;
    for (std::size_t k = 0; k < outputs.size(); ++k)
      for (std::size_t p = 0; outputs[k] && p < use.parameter_nodes.size(); ++p)
        if (cell.reads[k][cell.inputs.size() + p]) mark(use.parameter_nodes[p]);
  }

  // Its gradient would go where nobody sees it.
  void refuse_replaced() const {
    for (std::size_t i = 0; i < graph_.parameters.size(); ++i)
      if (graph_.parameters[i]->replaced && active(graph_.parameter_nodes[i]))
        fail(LN_GRAPH_ERROR, "backward: ", graph_.parameters[i]->label(),
             " was given another element type after the graph read it; a graph built after that is required");
  }

  bool active(int32_t id) const { return nodes_[id].has(kReached) && nodes_[id].has(kRequiresGrad); }

  // All memory before any kernel runs, so that running out of it leaves every gradient untouched.
  void place_gradients() {
    const bool sinks = graph_.backend.adds_in_turn();
    std::size_t sink_bytes = 0;
    int64_t scratch_bytes = 0;
    place_buffers();
    for (int32_t id = 0; id < nodes_.size(); ++id) {
      NodeRecord& node = nodes_[id];
      if (node.root != id) continue;
      node.grad = nullptr;
      if (!node.has(kReached) || node.signature < 0) continue;
      if (sinks && node.has(kRequiresGrad)) sink_bytes = std::max(sink_bytes, unwanted_bytes(node));
    }
    for (int32_t id = 0; id < nodes_.size(); ++id) {
      NodeRecord& node = nodes_[id];
      // A plan that was only looked at has left imagined places in nodes that were never computed.
      if (node.signature < 0 || !node.has(kComputed)) continue;
      const BufferPlan& buffer = *graph_.buffers[nodes_.buffer[id]];
      if (buffer.grad) node.grad = buffer.grad + (node.value - buffer.value);
    }
    place_sources();
    for (auto& round : graph_.rounds)
      scratch_bytes =
          std::max({scratch_bytes, round->scratch_bytes, round->shared_scratch_bytes, round->apart_scratch_bytes});
    scratch_ = graph_.allocate(scratch_bytes + sink_bytes, "gathered operands of backward", nullptr);
    builder_.scratch.place(scratch_, scratch_bytes);
    if (!sinks) return;
    builder_.sink = static_cast<char*>(scratch_) + scratch_bytes;
    graph_.backend.zero(builder_.sink, sink_bytes);
  }

  // The largest gradient that the node's kernel gives to nobody.
  std::size_t unwanted_bytes(const NodeRecord& node) const {
    int64_t elements = 0;
    const int32_t* arguments = nodes_.arguments_of(node);
    for (int32_t k = 0; k < node.argument_count; ++k) {
      const NodeRecord& argument = nodes_[arguments[k]];
      if (!argument.has(kRequiresGrad)) elements = std::max(elements, int64_t{argument.rows} * argument.ld);
    }
    return static_cast<std::size_t>(elements) * graph_.element_bytes();
  }

  // Buffers' gradients, which begin with the first batch that adds to them and end with the earliest that wrote the
  // values; batches count from the last to the first of all rounds.
  void place_buffers() {
    const std::size_t count = graph_.buffers.size();
    lifetimes_.assign(2 * count, {0, INT32_MAX, -1, 0});  // of gradients; then of gradients inside cells
    const auto begin_with = [&](int32_t root, int32_t step) {
      if (nodes_[root].signature < 0) return;
      Lifetime& lifetime = lifetimes_[nodes_.buffer[root]];
      lifetime.bytes = graph_.buffers[nodes_.buffer[root]]->bytes;
      lifetime.first = std::min(lifetime.first, step);
    };
    begin_with(nodes_[loss_].root, 0);
    int32_t step = 0;
    for (auto round = graph_.rounds.rbegin(); round != graph_.rounds.rend(); ++round)
      for (auto batch = (*round)->batches.rbegin(); batch != (*round)->batches.rend(); ++batch, ++step) {
        const int32_t* order = (*round)->schedule.order.data();
        bool any = false;
        for (int32_t i = batch->begin; i < batch->end; ++i) {
          if (!all_active_ && !active(order[i])) continue;
          any = true;
          const NodeRecord& node = nodes_[order[i]];
          const int32_t* arguments = nodes_.arguments_of(node);
          for (int32_t k = 0; k < node.argument_count; ++k)
            if (nodes_[arguments[k]].has(kRequiresGrad)) begin_with(nodes_[arguments[k]].root, step);
        }
        const int32_t index = nodes_.buffer[order[batch->begin]];
        Lifetime &lifetime = lifetimes_[index], &inside = lifetimes_[count + index];
        if (lifetime.first == INT32_MAX) continue;
        // Even if it is no part of this: the gradients of shared arguments are made after the signature's earliest
        // batch.
        lifetime.last = inside.last = step;
        if (!any) continue;
        inside.bytes = graph_.buffers[index]->kept_grad_bytes;
        inside.first = std::min(inside.first, step);
      }
    if (graph_.retains_gradients)
      for (Lifetime& lifetime : lifetimes_) lifetime.first = 0, lifetime.last = step;
    const int64_t bytes = place(&lifetimes_);
    graph_.gradients = static_cast<char*>(graph_.allocate(bytes, "gradients", nullptr));
    for (std::size_t i = 0; i < count; ++i) {
      if (lifetimes_[i].bytes) graph_.buffers[i]->grad = graph_.gradients + lifetimes_[i].offset;
      if (lifetimes_[count + i].bytes) graph_.buffers[i]->kept_grad = graph_.gradients + lifetimes_[count + i].offset;
    }
    starting_.assign(step + 1, {});
    for (std::size_t i = 0; i < count; ++i)
      if (lifetimes_[i].bytes) starting_[lifetimes_[i].first].push_back(static_cast<int32_t>(i));
  }

  // Before that there may be other gradients in their memory.
  void zero_starting(int32_t step) {
    for (const int32_t index : starting_[step])
      graph_.backend.zero(graph_.buffers[index]->grad, graph_.buffers[index]->bytes);
  }

  void place_sources() {
    for (std::size_t i = 0; i < graph_.parameters.size(); ++i) {
      NodeRecord& node = nodes_[graph_.parameter_nodes[i]];
      if (node.has(kReached)) node.grad = static_cast<char*>(graph_.parameters[i]->dense_gradient());
    }
    for (NodeRecord& node : nodes_.records) {
      if (node.op != kOp_input || !node.has(kReached)) continue;
      const std::size_t bytes = node.elements() * graph_.element_bytes();
      node.grad = static_cast<char*>(graph_.allocate(bytes, "gradients of inputs", nullptr));
      graph_.input_gradients.push_back(node.grad);
      graph_.backend.zero(node.grad, bytes);
    }
  }

  void seed_loss() {
    NodeRecord& root = nodes_.root_of(loss_);
    if (!root.grad) return;  // a constant
    graph_.backend.add_one(graph_.options.dtype,
                           root.grad + nodes_[loss_].offset * static_cast<int64_t>(graph_.element_bytes()));
  }

  void run_round(Plan& plan) {
    find_batches_with_shared(plan);
    for (int32_t b = static_cast<int32_t>(plan.batches.size()) - 1; b >= 0; --b) {
      const BatchPlan& planned = plan.batches[b];
      run_batch(plan, planned);
      // All gradients of the signature's results are complete once its earliest batch has run, and what
      // the shared arguments were made from ran earlier still.
      if (op_info(planned.op).has_shared && batches_of_[planned.signature].front() == b)
        run_shared(plan, planned.signature);
      zero_starting(++step_);
    }
  }

  // Rows of a batch's members before `member`, among those of the signature.
  int64_t row_of(const BatchPlan& planned, const int32_t* first, const int32_t* member) const {
    int64_t row = planned.row_begin;
    for (; first < member; ++first) row += nodes_[*first].rows;
    return row;
  }

  void run_cells(const Plan& plan, const BatchPlan& planned) {
    const CellUse& use = graph_.cell_of(planned.signature);
    const int32_t* first = plan.schedule.order.data() + planned.begin;
    for_active_runs(plan, planned, [&](const int32_t* members, int64_t count) {
      const bool overlapping = builder_.build_inputs(members, count, true, planned.meeting, &inputs_);
      const int64_t begin = row_of(planned, first, members), end = row_of(planned, first, members + count);
      builder_.scratch.reset();
      char* passing = builder_.scratch.take(static_cast<std::size_t>((end - begin) * use.cell->passing_grad_cols) *
                                            graph_.element_bytes());
      char* apart = nullptr;
      if (overlapping && !graph_.backend.adds_in_turn())
        apart = builder_.scratch.take(static_cast<std::size_t>(
            use.cell->argument_bytes(end - begin, static_cast<int64_t>(graph_.element_bytes()))));
      {
        Measure measure(graph_, kOp_cell, false, count);
        CellRun(graph_, *use.cell, use, plan.buffers[planned.buffer], begin, end, builder_.weights())
            .backward(inputs_, overlapping, passing, apart);
      }
      if (graph_.anomaly) check_backward(graph_, members, count);
    });
  }

  void run_cell_weights(const Plan& plan, const std::vector<int32_t>& batches) {
    const BatchPlan& head = plan.batches[batches[0]];
    const CellUse& use = graph_.cell_of(head.signature);
    auto run = [&](int64_t begin, int64_t end) {
      Measure measure(graph_, kOp_cell, false, 0);
      CellRun(graph_, *use.cell, use, plan.buffers[head.buffer], begin, end, builder_.weights()).weight_gradients();
    };
    if (all_active_) return run(0, plan.buffers[head.buffer].rows);
    for (const int32_t b : batches)
      for_active_runs(plan, plan.batches[b], [&](const int32_t* members, int64_t count) {
        const int32_t* first = plan.schedule.order.data() + plan.batches[b].begin;
        run(row_of(plan.batches[b], first, members), row_of(plan.batches[b], first, members + count));
      });
  }

  void find_batches_with_shared(const Plan& plan) {
    batches_of_.assign(graph_.signatures.size(), {});
    for (int32_t b = 0; b < static_cast<int32_t>(plan.batches.size()); ++b)
      if (op_info(plan.batches[b].op).has_shared) batches_of_[plan.batches[b].signature].push_back(b);
  }

  void run_batch(const Plan& plan, const BatchPlan& planned) {
    if (planned.op == kOp_cell) return run_cells(plan, planned);
    for_active_runs(plan, planned, [&](const int32_t* members, int64_t count) {
      const bool whole = count == planned.end - planned.begin;
      const Batch* batch = whole
                               ? &builder_.build(plan, planned, Phase::kBackward)
                               : &builder_.build(members, count, planned.signature, Phase::kBackward, planned.meeting);
      if (!whole && op_info(planned.op).early) {
        const int64_t row = row_of(planned, plan.schedule.order.data() + planned.begin, members);
        batch = &builder_.point_at_early(plan.buffers[planned.buffer], row, false);
      }
      run_kernel(*batch, members, count, planned.op, Phase::kBackward);
    });
  }

  // Members that the loss does not depend on stay out: their values may be anything.
  template <class Function>
  void for_active_runs(const Plan& plan, const BatchPlan& batch, const Function& function) {
    const int32_t* order = plan.schedule.order.data();
    if (all_active_) return function(order + batch.begin, batch.end - batch.begin);
    for (int32_t i = batch.begin; i < batch.end;) {
      if (!active(order[i])) {
        ++i;
        continue;
      }
      int32_t end = i;
      while (end < batch.end && active(order[end])) ++end;
      function(order + i, end - i);
      i = end;
    }
  }

  void run_kernel(const Batch& batch, const int32_t* members, int64_t count, int op, Phase phase) {
    bool wanted = false;
    for (int k = 0; k < batch.argument_count; ++k) wanted = wanted || batch.arguments[k].wants_grad;
    if (!wanted) return;
    {
      Measure measure(graph_, op, false, count);
      if (phase == Phase::kBackward) {
        graph_.backend.backward(graph_.options.dtype, batch);
        builder_.scatter(batch);
      } else {
        Batch shared = batch;
        add_sparse_table(members[0], &shared);
        run_shared_kernel(graph_.backend, graph_.options.dtype, shared);
      }
    }
    if (graph_.anomaly) check_backward(graph_, members, count);
  }

  void run_shared(const Plan& plan, int32_t signature) {
    const std::vector<int32_t>& batches = batches_of_[signature];
    const BatchPlan& head = plan.batches[batches[0]];
    const int op = head.op;
    if (op == kOp_cell) return run_cell_weights(plan, batches);
    const Batch* whole = all_active_ && !graph_.anomaly ? builder_.build_shared(plan, batches) : nullptr;
    if (whole) return run_kernel(*whole, &plan.schedule.order[head.begin], 0, op, Phase::kShared);
    shared_members_.clear();
    for (const int32_t b : batches)
      shared_members_.insert(shared_members_.end(), plan.schedule.order.begin() + plan.batches[b].begin,
                             plan.schedule.order.begin() + plan.batches[b].end);
    for (std::size_t i = 0; i < shared_members_.size();) {
      std::size_t end = i;
      while (end < shared_members_.size() && active(shared_members_[end])) ++end;
      if (end > i) {
        const int32_t* members = shared_members_.data() + i;
        const auto count = static_cast<int64_t>(end - i);
        const Batch* batch = &builder_.build(members, count, signature, Phase::kShared);
        if (op_info(op).early)
          batch = &builder_.point_at_early(plan.buffers[head.buffer], 0, end - i == shared_members_.size());
        run_kernel(*batch, members, count, op, Phase::kShared);
      }
      i = end + 1;
    }
  }

  void add_sparse_table(int32_t member, Batch* batch) {
    const int32_t table = nodes_.arguments_of(nodes_[member])[0];
    for (std::size_t i = 0; i < graph_.parameters.size(); ++i) {
      if (graph_.parameter_nodes[i] != table || !graph_.parameters[i]->sparse()) continue;
      batch->sparse_table = graph_.parameters[i]->sparse_gradient();
      batch->sparse_row = [](void* rows, int64_t row) { return static_cast<SparseRows*>(rows)->row(row); };
    }
  }

  Graph& graph_;
  NodeStore& nodes_;
  const int32_t loss_;
  BatchBuilder builder_;
  void* scratch_ = nullptr;
  bool all_active_ = false;                       // every node of every round
  std::vector<std::vector<int32_t>> batches_of_;  // of the round at hand, by signatures that have shared arguments
  std::vector<int32_t> shared_members_;
  std::vector<Piece> inputs_;                                            // of the cells at hand
  std::unordered_map<const CellUse*, std::vector<uint8_t>> cell_reads_;  // outputs that the loss depends on
  std::vector<Lifetime> lifetimes_;
  std::vector<std::vector<int32_t>> starting_;  // by step: buffers whose gradients begin with it
  int32_t step_ = 0;
};

}  // namespace

namespace {

void release_buffers(Graph& graph) {
  if (graph.gradients) graph.pool.deallocate(graph.gradients);
  graph.gradients = nullptr;
  for (BufferPlan* buffer : graph.buffers) buffer->grad = buffer->kept_grad = nullptr;
  for (NodeRecord& node : graph.nodes.records)
    if (node.signature >= 0) node.grad = nullptr;
}

}  // namespace

void release_gradients(Graph& graph) {
  release_buffers(graph);
  for (void* gradient : graph.input_gradients) graph.pool.deallocate(gradient);
  graph.input_gradients.clear();
  for (NodeRecord& node : graph.nodes.records) {
    node.grad = nullptr;
    node.flags &= static_cast<uint16_t>(~kReached);
  }
}

void run_backward(Graph& graph, int32_t loss, bool retain) {
  // Gradients are added to parameters, which other graphs may share: one backward at a time.
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> lock(one_at_a_time);
  release_gradients(graph);
  graph.retains_gradients = retain;
  try {
    Backward(graph, loss).run();
    graph.backend.settle();
    if (!graph.retains_gradients) release_buffers(graph);
  } catch (...) {
    release_gradients(graph);
    throw;
  }
}

}  // namespace lazynet
