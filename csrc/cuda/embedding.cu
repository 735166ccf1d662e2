// Rows of a table that all members share.
//
// Forward reads and writes each row once; the shared pass reads each row's gradient and reads and writes each touched
// row of the table's: bound by memory. Ids that are known when the node is built are known to the host, which sorts
// them for the shared pass, so that the gradients of a row are added in their order. Ids that another node computes are
// read by the kernel; the shared pass, which comes once a backward, waits for them and goes on as with the others,
// since rows of a sparse table have to be found on the host.
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
  void* result;
  int64_t result_ld;
  int64_t cols;    // packs
  int pack;        // elements
  int lanes_log2;  // threads that share a row
  Fault* fault;
};
struct IdsArgs {
  Members members;  // a unit is an id
  int32_t* ids;
};

#ifdef LN_DEVICE_CODE

template <class T, class P>
LN_DEVICE void look_up(const LookupIdsArgs& args) {
  const int lanes = 1 << args.lanes_log2, first = static_cast<int>(threadIdx.x) & (lanes - 1);
  LN_NO_UNROLL
  for (int64_t row = thread_number() >> args.lanes_log2; row < args.members.units;
       row += thread_count() >> args.lanes_log2) {
    const Place place = place_of(args.members, row);
    const T id = id_at<T>(piece_of(args.members, 2, place.member), place.unit);
    if (!is_id(id, args.rows)) {
      if (first == 0) report_id<T>(args.members, 2, place, args.fault, [&](int64_t) { return args.rows; });
      continue;
    }
    const auto* from =
        reinterpret_cast<const P*>(static_cast<const T*>(args.table) + static_cast<int64_t>(id) * args.ld);
    auto* to = reinterpret_cast<P*>(static_cast<T*>(args.result) + row * args.result_ld);
    LN_NO_UNROLL
    for (int64_t col = first; col < args.cols; col += lanes) to[col] = from[col];
  }
}
template <class T>
LN_DEVICE void lookup_ids_forward(const LookupIdsArgs& args) {
  if (args.pack > 1)
    look_up<T, Pack<T>>(args);
  else
    look_up<T, T>(args);
}
LN_KERNELS(lookup_ids_forward, LookupIdsArgs, kThreads)

template <class T>
LN_DEVICE void pack_ids(const IdsArgs& args) {
  for (int64_t unit = thread_number(); unit < args.members.units; unit += thread_count()) {
    const Place place = place_of(args.members, unit);
    args.ids[unit] = static_cast<int32_t>(id_at<T>(piece_of(args.members, 2, place.member), place.unit));
  }
}
LN_KERNELS(pack_ids, IdsArgs, kThreads)

#else

namespace {

std::vector<int32_t> known_ids(const Batch& batch) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < batch.members; ++i)
    for (int64_t j = 0; j < batch.result.pieces[i].rows; ++j) ids.push_back(static_cast<int32_t>(batch.payload[i][j]));
  return ids;
}

Members members_with_ids(Queue& queue, const Batch& batch) {
  return members_of(queue, batch, 3, [&](int64_t i) { return batch.result.pieces[i].rows; });
}

template <class T>
std::vector<int32_t> computed_ids(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "embedding", "pack_ids");
  std::vector<int32_t> ids(static_cast<std::size_t>(batch.result.matrix.rows));
  IdsArgs args{};
  args.ids = static_cast<int32_t*>(queue.scratch(ids.size() * sizeof(int32_t)));
  args.members = members_with_ids(queue, batch);
  queue.launch(kernel, blocks_for(args.members.units, kThreads), kThreads, 0, args);
  queue.read(ids.data(), args.ids, ids.size() * sizeof(int32_t));
  return ids;
}

template <class T>
void add_to_table(Queue& queue, const Batch& batch, std::vector<int32_t> ids) {
  static thread_local Numbering rows;
  const Piece &table = batch.arguments[0].pieces[0], &result = batch.result.matrix;
  rows.forget();
  for (int32_t& id : ids) id = rows.of(id);
  // Touching a row of a sparse table may move the others: all first, then their addresses.
  if (batch.sparse_row)
    for (const int64_t row : rows.met()) batch.sparse_row(batch.sparse_table, row);
  std::vector<void*> targets;
  for (const int64_t row : rows.met())
    targets.push_back(batch.sparse_row ? batch.sparse_row(batch.sparse_table, row)
                                       : static_cast<T*>(table.grad) + row * table.ld);
  add_rows<T>(queue, result.grad, result.ld, table.cols, ids, targets);
}

}  // namespace

template <class T>
void lookup_forward(Queue& queue, const Batch& batch) {
  const Piece& result = batch.result.matrix;
  gather_rows<T>(queue, batch.arguments[0].pieces[0], known_ids(batch), result.value, result.ld);
}

// The table is shared: its gradient is lookup_shared's work.
template <class T>
void lookup_backward(Queue&, const Batch&) {}

template <class T>
void lookup_shared(Queue& queue, const Batch& batch) {
  if (batch.arguments[0].wants_grad) add_to_table<T>(queue, batch, known_ids(batch));
}

template <class T>
void lookup_ids_forward(Queue& queue, const Batch& batch) {
  LN_KERNEL_OF(kernel, "embedding", "lookup_ids_forward");
  const Piece &table = batch.arguments[0].pieces[0], &result = batch.result.matrix;
  LookupIdsArgs args{};
  args.fault = queue.fault(batch.fault);
  args.members = members_with_ids(queue, batch);
  args.table = table.value;
  args.rows = table.rows;
  args.ld = table.ld;
  args.result = result.value;
  args.result_ld = result.ld;
  const bool packs = in_packs<T>(table.value, table.ld, table.cols) && in_packs<T>(result.value, result.ld, table.cols);
  args.pack = packs ? 16 / sizeof(T) : 1;
  args.cols = table.cols / args.pack;
  args.lanes_log2 = lanes_log2_for(args.cols);
  queue.launch(kernel, blocks_for(args.members.units << args.lanes_log2, kThreads), kThreads, 0, args);
}

template <class T>
void lookup_ids_backward(Queue&, const Batch&) {}

template <class T>
void lookup_ids_shared(Queue& queue, const Batch& batch) {
  if (batch.arguments[0].wants_grad) add_to_table<T>(queue, batch, computed_ids<T>(queue, batch));
}

LN_INSTANTIATE_SHARED(lookup)
LN_INSTANTIATE_SHARED(lookup_ids)

#endif  // LN_DEVICE_CODE

}  // namespace lazynet::cuda
