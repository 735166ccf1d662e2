#include <deque>
#include <utility>
#include <vector>

#include "anomaly.h"
#include "batch_builder.h"
#include "cell.h"
#include "cell_run.h"
#include "error.h"
#include "executor.h"
#include "measure.h"

namespace lazynet {
namespace {

// Gives the buffers of a plan back, and with them the values of its nodes, unless dismissed.
class ForwardGuard {
 public:
  ForwardGuard(Graph& graph, Plan& plan) : graph_(graph), plan_(plan) {}
  ~ForwardGuard() {
    if (scratch_) graph_.pool.deallocate(scratch_);
    if (done_) return;
    for (BufferPlan& buffer : plan_.buffers) {
      if (buffer.value) graph_.pool.deallocate(buffer.value);
      if (buffer.kept) graph_.pool.deallocate(buffer.kept);
      if (buffer.early) graph_.pool.deallocate(buffer.early);
      buffer.value = buffer.kept = buffer.early = nullptr;
    }
    for (int32_t id : plan_.schedule.order) graph_.nodes[id].flags &= static_cast<uint16_t>(~kComputed);
  }
  void* allocate_scratch(int64_t bytes) {
    if (bytes) scratch_ = graph_.allocate(bytes, "gathered operands", &plan_);
    return scratch_;
  }
  void dismiss() { done_ = true; }

 private:
  Graph& graph_;
  Plan& plan_;
  void* scratch_ = nullptr;
  bool done_ = false;
};

void place_buffer(Graph& graph, Plan& plan, BufferPlan& buffer) {
  if (!buffer.value) buffer.value = static_cast<char*>(graph.allocate(buffer.bytes, "values", &plan));
  if (!buffer.kept && buffer.kept_bytes)
    buffer.kept = static_cast<char*>(graph.allocate(buffer.kept_bytes, "values kept for backward", &plan));
  if (!buffer.early && buffer.early_bytes) {
    buffer.early = static_cast<char*>(graph.allocate(buffer.early_bytes, "gradients made by forward", &plan));
    graph.backend.zero(buffer.early, buffer.early_bytes);
  }
}

void place_members(Graph& graph, const Plan& plan, const BatchPlan& batch) {
  char* next = plan.buffers[batch.buffer].value + batch.offset;
  for (int32_t i = batch.begin; i < batch.end; ++i) {
    NodeRecord& node = graph.nodes[plan.schedule.order[i]];
    node.value = next;
    node.flags |= kComputed;  // undone by ForwardGuard, should the kernel fail
    next += node.elements() * static_cast<int64_t>(graph.element_bytes());
  }
}

// What kernels find wrong, batch by batch; they may tell it later than they are called.
class Faults {
 public:
  explicit Faults(Graph& graph) : graph_(graph) {}
  ~Faults() {
    if (noted_.empty()) return;
    try {
      graph_.backend.settle();  // what is told has a place until then
    } catch (...) {             // there is another error already
    }
  }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;

  Fault* of_batch(const int32_t* members) {
    noted_.push_back({Fault{}, members});
    return &noted_.back().fault;
  }
  // Throws Error(LN_INDEX_ERROR) of the first, where there is one.
  void report() {
    graph_.backend.settle();
    const std::deque<Noted> settled = std::move(noted_);
    noted_.clear();
    for (const auto& [fault, members] : settled) {
      if (fault.member < 0) continue;
      const int32_t id = members[fault.member];
      fail(LN_INDEX_ERROR, op_info(graph_.nodes[id].op).name, ": id ", fault.id, " is read by node ",
           graph_.describe(id), "; whole numbers of at least 0 and less than ", fault.limit, " are required");
    }
  }

 private:
  struct Noted {
    Fault fault;
    const int32_t* members;
  };
  Graph& graph_;
  std::deque<Noted> noted_;  // which never moves them
};

// In inference: gives back what no later batch of the plan reads.
void release_after(Graph& graph, Plan& plan, int32_t batch, const std::vector<std::vector<int32_t>>& ending) {
  for (int32_t index : ending[batch]) {
    BufferPlan& buffer = plan.buffers[index];
    graph.pool.deallocate(buffer.value);
    buffer.value = nullptr;
    const BatchPlan& writer = plan.batches[buffer.first_batch];
    for (int32_t i = writer.begin; i < writer.end; ++i) {
      NodeRecord& node = graph.nodes[plan.schedule.order[i]];
      node.flags &= static_cast<uint16_t>(~kComputed);
    }
  }
}

// Nodes whose values stay have read their arguments.
void forget_readers(Graph& graph, const Plan& plan) {
  for (int32_t id : plan.schedule.order) {
    const NodeRecord& node = graph.nodes[id];
    if (!node.has(kComputed)) continue;
    const int32_t* arguments = graph.nodes.arguments_of(node);
    for (int32_t k = 0; k < node.argument_count; ++k) --graph.readers[graph.nodes[arguments[k]].root];
  }
}

void register_buffers(Graph& graph, Plan& plan) {
  const int32_t first = static_cast<int32_t>(graph.buffers.size());
  for (BufferPlan& buffer : plan.buffers) graph.buffers.push_back(&buffer);
  if (first == 0) return;
  for (int32_t id : plan.schedule.order) graph.nodes.buffer[id] += first;
}

void run_cell(Graph& graph, const Plan& plan, const BatchPlan& planned, BatchBuilder& builder) {
  const CellUse& use = graph.cell_of(planned.signature);
  std::vector<Piece> inputs;
  builder.build_inputs(plan.schedule.order.data() + planned.begin, planned.end - planned.begin, false, false, &inputs);
  const int64_t rows = planned.row_end - planned.row_begin;
  char* kept = nullptr;
  if (graph.releases()) {
    builder.scratch.reset();
    kept = builder.scratch.take(static_cast<std::size_t>(rows * use.cell->kept_cols) * graph.element_bytes());
  }
  graph.counters.statistics.gathered_bytes += plan.operands[planned.operand_begin].bytes;
  Measure measure(graph, kOp_cell, true, planned.end - planned.begin);
  CellRun(graph, *use.cell, use, plan.buffers[planned.buffer], planned.row_begin, planned.row_end, builder.weights())
      .forward(inputs, kept);
}

}  // namespace

void run_forward(Graph& graph, Plan& plan) {
  ForwardGuard guard(graph, plan);
  Faults faults(graph);
  BatchBuilder builder(graph);
  builder.scratch.place(guard.allocate_scratch(plan.scratch_bytes), plan.scratch_bytes);
  const bool keep = !graph.releases();
  std::vector<std::vector<int32_t>> ending(keep ? 0 : plan.batches.size());
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    if (keep)
      place_buffer(graph, plan, plan.buffers[i]);  // all before any kernel runs
    else if (plan.buffers[i].last_batch >= 0)
      ending[plan.buffers[i].last_batch].push_back(static_cast<int32_t>(i));
  }
  for (std::size_t b = 0; b < plan.batches.size(); ++b) {
    const BatchPlan& planned = plan.batches[b];
    const int32_t* members = plan.schedule.order.data() + planned.begin;
    const int64_t count = planned.end - planned.begin;
    place_buffer(graph, plan, plan.buffers[planned.buffer]);
    place_members(graph, plan, planned);
    if (planned.op == kOp_cell) {
      run_cell(graph, plan, planned, builder);
    } else {
      Batch batch = builder.build(plan, planned, Phase::kForward);
      batch.fault = faults.of_batch(members);
      Measure measure(graph, planned.op, true, count);
      graph.backend.forward(graph.options.dtype, batch);
    }
    if (graph.profiling) {
      graph.counters.profile[planned.op].gather_seconds += builder.gather_seconds;
      builder.gather_seconds = 0;
    }
    if (graph.anomaly) {
      faults.report();
      check_forward(graph, members, count);
    }
    if (!keep) release_after(graph, plan, static_cast<int32_t>(b), ending);
  }
  faults.report();
  if (!keep) forget_readers(graph, plan);
  register_buffers(graph, plan);
  graph.counters.statistics.nodes += static_cast<int64_t>(plan.schedule.order.size());
  graph.counters.statistics.gathers += builder.gathers;
  graph.counters.statistics.gathered_bytes += builder.gathered_bytes;
  guard.dismiss();
}

}  // namespace lazynet
