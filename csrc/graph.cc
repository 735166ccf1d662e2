// The building half of Graph: nodes from operators and arguments. The running half is graph_run.cc.
#include "graph.h"

#include <algorithm>
#include <atomic>

#include "cell.h"
#include "error.h"

namespace lazynet {
namespace {

std::atomic<int64_t> next_version{1};
constexpr int64_t kVersionMask = 0x7fffffff;
constexpr std::size_t kInputBlock = std::size_t{64} << 10;

// Finaliser of MurmurHash3: spreads the count of random nodes over all bits of a key.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

}  // namespace

Graph::Graph(const ln_graph_options& options_, Backend& backend_)
    : options(options_),
      backend(backend_),
      pool(backend.memory(), options_.chunk_bytes ? options_.chunk_bytes : BuddyAllocator::kDefaultChunk,
           options_.memory_limit),
      version_(next_version.fetch_add(1) & kVersionMask),
      seed_(options_.seed) {
  if (options.dtype != LN_FLOAT32 && options.dtype != LN_FLOAT64)
    fail(LN_TYPE_ERROR, "graph: element type ", options.dtype, "; float32 (0) or float64 (1) is required");
}

Graph::~Graph() = default;

void Graph::clear() {
  for (auto& round : rounds)
    for (BufferPlan& buffer : round->buffers) {
      if (buffer.value) pool.deallocate(buffer.value);
      if (buffer.kept) pool.deallocate(buffer.kept);
      if (buffer.early) pool.deallocate(buffer.early);
    }
  if (gradients) pool.deallocate(gradients);
  gradients = nullptr;
  for (void* gradient : input_gradients) pool.deallocate(gradient);
  for (void* block : input_blocks_) pool.deallocate(block);
  input_gradients.clear();
  input_blocks_.clear();
  input_left_ = 0;
  rounds.clear();
  buffers.clear();
  pending_.reset();
  scheduling_.reset();
  for (auto& parameter : parameters) parameter_node_of_slot_[parameter->slot()] = -1;
  parameter_views_.clear();
  parameters.clear();
  cells.clear();
  parameter_nodes.clear();
  nodes.clear();
  readers.clear();
  signatures.clear();
  mark_.clear();
  first_uncomputed_ = 0;
  version_ = next_version.fetch_add(1) & kVersionMask;
  backend.begin_step();
}

void Graph::set_seed(uint64_t seed) {
  seed_ = seed;
  random_nodes_ = 0;
}

int32_t Graph::resolve_node(int64_t handle) const {
  const int64_t id = handle & 0xffffffff;
  if (handle < 0 || (handle >> 32) != version_ || id >= nodes.size())
    fail(LN_STALE_NODE, "node %", id,
         " was built before the graph was cleared, or in another graph; nodes of this graph as it is now are required");
  return static_cast<int32_t>(id);
}

int32_t Graph::resolve(int64_t handle) { return handle < 0 ? parameter_node(handle) : resolve_node(handle); }

int32_t Graph::parameter_node(int64_t handle) {
  const int64_t slot = -2 - handle;
  if (slot >= 0 && slot < static_cast<int64_t>(parameter_node_of_slot_.size()) && parameter_node_of_slot_[slot] >= 0)
    return parameter_node_of_slot_[slot];
  std::shared_ptr<Parameter> parameter = find_parameter(handle);
  if (!parameter) fail(LN_GRAPH_ERROR, "parameter ", slot, " does not exist (any more)");
  if (parameter->dtype() != options.dtype)
    fail(LN_TYPE_ERROR, parameter->label(), ": its elements are ", dtype_name(parameter->dtype()),
         "; this graph computes in ", dtype_name(options.dtype));
  if (&parameter->backend() != &backend)
    fail(LN_DEVICE_ERROR, parameter->label(), ": it is on ", parameter->backend().name(), "; this graph is on ",
         backend.name(), "; both on one device are required");
  if (anomaly) {
    const Shape shape = parameter->shape();
    const int64_t at = backend.first_non_finite(options.dtype, parameter->value(), shape.rows, shape.cols, shape.cols);
    if (at >= 0)
      fail(LN_NON_FINITE, parameter->label(), ": row ", at / shape.cols, ", col ", at % shape.cols,
           " is NaN or infinite");
  }
  const int32_t id = append(op_info(kOp_parameter), nullptr, 0, parameter->shape(), nullptr, nullptr, 0);
  nodes[id].value = static_cast<char*>(parameter->value());
  nodes[id].flags = kComputed | (parameter->trainable ? kRequiresGrad : 0) | (parameter->sparse() ? kSparseTable : 0);
  if (slot >= static_cast<int64_t>(parameter_node_of_slot_.size())) parameter_node_of_slot_.resize(slot + 1, -1);
  parameter_node_of_slot_[slot] = id;
  parameters.push_back(std::move(parameter));
  parameter_nodes.push_back(id);
  return id;
}

int32_t Graph::append(const OpInfo& op, const int32_t* ids, int count, Shape shape, const double* attributes,
                      const int64_t* payload, int64_t payload_count) {
  if (nodes.size() == INT32_MAX || nodes.arguments.size() + count > INT32_MAX ||
      nodes.payload.size() + payload_count > INT32_MAX)
    fail(LN_GRAPH_ERROR, "graph: it holds ", nodes.size(), " nodes and can take no more; clear it between minibatches");
  const int32_t id = nodes.size();
  NodeRecord node{};
  node.op = static_cast<int16_t>(op.id);
  node.rows = static_cast<int32_t>(shape.rows);
  node.cols = static_cast<int32_t>(shape.cols);
  node.ld = node.cols;
  node.root = id;
  node.argument_begin = static_cast<int32_t>(nodes.arguments.size());
  node.argument_count = count;
  node.payload_begin = static_cast<int32_t>(nodes.payload.size());
  node.payload_count = static_cast<int32_t>(payload_count);
  node.signature =
      op.kind == OpKind::kKernel ? signatures.intern(op, ids, shapes_.data(), count, shape, attributes) : -1;
  for (int i = 0; i < count; ++i) {
    if (op.differentiable) node.flags |= nodes[ids[i]].flags & kRequiresGrad;
    if (releases() && op.kind == OpKind::kKernel) ++readers[nodes[ids[i]].root];
  }
  nodes.arguments.insert(nodes.arguments.end(), ids, ids + count);
  nodes.payload.insert(nodes.payload.end(), payload, payload + payload_count);
  nodes.records.push_back(node);
  nodes.buffer.push_back(-1);
  if (releases()) readers.push_back(0);
  pending_.reset();
  return id;
}

int64_t Graph::finish(int32_t id) {
  const int64_t handle = handle_of(id);
  if (options.eager) forward(&handle, 1);
  return tracing ? LN_FAILED - handle : handle;
}

void Graph::check_attributes(const OpInfo& op, int count, int attribute_count) const {
  if (count < op.minimum_arguments || (op.maximum_arguments >= 0 && count > op.maximum_arguments))
    fail(LN_VALUE_ERROR, op.name, ": ", count, " arguments are given; ", op.minimum_arguments,
         op.maximum_arguments < 0                      ? " or more"
         : op.maximum_arguments > op.minimum_arguments ? " or more"
                                                       : "",
         " are required");
  if (attribute_count != op.attribute_count)
    fail(LN_VALUE_ERROR, op.name, ": ", attribute_count, " attributes are given; ", op.attribute_count, " (",
         op.attributes, ") are required");
}

int64_t Graph::add(int op_id, const int64_t* handles, int count, const double* attributes, int attribute_count,
                   const int64_t* payload, int64_t payload_count) {
  if (op_id == kOp_cell) fail(LN_VALUE_ERROR, "cell: is built by ln_add_cell only");
  return finish(append_op(op_id, handles, count, attributes, attribute_count, payload, payload_count));
}

void Graph::resolve_arguments(const int64_t* handles, int count) {
  if (static_cast<int>(ids_.size()) < count) {
    ids_.resize(count);
    shapes_.resize(count);
  }
  for (int i = 0; i < count; ++i) ids_[i] = resolve(handles[i]);
  for (int i = 0; i < count; ++i) shapes_[i] = nodes[ids_[i]].shape();
}

int32_t Graph::append_op(int op_id, const int64_t* handles, int count, const double* attributes, int attribute_count,
                         const int64_t* payload, int64_t payload_count) {
  if (op_id < 0 || op_id >= kOpCount) fail(LN_VALUE_ERROR, "op ", op_id, " does not exist");
  const OpInfo& op = op_info(op_id);
  if (op.kind == OpKind::kSource) fail(LN_VALUE_ERROR, op.name, ": is not built from arguments");
  check_attributes(op, count, attribute_count);
  resolve_arguments(handles, count);
  const Shape shape =
      op.shape_rule({op.name, shapes_.data(), count, attributes, attribute_count, payload, payload_count});
  if (op_id != kOp_lookup && op_id != kOp_lookup_ids)
    for (int i = 0; i < count; ++i)
      if (nodes[ids_[i]].has(kSparseTable))
        fail(LN_TYPE_ERROR, op.name, ": argument ", i,
             " is a sparse table, whose gradient only lookup can give; create it with sparse=False");
  if (op.rate >= 0 && attributes[op.rate] > 0) {
    ++random_nodes_;
    const uint64_t key = mix(random_state());
    const int64_t halves[2] = {static_cast<int64_t>(key & 0xffffffff), static_cast<int64_t>(key >> 32)};
    return append(op, ids_.data(), count, shape, attributes, halves, 2);
  }
  const int32_t id = append(op, ids_.data(), count, shape, attributes, payload, payload_count);
  if (op.kind == OpKind::kView) {
    const NodeRecord& base = nodes[ids_[0]];
    NodeRecord& view = nodes[id];
    view.root = base.root;
    view.ld = base.ld;
    view.offset = base.offset;
    if (op_id == kOp_stop_gradient) view.flags = 0;
  }
  return id;
}

// The cell as this graph uses it; its parameters become nodes when it is first placed.
CellUse& Graph::use_cell(int32_t cell_id) {
  CellUse& use = cells[cell_id];
  if (use.cell) return use;
  std::shared_ptr<Cell> cell = find_cell(cell_id);
  if (!cell) fail(LN_GRAPH_ERROR, "cell ", cell_id, " does not exist (any more)");
  if (cell->dtype != options.dtype)
    fail(LN_TYPE_ERROR, "cell ", cell->name, ": was traced in ", dtype_name(cell->dtype), "; this graph computes in ",
         dtype_name(options.dtype));
  for (const auto& parameter : cell->parameters) {
    use.parameter_nodes.push_back(parameter_node(-2 - int64_t{parameter->slot()}));
    use.trains = use.trains || nodes[use.parameter_nodes.back()].has(kRequiresGrad);
  }
  use.cell = std::move(cell);
  return use;
}

int64_t Graph::add_cell(int32_t cell_id, const int64_t* handles, int count) {
  const CellUse& use = use_cell(cell_id);
  const Cell& cell = *use.cell;
  resolve_arguments(handles, count);
  const double attribute = cell_id;
  const Shape shape = cell.shape(shapes_.data(), count);
  const int32_t id = append(op_info(kOp_cell), ids_.data(), count, shape, &attribute, nullptr, 0);
  if (use.trains) nodes[id].flags |= kRequiresGrad;
  for (std::size_t k = 0; cell.outputs.size() > 1 && k < cell.outputs.size(); ++k)
    append_slice(id, 0, shape.rows, cell.output_cols[k], cell.values[cell.outputs[k]].cols);
  return finish(id);
}

void Graph::add_recursion(const Recursion& recursion, int64_t* first) {
  std::vector<int64_t> arguments;
  for (int64_t i = 0; i < recursion.count; ++i) {
    arguments.clear();
    if (recursion.rows[i] >= 0) {
      const int32_t x = resolve(recursion.x);
      if (recursion.rows[i] >= nodes[x].rows)
        fail(LN_INDEX_ERROR, "recur: place ", i, " reads row ", recursion.rows[i], " of an input of ", nodes[x].rows,
             " rows");
      arguments.push_back(handle_of(append_slice(x, recursion.rows[i], 1, 0, nodes[x].cols)));
    }
    for (int32_t c = recursion.child_begin[i]; c < recursion.child_begin[i + 1]; ++c) {
      const int32_t child = recursion.children[c];
      if (child < 0 || child >= i)
        fail(LN_INDEX_ERROR, "recur: place ", i, " has child ", child, "; one of the places before it is required");
      for (int k = 0; k < recursion.outputs; ++k) arguments.push_back(first[child] + k);
    }
    if (recursion.initial && recursion.child_begin[i] == recursion.child_begin[i + 1])
      arguments.insert(arguments.end(), recursion.initial, recursion.initial + recursion.outputs);
    const CellUse& use = use_cell(recursion.cells[i]);
    if (static_cast<int>(use.cell->outputs.size()) != recursion.outputs)
      fail(LN_VALUE_ERROR, "recur: place ", i, " has ", use.cell->outputs.size(), " outputs and others have ",
           recursion.outputs, "; a state of one form is required");
    const int64_t placed = add_cell(recursion.cells[i], arguments.data(), static_cast<int>(arguments.size()));
    first[i] = (placed < 0 ? LN_FAILED - placed : placed) + (recursion.outputs > 1);
  }
}

int64_t Graph::add_slice(int64_t handle, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  return finish(append_slice(resolve(handle), row, rows, col, cols));
}

int32_t Graph::append_slice(int32_t base_id, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  const OpInfo& op = op_info(kOp_slice);
  const Shape whole = nodes[base_id].shape();
  const int64_t payload[4] = {row, rows, col, cols};
  const Shape shape = op.shape_rule({op.name, &whole, 1, nullptr, 0, payload, 4});
  const int64_t offset = nodes[base_id].offset + row * nodes[base_id].ld + col;
  // One view for all who ask for the same part of a parameter: as shared arguments they are then the same, and batch.
  const std::array<int64_t, 5> part = {nodes[base_id].root, offset, rows, cols, nodes[base_id].ld};
  const bool weight = nodes.root_of(base_id).op == kOp_parameter;
  if (weight) {
    const auto known = parameter_views_.find(part);
    if (known != parameter_views_.end()) return known->second;
  }
  const int32_t id = append(op, &base_id, 1, shape, nullptr, nullptr, 0);
  if (weight) parameter_views_[part] = id;
  const NodeRecord& base = nodes[base_id];
  NodeRecord& view = nodes[id];
  view.root = base.root;
  view.ld = base.ld;
  view.offset = offset;
  return id;
}

int64_t Graph::add_row(int64_t handle, int64_t row) {
  const Shape whole = nodes[resolve(handle)].shape();
  if (row < -whole.rows || row >= whole.rows)
    fail(LN_INDEX_ERROR, "slice: row ", row, " of a node of shape (", whole.rows, ", ", whole.cols, "); ", -whole.rows,
         " to ", whole.rows - 1, " is required");
  return add_slice(handle, row < 0 ? row + whole.rows : row, 1, 0, whole.cols);
}

int64_t Graph::add_part(int64_t handle, int axis, int64_t part, int64_t parts) {
  const Shape whole = nodes[resolve(handle)].shape();
  const int64_t size = axis == 0 ? whole.rows : whole.cols;
  if (parts < 1 || size % parts != 0)
    fail(LN_SHAPE_ERROR, "split: ", size, axis == 0 ? " rows" : " cols", " into ", parts,
         " equal parts; a number that divides it is required");
  const int64_t length = size / parts;
  return axis == 0 ? add_slice(handle, part * length, length, 0, whole.cols)
                   : add_slice(handle, 0, whole.rows, part * length, length);
}

int64_t Graph::add_reshape(int64_t handle, int64_t rows, int64_t cols) {
  const int32_t base_id = resolve(handle);
  const NodeRecord base = nodes[base_id];
  const int64_t payload[2] = {rows, cols};
  const int64_t base_handle = handle_of(base_id);
  // Elements of a view with gaps between its rows must be copied.
  if (base.ld != base.cols && base.rows > 1) return add(kOp_copy, &base_handle, 1, nullptr, 0, payload, 2);
  const OpInfo& op = op_info(kOp_reshape);
  const Shape whole = base.shape();
  const Shape shape = op.shape_rule({op.name, &whole, 1, nullptr, 0, payload, 2});
  const int32_t id = append(op, &base_id, 1, shape, nullptr, nullptr, 0);
  nodes[id].root = base.root;
  nodes[id].offset = base.offset;
  return finish(id);
}

char* Graph::input_memory(std::size_t bytes) {
  // Inputs lie end to end, so that a batch that reads several of them reads one matrix.
  if (bytes > input_left_) {
    const std::size_t block = std::max(bytes, kInputBlock);
    input_blocks_.push_back(allocate(block, "an input", nullptr));
    input_block_ = static_cast<char*>(input_blocks_.back());
    input_left_ = block;
  }
  char* memory = input_block_;
  input_block_ += bytes;
  input_left_ -= bytes;
  return memory;
}

int64_t Graph::add_input(Shape shape, const void* data, bool requires_grad, bool on_device) {
  if (shape.rows < 0 || shape.cols < 0 || shape.rows > INT32_MAX || shape.cols > INT32_MAX)
    fail(LN_SHAPE_ERROR, "input: shape (", shape.rows, ", ", shape.cols,
         ") is given; sizes from 0 to 2^31 - 1 are required");
  const std::size_t bytes = shape.elements() * element_bytes();
  char* memory = input_memory(bytes);
  if (on_device)
    backend.copy(memory, data, bytes);
  else
    backend.write(memory, data, bytes);
  const int32_t id = append(op_info(kOp_input), nullptr, 0, shape, nullptr, nullptr, 0);
  nodes[id].value = memory;
  nodes[id].flags = kComputed | (requires_grad ? kRequiresGrad : 0);
  if (anomaly) {
    std::vector<char> read(on_device ? bytes : 0);
    if (on_device) backend.read(read.data(), memory, bytes);
    refuse_nan(shape, on_device ? read.data() : data);
  }
  return finish(id);
}

// Infinities are legitimate in an input (masks); NaN never is.
void Graph::refuse_nan(Shape shape, const void* data) const {
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const double x =
        options.dtype == LN_FLOAT64 ? static_cast<const double*>(data)[i] : static_cast<const float*>(data)[i];
    if (x != x) fail(LN_NON_FINITE, "input: row ", i / shape.cols, ", col ", i % shape.cols, " of the data is NaN");
  }
}

}  // namespace lazynet
