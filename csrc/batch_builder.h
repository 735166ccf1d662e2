// From members of one signature to what a kernel sees: where operands lie, gathered where a kernel needs one
// matrix and they are not, and where gradients go.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "graph.h"
#include "kernel.h"
#include "overlap_check.h"
#include "weight_cache.h"

namespace lazynet {

// kShared: the gradients of shared arguments, for all batches of a signature at once.
enum class Phase { kForward, kBackward, kShared };

// Scratch memory that one kernel call uses and the next one reuses.
class Scratch {
 public:
  void place(void* memory, std::size_t bytes) {
    memory_ = static_cast<char*>(memory);
    bytes_ = bytes;
  }
  void reset() { used_ = 0; }
  char* take(std::size_t bytes);

 private:
  char* memory_ = nullptr;
  std::size_t used_ = 0, bytes_ = 0;
};

class BatchBuilder {
 public:
  explicit BatchBuilder(Graph& graph)
      : graph_(graph),
        nodes_(graph.nodes),
        size_(static_cast<int64_t>(graph.element_bytes())),
        adds_in_turn_(graph.backend.adds_in_turn()),
        overlap_(graph.nodes, !adds_in_turn_) {}
  ~BatchBuilder() { graph_.weights.end_run(); }
  BatchBuilder(const BatchBuilder&) = delete;
  BatchBuilder& operator=(const BatchBuilder&) = delete;

  Scratch scratch;
  char* sink = nullptr;  // where gradients go that nobody wants; null where kernels are to leave them out

  // A whole batch of a plan. What the plan knows of it is not looked up again, member by member.
  const Batch& build(const Plan& plan, const BatchPlan& planned, Phase phase);
  // Any members of one signature. `meeting`: as the plan says of them, or of more of the signature, see BatchPlan.
  const Batch& build(const int32_t* members, int64_t count, int32_t signature, Phase phase, bool meeting = false);
  // Of the batch just built, an early operator's: where its early gradients are. `row`: the first member's, among those
  // of the signature; `all`: the batch holds all members of the signature, or is a forward one.
  const Batch& point_at_early(const BufferPlan& buffer, int64_t row, bool all);
  // Of a plan all batches of a signature that has shared arguments, as build(..., kShared) of their members; null
  // where the rows do not make one matrix.
  const Batch* build_shared(const Plan& plan, const std::vector<int32_t>& batches);

  // The arguments of cells: those of one position in the cell after another. Returns whether gradients share memory.
  bool build_inputs(const int32_t* members, int64_t count, bool backward, bool meeting, std::vector<Piece>* inputs);
  WeightCache* weights() { return &graph_.weights; }

  // After a backward kernel: adds gathered gradients, and those that were kept apart, to where they belong.
  void scatter(const Batch& batch);

  int64_t gathered_bytes = 0, gathers = 0;
  double gather_seconds = 0;

 private:
  void start(int32_t signature, int64_t members, const NodeRecord& first);
  void build_runs(const Plan& plan, const BatchPlan& planned, Phase phase);
  bool matrices_suffice(const Plan& plan, const BatchPlan& planned, Phase phase) const;
  void build_matrices(const Plan& plan, const BatchPlan& planned, Phase phase);
  void point_at_shared(const NodeRecord& member, Phase phase);
  void reserve_pieces(bool list);
  void build_result();
  void build_argument(int k, bool list);
  void join_gradients(int k, const MatrixScan& grads);
  void pack(int k, const MatrixScan& values, const MatrixScan& grads);
  void keep_apart();
  Piece piece_of(int32_t id) const;
  char* grad_of(int32_t id, int64_t* sinks);
  bool any_requires_grad(int k, bool list) const;
  void build_payload();
  void take_working_memory();

  Graph& graph_;
  const NodeStore& nodes_;
  const int64_t size_;
  const bool adds_in_turn_;
  const OpInfo* op_ = nullptr;
  const int32_t* members_ = nullptr;
  Phase phase_ = Phase::kForward;
  Batch batch_{};
  std::vector<Piece> pieces_;
  Piece* next_piece_ = nullptr;
  std::vector<Run> runs_;
  std::vector<int32_t> begin_;
  std::vector<const int64_t*> payload_;
  void* direct_grad_[4] = {};
  OverlapCheck overlap_;
  bool checks_ = false;   // whether gradients at hand share memory
  bool meeting_ = false;  // they do, and kernels must not see it
  // The gradients that a kernel is given apart: where they are and where they belong, group by group.
  ApartLayout layout_;
  std::vector<std::pair<Piece*, ApartLayout::Place>> apart_;
  std::vector<char*> apart_memory_;
  std::vector<std::vector<Piece>> apart_targets_;
};

// The backend's shared(). Gradients of several shared arguments that share memory take turns, if they must.
void run_shared_kernel(Backend& backend, int dtype, const Batch& batch);

}  // namespace lazynet
