#include "anomaly.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "cell.h"
#include "error.h"

namespace lazynet {
namespace {

int64_t first_non_finite(const Graph& graph, const void* data, int64_t rows, int64_t cols, int64_t ld) {
  return graph.backend.first_non_finite(graph.options.dtype, data, rows, cols, ld);
}

double read_element(const Graph& graph, const void* element) {
  double wide = 0;
  float narrow = 0;
  const bool is_wide = graph.options.dtype == LN_FLOAT64;
  graph.backend.read(is_wide ? static_cast<void*>(&wide) : &narrow, element, graph.element_bytes());
  return is_wide ? wide : static_cast<double>(narrow);
}

bool node_is_finite(const Graph& graph, int32_t id) {
  const NodeRecord& node = graph.nodes[id];
  const char* value = graph.nodes.root_of(id).value + node.offset * static_cast<int64_t>(graph.element_bytes());
  return first_non_finite(graph, value, node.rows, node.cols, node.ld) < 0;
}

// What a call of a cell was traced from, node by node in a graph of its own: the error of the step at fault, or nothing
// where no step alone is.
std::string step_at_fault(Graph& graph, const NodeRecord& call) {
  const Cell& cell = *graph.cell_of(call.signature).cell;
  Graph inner(graph.options, graph.backend);
  std::vector<int64_t> handles(cell.traced_values.size());
  for (std::size_t v = 0; v < handles.size(); ++v) {
    const CellValue& value = cell.traced_values[v];
    if (value.kind == CellValue::Kind::kParameter) handles[v] = -2 - int64_t{cell.parameters[value.number]->slot()};
    if (value.kind != CellValue::Kind::kInput) continue;
    const int32_t argument = graph.nodes.arguments_of(call)[value.number];
    std::string rows(graph.nodes[argument].elements() * graph.element_bytes(), 0);
    graph.read_rows(argument, graph.nodes.root_of(argument).value, rows.data());
    handles[v] = inner.add_input(graph.nodes[argument].shape(), rows.data(), false);
  }
  inner.anomaly = true;
  try {
    for (const CellStep& step : cell.traced) {
      std::vector<int64_t> arguments;
      for (const int32_t v : step.arguments) {
        const CellValue& value = cell.traced_values[v];
        arguments.push_back(
            value.root == v ? handles[v] : inner.add_slice(handles[value.root], 0, call.rows, value.col, value.cols));
      }
      handles[step.result] = inner.add(step.op, arguments.data(), static_cast<int>(arguments.size()),
                                       step.attributes.data(), static_cast<int>(step.attributes.size()), nullptr, 0);
    }
    inner.forward(nullptr, 0);
  } catch (const NonFinite& error) {
    return error.what();
  } catch (const Error&) {  // no memory for it: what is known is reported
  }
  return "";
}

[[noreturn]] void report(Graph& graph, int32_t id, int64_t element, const char* what) {
  const NodeRecord& node = graph.nodes[id];
  std::ostringstream text;
  text << op_info(node.op).name << ": " << what << " of node " << graph.describe(id);
  if (element >= 0) text << " is NaN or infinite at row " << element / node.cols << ", col " << element % node.cols;
  text << "; its arguments are";
  const int32_t* arguments = graph.nodes.arguments_of(node);
  for (int32_t k = 0; k < std::min(node.argument_count, 4); ++k)
    text << (k ? ", " : " ") << graph.describe(arguments[k]);
  if (node.argument_count > 4) text << ", ...";
  if (node.op == kOp_cell && element >= 0) {
    const std::string step = step_at_fault(graph, node);
    if (!step.empty()) text << "; in the cell, " << step;
  }
  throw NonFinite(id, text.str());
}

}  // namespace

// An infinity that came in from an argument (a mask) is not born here; a NaN always is, because nodes run in
// topological order and inputs and parameters are checked when they enter the graph.
void check_forward(Graph& graph, const int32_t* members, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const NodeRecord& node = graph.nodes[members[i]];
    const int64_t at = first_non_finite(graph, node.value, node.rows, node.cols, node.ld);
    if (at < 0) continue;
    const double value = read_element(graph, node.value + at * static_cast<int64_t>(graph.element_bytes()));
    bool inherited = false;
    const int32_t* arguments = graph.nodes.arguments_of(node);
    for (int32_t k = 0; k < node.argument_count; ++k) inherited |= !node_is_finite(graph, arguments[k]);
    if (std::isnan(value) || !inherited) report(graph, members[i], at, "the value");
  }
}

void check_backward(Graph& graph, const int32_t* members, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const NodeRecord& node = graph.nodes[members[i]];
    const int32_t* arguments = graph.nodes.arguments_of(node);
    for (int32_t k = 0; k < node.argument_count; ++k) {
      const NodeRecord& argument = graph.nodes[arguments[k]];
      const NodeRecord& root = graph.nodes[argument.root];
      if (!argument.has(kRequiresGrad) || !root.grad) continue;
      const char* grad = root.grad + argument.offset * static_cast<int64_t>(graph.element_bytes());
      if (first_non_finite(graph, grad, argument.rows, argument.cols, argument.ld) >= 0)
        report(graph, members[i], -1, "a NaN or infinite gradient is born in backward");
    }
  }
}

}  // namespace lazynet
