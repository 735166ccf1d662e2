// What a kernel sees: a batch of members of one signature. Kernels of every family and backend take a
// Batch; what is packed, gathered, shared or first written is decided before they run.
#pragma once

#include <cstdint>

namespace lazynet {

// One argument (or the result) of one member: rows x cols elements, rows `ld` elements apart.
struct Piece {
  void* value;
  void* grad;  // null in forward and where no gradient is wanted; see also Backend::adds_in_turn()
  int64_t rows;
  int64_t cols;
  int64_t ld;
};

// A stretch of a flat operator's batch: elements that lie one after another in the result and in each argument.
struct Run {
  int64_t begin;  // in result.matrix
  int64_t elements;
  void* value[2];
  void* grad[2];  // null where no gradient is wanted
};

// Several elementwise operations in one pass over memory: what a cell makes of a chain of them (cell.h). Their
// results are registers, a piece of a row each, which stay in the cache; the first registers are the operands.
enum Broadcast : uint8_t { kFull = 0, kRow = 1, kColumn = 2, kScalar = 3 };
struct FusedOp {
  int op;
  int a, b, result;  // registers; b -1 where there is none
  double attributes[2];
};
struct FusedOperand {
  const void* value;
  // Rows that lie anywhere: value, and grad where it is wanted, are then null. Gradients are added; a null one is not
  // wanted.
  const void* const* value_rows;
  void* const* grad_rows;
  int64_t first_col;  // of the operand in those rows
  int64_t ld;
  Broadcast broadcast;
  void* grad;  // rows x cols where full or a row or scalar of all rows; rows x 1 of a column. Null: not wanted
  int64_t grad_ld;
  bool add;  // to grad; else it is overwritten
};
struct FusedResult {  // a register that is also kept in memory
  int reg;
  void* value;
  int64_t ld;
  const void* grad;  // what comes from other readers; null: nothing
  int64_t grad_ld;
};
struct Fused {
  int64_t rows, cols;
  const FusedOp* ops;
  int op_count;
  const FusedOperand* operands;
  int operand_count;
  const FusedResult* results;
  int result_count;
  int register_count;
  bool serial;  // gradients of different rows share memory; never where the backend does not add in turn
};
constexpr int kMostRegisters = 48;

// One argument of all members.
struct Operand {
  // A list argument has the pieces of member i at [begin[i], begin[i + 1]); others have piece i.
  // Shared arguments have one piece.
  const Piece* pieces = nullptr;
  int64_t count = 0;               // pieces
  const int32_t* begin = nullptr;  // lists only
  // All pieces as one matrix: set when they lie one after another, and always when the operator asks
  // for it (role R). `matrix.rows` is the sum of the pieces' rows. Otherwise matrix.value is null.
  Piece matrix = {nullptr, nullptr, 0, 0, 0};
  bool wants_grad = false;   // backward: pieces' (and matrix's) grad are valid and to be added to
  bool overlapping = false;  // backward: pieces share gradient memory; one thread only
  bool overwrite = false;    // backward: the gradient is to be written, not added to; only linear's x asks for it
  int64_t identity = 0;      // shared: see WeightCache::Key
};

class WeightCache;

// What a kernel finds wrong with numbers that are known only as it runs: the executor turns it into an exception.
struct Fault {
  int64_t member = -1;  // none
  double id = 0;        // that it holds ...
  int64_t limit = 0;    // ... and that must be less than this, and at least 0
};

struct Batch {
  int op;
  int64_t members;
  Operand result;  // always packed
  Operand arguments[4];
  int argument_count;  // operands present (optional ones may be missing)
  const double* attributes;
  const int64_t* const* payload;  // member i's integers at payload[i]; null without payload
  // Flat operators whose arguments all have the result's shape: the whole batch in stretches, in place of
  // pieces. Null: there are pieces.
  const Run* runs = nullptr;
  int64_t run_count = 0;
  // How an argument of a flat operator is spread over the result, an argument each.
  const uint8_t* broadcast;        // see Broadcast
  WeightCache* weights = nullptr;  // copies of shared arguments that are kept for the length of a run
  void* scratch = nullptr;         // working memory, as the operator's rule asks for
  Fault* fault = nullptr;          // forward only
  // Early operators (ops.def). Forward writes x's gradient to `kept`, a row for each of x's, and adds those of shared
  // arguments to `early`, both for a gradient of 1 of every row of the result; null where nobody will want them.
  // Backward finds them there, `early` in the shared pass and only if it holds the sum over this batch's members.
  void* kept = nullptr;
  void* early[4] = {};
  // Row-sparse gradient of a shared table (lookup_shared only): returns the address of the gradient of
  // row `row`, zero when first touched.
  void* (*sparse_row)(void* table, int64_t row) = nullptr;
  void* sparse_table = nullptr;
};

}  // namespace lazynet
