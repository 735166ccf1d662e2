// lookup(table, ids): rows of a table that all members share. Its gradient is often sparse in rows.
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {

template <class T>
void lookup_forward(const Batch& batch) {
  const Piece& table = batch.arguments[0].pieces[0];
  const int64_t row_cost = batch.result.matrix.rows * table.cols / (batch.members + 1) + table.cols + 1;
  // Not for_members(): the size of the table says nothing of the work.
  parallel_for(batch.members, 1 + kGrainElements / row_cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& result = batch.result.pieces[i];
      for (int64_t j = 0; j < result.rows; ++j)
        std::memcpy(value_of<T>(result) + j * result.ld, row_value<T>(table, batch.payload[i][j]),
                    static_cast<std::size_t>(result.cols) * sizeof(T));
    }
  });
}

// The table is shared: its gradient is lookup_shared's work.
template <class T>
void lookup_backward(const Batch&) {}

template <class T>
void lookup_shared(const Batch& batch) {
  const Operand& argument = batch.arguments[0];
  if (!argument.wants_grad) return;
  const Piece& table = argument.pieces[0];
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece& result = batch.result.pieces[i];
    for (int64_t j = 0; j < result.rows; ++j) {
      const int64_t id = batch.payload[i][j];
      T* row = batch.sparse_row ? static_cast<T*>(batch.sparse_row(batch.sparse_table, id)) : row_grad<T>(table, id);
      add_to(result.cols, row_grad<T>(result, j), row);
    }
  }
}
LN_INSTANTIATE_SHARED(lookup)

}  // namespace lazynet::cpu::LN_UNIT
