// A cell: a function of nodes, traced once and then placed in graphs as one node a call. Every operation in it works
// on each row by itself, so that the rows of all members of a batch are one matrix throughout.
//
// Three stages, each a function here: the traced nodes become steps (trace_cell), passes make fewer and larger steps
// of them (optimize_cell), and every value gets its place (place_values). cell_run.h runs the result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernel.h"
#include "parameter.h"

namespace lazynet {

class Graph;

struct CellValue {
  enum class Kind : uint8_t { kInput, kParameter, kStep };
  // In training values that backward reads are kept, matrix after matrix, with the rows of all batches below one
  // another. kNowhere: a register of a fused step.
  // kArgument: an input that only elementwise operations read, where the member's argument is, row by row.
  enum class Place : uint8_t { kNowhere, kResult, kKept, kArgument };

  Kind kind = Kind::kStep;
  int32_t number = -1;  // of the input or parameter
  int32_t rows = 1;     // of a parameter; other values have the rows of the member
  int32_t cols = 0;
  int32_t root = -1;  // the value in whose columns it lies: itself, unless it is a slice
  int32_t col = 0;    // its first column there
  // Of roots:
  Place place = Place::kNowhere;
  int64_t value_col = 0;        // columns before it in the result, or in the kept values
  int64_t grad_col = -1;        // columns before it in the kept or the passing gradients; -1: the result's, or none
  bool keeps_gradient = false;  // what the gradient of a weight reads, for all batches at once
  bool zero_first = false;      // its gradient is not written in full before it is added to
};

struct CellStep {
  int op = 0;                      // of the table; unused by a fused step
  std::vector<int32_t> arguments;  // values; of a fused step its operands, the first registers
  std::vector<double> attributes;
  int32_t result = -1;              // value
  std::vector<CellStep> stacked;    // linears of one input that this step does at once, in slices of its result
  std::vector<uint8_t> overwrites;  // an argument: its gradient is written, not added to

  // A fused step: elementwise operations on registers, and the registers that are stored.
  struct Stored {
    int reg;
    int32_t value;
    bool for_backward;  // nobody else reads it
  };
  std::vector<FusedOp> fused;
  std::vector<Broadcast> broadcast;         // of the operands
  std::vector<int64_t> parameter_grad_col;  // of operands that are parameters: columns before their gradients of
                                            // every row in the passing gradients; -1 of others
  std::vector<Stored> stored;
  int registers = 0;
  bool is_fused() const { return !fused.empty(); }
};

class Cell {
 public:
  std::string name;
  int32_t id = -1;  // in the list of all cells; the attribute of its nodes
  int dtype = 0;
  std::vector<CellValue> values;
  std::vector<CellStep> traced, steps;   // before and after the passes
  std::vector<CellValue> traced_values;  // before the passes
  std::vector<int32_t> inputs, outputs;  // values
  std::vector<std::shared_ptr<Parameter>> parameters;
  int64_t result_cols = 0;  // all outputs side by side
  int64_t kept_cols = 0;    // of values, beside the result
  int64_t kept_grad_cols = 0, passing_grad_cols = 0;
  std::vector<int64_t> output_cols;  // where each output starts in the result
  // For every output which inputs, then which parameters, it depends on.
  std::vector<std::vector<uint8_t>> reads;

  ~Cell();
  const CellValue& root_of(int32_t value) const { return values[values[value].root]; }
  // Of a call; throws Error(LN_SHAPE_ERROR) unless the arguments have the columns that were traced and equal rows.
  Shape shape(const Shape* arguments, int count) const;
  std::string text(const std::vector<CellStep>& shown) const;
  // Of matrices with the rows of inputs that are left where they are.
  int64_t argument_bytes(int64_t rows, int64_t element_size) const;
  // Whether both do exactly the same.
  bool same_program(const Cell& other) const;
};

// From the nodes of `graph`, in which the function was called on inputs. Throws Error(LN_VALUE_ERROR) that says which
// operation cannot be part of a cell: one that mixes rows, or that has integers of its own for every call.
std::shared_ptr<Cell> trace_cell(const Graph& graph, const std::vector<int32_t>& inputs,
                                 const std::vector<int32_t>& outputs, std::string name);
std::shared_ptr<Cell> find_cell(int32_t id);  // null when it is gone

void optimize_cell(Cell* cell);  // by the passes of passes/
void place_values(Cell* cell);

}  // namespace lazynet
