// The checks of detect_anomaly(): the node at which a NaN or an infinity is born.
#pragma once

#include <cstdint>

#include "graph.h"

namespace lazynet {

// Throws NonFinite for the first of the members, which have just been computed, whose value is at fault.
void check_forward(Graph& graph, const int32_t* members, int64_t count);

// The same for the gradients that the members' backward has just added to their arguments.
void check_backward(Graph& graph, const int32_t* members, int64_t count);

}  // namespace lazynet
