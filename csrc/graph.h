// A graph: the nodes built for the examples of a minibatch, their plans and their memory. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend.h"
#include "buddy_allocator.h"
#include "lazynet.h"
#include "memory_plan.h"
#include "node_store.h"
#include "parameter.h"
#include "scheduler.h"
#include "signature.h"
#include "weight_cache.h"

namespace lazynet {

struct GraphCounters {
  ln_graph_statistics statistics{};
  std::vector<ln_op_profile> profile = std::vector<ln_op_profile>(kOpCount);
};

class Cell;

// A cell that is placed in a graph, and the nodes of its parameters there.
struct CellUse {
  std::shared_ptr<Cell> cell;
  std::vector<int32_t> parameter_nodes;
  bool trains = false;  // one of them is trained
};

// See ln_add_recursion.
struct Recursion {
  int64_t count;
  const int32_t* cells;
  const int32_t* child_begin;
  const int32_t* children;
  int64_t x;
  const int32_t* rows;
  int outputs;
  const int64_t* initial;
};

class PolicyLearner;

class Graph {
 public:
  explicit Graph(const ln_graph_options& options, Backend& backend = cpu_backend());
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Building. All return the handle of the new node.
  int64_t add(int op, const int64_t* handles, int count, const double* attributes, int attribute_count,
              const int64_t* payload, int64_t payload_count);
  // A cell's node: its outputs are the nodes that follow, or itself where there is one output.
  int64_t add_cell(int32_t cell, const int64_t* handles, int count);
  void add_recursion(const Recursion& recursion, int64_t* first);
  // `on_device`: the data are in memory of the graph's backend, else in the process's own.
  int64_t add_input(Shape shape, const void* data, bool requires_grad, bool on_device = false);
  int64_t add_slice(int64_t handle, int64_t row, int64_t rows, int64_t col, int64_t cols);
  int64_t add_row(int64_t handle, int64_t row);
  int64_t add_part(int64_t handle, int axis, int64_t part, int64_t parts);
  int64_t add_reshape(int64_t handle, int64_t rows, int64_t cols);
  void clear();
  void set_seed(uint64_t seed);  // of dropout and the like; restarts the count of random nodes
  uint64_t random_state() const { return seed_ + kSeedStep * static_cast<uint64_t>(random_nodes_); }

  // The node of a handle; throws Error(LN_STALE_NODE). A parameter's node is made when first asked for.
  int32_t resolve(int64_t handle);
  int32_t resolve_node(int64_t handle) const;  // nodes only
  int64_t handle_of(int32_t id) const { return version_ << 32 | id; }

  // Running.
  void forward(const int64_t* handles, int64_t count);
  // `retain`: gradients of all nodes can be read afterwards, not only those of inputs and parameters.
  void backward(int64_t loss, bool retain);
  void read_value(int64_t handle, void* out);
  void copy_value(int64_t handle, void* out);  // to memory of the backend; waits for it
  bool read_gradient(int64_t handle, void* out) const;
  // A node's elements where those of its root, values or gradients, start at `root`.
  void read_rows(int32_t id, const char* root, void* out) const;

  // `learned` is the policy where `policy` is kLearned.
  void set_policy(Policy policy, std::shared_ptr<const LearnedPolicy> learned);
  void learn_from(PolicyLearner* learner);  // shows it what is not computed yet

  // A schedule driven from outside.
  void schedule_begin(const int64_t* handles, int64_t count);
  ReadySet& schedule_in_progress();
  void schedule_run();

  // Looking. Plans that have run come first, then the pending one.
  void plan_pending(const int64_t* handles, int64_t count);
  int64_t plan_count() const { return static_cast<int64_t>(rounds.size()) + (pending_ ? 1 : 0); }
  const Plan& plan(int64_t index) const;
  bool plan_executed(int64_t index) const { return index < static_cast<int64_t>(rounds.size()); }

  // Values are released after their last reader, and there is no backward.
  bool releases() const { return options.train == 0; }
  // Of a node that is a cell.
  const CellUse& cell_of(int32_t signature) const {
    return cells.at(static_cast<int32_t>(signatures.attributes(signature)[0]));
  }
  bool computed(int32_t id) const { return nodes.root_of(id).has(kComputed); }
  std::size_t element_bytes() const { return element_size(options.dtype); }
  std::string describe(int32_t id) const;  // "%7 tanh (1, 128)"
  // From the pool, or throws Error(LN_OUT_OF_MEMORY) that names `purpose` and the plan's biggest buffers.
  void* allocate(std::size_t bytes, const char* purpose, const Plan* plan);
  int64_t version() const { return version_; }
  int64_t identity_of(int32_t id) const;  // see WeightCache::Key; of parameters negative in inference, where it pays

  ln_graph_options options;
  bool anomaly = false, tracing = false, profiling = false;
  Backend& backend;
  NodeStore nodes;
  SignatureTable signatures;
  BuddyAllocator pool;
  WeightCache weights{pool};
  std::vector<std::unique_ptr<Plan>> rounds;           // that have run
  std::vector<BufferPlan*> buffers;                    // of all rounds; NodeStore::buffer counts through them
  std::vector<int32_t> readers;                        // a node: uncomputed nodes that read it; empty unless releases()
  std::vector<std::shared_ptr<Parameter>> parameters;  // in use
  std::vector<int32_t> parameter_nodes;                // their nodes
  std::unordered_map<int32_t, CellUse> cells;          // by the cells' numbers
  std::vector<void*> input_gradients;                  // of inputs, from the pool, of the last backward
  char* gradients = nullptr;                           // of other nodes, from the pool, while there are any
  bool retains_gradients = false;                      // after backward
  GraphCounters counters;

 private:
  int32_t append(const OpInfo& op, const int32_t* ids, int count, Shape shape, const double* attributes,
                 const int64_t* payload, int64_t payload_count);
  int32_t append_op(int op, const int64_t* handles, int count, const double* attributes, int attribute_count,
                    const int64_t* payload, int64_t payload_count);
  int32_t append_slice(int32_t base, int64_t row, int64_t rows, int64_t col, int64_t cols);
  void resolve_arguments(const int64_t* handles, int count);  // into ids_ and shapes_
  int64_t finish(int32_t id);
  CellUse& use_cell(int32_t cell);
  int32_t parameter_node(int64_t handle);
  void check_attributes(const OpInfo& op, int count, int attribute_count) const;
  std::vector<int32_t> needed_for(const int64_t* handles, int64_t count, bool mark_targets);
  void run(std::unique_ptr<Plan> plan);
  std::unique_ptr<Plan> make_plan(const int64_t* handles, int64_t count, bool mark_targets);  // null: nothing to do
  Schedule schedule_by_learned(const std::vector<int32_t>& needed);
  std::string stable_text(int32_t signature) const;  // the same in every graph and process
  std::unique_ptr<Plan> plan_for(Schedule made);
  char* input_memory(std::size_t bytes);
  void refuse_nan(Shape shape, const void* data) const;
  int32_t computed_node(int64_t handle);  // computes it where needed

  Policy policy_ = Policy::kLookahead;
  std::shared_ptr<const LearnedPolicy> learned_;
  int64_t version_;
  std::vector<int32_t> parameter_node_of_slot_;                // -1: not in this graph
  std::map<std::array<int64_t, 5>, int32_t> parameter_views_;  // by parameter's node, offset, rows, cols, ld
  std::vector<int32_t> ids_;                                   // scratch of add()
  std::vector<Shape> shapes_;
  std::vector<uint8_t> mark_;        // scratch of needed_for(), all zero in between
  int32_t first_uncomputed_ = 0;     // all nodes before it are computed
  std::vector<void*> input_blocks_;  // of the pool, for the data of inputs
  char* input_block_ = nullptr;      // the rest of the last one
  std::size_t input_left_ = 0;
  static constexpr uint64_t kSeedStep = 0x9e3779b97f4a7c15u;  // from one random node to the next
  uint64_t seed_ = 0;
  int64_t random_nodes_ = 0;  // since the seed was set
  ScheduleCache cache_;
  std::unique_ptr<Plan> pending_;
  std::vector<int32_t> scheduled_needed_;
  std::unique_ptr<ReadySet> scheduling_;
};

}  // namespace lazynet
