// Rows of a table that all members share: lookup(table) of ids that are known when the node is built, lookup_ids(table,
// ids) of those that another node computes. The table's gradient is often sparse in rows.
#include "ids.h"
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {

namespace {

// id(member, place): the row of the table.
template <class T, class Id>
void look_up(const Batch& batch, const Id& id) {
  const Piece& table = batch.arguments[0].pieces[0];
  const int64_t row_cost = batch.result.matrix.rows * table.cols / (batch.members + 1) + table.cols + 1;
  // Not for_members(): the size of the table says nothing of the work.
  parallel_for(batch.members, 1 + kGrainElements / row_cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& result = batch.result.pieces[i];
      for (int64_t j = 0; j < result.rows; ++j)
        std::memcpy(value_of<T>(result) + j * result.ld, row_value<T>(table, id(i, j)),
                    static_cast<std::size_t>(result.cols) * sizeof(T));
    }
  });
}

template <class T, class Id>
void add_to_table(const Batch& batch, const Id& id) {
  const Operand& argument = batch.arguments[0];
  if (!argument.wants_grad) return;
  const Piece& table = argument.pieces[0];
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece& result = batch.result.pieces[i];
    for (int64_t j = 0; j < result.rows; ++j) {
      const int64_t at = id(i, j);
      T* row = batch.sparse_row ? static_cast<T*>(batch.sparse_row(batch.sparse_table, at)) : row_grad<T>(table, at);
      add_to(result.cols, row_grad<T>(result, j), row);
    }
  }
}

// In the order of rows.
template <class T>
int64_t computed_id(const Piece& ids, int64_t place) {
  return static_cast<int64_t>(row_value<T>(ids, place / ids.cols)[place % ids.cols]);
}

}  // namespace

template <class T>
void lookup_forward(const Batch& batch) {
  look_up<T>(batch, [&](int64_t i, int64_t j) { return batch.payload[i][j]; });
}

// The table is shared: its gradient is lookup_shared's work.
template <class T>
void lookup_backward(const Batch&) {}

template <class T>
void lookup_shared(const Batch& batch) {
  add_to_table<T>(batch, [&](int64_t i, int64_t j) { return batch.payload[i][j]; });
}
LN_INSTANTIATE_SHARED(lookup)

template <class T>
void lookup_ids_forward(const Batch& batch) {
  if (!ids_in_range<T>(batch, 1, [&](int64_t) { return batch.arguments[0].pieces[0].rows; })) return;
  look_up<T>(batch, [&](int64_t i, int64_t j) { return computed_id<T>(batch.arguments[1].pieces[i], j); });
}

template <class T>
void lookup_ids_backward(const Batch&) {}

template <class T>
void lookup_ids_shared(const Batch& batch) {
  add_to_table<T>(batch, [&](int64_t i, int64_t j) { return computed_id<T>(batch.arguments[1].pieces[i], j); });
}
LN_INSTANTIATE_SHARED(lookup_ids)

}  // namespace lazynet::cpu::LN_UNIT
