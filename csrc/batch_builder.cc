#include "batch_builder.h"

#include <algorithm>
#include <chrono>

#include "error.h"

namespace lazynet {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

// ---- helpers of the builder

char* Scratch::take(std::size_t bytes) {
  char* result = memory_ + used_;
  used_ += aligned(bytes);
  if (used_ > bytes_)
    fail(LN_INTERNAL_ERROR, "executor: ", used_, " bytes of scratch are used and ", bytes_, " are planned");
  return result;
}

// ---- from what the plan knows

const Batch& BatchBuilder::build(const Plan& plan, const BatchPlan& planned, Phase phase) {
  const int32_t* members = plan.schedule.order.data() + planned.begin;
  const int64_t count = planned.end - planned.begin;
  const bool runs = planned.run_end > planned.run_begin;
  if (!matrices_suffice(plan, planned, phase)) {
    build(members, count, planned.signature, phase, planned.meeting);
    return op_->early ? point_at_early(plan.buffers[planned.buffer], planned.row_begin, true) : batch_;
  }
  start(planned.signature, count, nodes_[members[0]]);
  if (runs)
    build_runs(plan, planned, phase);
  else
    build_matrices(plan, planned, phase);
  return batch_;
}

void BatchBuilder::start(int32_t signature, int64_t members, const NodeRecord& first) {
  op_ = &op_info(graph_.signatures.op(signature));
  scratch.reset();
  batch_ = Batch{};
  batch_.op = op_->id;
  batch_.weights = weights();
  batch_.members = members;
  batch_.attributes = graph_.signatures.attributes(signature);
  batch_.broadcast = graph_.signatures.broadcast(signature);
  batch_.argument_count = op_->maximum_arguments < 0 ? 1 : first.argument_count;
  checks_ = meeting_ = false;
  layout_.clear();
}

// Whether the plan says all: stretches of a flat operator, or one matrix an operand, and where gradients go.
bool BatchBuilder::matrices_suffice(const Plan& plan, const BatchPlan& planned, Phase phase) const {
  const OpInfo& op = op_info(planned.op);
  const bool runs = planned.run_end > planned.run_begin;
  if (!runs && !op.matrices) return false;
  if (phase == Phase::kBackward && planned.meeting) return false;
  for (int32_t i = planned.operand_begin; i < planned.operand_end; ++i) {
    const OperandPlan& operand = plan.operands[i];
    if (operand.mode == OperandMode::kShared) continue;
    if (!runs && (operand.mode != OperandMode::kAdjacent || !operand.matrix.value)) return false;
    if (phase != Phase::kBackward || operand.gradients == Wish::kNone) continue;
    if (operand.gradients == Wish::kSome || !operand.in_plan) return false;
  }
  return true;
}

void BatchBuilder::build_runs(const Plan& plan, const BatchPlan& planned, Phase phase) {
  const BufferPlan& buffer = plan.buffers[planned.buffer];
  const int64_t elements = planned.bytes / size_;
  const bool backward = phase == Phase::kBackward;
  batch_.result.matrix = {buffer.value + planned.offset, backward ? buffer.grad + planned.offset : nullptr, 1, elements,
                          elements};
  for (int k = 0; k < batch_.argument_count; ++k) {
    const OperandPlan& operand = plan.operands[planned.operand_begin + k];
    batch_.arguments[k].wants_grad = backward && operand.gradients == Wish::kAll;
    batch_.arguments[k].overlapping = operand.overlapping;
  }
  batch_.run_count = planned.run_end - planned.run_begin;
  if (static_cast<int64_t>(runs_.size()) < batch_.run_count) runs_.resize(batch_.run_count);
  batch_.runs = runs_.data();
  int64_t begin = 0;
  for (int64_t i = 0; i < batch_.run_count; ++i) {
    const RunPlan& from = plan.runs[planned.run_begin + i];
    Run& run = runs_[i];
    run.begin = begin;
    run.elements = from.elements;
    for (int k = 0; k < batch_.argument_count; ++k) {
      run.value[k] = plan.value_at(from.argument[k]);
      run.grad[k] = batch_.arguments[k].wants_grad ? plan.grad_at(from.argument[k]) : nullptr;
    }
    begin += from.elements;
  }
}

void BatchBuilder::build_matrices(const Plan& plan, const BatchPlan& planned, Phase phase) {
  const NodeRecord& first = nodes_[plan.schedule.order[planned.begin]];
  const BufferPlan& buffer = plan.buffers[planned.buffer];
  const bool backward = phase == Phase::kBackward;
  const int64_t rows = planned.bytes / (size_ * std::max(first.cols, 1));
  batch_.result.matrix = {buffer.value + planned.offset, backward ? buffer.grad + planned.offset : nullptr, rows,
                          first.cols, first.cols};
  for (int k = 0; k < batch_.argument_count; ++k) {
    const OperandPlan& from = plan.operands[planned.operand_begin + k];
    if (from.mode == OperandMode::kShared) continue;
    Operand& operand = batch_.arguments[k];
    operand.matrix = from.matrix;
    operand.matrix.value = plan.value_at(static_cast<char*>(from.matrix.value));
    operand.wants_grad = backward && from.gradients == Wish::kAll;
    if (operand.wants_grad) operand.matrix.grad = plan.grad_at(static_cast<char*>(from.matrix.value));
    direct_grad_[k] = operand.matrix.grad;
  }
  point_at_shared(first, phase);
}

// The pieces of shared arguments, which are the same for all members.
void BatchBuilder::point_at_shared(const NodeRecord& member, Phase phase) {
  if (pieces_.size() < 4) pieces_.resize(4);
  for (int k = 0; k < batch_.argument_count; ++k) {
    if (op_->arguments[k].role != Role::kShared) continue;
    const int32_t id = nodes_.arguments_of(member)[k];
    Operand& operand = batch_.arguments[k];
    pieces_[k] = piece_of(id);
    operand.wants_grad = phase == Phase::kShared && nodes_[id].has(kRequiresGrad);
    if (operand.wants_grad) pieces_[k].grad = nodes_.root_of(id).grad + nodes_[id].offset * size_;
    operand.pieces = &pieces_[k];
    operand.count = 1;
    operand.identity = graph_.identity_of(id);
  }
}

const Batch* BatchBuilder::build_shared(const Plan& plan, const std::vector<int32_t>& batches) {
  const BatchPlan& head = plan.batches[batches[0]];
  const OpInfo& op = op_info(head.op);
  if (!op.matrices) return nullptr;
  const NodeRecord& first = nodes_[plan.schedule.order[head.begin]];
  int64_t members = 0, bytes = 0;
  Piece x[4] = {};
  for (const int32_t index : batches) {
    const BatchPlan& planned = plan.batches[index];
    if (!matrices_suffice(plan, planned, Phase::kForward)) return nullptr;
    for (int k = 0; k < first.argument_count; ++k) {
      if (op.arguments[k].role == Role::kShared) continue;
      Piece next = plan.operands[planned.operand_begin + k].matrix;
      next.value = plan.value_at(static_cast<char*>(next.value));
      const char* end = static_cast<char*>(x[k].value) + x[k].rows * x[k].ld * size_;
      if (!x[k].value)
        x[k] = next;
      else if (next.value == end && next.ld == x[k].ld)
        x[k].rows += next.rows;
      else
        return nullptr;
    }
    members += planned.end - planned.begin;
    bytes += planned.bytes;
  }
  start(head.signature, members, first);
  // A signature has one buffer, in which its batches lie in order.
  const BufferPlan& buffer = plan.buffers[head.buffer];
  batch_.result.matrix = {buffer.value + head.offset, buffer.grad + head.offset,
                          bytes / (size_ * std::max(first.cols, 1)), first.cols, first.cols};
  for (int k = 0; k < batch_.argument_count; ++k) batch_.arguments[k].matrix = x[k];
  point_at_shared(first, Phase::kShared);
  return &batch_;
}

// ---- member by member

const Batch& BatchBuilder::build(const int32_t* members, int64_t count, int32_t signature, Phase phase, bool meeting) {
  start(signature, count, nodes_[members[0]]);
  members_ = members;
  phase_ = phase;
  const bool list = op_->maximum_arguments < 0;
  reserve_pieces(list);
  build_result();
  checks_ = phase == Phase::kBackward && (adds_in_turn_ || meeting);
  if (checks_) overlap_.start();
  for (int k = 0; k < batch_.argument_count; ++k) build_argument(k, list);
  const bool overlapping = checks_ && overlap_.finish();
  meeting_ = overlapping && !adds_in_turn_;
  if (meeting_)
    keep_apart();
  else
    for (int k = 0; k < batch_.argument_count; ++k) batch_.arguments[k].overlapping |= overlapping;
  build_payload();
  if (op_->scratch_rule) take_working_memory();
  return batch_;
}

void BatchBuilder::take_working_memory() {
  const int64_t elements = working_elements(nodes_, graph_.signatures, members_, batch_.members);
  batch_.scratch = scratch.take(static_cast<std::size_t>(elements * size_));
}

const Batch& BatchBuilder::point_at_early(const BufferPlan& buffer, int64_t row, bool all) {
  const NodeRecord& first = nodes_[members_[0]];
  const int32_t* ids = nodes_.arguments_of(first);
  if (buffer.kept) batch_.kept = buffer.kept + row * nodes_[ids[0]].cols * size_;
  char* next = all ? buffer.early : nullptr;
  for (int32_t k = 1; next && k < first.argument_count; ++k) {
    if (!nodes_[ids[k]].has(kRequiresGrad)) continue;
    batch_.early[k] = next;
    next += aligned(nodes_[ids[k]].elements() * size_);
  }
  return batch_;
}

void BatchBuilder::reserve_pieces(bool list) {
  int64_t pieces = batch_.members;
  if (list)
    for (int64_t i = 0; i < batch_.members; ++i) pieces += nodes_[members_[i]].argument_count;
  else
    pieces *= 1 + batch_.argument_count;
  if (static_cast<int64_t>(pieces_.size()) < pieces) pieces_.resize(pieces);
  next_piece_ = pieces_.data();
  if (list && static_cast<int64_t>(begin_.size()) < batch_.members + 1) begin_.resize(batch_.members + 1);
}

void BatchBuilder::build_result() {
  const NodeRecord& first = nodes_[members_[0]];
  Operand& result = batch_.result;
  result.pieces = next_piece_;
  result.count = batch_.members;
  MatrixScan scan(op_->flat, size_);
  const int64_t to_grad = phase_ == Phase::kForward ? 0 : first.grad - first.value;
  for (int64_t i = 0; i < batch_.members; ++i) {
    const NodeRecord& node = nodes_[members_[i]];
    *next_piece_++ = {node.value, phase_ == Phase::kForward ? nullptr : node.value + to_grad, node.rows, node.cols,
                      node.ld};
    scan.add(node.value, node.rows, node.cols, node.ld);
  }
  result.matrix = scan.matrix();
  if (!scan.same_cols()) result.matrix = {nullptr, nullptr, 1, scan.elements(), scan.elements()};
  result.matrix.value = first.value;
  if (phase_ != Phase::kForward) result.matrix.grad = first.grad;
}

void BatchBuilder::build_argument(int k, bool list) {
  const ArgumentInfo& info = op_->arguments[k];
  const bool shared = info.role == Role::kShared;
  Operand& operand = batch_.arguments[k];
  operand.pieces = next_piece_;
  MatrixScan values(op_->flat, size_), grads(op_->flat, size_);
  if (phase_ != Phase::kForward && shared == (phase_ == Phase::kShared))
    operand.wants_grad = any_requires_grad(k, list);
  int64_t sinks = 0;
  const int64_t members = shared ? 1 : batch_.members;
  for (int64_t i = 0; i < members; ++i) {
    const NodeRecord& node = nodes_[members_[i]];
    if (list) begin_[i] = static_cast<int32_t>(next_piece_ - operand.pieces);
    const int32_t* arguments = nodes_.arguments_of(node);
    for (int a = list ? 0 : k; a < (list ? node.argument_count : k + 1); ++a) {
      Piece piece = piece_of(arguments[a]);
      values.add(static_cast<char*>(piece.value), piece.rows, piece.cols, piece.ld);
      if (operand.wants_grad) {
        piece.grad = grad_of(arguments[a], &sinks);
        grads.add(static_cast<char*>(piece.grad), piece.rows, piece.cols, piece.ld);
      }
      *next_piece_++ = piece;
    }
  }
  operand.count = next_piece_ - operand.pieces;
  if (shared) operand.identity = graph_.identity_of(nodes_.arguments_of(nodes_[members_[0]])[k]);
  if (list) {
    begin_[members] = static_cast<int32_t>(operand.count);
    operand.begin = begin_.data();
  }
  operand.overlapping = sink && sinks > 1;
  operand.matrix = values.matrix();
  if (info.packed)
    pack(k, values, grads);
  else
    join_gradients(k, grads);
}

// The matrix of an operand that is read through pieces stands for values and gradients both, or for neither.
void BatchBuilder::join_gradients(int k, const MatrixScan& grads) {
  Operand& operand = batch_.arguments[k];
  if (!operand.wants_grad) return;
  operand.matrix.grad = grads.matrix().value;
  if (!operand.matrix.grad) operand.matrix.value = nullptr;
}

// The kernel needs one matrix: gathers values where it reads them and makes room for gradients.
void BatchBuilder::pack(int k, const MatrixScan& values, const MatrixScan& grads) {
  Operand& operand = batch_.arguments[k];
  const std::size_t bytes = values.elements() * size_;
  Piece direct = grads.matrix();
  // Backward reads values only where it makes what forward has not kept; both matrices then have one stride.
  const bool again = phase_ == Phase::kBackward && op_->early && !graph_.backend.makes_early_gradients();
  if (again && !(operand.matrix.value && direct.value)) {
    if (operand.matrix.ld != operand.matrix.cols) operand.matrix.value = nullptr;
    if (direct.ld != direct.cols) direct.value = nullptr;
  }
  if (!operand.matrix.value && (phase_ != Phase::kBackward || again)) {
    if (graph_.profiling) graph_.backend.finish();
    const double start = graph_.profiling ? now() : 0;
    operand.matrix.value = scratch.take(bytes);
    operand.matrix.ld = operand.matrix.cols;
    graph_.backend.gather(graph_.options.dtype, operand.pieces, operand.count, operand.matrix.value, operand.matrix.ld);
    ++gathers;
    gathered_bytes += static_cast<int64_t>(bytes);
    if (graph_.profiling) {
      graph_.backend.finish();
      gather_seconds += now() - start;
    }
  }
  if (!operand.wants_grad) return;
  direct_grad_[k] = direct.value;
  operand.matrix.grad = direct.value;
  operand.matrix.ld = direct.ld;
  if (!direct.value) {
    operand.matrix.grad = scratch.take(bytes);
    operand.matrix.ld = operand.matrix.cols;
    graph_.backend.zero(operand.matrix.grad, bytes);
  }
}

// Gives gradients that would share memory memory of their own; scatter() adds them to where they belong.
void BatchBuilder::keep_apart() {
  apart_.clear();
  for (int k = 0; k < batch_.argument_count; ++k) {
    Operand& operand = batch_.arguments[k];
    if (!operand.wants_grad || op_->arguments[k].packed) continue;
    const bool list = operand.begin != nullptr;
    Piece* piece = pieces_.data() + (operand.pieces - pieces_.data());
    const std::size_t before = apart_.size();
    for (int64_t i = 0; i < batch_.members; ++i) {
      const NodeRecord& node = nodes_[members_[i]];
      const int32_t* ids = nodes_.arguments_of(node) + (list ? 0 : k);
      for (const int32_t* end = ids + (list ? node.argument_count : 1); ids != end; ++ids, ++piece) {
        if (!piece->grad || !overlap_.meets(nodes_[*ids].root)) continue;
        apart_.emplace_back(piece, layout_.add(piece->rows, piece->cols, piece->ld));
      }
    }
    if (apart_.size() > before) operand.matrix.value = operand.matrix.grad = nullptr;
  }
  apart_memory_.clear();
  std::size_t bytes = 0;
  for (const ApartLayout::Group& group : layout_.groups()) {
    apart_memory_.push_back(scratch.take(static_cast<std::size_t>(group.bytes(size_))));
    bytes += static_cast<std::size_t>(group.bytes(size_));
  }
  if (apart_memory_.empty()) return;
  graph_.backend.zero(apart_memory_[0], bytes);  // one group lies behind another
  if (apart_targets_.size() < apart_memory_.size()) apart_targets_.resize(apart_memory_.size());
  for (std::vector<Piece>& targets : apart_targets_) targets.clear();
  for (const auto& [piece, place] : apart_) {
    const ApartLayout::Group& group = layout_.groups()[place.group];
    apart_targets_[place.group].push_back(*piece);
    piece->ld = group.ld;
    piece->grad = apart_memory_[place.group] + place.row * group.ld * size_;
  }
}

Piece BatchBuilder::piece_of(int32_t id) const {
  const NodeRecord& node = nodes_[id];
  return {nodes_[node.root].value + node.offset * size_, nullptr, node.rows, node.cols, node.ld};
}

char* BatchBuilder::grad_of(int32_t id, int64_t* sinks) {
  const NodeRecord& node = nodes_[id];
  if (!node.has(kRequiresGrad)) {
    ++*sinks;
    return sink;
  }
  if (checks_) overlap_.add(id);
  char* grad = nodes_[node.root].grad;
  return grad ? grad + node.offset * size_ : nullptr;  // null: a sparse table
}

bool BatchBuilder::any_requires_grad(int k, bool list) const {
  for (int64_t i = 0; i < batch_.members; ++i) {
    const NodeRecord& node = nodes_[members_[i]];
    const int32_t* arguments = nodes_.arguments_of(node);
    for (int a = list ? 0 : k; a < (list ? node.argument_count : k + 1); ++a)
      if (nodes_[arguments[a]].has(kRequiresGrad)) return true;
    if (op_->arguments[k].role == Role::kShared) break;
  }
  return false;
}

void BatchBuilder::build_payload() {
  payload_.resize(batch_.members);
  for (int64_t i = 0; i < batch_.members; ++i) payload_[i] = nodes_.payload_of(nodes_[members_[i]]);
  batch_.payload = payload_.data();
}

bool BatchBuilder::build_inputs(const int32_t* members, int64_t count, bool backward, bool meeting,
                                std::vector<Piece>* inputs) {
  const int32_t arguments = nodes_[members[0]].argument_count;
  inputs->resize(static_cast<std::size_t>(count * arguments));
  const bool checks = backward && (adds_in_turn_ || meeting);
  if (checks) overlap_.start();
  for (int64_t i = 0; i < count; ++i) {
    const int32_t* ids = nodes_.arguments_of(nodes_[members[i]]);
    for (int32_t k = 0; k < arguments; ++k) {
      Piece& piece = (*inputs)[static_cast<std::size_t>(k * count + i)];
      piece = piece_of(ids[k]);
      // A cell may have arguments that the loss does not depend on.
      if (!backward || !nodes_[ids[k]].has(kRequiresGrad) || !nodes_[ids[k]].has(kReached)) continue;
      piece.grad = nodes_.root_of(ids[k]).grad + nodes_[ids[k]].offset * size_;
      if (checks) overlap_.add(ids[k]);
    }
  }
  return checks && overlap_.finish();
}

void BatchBuilder::scatter(const Batch& batch) {
  for (int k = 0; k < batch.argument_count; ++k) {
    const Operand& operand = batch.arguments[k];
    if (!op_->arguments[k].packed || !operand.wants_grad || operand.matrix.grad == direct_grad_[k]) continue;
    graph_.backend.scatter_add(graph_.options.dtype, operand.matrix.grad, operand.matrix.ld, operand.pieces,
                               operand.count, operand.overlapping || meeting_);
  }
  for (std::size_t g = 0; g < layout_.groups().size(); ++g)
    graph_.backend.scatter_add(graph_.options.dtype, apart_memory_[g], layout_.groups()[g].ld, apart_targets_[g].data(),
                               static_cast<int64_t>(apart_targets_[g].size()), true);
}

void run_shared_kernel(Backend& backend, int dtype, const Batch& batch) {
  // The gradients of two shared arguments, from their first byte to their last.
  const auto meet = [&](int a, int b) {
    if (!batch.arguments[a].wants_grad || !batch.arguments[b].wants_grad) return false;
    const auto range = [&](int k) {
      const Piece& piece = batch.arguments[k].pieces[0];
      const auto* begin = static_cast<const char*>(piece.grad);
      const int64_t elements = piece.rows > 0 ? (piece.rows - 1) * piece.ld + piece.cols : 0;
      return std::pair(begin, begin + elements * static_cast<int64_t>(element_size(dtype)));
    };
    return range(a).first < range(b).second && range(b).first < range(a).second;
  };
  bool meeting = false;
  if (!backend.adds_in_turn())
    for (int k = 1; k < batch.argument_count; ++k)
      for (int j = 0; j < k; ++j) meeting = meeting || meet(j, k);
  if (!meeting) return backend.shared(dtype, batch);
  for (int k = 0; k < batch.argument_count; ++k) {
    if (!batch.arguments[k].wants_grad) continue;
    Batch one = batch;
    for (int j = 0; j < batch.argument_count; ++j) one.arguments[j].wants_grad = j == k;
    backend.shared(dtype, one);
  }
}

}  // namespace lazynet
