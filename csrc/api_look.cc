// The part of the C interface that looks at plans, placements and statistics.
#include <algorithm>

#include "api.h"

using namespace lazynet;

namespace {

const BatchPlan& batch_of(const Graph& graph, int64_t plan, int64_t batch) {
  const Plan& chosen = graph.plan(plan);
  if (batch < 0 || batch >= static_cast<int64_t>(chosen.batches.size()))
    fail(LN_INDEX_ERROR, "plan ", plan, " has ", chosen.batches.size(), " batches, not one of number ", batch);
  return chosen.batches[batch];
}

}  // namespace

extern "C" {

int ln_plan_pending(ln_graph* graph, const int64_t* nodes, int64_t count) {
  return with_graph(graph, [&](Graph& core) { core.plan_pending(nodes, count); });
}
int64_t ln_plan_count(const ln_graph* graph) { return graph->core.plan_count(); }
int ln_plan_get(const ln_graph* graph, int64_t plan, ln_plan_summary* out) {
  return with_graph(graph, [&](Graph& core) {
    const Plan& chosen = core.plan(plan);
    int64_t bound = chosen.lower_bound;
    if (bound < 0) {
      std::vector<int32_t> members = chosen.schedule.order;
      std::sort(members.begin(), members.end());
      bound = lower_bound(core.nodes, members);
    }
    *out = {static_cast<int64_t>(chosen.batches.size()),
            static_cast<int64_t>(chosen.schedule.order.size()),
            bound,
            chosen.value_bytes,
            core.options.train ? chosen.value_bytes : 0,
            std::max({chosen.scratch_bytes, chosen.shared_scratch_bytes, chosen.apart_scratch_bytes}),
            chosen.peak_bytes,
            chosen.gathered_bytes,
            chosen.read_bytes,
            core.plan_executed(plan),
            chosen.from_cache};
  });
}
int ln_plan_batch_get(const ln_graph* graph, int64_t plan, int64_t batch, ln_plan_batch* out) {
  return with_graph(graph, [&](Graph& core) {
    const BatchPlan& chosen = batch_of(core, plan, batch);
    *out = {chosen.op,
            chosen.signature,
            chosen.end - chosen.begin,
            chosen.operand_end - chosen.operand_begin,
            chosen.buffer,
            chosen.offset,
            chosen.bytes};
  });
}
int ln_plan_members(const ln_graph* graph, int64_t plan, int64_t batch, int32_t* ids) {
  return with_graph(graph, [&](Graph& core) {
    const BatchPlan& chosen = batch_of(core, plan, batch);
    const std::vector<int32_t>& order = core.plan(plan).schedule.order;
    std::copy(order.begin() + chosen.begin, order.begin() + chosen.end, ids);
  });
}
int ln_plan_operand_get(const ln_graph* graph, int64_t plan, int64_t batch, int64_t operand, ln_plan_operand* out) {
  return with_graph(graph, [&](Graph& core) {
    const BatchPlan& chosen = batch_of(core, plan, batch);
    if (operand < 0 || operand >= chosen.operand_end - chosen.operand_begin)
      fail(LN_INDEX_ERROR, "batch ", batch, " has ", chosen.operand_end - chosen.operand_begin, " operands");
    const OperandPlan& found = core.plan(plan).operands[chosen.operand_begin + operand];
    *out = {found.pieces, found.bytes, static_cast<int>(found.mode)};
  });
}
int64_t ln_plan_buffer_count(const ln_graph* graph, int64_t plan) {
  int64_t count = 0;
  const int status =
      with_graph(graph, [&](Graph& core) { count = static_cast<int64_t>(core.plan(plan).buffers.size()); });
  return status < 0 ? status : count;
}
int ln_plan_buffer_get(const ln_graph* graph, int64_t plan, int64_t buffer, ln_plan_buffer* out) {
  return with_graph(graph, [&](Graph& core) {
    const std::vector<BufferPlan>& buffers = core.plan(plan).buffers;
    if (buffer < 0 || buffer >= static_cast<int64_t>(buffers.size()))
      fail(LN_INDEX_ERROR, "plan ", plan, " has ", buffers.size(), " buffers");
    *out = {buffers[buffer].bytes, buffers[buffer].first_batch, buffers[buffer].last_batch};
  });
}
int ln_plan_placement(const ln_graph* graph, int64_t plan, int64_t node, ln_placement* out) {
  return with_graph(graph, [&](Graph& core) {
    const Plan& chosen = core.plan(plan);
    const int32_t id = core.resolve(node);
    const NodeRecord& record = core.nodes[id];
    *out = {-1, record.offset * static_cast<int64_t>(core.element_bytes()), record.ld};
    for (const BatchPlan& batch : chosen.batches) {
      int64_t offset = batch.offset;
      for (int32_t i = batch.begin; i < batch.end; ++i) {
        const int32_t member = chosen.schedule.order[i];
        if (member == record.root) {
          out->buffer = batch.buffer;
          out->offset_bytes += offset;
          return;
        }
        offset += core.nodes[member].elements() * static_cast<int64_t>(core.element_bytes());
      }
    }
  });
}
const char* ln_signature_text(ln_graph* graph, int32_t signature) {
  return guarded<const char*>(nullptr, [&] {
    Use use(graph);
    if (signature < 0 || signature >= graph->core.signatures.size())
      fail(LN_INDEX_ERROR, "signature ", signature, ": there are ", graph->core.signatures.size());
    graph->text = graph->core.signatures.text(signature, [](int32_t id) { return " %" + std::to_string(id); });
    return graph->text.c_str();
  });
}
int64_t ln_node_arguments(const ln_graph* graph, int64_t node, int32_t* ids, int64_t capacity) {
  int64_t count = 0;
  const int status = with_graph(graph, [&](Graph& core) {
    const NodeRecord& record = core.nodes[core.resolve(node)];
    count = record.argument_count;
    std::copy_n(core.nodes.arguments_of(record), std::min(count, capacity), ids);
  });
  return status < 0 ? status : count;
}
int ln_graph_get_statistics(const ln_graph* graph, ln_graph_statistics* out) {
  return with_graph(graph, [&](Graph& core) { *out = core.counters.statistics; });
}
int ln_graph_reset_statistics(ln_graph* graph) {
  return with_graph(graph, [](Graph& core) {
    core.counters = GraphCounters();
    core.pool.reset_peak();
  });
}
int ln_graph_get_pool_statistics(const ln_graph* graph, ln_pool_statistics* out) {
  return with_graph(graph, [&](Graph& core) {
    const PoolStatistics pool = core.pool.statistics();
    *out = {pool.bytes_in_use, pool.peak_bytes_in_use, pool.bytes_reserved, pool.largest_free_block, pool.limit,
            pool.allocations,  pool.live_allocations,  pool.chunks,         pool.fragmentation};
  });
}
int ln_graph_set_profiling(ln_graph* graph, int on) {
  return with_graph(graph, [&](Graph& core) { core.profiling = on != 0; });
}
int ln_graph_get_profile(const ln_graph* graph, int op, ln_op_profile* out) {
  return with_graph(graph, [&](Graph& core) {
    if (!known_op(op)) fail(LN_INDEX_ERROR, "op ", op, " does not exist");
    *out = core.counters.profile[op];
  });
}

}  // extern "C"
