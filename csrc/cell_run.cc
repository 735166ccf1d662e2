#include "cell_run.h"

#include <algorithm>
#include <utility>

namespace lazynet {

using Kind = CellValue::Kind;

CellRun::CellRun(Graph& graph, const Cell& cell, const CellUse& use, const BufferPlan& buffer, int64_t begin,
                 int64_t end, WeightCache* weights)
    : graph_(graph),
      cell_(cell),
      use_(use),
      buffer_(buffer),
      begin_(begin),
      rows_(end - begin),
      size_(static_cast<int64_t>(graph.element_bytes())),
      weights_(weights),
      kept_(buffer.kept),
      kept_rows_(buffer.rows),
      kept_begin_(begin) {}

// ---- where things are

Piece CellRun::matrix(int32_t value) const {
  const CellValue& v = cell_.values[value];
  if (v.kind == Kind::kParameter) {
    const Parameter& parameter = *cell_.parameters[v.number];
    return {parameter.value(), graph_.nodes[use_.parameter_nodes[v.number]].grad, v.rows, v.cols, v.cols};
  }
  const CellValue& root = cell_.values[v.root];
  char* base;
  int64_t ld;
  if (root.place == CellValue::Place::kResult) {
    ld = cell_.result_cols;
    base = buffer_.value + (begin_ * ld + root.value_col) * size_;
  } else {
    ld = root.cols;
    base = kept_ + (kept_rows_ * root.value_col + kept_begin_ * ld) * size_;
  }
  return {base + v.col * size_, nullptr, rows_, v.cols, ld};
}

int64_t CellRun::gradient_ld(int32_t value) const {
  const CellValue& root = cell_.root_of(value);
  return root.place == CellValue::Place::kResult ? cell_.result_cols : root.cols;
}

void* CellRun::gradient(int32_t value) const {
  const CellValue& v = cell_.values[value];
  const CellValue& root = cell_.values[v.root];
  if (root.place == CellValue::Place::kResult)
    return buffer_.grad + (begin_ * cell_.result_cols + root.value_col + v.col) * size_;
  if (root.grad_col < 0 || (!root.keeps_gradient && !passing_)) return nullptr;
  char* base = root.keeps_gradient ? buffer_.kept_grad + (buffer_.rows * root.grad_col + begin_ * root.cols) * size_
                                   : passing_ + rows_ * root.grad_col * size_;
  return base + v.col * size_;
}

bool CellRun::wants_gradient(int32_t value) const {
  const CellValue& v = cell_.values[value];
  if (v.kind != Kind::kParameter) return true;
  const NodeRecord& parameter = graph_.nodes[use_.parameter_nodes[v.number]];
  return parameter.has(kRequiresGrad) && parameter.has(kReached);
}

// ---- steps

// A kernel of the table sees the rows as one member.
void CellRun::fill(Batch* batch, const CellStep& step, bool backward) {
  const OpInfo& op = op_info(step.op);
  const bool list = op.maximum_arguments < 0;
  const std::size_t count = step.arguments.size();
  pieces_.resize(count + 1);
  Piece& result = pieces_[count];
  result = matrix(step.result);
  if (backward) result.grad = gradient(step.result);
  batch->op = step.op;
  batch->members = 1;
  batch->attributes = step.attributes.data();
  batch->weights = weights_;
  batch->result.pieces = &result;
  batch->result.count = 1;
  batch->result.matrix = result;
  batch->argument_count = list ? 1 : static_cast<int>(count);
  for (std::size_t k = 0; k < count; ++k) {
    const int32_t value = step.arguments[k];
    const bool parameter = cell_.values[value].kind == Kind::kParameter;
    pieces_[k] = matrix(value);
    if (!parameter) pieces_[k].grad = backward ? gradient(value) : nullptr;
    if (list) continue;
    Operand& operand = batch->arguments[k];
    operand.pieces = &pieces_[k];
    operand.count = 1;
    operand.matrix = pieces_[k];
    operand.wants_grad = backward && !parameter;
    operand.overwrite = step.overwrites.size() > k && step.overwrites[k];
    if (parameter) operand.identity = graph_.identity_of(use_.parameter_nodes[cell_.values[value].number]);
  }
  if (!list) return;
  begins_ = {0, static_cast<int32_t>(count)};
  batch->arguments[0].pieces = pieces_.data();
  batch->arguments[0].count = static_cast<int64_t>(count);
  batch->arguments[0].begin = begins_.data();
  batch->arguments[0].wants_grad = backward;
}

// A copy of the weights (argument 1) or biases (2) of stacked linears, one beside another; without a value where there
// is no memory for it.
Piece CellRun::side_by_side(const CellStep& step, int argument, int64_t* identity) {
  const CellStep& first = step.stacked[0];
  const bool below = argument == 1 && first.attributes[0] != 0;  // weights kept as (out, in)
  Piece whole = matrix(first.arguments[argument]);
  (below ? whole.rows : whole.cols) = cell_.values[step.result].cols;
  whole.ld = whole.cols;
  // For later runs only where each of them is: the youngest of versions changes with any.
  int64_t youngest = 0, node = 0;
  for (const CellStep& part : step.stacked) {
    const int64_t own = graph_.identity_of(use_.parameter_nodes[cell_.values[part.arguments[argument]].number]);
    youngest = std::min(youngest, own);
    node = std::max(node, own);
  }
  *identity = node > 0 ? node : youngest;
  const WeightCache::Key key{*identity, nullptr, cell_.id, &step - cell_.steps.data(), argument, false};
  whole.value = weights_->find(key);
  if (whole.value) return whole;
  auto* to = static_cast<char*>(weights_->add(key, static_cast<std::size_t>(whole.rows * whole.cols * size_)));
  whole.value = to;
  if (!to) return whole;
  for (const CellStep& part : step.stacked) {
    const Piece from = matrix(part.arguments[argument]);
    graph_.backend.gather(graph_.options.dtype, &from, 1, to, whole.ld);
    to += (below ? from.rows * whole.ld : from.cols) * size_;
  }
  return whole;
}

bool CellRun::fill_stacked(Batch* batch, const CellStep& step, bool backward) {
  fill(batch, step.stacked[0], backward);
  for (int k = 1; k < batch->argument_count; ++k) {
    pieces_[k] = side_by_side(step, k, &batch->arguments[k].identity);
    if (!pieces_[k].value) return false;
    batch->arguments[k].matrix = pieces_[k];
  }
  batch->arguments[0].overwrite = backward && step.overwrites[0];
  Piece& result = pieces_[batch->argument_count];
  result = matrix(step.result);
  if (backward) result.grad = gradient(step.result);
  batch->result.matrix = result;
  return true;
}

// The batch of a step; of stacked linears, where there is no memory to put their weights together, that of each.
template <class Function>
void CellRun::for_batches(const CellStep& step, bool backward, const Function& run) {
  Batch batch{};
  if (step.stacked.empty()) {
    fill(&batch, step, backward);
    return run(batch);
  }
  if (fill_stacked(&batch, step, backward)) return run(batch);
  for (const CellStep& part : step.stacked) {
    Batch single{};
    fill(&single, part, backward);
    single.arguments[0].overwrite = backward && step.overwrites[0] && &part == step.stacked.data();
    run(single);
  }
}

void CellRun::point_at_rows(const std::vector<Piece>& inputs, bool backward) {
  const std::size_t count = cell_.inputs.size(), rows = static_cast<std::size_t>(rows_);
  const std::size_t members = inputs.size() / std::max<std::size_t>(count, 1);
  if (apart_) graph_.backend.zero(apart_, static_cast<std::size_t>(cell_.argument_bytes(rows_, size_)));
  char* apart = apart_;
  value_rows_.resize(count * rows);
  grad_rows_.assign(backward ? count * rows : 0, nullptr);
  for (std::size_t k = 0; k < count; ++k) {
    const CellValue& input = cell_.values[cell_.inputs[k]];
    if (input.place != CellValue::Place::kArgument) continue;
    const int64_t row_bytes = input.cols * size_;
    std::size_t row = k * rows;
    for (std::size_t i = 0; i < members; ++i) {
      const Piece& piece = inputs[k * members + i];
      for (int64_t r = 0; r < piece.rows; ++r, ++row) {
        value_rows_[row] = static_cast<char*>(piece.value) + r * piece.ld * size_;
        if (!backward || !piece.grad) continue;
        grad_rows_[row] = apart_ ? apart + static_cast<int64_t>(row - k * rows) * row_bytes
                                 : static_cast<char*>(piece.grad) + r * piece.ld * size_;
      }
    }
    if (apart_) apart += aligned(rows_ * row_bytes);
  }
}

Fused CellRun::fused(const CellStep& step, bool backward) {
  operands_.clear();
  results_.clear();
  const int64_t cols = cell_.values[step.result].cols;
  for (std::size_t k = 0; k < step.arguments.size(); ++k) {
    const int32_t value = step.arguments[k];
    const CellValue& root = cell_.root_of(value);
    FusedOperand operand{};
    operand.broadcast = step.broadcast[k];
    if (root.place == CellValue::Place::kArgument) {
      const auto first = static_cast<std::size_t>(root.number * rows_);
      operand.value_rows = value_rows_.data() + first;
      operand.grad_rows = backward ? grad_rows_.data() + first : nullptr;
      operand.first_col = cell_.values[value].col;
      operand.add = true;
      operands_.push_back(operand);
      continue;
    }
    const Piece piece = matrix(value);
    operand.value = piece.value;
    operand.ld = piece.ld;
    if (backward && wants_gradient(value)) {
      if (cell_.values[value].kind == Kind::kParameter) {
        operand.grad = passing_ + rows_ * step.parameter_grad_col[k] * size_;
        operand.grad_ld = cols;
      } else {
        operand.grad = gradient(value);
        operand.grad_ld = gradient_ld(value);
        operand.add = !step.overwrites[k];
      }
    }
    operands_.push_back(operand);
  }
  const bool keeps = !graph_.releases();
  for (const CellStep::Stored& stored : step.stored) {
    if (stored.for_backward && !keeps) continue;
    const Piece piece = matrix(stored.value);
    results_.push_back({stored.reg, piece.value, piece.ld,
                        backward && !stored.for_backward ? gradient(stored.value) : nullptr,
                        gradient_ld(stored.value)});
  }
  return {rows_,
          cols,
          step.fused.data(),
          static_cast<int>(step.fused.size()),
          operands_.data(),
          static_cast<int>(operands_.size()),
          results_.data(),
          static_cast<int>(results_.size()),
          step.registers,
          backward && overlapping_ && !apart_};
}

void CellRun::forward(const std::vector<Piece>& inputs, char* kept) {
  if (kept) {
    kept_ = kept;
    kept_rows_ = rows_;
    kept_begin_ = 0;
  }
  point_at_rows(inputs, false);
  Backend& backend = graph_.backend;
  const int dtype = graph_.options.dtype;
  const auto members = static_cast<int64_t>(inputs.size() / std::max<std::size_t>(cell_.inputs.size(), 1));
  for (std::size_t k = 0; k < cell_.inputs.size(); ++k) {
    const int32_t value = cell_.inputs[k];
    if (cell_.root_of(value).place != CellValue::Place::kKept) continue;
    const Piece to = matrix(value);
    backend.gather(dtype, inputs.data() + k * members, members, to.value, to.ld);
  }
  for (const CellStep& step : cell_.steps) {
    if (step.is_fused())
      backend.fused_forward(dtype, fused(step, false));
    else
      for_batches(step, false, [&](const Batch& batch) { backend.forward(dtype, batch); });
  }
}

void CellRun::backward(const std::vector<Piece>& inputs, bool overlapping, char* passing, char* apart) {
  passing_ = passing;
  apart_ = apart;
  overlapping_ = overlapping;
  point_at_rows(inputs, true);
  Backend& backend = graph_.backend;
  const int dtype = graph_.options.dtype;
  for (std::size_t v = 0; v < cell_.values.size(); ++v)
    if (cell_.values[v].zero_first && cell_.values[v].grad_col >= 0)
      backend.zero(gradient(static_cast<int32_t>(v)), static_cast<std::size_t>(rows_ * cell_.values[v].cols * size_));
  for (auto step = cell_.steps.rbegin(); step != cell_.steps.rend(); ++step) {
    if (step->is_fused()) {
      backend.fused_backward(dtype, fused(*step, true));
      add_parameter_gradients(*step);
      continue;
    }
    for_batches(*step, true, [&](const Batch& batch) { step_backward(*step, batch); });
    // The gradients of linears' weights are made for all batches at once, see weight_gradients().
    if (step->op == kOp_linear || !op_info(step->op).has_shared) continue;
    Batch batch{};
    fill(&batch, *step, true);
    for (int k = 0; k < batch.argument_count; ++k)
      batch.arguments[k].wants_grad =
          op_info(step->op).arguments[k].role == Role::kShared && wants_gradient(step->arguments[k]);
    run_shared_kernel(backend, dtype, batch);
  }
  scatter(inputs);
}

// A list may hold a value more than once: where the backend does not add in turn, each time is a call of its own.
void CellRun::step_backward(const CellStep& step, const Batch& batch) {
  Backend& backend = graph_.backend;
  const int dtype = graph_.options.dtype;
  if (backend.adds_in_turn() || !batch.arguments[0].begin) return backend.backward(dtype, batch);
  const auto meet = [&](int32_t a, int32_t b) {
    const CellValue &x = cell_.values[a], &y = cell_.values[b];
    return x.root == y.root && x.col < y.col + y.cols && y.col < x.col + x.cols;
  };
  const std::size_t count = step.arguments.size();
  std::vector<void*> grads;
  for (std::size_t k = 0; k < count; ++k) grads.push_back(std::exchange(pieces_[k].grad, nullptr));
  for (std::size_t begin = 0, end = 0; begin < count; begin = end) {
    bool apart = true;
    for (; end < count; ++end) {
      for (std::size_t k = begin; k < end; ++k) apart = apart && !meet(step.arguments[k], step.arguments[end]);
      if (!apart) break;
      pieces_[end].grad = grads[end];
    }
    backend.backward(dtype, batch);
    for (std::size_t k = begin; k < end; ++k) pieces_[k].grad = nullptr;
  }
}

// Adds the gradients of inputs that are not where they belong.
void CellRun::scatter(const std::vector<Piece>& inputs) {
  const auto members = static_cast<int64_t>(inputs.size() / std::max<std::size_t>(cell_.inputs.size(), 1));
  char* apart = apart_;
  for (std::size_t k = 0; k < cell_.inputs.size(); ++k) {
    const int32_t value = cell_.inputs[k];
    const Piece* to = inputs.data() + k * members;
    const int64_t cols = cell_.values[value].cols;
    const CellValue::Place place = cell_.root_of(value).place;
    if (place == CellValue::Place::kKept) {
      graph_.backend.scatter_add(graph_.options.dtype, gradient(value), gradient_ld(value), to, members, overlapping_);
    } else if (place == CellValue::Place::kArgument && apart) {
      graph_.backend.scatter_add(graph_.options.dtype, apart, cols, to, members, overlapping_);
      apart += aligned(rows_ * cols * size_);
    }
  }
}

void CellRun::add_parameter_gradients(const CellStep& step) {
  const int64_t cols = cell_.values[step.result].cols;
  for (std::size_t k = 0; k < step.arguments.size(); ++k) {
    const CellValue& v = cell_.values[step.arguments[k]];
    if (v.kind != Kind::kParameter || !wants_gradient(step.arguments[k])) continue;
    graph_.backend.add_column_sums(graph_.options.dtype, passing_ + rows_ * step.parameter_grad_col[k] * size_, rows_,
                                   cols, cols, step.broadcast[k] == kScalar,
                                   graph_.nodes[use_.parameter_nodes[v.number]].grad);
  }
}

void CellRun::weight_gradients() {
  for (const CellStep& step : cell_.steps) {
    if (step.is_fused() || step.op != kOp_linear) continue;
    if (step.stacked.empty()) add_weight_gradients(step);
    for (const CellStep& part : step.stacked) add_weight_gradients(part);
  }
}

void CellRun::add_weight_gradients(const CellStep& linear) {
  Batch batch{};
  fill(&batch, linear, true);
  batch.arguments[0].wants_grad = false;
  for (int k = 1; k < batch.argument_count; ++k) batch.arguments[k].wants_grad = wants_gradient(linear.arguments[k]);
  run_shared_kernel(graph_.backend, graph_.options.dtype, batch);
}

}  // namespace lazynet
