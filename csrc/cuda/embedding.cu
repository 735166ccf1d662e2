// Rows of a table that all members share. Ids that are known when the node is built are known to the host, which
// gathers rows and scatters their gradients as those of packed operands, equal ids together and in order. Ids that
// another node computes are read by the kernel; for gradients, which come once a backward, they are read back first.
//
// Forward reads and writes each row once, the shared pass reads each row's gradient and reads and writes each touched
// row of the table's: bound by memory.
#include "ids.h"
#include "kernel.h"
#ifndef LN_DEVICE_CODE
#include "transfer.h"
#endif

namespace lazynet::cuda {

struct LookupIdsArgs {
  Members members;  // a unit is a row of the result
  const void* table;
  int64_t rows, ld;
  Fault* fault;
};

#ifdef LN_DEVICE_CODE

// A warp a row.
template <class T>
LN_DEVICE void lookup_ids_forward(const LookupIdsArgs& args) {
  if (blockIdx.x == 0) report_ids<T>(args.members, 2, args.fault, [&](int64_t) { return args.rows; });
  LN_NO_UNROLL
  for (int64_t unit = warp_number(); unit < args.members.units; unit += warp_count()) {
    const Place place = place_of(args.members, unit);
    const Piece y = piece_of(args.members, 0, place.member), ids = piece_of(args.members, 2, place.member);
    const T id = row_value<T>(ids, place.unit / ids.cols)[place.unit % ids.cols];
    if (!is_id(id, args.rows)) continue;
    const T* from = static_cast<const T*>(args.table) + static_cast<int64_t>(id) * args.ld;
    T* to = value_of<T>(y) + place.unit * y.ld;
    for (int64_t c = lane(); c < y.cols; c += kWarp) to[c] = from[c];
  }
}
LN_KERNELS(lookup_ids_forward, LookupIdsArgs, kThreads)

#else

namespace {

// A piece a row of the result: the row of the table that it is. id(member, place): its number.
template <class T, class Id>
std::vector<Piece> looked_up(const Batch& batch, bool gradients, const Id& id) {
  const Piece& table = batch.arguments[0].pieces[0];
  std::vector<Piece> rows;
  rows.reserve(static_cast<std::size_t>(batch.result.matrix.rows));
  const auto for_ids = [&](const auto& visit) {
    for (int64_t i = 0; i < batch.members; ++i)
      for (int64_t j = 0; j < batch.result.pieces[i].rows; ++j) visit(id(i, j));
  };
  const bool sparse = gradients && batch.sparse_row;
  // Touching a row may move the others: all first, then their addresses.
  if (sparse) for_ids([&](int64_t row) { batch.sparse_row(batch.sparse_table, row); });
  for_ids([&](int64_t row) {
    T* const value = static_cast<T*>(table.value) + row * table.ld;
    void* grad = nullptr;
    if (sparse)
      grad = batch.sparse_row(batch.sparse_table, row);
    else if (gradients)
      grad = static_cast<T*>(table.grad) + row * table.ld;
    rows.push_back({value, grad, 1, table.cols, table.cols});
  });
  return rows;
}

template <class T, class Id>
void add_to_table(Queue& queue, const Batch& batch, const Id& id) {
  const std::vector<Piece> rows = looked_up<T>(batch, true, id);
  const Piece& result = batch.result.matrix;
  scatter_add<T>(queue, result.grad, result.ld, rows.data(), static_cast<int64_t>(rows.size()), true);
}

// Those of all members, one member after another.
template <class T>
std::vector<T> read_ids(Queue& queue, const Batch& batch) {
  int64_t count = 0, next = 0;
  for (int64_t i = 0; i < batch.members; ++i)
    count += batch.arguments[1].pieces[i].rows * batch.arguments[1].pieces[i].cols;
  std::vector<T> ids(static_cast<std::size_t>(count));
  T* packed = static_cast<T*>(queue.scratch(ids.size() * sizeof(T)));
  for (int64_t i = 0; i < batch.members; ++i) {
    const Piece& piece = batch.arguments[1].pieces[i];
    gather<T>(queue, &piece, 1, packed + next, piece.cols);
    next += piece.rows * piece.cols;
  }
  queue.read(ids.data(), packed, ids.size() * sizeof(T));
  return ids;
}

}  // namespace

template <class T>
void lookup_forward(Queue& queue, const Batch& batch) {
  const std::vector<Piece> rows = looked_up<T>(batch, false, [&](int64_t i, int64_t j) { return batch.payload[i][j]; });
  gather<T>(queue, rows.data(), static_cast<int64_t>(rows.size()), batch.result.matrix.value, batch.result.matrix.ld);
}

// The table is shared: its gradient is lookup_shared's work.
template <class T>
void lookup_backward(Queue&, const Batch&) {}

template <class T>
void lookup_shared(Queue& queue, const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  add_to_table<T>(queue, batch, [&](int64_t i, int64_t j) { return batch.payload[i][j]; });
}

template <class T>
void lookup_ids_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "embedding", "lookup_ids_forward");
  const Piece& table = batch.arguments[0].pieces[0];
  LookupIdsArgs args{};
  args.fault = queue.fault(batch.fault);
  args.members = members_of(queue, batch, 3, [&](int64_t i) { return batch.result.pieces[i].rows; });
  args.table = table.value;
  args.rows = table.rows;
  args.ld = table.ld;
  queue.launch(kernel, blocks_for(args.members.units, kThreads / kWarp), kThreads, 0, args);
}

template <class T>
void lookup_ids_backward(Queue&, const Batch&) {}

template <class T>
void lookup_ids_shared(Queue& queue, const Batch& batch) {
  if (!batch.arguments[0].wants_grad) return;
  const std::vector<T> ids = read_ids<T>(queue, batch);
  std::vector<int64_t> first(static_cast<std::size_t>(batch.members) + 1, 0);
  for (int64_t i = 0; i < batch.members; ++i) first[i + 1] = first[i] + batch.result.pieces[i].rows;
  add_to_table<T>(queue, batch, [&](int64_t i, int64_t j) { return static_cast<int64_t>(ids[first[i] + j]); });
}

LN_INSTANTIATE_SHARED(lookup)
LN_INSTANTIATE_SHARED(lookup_ids)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
