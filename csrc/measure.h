// Counts one kernel call and, when profiling, times it until it is done.
#pragma once

#include <chrono>
#include <cstdint>

#include "graph.h"

namespace lazynet {

class Measure {
 public:
  Measure(Graph& graph, int op, bool forward, int64_t nodes)
      : graph_(graph),
        profile_(graph.counters.profile[op]),
        forward_(forward),
        start_(graph.profiling ? now(graph) : 0) {
    (forward ? graph.counters.statistics.kernels_forward : graph.counters.statistics.kernels_backward) += 1;
    (forward ? profile_.forward_kernels : profile_.backward_kernels) += 1;
    if (forward) profile_.nodes += nodes;
  }
  ~Measure() {
    if (graph_.profiling) (forward_ ? profile_.forward_seconds : profile_.backward_seconds) += now(graph_) - start_;
  }

 private:
  static double now(const Graph& graph) {
    graph.backend.finish();
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  Graph& graph_;
  ln_op_profile& profile_;
  bool forward_;
  double start_;
};

}  // namespace lazynet
