// What the files of the C interface share: the objects behind its pointers, and the way from an exception to a
// status code.
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cell.h"
#include "cuda/device.h"
#include "error.h"
#include "graph.h"
#include "lazynet.h"
#include "learned_policy.h"
#include "optimizer.h"
#include "parameter.h"

struct ln_device {
  lazynet::cuda::Device core;
};
inline lazynet::Backend& backend_of(ln_device* device) {
  if (device) return device->core;
  return lazynet::cpu_backend();
}

struct ln_graph {
  explicit ln_graph(const ln_graph_options& options) : core(options, backend_of(options.device)) {}
  lazynet::Graph core;
  mutable std::atomic<bool> busy{false};
  mutable std::string text;
};
struct ln_parameter {
  std::shared_ptr<lazynet::Parameter> core;
};
struct ln_optimizer {
  ln_optimizer(int kind, std::vector<std::shared_ptr<lazynet::Parameter>> parameters)
      : core(kind, std::move(parameters)) {}
  lazynet::Optimizer core;
};

struct ln_cell {
  std::shared_ptr<lazynet::Cell> core;
  std::string text;
};

struct ln_policy {
  std::shared_ptr<const lazynet::LearnedPolicy> core;
  std::string text;
};
struct ln_learner {
  lazynet::PolicyLearner core;
};

namespace lazynet {

struct LastError {
  int status = LN_OK;
  int64_t node = -1;
  std::string message;
};
inline thread_local LastError last_error;

inline void set_error(int status, const char* message, int64_t node = -1) {
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

// Null for a number that no operator has.
inline const OpInfo* known_op(int op) { return op >= 0 && op < kOpCount ? &op_info(op) : nullptr; }

}  // namespace lazynet
