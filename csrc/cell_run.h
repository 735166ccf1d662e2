// Runs a batch of cells: the rows of all members are one matrix, which goes through the steps.
#pragma once

#include <vector>

#include "batch_builder.h"
#include "cell.h"
#include "graph.h"

namespace lazynet {

class CellRun {
 public:
  // Rows [begin, end) of a signature's members; the buffer holds the rows of all its batches.
  CellRun(Graph& graph, const Cell& cell, const CellUse& use, const BufferPlan& buffer, int64_t begin, int64_t end,
          WeightCache* weights);

  // `kept`: where values go, for inference; null: to the buffer's.
  void forward(const std::vector<Piece>& inputs, char* kept);
  // From the result's gradients to those of the inputs, which are added to. `passing`: scratch memory; `apart`: the
  // same, for gradients of inputs that share memory where kernels must not see it, else null.
  // Gradients of parameters that are read elementwise are added to as well.
  void backward(const std::vector<Piece>& inputs, bool overlapping, char* passing, char* apart);
  // Adds the gradients of weights, from what backward has left for these rows.
  void weight_gradients();

 private:
  Piece matrix(int32_t value) const;
  void* gradient(int32_t value) const;
  int64_t gradient_ld(int32_t value) const;
  void point_at_rows(const std::vector<Piece>& inputs, bool backward);
  void step_backward(const CellStep& step, const Batch& batch);
  void scatter(const std::vector<Piece>& inputs);
  void fill(Batch* batch, const CellStep& step, bool backward);
  bool fill_stacked(Batch* batch, const CellStep& step, bool backward);
  Piece side_by_side(const CellStep& step, int argument, int64_t* identity);
  template <class Function>
  void for_batches(const CellStep& step, bool backward, const Function& run);
  Fused fused(const CellStep& step, bool backward);
  bool wants_gradient(int32_t value) const;
  void add_parameter_gradients(const CellStep& step);
  void add_weight_gradients(const CellStep& linear);

  Graph& graph_;
  const Cell& cell_;
  const CellUse& use_;
  const BufferPlan& buffer_;
  const int64_t begin_, rows_, size_;
  WeightCache* weights_;
  char* kept_ = nullptr;
  int64_t kept_rows_ = 0, kept_begin_ = 0;  // of the matrices in kept_, and this run's first in them
  char* passing_ = nullptr;
  std::vector<Piece> pieces_;
  std::vector<FusedOperand> operands_;
  std::vector<FusedResult> results_;
  std::vector<int32_t> begins_;
  std::vector<const void*> value_rows_;  // of inputs that are not gathered, input after input
  std::vector<void*> grad_rows_;
  bool overlapping_ = false;
  char* apart_ = nullptr;
};

}  // namespace lazynet
