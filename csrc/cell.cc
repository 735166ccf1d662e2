#include "cell.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "error.h"
#include "graph.h"
#include "passes/passes.h"

namespace lazynet {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<int32_t, std::weak_ptr<Cell>> cells;
  int32_t next = 0;  // ids are not used again: graphs and caches may still hold one
};
Registry& registry() {
  static Registry* instance = new Registry;  // outlives every cell, also at exit
  return *instance;
}

// Builds the values and steps of a cell from the nodes of a graph.
class Tracer {
 public:
  Tracer(const Graph& graph, const std::vector<int32_t>& inputs, const std::vector<int32_t>& outputs)
      : nodes_(graph.nodes), graph_(graph), cell_(std::make_shared<Cell>()) {
    cell_->dtype = graph.options.dtype;
    rows_ = inputs.empty() ? 0 : nodes_[inputs[0]].rows;
    for (const int32_t id : inputs) {
      if (nodes_[id].rows != rows_) refuse(id, "has other rows than the first input");
      cell_->inputs.push_back(add_value(id, CellValue::Kind::kInput, static_cast<int32_t>(cell_->inputs.size())));
    }
    for (const int32_t id : needed_for(outputs)) visit(id);
    for (const int32_t id : outputs) {
      const int32_t value = value_of_.at(id);
      if (cell_->values[value].kind == CellValue::Kind::kParameter) refuse(id, "is a parameter and an output");
      cell_->outputs.push_back(value);
    }
  }
  std::shared_ptr<Cell> finish() {
    find_reads();
    return std::move(cell_);
  }

 private:
  std::vector<int32_t> needed_for(const std::vector<int32_t>& outputs) const {
    std::vector<uint8_t> marked(nodes_.size(), 0);
    for (const int32_t id : outputs) marked[id] = 1;
    std::vector<int32_t> needed;
    for (int32_t id = nodes_.size() - 1; id >= 0; --id) {
      if (!marked[id]) continue;
      needed.push_back(id);
      const NodeRecord& node = nodes_[id];
      for (int32_t k = 0; k < node.argument_count; ++k) marked[nodes_.arguments_of(node)[k]] = 1;
    }
    std::reverse(needed.begin(), needed.end());
    return needed;
  }

  int32_t add_value(int32_t id, CellValue::Kind kind, int32_t number) {
    const auto value = static_cast<int32_t>(cell_->values.size());
    CellValue made;
    made.kind = kind;
    made.number = number;
    made.rows = kind == CellValue::Kind::kParameter ? nodes_[id].rows : 1;
    made.cols = nodes_[id].cols;
    made.root = value;
    cell_->values.push_back(made);
    value_of_[id] = value;
    return value;
  }

  [[noreturn]] void refuse(int32_t id, const char* why) const {
    fail(LN_VALUE_ERROR, "cell: node ", graph_.describe(id), ' ', why);
  }

  void visit(int32_t id) {
    if (value_of_.count(id)) return;
    const NodeRecord& node = nodes_[id];
    const OpInfo& op = op_info(node.op);
    if (node.op == kOp_parameter) {
      const auto place = std::find(graph_.parameter_nodes.begin(), graph_.parameter_nodes.end(), id);
      cell_->parameters.push_back(graph_.parameters[place - graph_.parameter_nodes.begin()]);
      add_value(id, CellValue::Kind::kParameter, static_cast<int32_t>(cell_->parameters.size()) - 1);
      return;
    }
    if (op.kind == OpKind::kSource) refuse(id, "was made outside the cell and is no argument of it");
    if (op.kind == OpKind::kView) return visit_view(id);
    if (node.payload_count > 0) refuse(id, "has integers of its own in every call");
    CellStep step;
    step.op = node.op;
    const double* attributes = graph_.signatures.attributes(node.signature);
    step.attributes.assign(attributes, attributes + op.attribute_count);
    const int32_t* ids = nodes_.arguments_of(node);
    for (int32_t k = 0; k < node.argument_count; ++k) step.arguments.push_back(value_of_.at(ids[k]));
    require_row_wise(id, op, step);
    step.result = add_value(id, CellValue::Kind::kStep, -1);
    cell_->steps.push_back(std::move(step));
  }

  // A slice of columns of all rows, or the whole.
  void visit_view(int32_t id) {
    const NodeRecord& node = nodes_[id];
    const int32_t base_id = nodes_.arguments_of(node)[0];
    const NodeRecord& base = nodes_[base_id];
    const int32_t base_value = value_of_.at(base_id);
    const CellValue of = cell_->values[base_value];
    const int64_t col = node.offset - base.offset;
    if (node.op == kOp_stop_gradient) refuse(id, "stops the gradient");
    const bool whole = node.shape() == base.shape() && col == 0;
    if (of.kind == CellValue::Kind::kParameter) {
      if (!whole) refuse(id, "is part of a parameter");
      value_of_[id] = base_value;
      return;
    }
    if (node.rows != base.rows || node.ld != base.ld || col < 0 || col + node.cols > base.cols)
      refuse(id, "is not a slice of columns");
    const int32_t value = add_value(id, CellValue::Kind::kStep, -1);
    cell_->values[value].root = of.root;
    cell_->values[value].col = of.col + static_cast<int32_t>(col);
  }

  void find_reads() {
    const std::size_t inputs = cell_->inputs.size();
    std::vector<std::vector<uint8_t>> reads(cell_->values.size());
    for (std::size_t v = 0; v < reads.size(); ++v) {
      const CellValue& value = cell_->values[v];
      reads[v].assign(inputs + cell_->parameters.size(), 0);
      if (value.kind == CellValue::Kind::kInput) reads[v][value.number] = 1;
      if (value.kind == CellValue::Kind::kParameter) reads[v][inputs + value.number] = 1;
    }
    for (const CellStep& step : cell_->steps)
      for (const int32_t argument : step.arguments) {
        const std::vector<uint8_t>& from = reads[cell_->values[argument].root];
        for (std::size_t k = 0; k < from.size(); ++k) reads[step.result][k] |= from[k];
      }
    for (const int32_t value : cell_->outputs) cell_->reads.push_back(reads[cell_->values[value].root]);
  }

  bool is_parameter(int32_t value) const { return cell_->values[value].kind == CellValue::Kind::kParameter; }

  void require_row_wise(int32_t id, const OpInfo& op, const CellStep& step) const {
    const NodeRecord& node = nodes_[id];
    if (node.rows != rows_) refuse(id, "has other rows than the inputs");
    bool any = false;
    for (std::size_t k = 0; k < step.arguments.size(); ++k) {
      const int32_t value = step.arguments[k];
      const auto declared = static_cast<int>(op.arguments.size()) - 1;
      const Role role = op.arguments[std::min(static_cast<int>(k), declared)].role;
      any = any || !is_parameter(value);
      if (op.flat) {
        const bool fits = cell_->values[value].cols == node.cols || cell_->values[value].cols == 1;
        if (!fits || (is_parameter(value) && cell_->values[value].rows != 1)) refuse(id, "repeats rows");
      } else if (is_parameter(value) != (role == Role::kShared)) {
        refuse(id, "takes a parameter and a node in other places than a cell can");
      }
    }
    if (!any) refuse(id, "depends on no input");
    if (!op.flat && !works_by_rows(op.id, step)) refuse(id, "mixes rows, or is not made for cells");
  }

  static bool works_by_rows(int op, const CellStep& step) {
    switch (op) {
      case kOp_linear:
      case kOp_concat_cols:
      case kOp_sparsemax:
      case kOp_sum_nodes:
      case kOp_layer_norm:
      case kOp_rms_norm:
        return true;
      case kOp_softmax:
        return step.attributes[0] == 1 && std::isinf(step.attributes[1]) && std::isinf(step.attributes[2]);
      case kOp_log_softmax:
      case kOp_logsumexp:
      case kOp_reduce_sum:
      case kOp_reduce_mean:
      case kOp_reduce_max:
      case kOp_reduce_min:
        return step.attributes[0] == 1;  // over columns
      default:
        return false;
    }
  }

  const NodeStore& nodes_;
  const Graph& graph_;
  std::shared_ptr<Cell> cell_;
  int32_t rows_;
  std::unordered_map<int32_t, int32_t> value_of_;  // by node
};

}  // namespace

Cell::~Cell() {
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.cells.erase(id);
}

bool Cell::same_program(const Cell& other) const {
  const auto same_value = [](const CellValue& a, const CellValue& b) {
    return a.kind == b.kind && a.number == b.number && a.rows == b.rows && a.cols == b.cols && a.root == b.root &&
           a.col == b.col;
  };
  const auto same_step = [](const CellStep& a, const CellStep& b) {
    return a.op == b.op && a.arguments == b.arguments && a.attributes == b.attributes && a.result == b.result;
  };
  return inputs == other.inputs && outputs == other.outputs && parameters == other.parameters &&
         std::equal(traced_values.begin(), traced_values.end(), other.traced_values.begin(), other.traced_values.end(),
                    same_value) &&
         std::equal(traced.begin(), traced.end(), other.traced.begin(), other.traced.end(), same_step);
}

std::shared_ptr<Cell> trace_cell(const Graph& graph, const std::vector<int32_t>& inputs,
                                 const std::vector<int32_t>& outputs, std::string name) {
  std::shared_ptr<Cell> cell = Tracer(graph, inputs, outputs).finish();
  cell->name = std::move(name);
  cell->traced = cell->steps;
  cell->traced_values = cell->values;
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  cell->id = all.next++;
  all.cells[cell->id] = cell;
  return cell;
}

void optimize_cell(Cell* cell) {
  merge_equal_steps(cell);
  sink_slices(cell);
  remove_dead_steps(cell);
  gather_concatenations(cell);
  stack_linears(cell);
  fuse_elementwise(cell);
}

std::shared_ptr<Cell> find_cell(int32_t id) {
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.cells.find(id);
  return found != all.cells.end() ? found->second.lock() : nullptr;
}

Shape Cell::shape(const Shape* arguments, int count) const {
  bool fits = count == static_cast<int>(inputs.size()) && count > 0;
  for (int k = 0; fits && k < count; ++k)
    fits = arguments[k].rows == arguments[0].rows && arguments[k].cols == values[inputs[k]].cols;
  if (fits) return {arguments[0].rows, result_cols};
  std::ostringstream given, required;
  for (int k = 0; k < count; ++k) given << (k ? ", (" : " (") << arguments[k].rows << ", " << arguments[k].cols << ')';
  for (std::size_t k = 0; k < inputs.size(); ++k) required << (k ? ", (n, " : " (n, ") << values[inputs[k]].cols << ')';
  fail(LN_SHAPE_ERROR, "cell ", name, ": the arguments have shapes", given.str(), "; with equal rows n", required.str(),
       " are required");
}

int64_t Cell::argument_bytes(int64_t rows, int64_t element_size) const {
  int64_t bytes = 0;
  for (const int32_t input : inputs)
    if (values[input].place == CellValue::Place::kArgument) bytes += aligned(rows * values[input].cols * element_size);
  return bytes;
}

std::string Cell::text(const std::vector<CellStep>& shown) const {
  std::ostringstream out;
  auto name_of = [&](int32_t value) {
    const CellValue& v = values[value];
    std::ostringstream text;
    if (v.kind == CellValue::Kind::kInput)
      text << "in" << v.number;
    else if (v.kind == CellValue::Kind::kParameter)
      text << (parameters[v.number]->name.empty() ? "parameter" : parameters[v.number]->name);
    else if (v.root != value)
      text << '%' << v.root << "[:, " << v.col << ':' << v.col + v.cols << ']';
    else
      text << '%' << value;
    return text.str();
  };
  for (const CellStep& step : shown) {
    if (!step.is_fused()) {
      out << "  " << name_of(step.result) << " = " << (step.stacked.empty() ? "" : "stacked ") << op_info(step.op).name;
      for (std::size_t k = 0; k < step.arguments.size(); ++k) out << (k ? ", " : " ") << name_of(step.arguments[k]);
      for (const double attribute : step.attributes) out << ' ' << attribute;
      out << "  (" << values[step.result].cols << " cols)\n";
      continue;
    }
    out << "  fused, " << step.fused.size() << " operations a block:\n";
    auto reg = [&](int r) {
      return r < static_cast<int>(step.arguments.size()) ? name_of(step.arguments[r]) : "r" + std::to_string(r);
    };
    for (const FusedOp& op : step.fused) {
      out << "    " << reg(op.result) << " = " << op_info(op.op).name << ' ' << reg(op.a);
      if (op.b >= 0) out << ", " << reg(op.b);
      for (int i = 0; i < op_info(op.op).attribute_count; ++i) out << ' ' << op.attributes[i];
      for (const CellStep::Stored& stored : step.stored)
        if (stored.reg == op.result)
          out << (stored.for_backward ? "  kept for backward as " : "  -> ") << name_of(stored.value);
      out << '\n';
    }
  }
  return out.str();
}

}  // namespace lazynet
