#include "memory_plan.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "cell.h"
#include "error.h"
#include "memory_resource.h"
#include "overlap_check.h"

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
  adjacent_ = adjacent_ && address;
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

// Looks at the members of a flat operator in turn and joins those that lie one after another in all arguments.
class RunScan {
 public:
  RunScan(std::vector<RunPlan>* runs, int arguments, int64_t element_size)
      : runs_(*runs), begin_(runs->size()), arguments_(arguments), element_size_(element_size) {}

  // One member: `at[k]` is where argument k starts, its rows `ld[k]` elements apart.
  void add(char* const* at, const int64_t* ld, int64_t rows, int64_t cols) {
    bool dense = true;
    for (int k = 0; k < arguments_; ++k) dense = dense && (ld[k] == cols || rows <= 1);
    if (rows == 0 || cols == 0) return;
    if (dense) {
      cols *= rows;
      rows = 1;
    }
    for (int64_t row = 0; row < rows; ++row) {
      RunPlan run{cols, {}};
      for (int k = 0; k < arguments_; ++k) run.argument[k] = at[k] + row * ld[k] * element_size_;
      add_stretch(run);
    }
  }
  // Argument k lies in one stretch.
  bool adjacent(int k) const { return adjacent_[k]; }
  // Whether stretches of argument k share memory.
  bool overlapping(int k) const {
    if (ascending_[k]) return false;
    std::vector<std::pair<char*, int64_t>> sorted;
    for (std::size_t i = begin_; i < runs_.size(); ++i) sorted.emplace_back(runs_[i].argument[k], runs_[i].elements);
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 1; i < sorted.size(); ++i)
      if (sorted[i].first < sorted[i - 1].first + sorted[i - 1].second * element_size_) return true;
    return false;
  }

 private:
  void add_stretch(const RunPlan& run) {
    bool extends = runs_.size() > begin_;
    if (extends) {
      const int64_t bytes = runs_.back().elements * element_size_;
      for (int k = 0; k < arguments_; ++k) {
        char* end = runs_.back().argument[k] + bytes;
        adjacent_[k] = adjacent_[k] && run.argument[k] == end;
        ascending_[k] = ascending_[k] && run.argument[k] >= end;
        extends = extends && run.argument[k] == end;
      }
    }
    if (extends)
      runs_.back().elements += run.elements;
    else
      runs_.push_back(run);
  }

  std::vector<RunPlan>& runs_;
  const std::size_t begin_;
  const int arguments_;
  const int64_t element_size_;
  bool adjacent_[2] = {true, true}, ascending_[2] = {true, true};
};

class Planner {
 public:
  Planner(NodeStore& nodes, const SignatureTable& signatures, const PlanOptions& options,
          const std::vector<int32_t>& readers)
      : nodes_(nodes),
        signatures_(signatures),
        options_(options),
        element_size_(static_cast<int64_t>(options.element_size)),
        keep_(readers.empty()),
        readers_(readers),
        buffer_of_signature_(signatures.size(), -1),
        shared_bytes_(signatures.size(), 0) {}

  Plan make(Schedule schedule) {
    if (keep_ && !options_.adds_in_turn) overlap_ = std::make_unique<OverlapCheck>(nodes_, true);
    plan_.schedule = std::move(schedule);
    const int32_t batches = plan_.schedule.batches();
    plan_.batches.reserve(batches);
    for (int32_t b = 0; b < batches; ++b) add_batch(plan_.schedule.batch_begin[b], plan_.schedule.batch_begin[b + 1]);
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      plan_.value_bytes += plan_.buffers[i].bytes + plan_.buffers[i].kept_bytes + plan_.buffers[i].early_bytes;
      if (keep_ || stays_[i] || unread_[i] > 0) plan_.buffers[i].last_batch = -1;
    }
    for (int64_t bytes : shared_bytes_) plan_.shared_scratch_bytes = std::max(plan_.shared_scratch_bytes, bytes);
    plan_.peak_bytes = peak();
    return std::move(plan_);
  }

 private:
  void add_batch(int32_t begin, int32_t end) {
    const NodeRecord& first = nodes_[plan_.schedule.order[begin]];
    const auto operands = static_cast<int32_t>(plan_.operands.size());
    const auto runs = static_cast<int32_t>(plan_.runs.size());
    BatchPlan batch{first.op, first.signature, begin, end, 0, 0, 0, operands, operands, 0, 0, runs, runs, false};
    batch.buffer = buffer_for(first.signature);
    batch.offset = plan_.buffers[batch.buffer].bytes;
    if (in_runs(batch))
      analyse_runs(&batch);
    else
      analyse_operands(&batch);
    batch.operand_end = static_cast<int32_t>(plan_.operands.size());
    batch.run_end = static_cast<int32_t>(plan_.runs.size());
    if (batch.op == kOp_cell) plan_cell(&batch);
    if (op_info(batch.op).early) plan_early(&batch);
    if (overlap_) plan_apart(&batch);
    place_members(&batch);
    plan_.batches.push_back(batch);
  }

  int32_t buffer_for(int32_t signature) {
    int32_t& known = buffer_of_signature_[signature];
    if (keep_ && known >= 0 && takes_more(signature, plan_.buffers[known])) return known;
    if (static_cast<int64_t>(plan_.buffers.size()) == Place::kBuffers)
      fail(LN_GRAPH_ERROR, "plan: it has more than ", Place::kBuffers,
           " buffers; run forward on fewer nodes at a time");
    known = static_cast<int32_t>(plan_.buffers.size());
    plan_.buffers.emplace_back();
    plan_.buffers.back().first_batch = batch_number();
    plan_.buffers.back().last_batch = batch_number();
    unread_.push_back(0);
    stays_.push_back(0);
    return known;
  }

  // Whether the next batch of a signature goes to the same buffer. Of what has shared arguments all must; else
  // gradients of large buffers live the shorter the fewer batches they belong to.
  bool takes_more(int32_t signature, const BufferPlan& buffer) const {
    constexpr int64_t kLargeBytes = int64_t{1} << 18;
    return buffer.bytes < kLargeBytes || op_info(signatures_.op(signature)).has_shared;
  }

  void count_rows(BatchPlan* batch) {
    BufferPlan& buffer = plan_.buffers[batch->buffer];
    batch->row_begin = buffer.rows;
    for (int32_t i = batch->begin; i < batch->end; ++i) buffer.rows += nodes_[plan_.schedule.order[i]].rows;
    batch->row_end = buffer.rows;
  }

  void plan_early(BatchPlan* batch) {
    count_rows(batch);
    if (!keep_ || !options_.makes_early_gradients) return;
    BufferPlan& buffer = plan_.buffers[batch->buffer];
    const NodeRecord& first = nodes_[plan_.schedule.order[batch->begin]];
    const int32_t* ids = nodes_.arguments_of(first);
    if (plan_.operands[batch->operand_begin].gradients != Wish::kNone || buffer.kept_bytes)
      buffer.kept_bytes = buffer.rows * nodes_[ids[0]].cols * element_size_;
    buffer.early_bytes = 0;
    for (int32_t k = 1; k < first.argument_count; ++k)
      if (nodes_[ids[k]].has(kRequiresGrad)) buffer.early_bytes += aligned(nodes_[ids[k]].elements() * element_size_);
  }

  void plan_cell(BatchPlan* batch) {
    const Cell& cell = *find_cell(static_cast<int32_t>(signatures_.attributes(batch->signature)[0]));
    BufferPlan& buffer = plan_.buffers[batch->buffer];
    count_rows(batch);
    // Without backward what is kept lives as long as the batch.
    const int64_t scratch_cols = keep_ ? cell.passing_grad_cols : cell.kept_cols;
    plan_.scratch_bytes =
        std::max(plan_.scratch_bytes, aligned((batch->row_end - batch->row_begin) * scratch_cols * element_size_));
    if (!keep_) return;
    buffer.kept_bytes = buffer.rows * cell.kept_cols * element_size_;
    buffer.kept_grad_bytes = buffer.rows * cell.kept_grad_cols * element_size_;
  }

  // Which gradients of arguments share memory, and what it takes to keep them apart.
  void plan_apart(BatchPlan* batch) {
    overlap_->start();
    for_arguments(*batch, [&](int, int32_t id) { overlap_->add(id); });
    batch->meeting = overlap_->finish();
    int64_t bytes = 0;
    if (batch->op == kOp_cell) {
      const Cell& cell = *find_cell(static_cast<int32_t>(signatures_.attributes(batch->signature)[0]));
      const int64_t rows = batch->row_end - batch->row_begin;
      bytes = aligned(rows * cell.passing_grad_cols * element_size_);
      if (batch->meeting) bytes += cell.argument_bytes(rows, element_size_);
    } else {
      bytes = aligned(working_elements(nodes_, signatures_, batch_members(*batch), batch_size(*batch)) * element_size_);
      for (int32_t i = batch->operand_begin; i < batch->operand_end; ++i) {
        // What is gathered for a kernel: gradients, and values where the kernel computes again what forward has not
        // kept.
        if (!op_info(batch->op).arguments[i - batch->operand_begin].packed) continue;
        const bool reads = op_info(batch->op).early && !options_.makes_early_gradients;
        bytes += (reads ? 2 : 1) * aligned(plan_.operands[i].bytes);
      }
      if (batch->meeting) {
        layout_.clear();
        for_arguments(*batch, [&](int k, int32_t id) {
          const NodeRecord& node = nodes_[id];
          if (!op_info(batch->op).arguments[k].packed && overlap_->meets(node.root))
            layout_.add(node.rows, node.cols, node.ld);
        });
        bytes += layout_.bytes(element_size_);
      }
    }
    plan_.apart_scratch_bytes = std::max(plan_.apart_scratch_bytes, bytes);
  }

  // Calls function(operand, node) for the members' arguments that get gradients, shared ones excepted.
  template <class Function>
  void for_arguments(const BatchPlan& batch, const Function& function) const {
    const OpInfo& op = op_info(batch.op);
    for (int32_t i = batch.begin; i < batch.end; ++i) {
      const NodeRecord& node = nodes_[plan_.schedule.order[i]];
      if (!node.has(kRequiresGrad)) continue;
      const int32_t* ids = nodes_.arguments_of(node);
      for (int32_t a = 0; a < node.argument_count; ++a) {
        const int k = operand_of(op, a);
        if (op.arguments[k].role != Role::kShared && nodes_[ids[a]].has(kRequiresGrad)) function(k, ids[a]);
      }
    }
  }

  void place_members(BatchPlan* batch) {
    BufferPlan& buffer = plan_.buffers[batch->buffer];
    for (int32_t i = batch->begin; i < batch->end; ++i) {
      const int32_t id = plan_.schedule.order[i];
      NodeRecord& node = nodes_[id];
      node.value = Place::of(batch->buffer, buffer.bytes);
      nodes_.buffer[id] = batch->buffer;
      buffer.bytes += node.elements() * element_size_;
      if (keep_) continue;
      unread_[batch->buffer] += readers_[id];
      stays_[batch->buffer] |= node.has(kTarget) || readers_[id] == 0;
    }
    batch->bytes = buffer.bytes - batch->offset;
  }

  // Elements of a flat operator are independent, so members whose arguments have their shape are stretches only.
  bool in_runs(const BatchPlan& batch) const {
    if (!op_info(batch.op).flat) return false;
    const int arguments = nodes_[plan_.schedule.order[batch.begin]].argument_count;
    for (int k = 0; k < arguments; ++k)
      if (signatures_.broadcast(batch.signature)[k] != kFull) return false;
    return true;
  }

  void analyse_runs(BatchPlan* batch) {
    const int arguments = nodes_[plan_.schedule.order[batch->begin]].argument_count;
    RunScan scan(&plan_.runs, arguments, element_size_);
    ArgumentScan read[2];
    int64_t elements = 0;
    for (int32_t i = batch->begin; i < batch->end; ++i) {
      const NodeRecord& node = nodes_[plan_.schedule.order[i]];
      const int32_t* ids = nodes_.arguments_of(node);
      char* at[2];
      int64_t ld[2];
      for (int k = 0; k < arguments; ++k) {
        at[k] = look_at(ids[k], &read[k]);
        ld[k] = nodes_[ids[k]].ld;
      }
      scan.add(at, ld, node.rows, node.cols);
      elements += node.elements();
    }
    for (int k = 0; k < arguments; ++k) {
      OperandPlan operand{};
      operand.mode = scan.adjacent(k) ? OperandMode::kAdjacent : OperandMode::kIndexed;
      operand.gradients = read[k].gradients();
      operand.in_plan = read[k].in_plan;
      operand.overlapping = keep_ && !overlap_ && operand.gradients != Wish::kNone && scan.overlapping(k);
      operand.pieces = batch->end - batch->begin;
      operand.bytes = elements * element_size_;
      plan_.read_bytes += operand.bytes;
      plan_.operands.push_back(operand);
    }
  }

  void analyse_operands(BatchPlan* batch) {
    const OpInfo& op = op_info(batch->op);
    const bool list = op.maximum_arguments < 0;
    const int operands = list ? 1 : nodes_[plan_.schedule.order[batch->begin]].argument_count;
    int64_t scratch = 0;
    for (int k = 0; k < operands; ++k) {
      const ArgumentInfo& info = op.arguments[k];
      const bool shared = info.role == Role::kShared;
      MatrixScan scan(op.flat, element_size_);
      ArgumentScan read;
      OperandPlan operand{};
      for (int32_t i = batch->begin; i < batch->end; ++i) {
        const NodeRecord& node = nodes_[plan_.schedule.order[i]];
        const int32_t* ids = nodes_.arguments_of(node);
        for (int a = list ? 0 : k; a < (list ? node.argument_count : k + 1); ++a) {
          char* at = look_at(ids[a], &read);
          // The buffer must live as long as any member reads it, so only the scan stops at the first.
          if (shared && i > batch->begin) continue;
          const NodeRecord& view = nodes_[ids[a]];
          scan.add(at, view.rows, view.cols, view.ld);
          ++operand.pieces;
        }
      }
      const bool cell = batch->op == kOp_cell;  // copies its arguments to the values that it keeps
      operand.mode = shared                     ? OperandMode::kShared
                     : scan.adjacent() && !cell ? OperandMode::kAdjacent
                     : info.packed || cell      ? OperandMode::kGathered
                                                : OperandMode::kIndexed;
      operand.gradients = read.gradients();
      operand.in_plan = read.in_plan;
      operand.bytes = scan.elements() * element_size_;
      operand.matrix = scan.matrix();
      if (operand.mode == OperandMode::kGathered) {
        if (!cell) scratch += aligned(operand.bytes);
        plan_.gathered_bytes += operand.bytes;
      }
      if (info.packed && op.has_shared && keep_) shared_bytes_[batch->signature] += aligned(operand.bytes);
      plan_.read_bytes += operand.bytes;
      plan_.operands.push_back(operand);
    }
    const int64_t working =
        aligned(working_elements(nodes_, signatures_, batch_members(*batch), batch_size(*batch)) * element_size_);
    if (keep_) shared_bytes_[batch->signature] += working;
    plan_.scratch_bytes = std::max(plan_.scratch_bytes, scratch + working);
  }

  const int32_t* batch_members(const BatchPlan& batch) const { return plan_.schedule.order.data() + batch.begin; }
  static int64_t batch_size(const BatchPlan& batch) { return batch.end - batch.begin; }

  // What all members' arguments at one position have in common.
  struct ArgumentScan {
    bool in_plan = true, some = false, all = true;
    Wish gradients() const { return all ? Wish::kAll : some ? Wish::kSome : Wish::kNone; }
  };

  // The place of an argument that the batch at hand reads.
  char* look_at(int32_t argument, ArgumentScan* scan) {
    const NodeRecord& view = nodes_[argument];
    const NodeRecord& root = nodes_[view.root];
    scan->in_plan = scan->in_plan && !root.has(kComputed);
    (view.has(kRequiresGrad) ? scan->some : scan->all) = view.has(kRequiresGrad);
    if (!keep_ && !root.has(kComputed)) {
      const int32_t buffer = nodes_.buffer[view.root];
      plan_.buffers[buffer].last_batch = batch_number();
      --unread_[buffer];
    }
    return root.value + view.offset * element_size_;
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

  NodeStore& nodes_;
  const SignatureTable& signatures_;
  const PlanOptions options_;
  const int64_t element_size_;
  const bool keep_;
  const std::vector<int32_t>& readers_;
  std::vector<int32_t> buffer_of_signature_;
  std::vector<int64_t> shared_bytes_;      // by signature: rows that one shared pass may have to gather
  std::vector<int64_t> unread_;            // by buffer: readers not in this plan
  std::vector<uint8_t> stays_;             // by buffer: holds a node that was asked for or that nothing reads
  std::unique_ptr<OverlapCheck> overlap_;  // null: gradients may share memory, or there will be none
  ApartLayout layout_;
  Plan plan_;
};

}  // namespace

int64_t working_elements(const NodeStore& nodes, const SignatureTable& signatures, const int32_t* members,
                         int64_t count) {
  const NodeRecord& first = nodes[members[0]];
  const OpInfo& op = op_info(first.op);
  if (!op.scratch_rule) return 0;
  Shape shapes[4];
  for (int32_t k = 0; k < first.argument_count; ++k) shapes[k] = nodes[nodes.arguments_of(first)[k]].shape();
  int64_t rows = 0;
  for (int64_t i = 0; i < count; ++i) rows += nodes[nodes.arguments_of(nodes[members[i]])[0]].rows;
  return op.scratch_rule({count, rows, shapes, signatures.attributes(first.signature)});
}

Plan plan_memory(NodeStore& nodes, const SignatureTable& signatures, Schedule schedule, const PlanOptions& options,
                 const std::vector<int32_t>& readers) {
  return Planner(nodes, signatures, options, readers).make(std::move(schedule));
}

}  // namespace lazynet
