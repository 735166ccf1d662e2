// Runs plans: places their buffers, brings the operands of each batch together, calls the backend's kernels.
#pragma once

#include <cstdint>

#include "graph.h"

namespace lazynet {

// Computes every node of the plan. On an exception the plan's memory is given back and none of its nodes
// counts as computed.
void run_forward(Graph& graph, Plan& plan);

// Gradients of `loss`, a computed node, in every node and parameter that it depends on.
void run_backward(Graph& graph, int32_t loss, bool retain);

// Gives the gradients of the last backward back to the pool.
void release_gradients(Graph& graph);

}  // namespace lazynet
