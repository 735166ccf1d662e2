// The C interface: finds the object, guards it, calls the core, turns exceptions into status codes. No logic.
#include "api.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "blas.h"
#include "executor.h"
#include "threads.h"

using namespace lazynet;

namespace {

std::vector<std::shared_ptr<Parameter>> list_of(ln_parameter* const* parameters, int count) {
  std::vector<std::shared_ptr<Parameter>> list;
  for (int i = 0; i < count; ++i) list.push_back(parameters[i]->core);
  return list;
}

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

// ---- devices

ln_device* ln_device_create(const ln_device_options* options) {
  return guarded<ln_device*>(nullptr, [&] { return new ln_device{cuda::Device(*options)}; });
}
int ln_device_close(ln_device* device) {
  return status_of([&] { device->core.close(); });
}
int ln_device_finish(ln_device* device) {
  return status_of([&] { device->core.finish(); });
}
int ln_device_read(ln_device* device, void* to, const void* from, size_t bytes) {
  return status_of([&] { backend_of(device).read(to, from, bytes); });
}
int ln_device_write(ln_device* device, void* to, const void* from, size_t bytes) {
  return status_of([&] { backend_of(device).write(to, from, bytes); });
}
int ln_device_copy(ln_device* device, void* to, const void* from, size_t bytes) {
  return status_of([&] { backend_of(device).copy(to, from, bytes); });
}
int ln_device_set_tf32(ln_device* device, int on) {
  return status_of([&] { device->core.set_tensor_float(on != 0); });
}
int ln_device_set_replay(ln_device* device, int on) {
  return status_of([&] { device->core.set_replay(on != 0); });
}
int ln_device_get_statistics(ln_device* device, ln_device_statistics* statistics) {
  return status_of([&] { *statistics = device->core.statistics(); });
}

// ---- parameters

ln_parameter* ln_parameter_create(int64_t rows, int64_t cols, int dtype, int sparse, const char* name,
                                  ln_device* device) {
  return guarded<ln_parameter*>(nullptr, [&] {
    if (dtype != LN_FLOAT32 && dtype != LN_FLOAT64)
      fail(LN_TYPE_ERROR, "parameter ", name, ": element type ", dtype, "; float32 (0) or float64 (1) is required");
    return new ln_parameter{create_parameter({rows, cols}, dtype, sparse != 0, name, backend_of(device))};
  });
}
void ln_parameter_release(ln_parameter* parameter) { delete parameter; }
int64_t ln_parameter_handle(const ln_parameter* parameter) { return -2 - int64_t{parameter->core->slot()}; }
void* ln_parameter_value(ln_parameter* parameter) {
  parameter->core->begin_writing();
  return parameter->core->value();
}
void ln_parameter_value_done(ln_parameter* parameter) { parameter->core->end_writing(); }
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
    std::vector<char> read(touched.size() * bytes);
    parameter->core->backend().read(read.data(), sparse->values(), read.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      rows[i] = touched[order[i]];
      std::memcpy(static_cast<char*>(values) + i * bytes, read.data() + order[i] * bytes, bytes);
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
int ln_parameter_set_replaced(ln_parameter* parameter) {
  return status_of([&] { parameter->core->replaced = true; });
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
  return with_graph(graph, [&](Graph& core) { core.set_policy(policy_from_name(name), nullptr); });
}
int ln_graph_set_seed(ln_graph* graph, uint64_t seed) {
  return with_graph(graph, [&](Graph& core) { core.set_seed(seed); });
}
uint64_t ln_graph_random_state(const ln_graph* graph) {
  uint64_t state = 0;
  with_graph(graph, [&](Graph& core) { state = core.random_state(); });
  return state;
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
  return with_graph(graph, [](Graph& core) {
    core.weights.clear();
    core.pool.trim();
  });
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
int64_t ln_add_device_input(ln_graph* graph, int64_t rows, int64_t cols, const void* data, int requires_grad) {
  return build(graph, [&](Graph& core) { return core.add_input({rows, cols}, data, requires_grad != 0, true); });
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

// ---- cells

ln_cell* ln_cell_create(ln_graph* traced, const int64_t* inputs, int input_count, const int64_t* outputs,
                        int output_count, const char* name) {
  return guarded(static_cast<ln_cell*>(nullptr), [&] {
    Use use(traced);
    auto ids = [&](const int64_t* handles, int count) {
      std::vector<int32_t> list;
      for (int i = 0; i < count; ++i) list.push_back(traced->core.resolve_node(handles[i]));
      return list;
    };
    auto cell = trace_cell(traced->core, ids(inputs, input_count), ids(outputs, output_count), name);
    optimize_cell(cell.get());
    place_values(cell.get());
    return new ln_cell{std::move(cell), {}};
  });
}
void ln_cell_release(ln_cell* cell) { delete cell; }
int ln_cell_number(const ln_cell* cell) { return cell->core->id; }
const char* ln_cell_text(ln_cell* cell, int optimized) {
  cell->text = cell->core->text(optimized ? cell->core->steps : cell->core->traced);
  return cell->text.c_str();
}
int ln_cell_same(const ln_cell* a, const ln_cell* b) { return a->core->same_program(*b->core); }
int64_t ln_add_cell(ln_graph* graph, int cell, const int64_t* arguments, int count) {
  return build(graph, [&](Graph& core) { return core.add_cell(cell, arguments, count); });
}

int ln_add_recursion(ln_graph* graph, int64_t count, const int32_t* cells, const int32_t* child_begin,
                     const int32_t* children, int64_t x, const int32_t* rows, int outputs, const int64_t* initial,
                     int64_t* first) {
  return with_graph(graph, [&](Graph& core) {
    core.add_recursion({count, cells, child_begin, children, x, rows, outputs, initial}, first);
  });
}

int64_t ln_add_stack(ln_graph* graph, const int64_t* handles, int64_t count, int64_t shift, int reversed) {
  return build(graph, [&](Graph& core) {
    std::vector<int64_t> shifted(handles, handles + count);
    if (reversed) std::reverse(shifted.begin(), shifted.end());
    for (int64_t& handle : shifted) handle += shift;
    return core.add(kOp_concat_rows, shifted.data(), static_cast<int>(count), nullptr, 0, nullptr, 0);
  });
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
int ln_node_copy_value(ln_graph* graph, int64_t node, void* out) {
  return with_graph(graph, [&](Graph& core) { core.copy_value(node, out); });
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
int ln_graph_backward(ln_graph* graph, int64_t loss, int retain) {
  return with_graph(graph, [&](Graph& core) { core.backward(loss, retain != 0); });
}

}  // extern "C"
