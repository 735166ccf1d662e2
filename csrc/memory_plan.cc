#include "memory_plan.h"

#include <algorithm>

namespace lazynet {

void MatrixScan::add(char* address, int64_t rows, int64_t cols, int64_t ld) {
  elements_ += rows * cols;
  if (cols_ < 0) {
    cols_ = cols;
  } else if (cols != cols_) {
    same_cols_ = false;
  }
  if (rows == 0 || cols == 0) return;
  rows_ += rows;
  if (!adjacent_) return;
  const bool first = first_ == nullptr;
  if (first) {
    first_ = address;
    ld_ = ld;
  }
  if (flat_)
    adjacent_ = (first || address == next_) && (ld == cols || rows == 1);
  else
    adjacent_ = (first || (address == next_ && ld == ld_)) && same_cols_;
  next_ = address + (flat_ ? rows * cols : rows * ld) * static_cast<int64_t>(element_size_);
}

Piece MatrixScan::matrix() const {
  char* value = adjacent_ ? first_ : nullptr;
  if (flat_) return {value, nullptr, 1, elements_, elements_};
  return {value, nullptr, rows_, std::max<int64_t>(cols_, 0), adjacent_ && first_ ? ld_ : std::max<int64_t>(cols_, 0)};
}

namespace {

// Imagined buffers lie so far apart, and so far from real memory, that no two are ever adjacent.
char* imagined_address(int32_t buffer, int64_t offset) {
  return reinterpret_cast<char*>((int64_t{1} << 62) + (int64_t{buffer} << 44) + offset);
}

class Planner {
 public:
  Planner(NodeStore& nodes, const SignatureTable& signatures, std::size_t element_size, bool keep,
          const std::vector<int32_t>& readers)
      : nodes_(nodes),
        signatures_(signatures),
        element_size_(static_cast<int64_t>(element_size)),
        keep_(keep),
        readers_(readers),
        buffer_of_signature_(signatures.size(), -1),
        shared_bytes_(signatures.size(), 0) {}

  Plan make(Schedule schedule) {
    plan_.schedule = std::move(schedule);
    const int32_t batches = plan_.schedule.batches();
    plan_.batches.reserve(batches);
    for (int32_t b = 0; b < batches; ++b) add_batch(plan_.schedule.batch_begin[b], plan_.schedule.batch_begin[b + 1]);
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      plan_.value_bytes += plan_.buffers[i].bytes;
      if (keep_ || stays_[i] || unread_[i] > 0) plan_.buffers[i].last_batch = -1;
    }
    for (int64_t bytes : shared_bytes_) plan_.shared_scratch_bytes = std::max(plan_.shared_scratch_bytes, bytes);
    plan_.peak_bytes = peak();
    return std::move(plan_);
  }

 private:
  void add_batch(int32_t begin, int32_t end) {
    const NodeRecord& first = nodes_[plan_.schedule.order[begin]];
    BatchPlan batch{first.op, first.signature, begin, end, 0, 0, 0, static_cast<int32_t>(plan_.operands.size()),
                    0,        false,           false};
    batch.buffer = buffer_for(first.signature);
    batch.offset = plan_.buffers[batch.buffer].bytes;
    analyse_operands(&batch);
    place_members(&batch);
    plan_.batches.push_back(batch);
  }

  int32_t buffer_for(int32_t signature) {
    int32_t& known = buffer_of_signature_[signature];
    if (keep_ && known >= 0) return known;
    known = static_cast<int32_t>(plan_.buffers.size());
    plan_.buffers.emplace_back();
    plan_.buffers.back().first_batch = batch_number();
    plan_.buffers.back().last_batch = batch_number();
    unread_.push_back(0);
    stays_.push_back(0);
    return known;
  }

  void place_members(BatchPlan* batch) {
    BufferPlan& buffer = plan_.buffers[batch->buffer];
    for (int32_t i = batch->begin; i < batch->end; ++i) {
      const int32_t id = plan_.schedule.order[i];
      NodeRecord& node = nodes_[id];
      node.value = imagined_address(batch->buffer, buffer.bytes);
      nodes_.buffer[id] = batch->buffer;
      buffer.bytes += node.elements() * element_size_;
      unread_[batch->buffer] += readers_[id];
      stays_[batch->buffer] |= node.has(kTarget) || readers_[id] == 0;
    }
    batch->bytes = buffer.bytes - batch->offset;
  }

  void analyse_operands(BatchPlan* batch) {
    const OpInfo& op = op_info(batch->op);
    const NodeRecord& first = nodes_[plan_.schedule.order[batch->begin]];
    const bool list = op.maximum_arguments < 0;
    const int operands = list ? 1 : first.argument_count;
    int64_t scratch = 0;
    batch->flat_values = batch->flat_gradients = op.flat;
    for (int k = 0; k < operands; ++k) {
      const ArgumentInfo& info = op.arguments[k];
      MatrixScan scan(op.flat, element_size_);
      int64_t pieces = 0;
      uniform_ = true;
      first_read_ = -1;
      for (int32_t i = batch->begin; i < batch->end; ++i) {
        const NodeRecord& node = nodes_[plan_.schedule.order[i]];
        const int32_t* arguments = nodes_.arguments_of(node);
        for (int a = list ? 0 : k; a < (list ? node.argument_count : k + 1); ++a) {
          read(arguments[a], &scan);
          ++pieces;
        }
        // The buffer must live as long as any member reads it, so only the scan stops at the first.
        if (info.role == Role::kShared && i == batch->begin) shared_elements_ = scan.elements();
      }
      const bool shared = info.role == Role::kShared;
      OperandPlan operand{OperandMode::kShared, shared ? 1 : pieces,
                          (shared ? shared_elements_ : scan.elements()) * element_size_};
      if (!shared)
        operand.mode = scan.adjacent() ? OperandMode::kAdjacent
                       : info.packed   ? OperandMode::kGathered
                                       : OperandMode::kIndexed;
      const bool in_order = operand.mode == OperandMode::kAdjacent &&
                            signatures_.broadcast(batch->signature)[k] == kFull && nodes_[first_read_].elements() > 0;
      batch->flat_values = batch->flat_values && in_order;
      batch->flat_gradients = batch->flat_gradients && in_order && uniform_;
      if (operand.mode == OperandMode::kGathered) {
        scratch += aligned(operand.bytes);
        plan_.gathered_bytes += operand.bytes;
      }
      if (info.packed && op.has_shared && keep_) shared_bytes_[batch->signature] += aligned(operand.bytes);
      plan_.read_bytes += operand.bytes;
      plan_.operands.push_back(operand);
    }
    batch->operand_end = static_cast<int32_t>(plan_.operands.size());
    plan_.scratch_bytes = std::max(plan_.scratch_bytes, scratch);
  }

  void read(int32_t argument, MatrixScan* scan) {
    const NodeRecord& view = nodes_[argument];
    const NodeRecord& root = nodes_[view.root];
    scan->add(root.value + view.offset * element_size_, view.rows, view.cols, view.ld);
    if (first_read_ < 0) first_read_ = argument;
    const NodeRecord& first = nodes_[first_read_];
    uniform_ = uniform_ && !root.has(kComputed) && nodes_.buffer[view.root] == nodes_.buffer[first.root] &&
               view.has(kRequiresGrad) == first.has(kRequiresGrad);
    if (keep_ || root.has(kComputed)) return;
    const int32_t buffer = nodes_.buffer[view.root];
    plan_.buffers[buffer].last_batch = batch_number();
    --unread_[buffer];
  }

  int64_t peak() const {
    if (keep_) return plan_.value_bytes + plan_.scratch_bytes;
    std::vector<int64_t> change(plan_.batches.size() + 1, 0);
    for (const BufferPlan& buffer : plan_.buffers) {
      change[buffer.first_batch] += buffer.bytes;
      if (buffer.last_batch >= 0) change[buffer.last_batch + 1] -= buffer.bytes;
    }
    int64_t held = 0, most = 0;
    for (int64_t bytes : change) most = std::max(most, held += bytes);
    return most + plan_.scratch_bytes;
  }

  int32_t batch_number() const { return static_cast<int32_t>(plan_.batches.size()); }
  static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  NodeStore& nodes_;
  const SignatureTable& signatures_;
  const int64_t element_size_;
  const bool keep_;
  const std::vector<int32_t>& readers_;
  std::vector<int32_t> buffer_of_signature_;
  std::vector<int64_t> shared_bytes_;  // by signature: rows that one shared pass may have to gather
  std::vector<int64_t> unread_;        // by buffer: readers not in this plan
  std::vector<uint8_t> stays_;         // by buffer: holds a node that was asked for or that nothing reads
  int64_t shared_elements_ = 0;
  int32_t first_read_ = -1;  // of the operand at hand
  bool uniform_ = true;      // all that it has read lies in one new buffer, and wants gradients, as the first
  Plan plan_;
};

}  // namespace

Plan plan_memory(NodeStore& nodes, const SignatureTable& signatures, Schedule schedule, std::size_t element_size,
                 bool keep, const std::vector<int32_t>& readers) {
  return Planner(nodes, signatures, element_size, keep, readers).make(std::move(schedule));
}

}  // namespace lazynet
