// From a schedule to memory: which buffer each batch writes to, where each member's value lies in it, which
// operands already lie one after another and which must be gathered, and the most that is held at once.
// Nothing is allocated here: addresses are those of imagined buffers until Executor places the real ones.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel.h"
#include "node_store.h"
#include "scheduler.h"
#include "signature.h"

namespace lazynet {

// Looks at pieces in turn and tells whether they are one matrix: rows one after another at one stride, or,
// of a flat operand, elements one after another.
// A null address, that of a gradient that nobody wants, is adjacent to nothing.
class MatrixScan {
 public:
  MatrixScan(bool flat, std::size_t element_size) : flat_(flat), element_size_(element_size) {}
  void add(char* address, int64_t rows, int64_t cols, int64_t ld);
  bool adjacent() const { return adjacent_; }
  int64_t elements() const { return elements_; }
  bool same_cols() const { return same_cols_; }
  // Of all pieces together, `value` null unless adjacent. A flat matrix is one row of all elements.
  Piece matrix() const;

 private:
  bool flat_;
  std::size_t element_size_;
  bool adjacent_ = true, same_cols_ = true;
  char* first_ = nullptr;
  char* next_ = nullptr;
  int64_t rows_ = 0, cols_ = -1, ld_ = 0, elements_ = 0;
};

enum class OperandMode : uint8_t { kAdjacent, kIndexed, kGathered, kShared };
enum class Wish : uint8_t { kNone, kAll, kSome };  // which members' arguments require gradients

struct OperandPlan {
  OperandMode mode;
  Wish gradients;
  bool in_plan;      // every member's argument is computed by this plan
  bool overlapping;  // in runs: stretches share memory
  int64_t pieces;
  int64_t bytes;
  Piece matrix;  // adjacent and packed: the matrix that the pieces are, `value` a place
};

// The arguments of one stretch of a flat operator, see Run; places.
struct RunPlan {
  int64_t elements;
  char* argument[2];
};

struct BatchPlan {
  int32_t op, signature;
  int32_t begin, end;     // members in Plan::schedule.order
  int32_t buffer;         // in Plan::buffers
  int64_t offset, bytes;  // of the batch's values in the buffer
  int32_t operand_begin, operand_end;
  int64_t row_begin, row_end;  // of cells and early operators: the members' rows among those of the signature
  int32_t run_begin, run_end;  // in Plan::runs; none: the kernel reads the members piece by piece
  bool meeting;                // gradients of the members' arguments share memory; only where PlanOptions ask for it
};

// One buffer a signature when gradients will be wanted, batch after batch, so that a later pass over all of
// them is one matrix; where there is no such pass, several once they are large. One buffer a batch in inference, given
// back after its last reader.
struct BufferPlan {
  int64_t bytes = 0;
  int32_t first_batch = 0;
  int32_t last_batch = -1;  // -1: stays until the graph is cleared
  char* value = nullptr;    // once placed
  char* grad = nullptr;     // during and after backward
  // Of cells and early operators:
  int64_t rows = 0;
  int64_t kept_bytes = 0, kept_grad_bytes = 0, early_bytes = 0;
  char* kept = nullptr;       // values inside the cells that backward reads; Batch::kept
  char* kept_grad = nullptr;  // gradients that weights' gradients are made from
  char* early = nullptr;      // Batch::early, one behind another
};

// Before there is memory a value has a place: an imagined address, which no real one equals and which is adjacent
// to none of another buffer. Arguments that were computed earlier have their real address.
class Place {
 public:
  static constexpr int kOffsetBits = 40;
  static constexpr int64_t kBuffers = int64_t{1} << (63 - kOffsetBits);
  static char* of(int32_t buffer, int64_t offset) {
    return reinterpret_cast<char*>(INT64_MIN | int64_t{buffer} << kOffsetBits | offset);
  }
  explicit Place(const char* address) : bits_(reinterpret_cast<int64_t>(address)) {}
  bool real() const { return bits_ >= 0; }
  int64_t buffer() const { return (bits_ & INT64_MAX) >> kOffsetBits; }
  int64_t offset() const { return bits_ & ((int64_t{1} << kOffsetBits) - 1); }

 private:
  int64_t bits_;
};

struct Plan {
  Schedule schedule;
  std::vector<BatchPlan> batches;
  std::vector<OperandPlan> operands;
  std::vector<RunPlan> runs;
  std::vector<BufferPlan> buffers;
  int64_t value_bytes = 0;           // all buffers together
  int64_t scratch_bytes = 0;         // for the gathers of one batch, the largest
  int64_t shared_scratch_bytes = 0;  // for the gathers of one signature in backward, the largest
  int64_t apart_scratch_bytes = 0;   // for one batch in backward, with the gradients that are kept apart, the largest
  int64_t peak_bytes = 0;            // values held at once and scratch, without gradients
  int64_t gathered_bytes = 0, read_bytes = 0;
  int64_t lower_bound = -1;  // of batches; counted only when asked for
  bool from_cache = false;

  // The real address of a place, once buffers are placed.
  char* value_at(char* address) const {
    const Place place(address);
    return place.real() ? address : buffers[place.buffer()].value + place.offset();
  }
  // The same for its gradient; of this plan's places only.
  char* grad_at(char* address) const {
    const Place place(address);
    return buffers[place.buffer()].grad + place.offset();
  }
};

// Elements of working memory that the kernels of these members, of one signature, need.
int64_t working_elements(const NodeStore& nodes, const SignatureTable& signatures, const int32_t* members,
                         int64_t count);

// What the backend is, see Backend.
struct PlanOptions {
  std::size_t element_size;
  bool adds_in_turn, makes_early_gradients;
};

// Sets the members' places in `nodes`. `readers[id]`: how many uncomputed nodes read the node, so that buffers
// end with their last reader; empty: all values stay, for gradients.
Plan plan_memory(NodeStore& nodes, const SignatureTable& signatures, Schedule schedule, const PlanOptions& options,
                 const std::vector<int32_t>& readers);

// Which operand of its op the argument at `position` belongs to.
inline int operand_of(const OpInfo& op, int position) {
  const int last = static_cast<int>(op.arguments.size()) - 1;
  return position < last ? position : last;
}

}  // namespace lazynet
