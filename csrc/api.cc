// The C interface: finds the object, guards it, calls the core, turns exceptions into status codes. No logic.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string>

#include "blas.h"
#include "error.h"
#include "executor.h"
#include "graph.h"
#include "lazynet.h"
#include "optimizer.h"
#include "parameter.h"
#include "threads.h"

using namespace lazynet;

struct ln_graph {
  explicit ln_graph(const ln_graph_options& options) : core(options) {}
  Graph core;
  mutable std::atomic<bool> busy{false};
  mutable std::string text;
};
struct ln_parameter {
  std::shared_ptr<Parameter> core;
};
struct ln_optimizer {
  ln_optimizer(int kind, std::vector<std::shared_ptr<Parameter>> parameters) : core(kind, std::move(parameters)) {}
  Optimizer core;
};

namespace {

struct LastError {
  int status = LN_OK;
  int64_t node = -1;
  std::string message;
};
thread_local LastError last_error;

void set_error(int status, const char* message, int64_t node = -1) {
  last_error.status = status;
  last_error.node = node;
  last_error.message = message;
}

// Runs function() and returns what it returns, or `failed` after an exception.
template <class Result, class Function>
Result guarded(Result failed, const Function& function) {
  try {
    return function();
  } catch (const NonFinite& error) {
    set_error(error.status(), error.what(), error.node());
  } catch (const Error& error) {
    set_error(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    set_error(LN_OUT_OF_MEMORY, "out of memory: the machine has no more memory for the graph's records");
  } catch (const std::exception& error) {
    set_error(LN_INTERNAL_ERROR, error.what());
  }
  return failed;
}

// The same for a status: the error's own code instead of a fixed value.
template <class Function>
int status_of(const Function& function) {
  return guarded(0,
                 [&] {
                   function();
                   return 1;
                 })
             ? LN_OK
             : last_error.status;
}

// Keeps a second thread out of a graph while a call runs.
class Use {
 public:
  explicit Use(const ln_graph* graph) : graph_(graph) {
    if (!graph) fail(LN_GRAPH_ERROR, "graph: NULL is given");
    if (graph->busy.exchange(true, std::memory_order_acquire))
      fail(LN_GRAPH_ERROR, "graph: another thread is using it; give every thread a graph of its own");
  }
  ~Use() { graph_->busy.store(false, std::memory_order_release); }
  Use(const Use&) = delete;

 private:
  const ln_graph* graph_;
};

template <class Function>
int with_graph(const ln_graph* graph, const Function& function) {
  return status_of([&] {
    Use use(graph);
    function(const_cast<ln_graph*>(graph)->core);
  });
}

template <class Function>
int64_t build(ln_graph* graph, const Function& function) {
  return guarded(int64_t{LN_FAILED}, [&] {
    Use use(graph);
    return static_cast<int64_t>(function(graph->core));
  });
}

std::vector<std::shared_ptr<Parameter>> list_of(ln_parameter* const* parameters, int count) {
  std::vector<std::shared_ptr<Parameter>> list;
  for (int i = 0; i < count; ++i) list.push_back(parameters[i]->core);
  return list;
}

const BatchPlan& batch_of(const Graph& graph, int64_t plan, int64_t batch) {
  const Plan& chosen = graph.plan(plan);
  if (batch < 0 || batch >= static_cast<int64_t>(chosen.batches.size()))
    fail(LN_INDEX_ERROR, "plan ", plan, " has ", chosen.batches.size(), " batches, not one of number ", batch);
  return chosen.batches[batch];
}

const OpInfo* known_op(int op) { return op >= 0 && op < kOpCount ? &op_info(op) : nullptr; }

}  // namespace

extern "C" {

int ln_error_status(void) { return last_error.status; }
const char* ln_error_message(void) { return last_error.message.c_str(); }
int64_t ln_error_node(void) { return last_error.node; }

int ln_load_blas(const char* path, const char* prefix, const char* suffix) {
  return status_of([&] { load_blas(path, prefix, suffix); });
}
int ln_set_num_threads(int threads) {
  return status_of([&] { set_num_threads(threads); });
}
int ln_num_threads(void) { return num_threads(); }
const char* ln_vector_unit(void) { return vector_unit(); }
int ln_set_vector_unit(const char* name) {
  return status_of([&] { set_vector_unit(name); });
}

int ln_op_count(void) { return kOpCount; }
const char* ln_op_name(int op) { return known_op(op) ? op_info(op).name : nullptr; }
int ln_op_id(const char* name) {
  for (int op = 0; op < kOpCount; ++op)
    if (std::strcmp(op_info(op).name, name) == 0) return op;
  return -1;
}
const char* ln_op_roles(int op) { return known_op(op) ? op_info(op).roles : nullptr; }
const char* ln_op_attributes(int op) { return known_op(op) ? op_info(op).attributes : nullptr; }
const char* ln_op_backward_reads(int op) { return known_op(op) ? op_info(op).backward_reads : nullptr; }
const char* ln_op_family(int op) { return known_op(op) ? op_info(op).family : nullptr; }
const char* ln_op_kind(int op) {
  static const char* const names[] = {"kernel", "view", "source"};
  return known_op(op) ? names[static_cast<int>(op_info(op).kind)] : nullptr;
}

// ---- parameters

ln_parameter* ln_parameter_create(int64_t rows, int64_t cols, int dtype, int sparse, const char* name) {
  return guarded<ln_parameter*>(nullptr, [&] {
    if (dtype != LN_FLOAT32 && dtype != LN_FLOAT64)
      fail(LN_TYPE_ERROR, "parameter ", name, ": element type ", dtype, "; float32 (0) or float64 (1) is required");
    return new ln_parameter{create_parameter({rows, cols}, dtype, sparse != 0, name)};
  });
}
void ln_parameter_release(ln_parameter* parameter) { delete parameter; }
int64_t ln_parameter_handle(const ln_parameter* parameter) { return -2 - int64_t{parameter->core->slot()}; }
void* ln_parameter_value(ln_parameter* parameter) { return parameter->core->value(); }
void* ln_parameter_gradient(ln_parameter* parameter) {
  return guarded<void*>(nullptr, [&] { return parameter->core->dense_gradient(); });
}
int64_t ln_parameter_touched(const ln_parameter* parameter) {
  Parameter& core = *parameter->core;
  return core.sparse() ? static_cast<int64_t>(core.sparse_gradient()->rows().size()) : core.has_gradient();
}
int ln_parameter_sparse_gradient(ln_parameter* parameter, int32_t* rows, void* values) {
  return status_of([&] {
    SparseRows* sparse = parameter->core->sparse_gradient();
    if (!sparse) fail(LN_TYPE_ERROR, "parameter ", parameter->core->name, ": its gradient is dense");
    const std::vector<int32_t>& touched = sparse->rows();
    std::vector<int32_t> order(touched.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return touched[a] < touched[b]; });
    const std::size_t bytes = parameter->core->shape().cols * element_size(parameter->core->dtype());
    for (std::size_t i = 0; i < order.size(); ++i) {
      rows[i] = touched[order[i]];
      std::memcpy(static_cast<char*>(values) + i * bytes, sparse->at(order[i]), bytes);
    }
  });
}
int ln_parameter_zero_gradient(ln_parameter* parameter) {
  return status_of([&] { parameter->core->zero_gradient(); });
}
int ln_parameter_set_trainable(ln_parameter* parameter, int trainable) {
  return status_of([&] { parameter->core->trainable = trainable != 0; });
}
int ln_parameter_set_name(ln_parameter* parameter, const char* name) {
  return status_of([&] { parameter->core->name = name; });
}

// ---- optimizers

ln_optimizer* ln_optimizer_create(int kind, ln_parameter* const* parameters, int count) {
  return guarded<ln_optimizer*>(nullptr, [&] { return new ln_optimizer(kind, list_of(parameters, count)); });
}
void ln_optimizer_release(ln_optimizer* optimizer) { delete optimizer; }
int ln_optimizer_step(ln_optimizer* optimizer, const ln_hyperparameters* hyperparameters, double scale) {
  return status_of([&] { optimizer->core.step(*hyperparameters, scale); });
}
int ln_gradient_norm(ln_parameter* const* parameters, int count, double* norm) {
  return status_of([&] { *norm = gradient_norm(list_of(parameters, count)); });
}
void* ln_optimizer_state(ln_optimizer* optimizer, int index, int slot) {
  return guarded<void*>(nullptr, [&] { return optimizer->core.state(index, slot); });
}
int64_t ln_optimizer_steps(const ln_optimizer* optimizer, int index) {
  return guarded(int64_t{-1}, [&] { return const_cast<ln_optimizer*>(optimizer)->core.steps(index); });
}
int ln_optimizer_set_steps(ln_optimizer* optimizer, int index, int64_t steps) {
  return status_of([&] { optimizer->core.steps(index) = steps; });
}

// ---- graphs

ln_graph* ln_graph_create(const ln_graph_options* options) {
  return guarded<ln_graph*>(nullptr, [&] { return new ln_graph(*options); });
}
void ln_graph_release(ln_graph* graph) { delete graph; }
int ln_graph_clear(ln_graph* graph) {
  return with_graph(graph, [](Graph& core) { core.clear(); });
}
int64_t ln_graph_node_count(const ln_graph* graph) { return graph->core.nodes.size(); }
int64_t ln_graph_version(const ln_graph* graph) { return graph->core.version(); }
int ln_graph_set_policy(ln_graph* graph, const char* name) {
  return with_graph(graph, [&](Graph& core) { core.policy = policy_from_name(name); });
}
int ln_graph_set_seed(ln_graph* graph, uint64_t seed) {
  return with_graph(graph, [&](Graph& core) { core.set_seed(seed); });
}
int ln_graph_set_memory_limit(ln_graph* graph, size_t bytes) {
  return with_graph(graph, [&](Graph& core) { core.pool.set_limit(bytes); });
}
int ln_graph_set_anomaly(ln_graph* graph, int on) {
  return with_graph(graph, [&](Graph& core) { core.anomaly = on != 0; });
}
int ln_graph_set_tracing(ln_graph* graph, int on) {
  return with_graph(graph, [&](Graph& core) { core.tracing = on != 0; });
}
int ln_graph_trim(ln_graph* graph) {
  return with_graph(graph, [](Graph& core) { core.pool.trim(); });
}

// ---- building

int64_t ln_add1(ln_graph* graph, int op, int64_t a) {
  return build(graph, [&](Graph& core) { return core.add(op, &a, 1, nullptr, 0, nullptr, 0); });
}
int64_t ln_add2(ln_graph* graph, int op, int64_t a, int64_t b) {
  const int64_t handles[] = {a, b};
  return build(graph, [&](Graph& core) { return core.add(op, handles, 2, nullptr, 0, nullptr, 0); });
}
int64_t ln_add3(ln_graph* graph, int op, int64_t a, int64_t b, int64_t c) {
  const int64_t handles[] = {a, b, c};
  return build(graph, [&](Graph& core) { return core.add(op, handles, 3, nullptr, 0, nullptr, 0); });
}
int64_t ln_add1_x(ln_graph* graph, int op, int64_t a, double x) {
  return build(graph, [&](Graph& core) { return core.add(op, &a, 1, &x, 1, nullptr, 0); });
}
int64_t ln_add1_xx(ln_graph* graph, int op, int64_t a, double x, double y) {
  const double attributes[] = {x, y};
  return build(graph, [&](Graph& core) { return core.add(op, &a, 1, attributes, 2, nullptr, 0); });
}
int64_t ln_add1_id(ln_graph* graph, int op, int64_t a, int64_t id) {
  return build(graph, [&](Graph& core) { return core.add(op, &a, 1, nullptr, 0, &id, 1); });
}
int64_t ln_add(ln_graph* graph, int op, const int64_t* arguments, int count, const double* attributes,
               int attribute_count, const int64_t* payload, int64_t payload_count) {
  return build(graph, [&](Graph& core) {
    return core.add(op, arguments, count, attributes, attribute_count, payload, payload_count);
  });
}
int64_t ln_add_input(ln_graph* graph, int64_t rows, int64_t cols, const void* data, int requires_grad) {
  return build(graph, [&](Graph& core) { return core.add_input({rows, cols}, data, requires_grad != 0); });
}
int64_t ln_add_slice(ln_graph* graph, int64_t a, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  return build(graph, [&](Graph& core) { return core.add_slice(a, row, rows, col, cols); });
}
int64_t ln_add_row(ln_graph* graph, int64_t a, int64_t row) {
  return build(graph, [&](Graph& core) { return core.add_row(a, row); });
}
int64_t ln_add_part(ln_graph* graph, int64_t a, int axis, int64_t part, int64_t parts) {
  return build(graph, [&](Graph& core) { return core.add_part(a, axis, part, parts); });
}
int64_t ln_add_reshape(ln_graph* graph, int64_t a, int64_t rows, int64_t cols) {
  return build(graph, [&](Graph& core) { return core.add_reshape(a, rows, cols); });
}

// ---- reading

int ln_node_shape(const ln_graph* graph, int64_t node, int64_t* rows_cols) {
  return with_graph(graph, [&](Graph& core) {
    const Shape shape = core.nodes[core.resolve(node)].shape();
    rows_cols[0] = shape.rows;
    rows_cols[1] = shape.cols;
  });
}
int ln_node_op(const ln_graph* graph, int64_t node) {
  int op = 0;
  const int status = with_graph(graph, [&](Graph& core) { op = core.nodes[core.resolve(node)].op; });
  return status < 0 ? status : op;
}
int ln_node_computed(const ln_graph* graph, int64_t node) {
  bool computed = false;
  const int status = with_graph(graph, [&](Graph& core) { computed = core.computed(core.resolve(node)); });
  return status < 0 ? status : computed;
}
int ln_node_requires_grad(const ln_graph* graph, int64_t node) {
  bool requires_grad = false;
  const int status =
      with_graph(graph, [&](Graph& core) { requires_grad = core.nodes[core.resolve(node)].has(kRequiresGrad); });
  return status < 0 ? status : requires_grad;
}
int ln_node_value(ln_graph* graph, int64_t node, void* out) {
  return with_graph(graph, [&](Graph& core) { core.read_value(node, out); });
}
int ln_node_gradient(const ln_graph* graph, int64_t node, void* out) {
  bool has = false;
  const int status = with_graph(graph, [&](Graph& core) { has = core.read_gradient(node, out); });
  return status < 0 ? status : has;
}

// ---- running

int ln_graph_forward(ln_graph* graph, const int64_t* nodes, int64_t count) {
  return with_graph(graph, [&](Graph& core) { core.forward(nodes, count); });
}
int ln_graph_backward(ln_graph* graph, int64_t loss) {
  return with_graph(graph, [&](Graph& core) { core.backward(loss); });
}
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

// ---- looking

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
            std::max(chosen.scratch_bytes, chosen.shared_scratch_bytes),
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
    graph->text = graph->core.signatures.text(signature);
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
