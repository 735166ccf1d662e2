#include "executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <sstream>

#include "error.h"

namespace lazynet {
namespace {

enum class Phase { kForward, kBackward, kShared };

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Scratch memory that one kernel call uses and the next one reuses.
class Scratch {
 public:
  void place(void* memory, std::size_t bytes) {
    memory_ = static_cast<char*>(memory);
    bytes_ = bytes;
  }
  void reset() { used_ = 0; }
  char* take(std::size_t bytes) {
    char* result = memory_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (used_ > bytes_)
      fail(LN_INTERNAL_ERROR, "executor: ", used_, " bytes of scratch are used and ", bytes_, " are planned");
    return result;
  }

 private:
  char* memory_ = nullptr;
  std::size_t used_ = 0, bytes_ = 0;
};

// Tells whether pieces that get gradients share memory. Views of one node do only where they overlap.
class OverlapCheck {
 public:
  explicit OverlapCheck(const NodeStore& nodes) : nodes_(nodes), stamp_(nodes.records.size(), 0) {}
  void start() {
    ++current_;
    overlapping_ = false;
    views_.clear();
  }
  void add(int32_t id) {
    const NodeRecord& node = nodes_[id];
    if (node.root == id) {
      if (stamp_[id] == current_) overlapping_ = true;
      stamp_[id] = current_;
      return;
    }
    const NodeRecord& root = nodes_[node.root];
    const bool grid = root.cols > 0 && node.ld == root.cols;
    views_.push_back(grid ? View{node.root, node.offset / root.cols, node.rows, node.offset % root.cols, node.cols}
                          : View{node.root, 0, root.rows, 0, root.cols});
  }
  bool finish() {
    if (overlapping_ || views_.empty()) return overlapping_;
    std::sort(views_.begin(), views_.end(), [](const View& a, const View& b) { return a.root < b.root; });
    for (std::size_t begin = 0, end; begin < views_.size(); begin = end) {
      for (end = begin; end < views_.size() && views_[end].root == views_[begin].root;) ++end;
      if (stamp_[views_[begin].root] == current_ || end - begin > kCompared) return true;
      for (std::size_t i = begin; i < end; ++i)
        for (std::size_t j = begin; j < i; ++j)
          if (meet(views_[i], views_[j])) return true;
    }
    return false;
  }

 private:
  static constexpr std::size_t kCompared = 64;
  struct View {
    int32_t root;
    int64_t row, rows, col, cols;
  };
  static bool meet(const View& a, const View& b) {
    return a.row < b.row + b.rows && b.row < a.row + a.rows && a.col < b.col + b.cols && b.col < a.col + a.cols;
  }
  const NodeStore& nodes_;
  std::vector<int32_t> stamp_;
  int32_t current_ = 0;
  bool overlapping_ = false;
  std::vector<View> views_;
};

// Turns members of one signature into what a kernel sees.
class BatchBuilder {
 public:
  explicit BatchBuilder(Graph& graph)
      : graph_(graph), nodes_(graph.nodes), size_(static_cast<int64_t>(graph.element_bytes())), overlap_(graph.nodes) {}

  Scratch scratch;
  char* sink = nullptr;  // where gradients go that nobody wants

  const Batch& build(const int32_t* members, int64_t count, int32_t signature, Phase phase) {
    op_ = &op_info(graph_.signatures.op(signature));
    members_ = members;
    phase_ = phase;
    scratch.reset();
    batch_ = Batch{};
    batch_.op = op_->id;
    batch_.members = count;
    batch_.attributes = graph_.signatures.attributes(signature);
    batch_.broadcast = graph_.signatures.broadcast(signature);
    const bool list = op_->maximum_arguments < 0;
    batch_.argument_count = list ? 1 : nodes_[members[0]].argument_count;
    reserve_pieces(list);
    build_result();
    overlap_.start();
    for (int k = 0; k < batch_.argument_count; ++k) build_argument(k, list);
    const bool overlapping = phase == Phase::kBackward && overlap_.finish();
    for (int k = 0; k < batch_.argument_count; ++k) batch_.arguments[k].overlapping |= overlapping;
    build_payload();
    return batch_;
  }

  // All members of a planned batch.
  const Batch& build(const Plan& plan, const BatchPlan& planned, Phase phase) {
    const int32_t* members = plan.schedule.order.data() + planned.begin;
    const bool flat = phase == Phase::kForward ? planned.flat_values : planned.flat_gradients;
    if (!flat) return build(members, planned.end - planned.begin, planned.signature, phase);
    op_ = &op_info(planned.op);
    batch_ = Batch{};
    batch_.op = planned.op;
    batch_.members = planned.end - planned.begin;
    batch_.attributes = graph_.signatures.attributes(planned.signature);
    batch_.broadcast = graph_.signatures.broadcast(planned.signature);
    const NodeRecord& first = nodes_[members[0]];
    batch_.argument_count = first.argument_count;
    const int64_t elements = planned.bytes / size_;
    batch_.result.matrix = {first.value, phase == Phase::kForward ? nullptr : first.grad, 1, elements, elements};
    for (int k = 0; k < batch_.argument_count; ++k) {
      const int32_t argument = nodes_.arguments_of(first)[k];
      const NodeRecord& node = nodes_[argument];
      Operand& operand = batch_.arguments[k];
      operand.matrix = {piece_of(argument).value, nullptr, 1, elements, elements};
      operand.wants_grad = phase == Phase::kBackward && node.has(kRequiresGrad);
      if (operand.wants_grad) operand.matrix.grad = nodes_[node.root].grad + node.offset * size_;
    }
    return batch_;
  }

  // After a backward kernel: adds gathered gradients to where they belong.
  void scatter(const Batch& batch) {
    for (int k = 0; k < batch.argument_count; ++k) {
      const Operand& operand = batch.arguments[k];
      if (!op_->arguments[k].packed || !operand.wants_grad || operand.matrix.grad == direct_grad_[k]) continue;
      backend().scatter_add[graph_.options.dtype](operand.matrix.grad, operand.pieces, operand.count,
                                                  operand.overlapping);
    }
  }

  int64_t gathered_bytes = 0, gathers = 0;
  double gather_seconds = 0;

 private:
  static const Backend& backend() { return cpu_backend(); }

  void reserve_pieces(bool list) {
    int64_t pieces = batch_.members;
    if (list)
      for (int64_t i = 0; i < batch_.members; ++i) pieces += nodes_[members_[i]].argument_count;
    else
      pieces *= 1 + batch_.argument_count;
    if (static_cast<int64_t>(pieces_.size()) < pieces) pieces_.resize(pieces);
    next_piece_ = pieces_.data();
    if (list && static_cast<int64_t>(begin_.size()) < batch_.members + 1) begin_.resize(batch_.members + 1);
  }

  void build_result() {
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

  void build_argument(int k, bool list) {
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
    if (list) {
      begin_[members] = static_cast<int32_t>(operand.count);
      operand.begin = begin_.data();
    }
    operand.overlapping = sinks > 1;
    operand.matrix = values.matrix();
    if (info.packed)
      pack(k, values, grads);
    else
      join_gradients(k, grads);
  }

  // The matrix of an operand that is read through pieces stands for values and gradients both, or for neither.
  void join_gradients(int k, const MatrixScan& grads) {
    Operand& operand = batch_.arguments[k];
    if (!operand.wants_grad) return;
    operand.matrix.grad = grads.matrix().value;
    if (!operand.matrix.grad) operand.matrix.value = nullptr;
  }

  // The kernel needs one matrix: gathers values where it reads them and makes room for gradients.
  void pack(int k, const MatrixScan& values, const MatrixScan& grads) {
    Operand& operand = batch_.arguments[k];
    const std::size_t bytes = values.elements() * size_;
    if (!operand.matrix.value && phase_ != Phase::kBackward) {
      const double start = graph_.profiling ? now() : 0;
      operand.matrix.value = scratch.take(bytes);
      operand.matrix.ld = operand.matrix.cols;
      backend().gather[graph_.options.dtype](operand.pieces, operand.count, operand.matrix.value);
      ++gathers;
      gathered_bytes += static_cast<int64_t>(bytes);
      if (graph_.profiling) gather_seconds += now() - start;
    }
    if (!operand.wants_grad) return;
    const Piece direct = grads.matrix();
    direct_grad_[k] = direct.value;
    operand.matrix.grad = direct.value;
    operand.matrix.ld = direct.ld;
    if (!direct.value) {
      operand.matrix.grad = scratch.take(bytes);
      operand.matrix.ld = operand.matrix.cols;
      backend().zero(operand.matrix.grad, bytes);
    }
  }

  Piece piece_of(int32_t id) const {
    const NodeRecord& node = nodes_[id];
    return {nodes_[node.root].value + node.offset * size_, nullptr, node.rows, node.cols, node.ld};
  }

  char* grad_of(int32_t id, int64_t* sinks) {
    const NodeRecord& node = nodes_[id];
    if (!node.has(kRequiresGrad)) {
      ++*sinks;
      return sink;
    }
    overlap_.add(id);
    char* grad = nodes_[node.root].grad;
    return grad ? grad + node.offset * size_ : nullptr;  // null: a sparse table
  }

  bool any_requires_grad(int k, bool list) const {
    for (int64_t i = 0; i < batch_.members; ++i) {
      const NodeRecord& node = nodes_[members_[i]];
      const int32_t* arguments = nodes_.arguments_of(node);
      for (int a = list ? 0 : k; a < (list ? node.argument_count : k + 1); ++a)
        if (nodes_[arguments[a]].has(kRequiresGrad)) return true;
      if (op_->arguments[k].role == Role::kShared) break;
    }
    return false;
  }

  void build_payload() {
    payload_.resize(batch_.members);
    for (int64_t i = 0; i < batch_.members; ++i) payload_[i] = nodes_.payload_of(nodes_[members_[i]]);
    batch_.payload = payload_.data();
  }

  Graph& graph_;
  const NodeStore& nodes_;
  const int64_t size_;
  const OpInfo* op_ = nullptr;
  const int32_t* members_ = nullptr;
  Phase phase_ = Phase::kForward;
  Batch batch_{};
  std::vector<Piece> pieces_;
  Piece* next_piece_ = nullptr;
  std::vector<int32_t> begin_;
  std::vector<const int64_t*> payload_;
  void* direct_grad_[4] = {};
  OverlapCheck overlap_;
};

// Counts and times one kernel call.
class Measure {
 public:
  Measure(Graph& graph, int op, bool forward, int64_t nodes)
      : graph_(graph), profile_(graph.counters.profile[op]), forward_(forward), start_(graph.profiling ? now() : 0) {
    (forward ? graph.counters.statistics.kernels_forward : graph.counters.statistics.kernels_backward) += 1;
    (forward ? profile_.forward_kernels : profile_.backward_kernels) += 1;
    if (forward) profile_.nodes += nodes;
  }
  ~Measure() {
    if (graph_.profiling) (forward_ ? profile_.forward_seconds : profile_.backward_seconds) += now() - start_;
  }

 private:
  Graph& graph_;
  ln_op_profile& profile_;
  bool forward_;
  double start_;
};

// ---- anomalies -----------------------------------------------------------------------------------------

int64_t first_non_finite(const Graph& graph, const void* data, int64_t rows, int64_t cols, int64_t ld) {
  return cpu_backend().first_non_finite[graph.options.dtype](data, rows, cols, ld);
}

bool node_is_finite(const Graph& graph, int32_t id) {
  const NodeRecord& node = graph.nodes[id];
  const char* value = graph.nodes.root_of(id).value + node.offset * static_cast<int64_t>(graph.element_bytes());
  return first_non_finite(graph, value, node.rows, node.cols, node.ld) < 0;
}

[[noreturn]] void report(Graph& graph, int32_t id, int64_t element, const char* what) {
  const NodeRecord& node = graph.nodes[id];
  std::ostringstream text;
  text << op_info(node.op).name << ": " << what << " of node " << graph.describe(id);
  if (element >= 0) text << " is NaN or infinite at row " << element / node.cols << ", col " << element % node.cols;
  text << "; its arguments are";
  const int32_t* arguments = graph.nodes.arguments_of(node);
  for (int32_t k = 0; k < std::min(node.argument_count, 4); ++k)
    text << (k ? ", " : " ") << graph.describe(arguments[k]);
  if (node.argument_count > 4) text << ", ...";
  throw NonFinite(id, text.str());
}

// An infinity that came in from an argument (a mask) is not born here; a NaN always is, because nodes run in
// topological order and inputs and parameters are checked when they enter the graph.
void check_forward(Graph& graph, const int32_t* members, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const NodeRecord& node = graph.nodes[members[i]];
    const int64_t at = first_non_finite(graph, node.value, node.rows, node.cols, node.ld);
    if (at < 0) continue;
    const char* element = node.value + at * static_cast<int64_t>(graph.element_bytes());
    const double value = graph.options.dtype == LN_FLOAT64 ? *reinterpret_cast<const double*>(element)
                                                           : *reinterpret_cast<const float*>(element);
    bool inherited = false;
    const int32_t* arguments = graph.nodes.arguments_of(node);
    for (int32_t k = 0; k < node.argument_count; ++k) inherited |= !node_is_finite(graph, arguments[k]);
    if (std::isnan(value) || !inherited) report(graph, members[i], at, "the value");
  }
}

void check_backward(Graph& graph, const int32_t* members, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const NodeRecord& node = graph.nodes[members[i]];
    const int32_t* arguments = graph.nodes.arguments_of(node);
    for (int32_t k = 0; k < node.argument_count; ++k) {
      const NodeRecord& argument = graph.nodes[arguments[k]];
      const NodeRecord& root = graph.nodes[argument.root];
      if (!argument.has(kRequiresGrad) || !root.grad) continue;
      const char* grad = root.grad + argument.offset * static_cast<int64_t>(graph.element_bytes());
      if (first_non_finite(graph, grad, argument.rows, argument.cols, argument.ld) >= 0)
        report(graph, members[i], -1, "a NaN or infinite gradient is born in backward");
    }
  }
}

// ---- forward -------------------------------------------------------------------------------------------

// Gives the buffers of a plan back, and with them the values of its nodes, unless dismissed.
class ForwardGuard {
 public:
  ForwardGuard(Graph& graph, Plan& plan) : graph_(graph), plan_(plan) {}
  ~ForwardGuard() {
    if (scratch_) graph_.pool.deallocate(scratch_);
    if (done_) return;
    for (BufferPlan& buffer : plan_.buffers) {
      if (buffer.value) graph_.pool.deallocate(buffer.value);
      buffer.value = nullptr;
    }
    for (int32_t id : plan_.schedule.order) graph_.nodes[id].flags &= static_cast<uint16_t>(~kComputed);
  }
  void* allocate_scratch(int64_t bytes) {
    if (bytes) scratch_ = graph_.allocate(bytes, "gathered operands", &plan_);
    return scratch_;
  }
  void dismiss() { done_ = true; }

 private:
  Graph& graph_;
  Plan& plan_;
  void* scratch_ = nullptr;
  bool done_ = false;
};

void place_buffer(Graph& graph, Plan& plan, BufferPlan& buffer) {
  if (!buffer.value) buffer.value = static_cast<char*>(graph.allocate(buffer.bytes, "values", &plan));
}

void place_members(Graph& graph, const Plan& plan, const BatchPlan& batch) {
  char* next = plan.buffers[batch.buffer].value + batch.offset;
  for (int32_t i = batch.begin; i < batch.end; ++i) {
    NodeRecord& node = graph.nodes[plan.schedule.order[i]];
    node.value = next;
    next += node.elements() * static_cast<int64_t>(graph.element_bytes());
  }
}

// In inference: gives back what no later batch of the plan reads.
void release_after(Graph& graph, Plan& plan, int32_t batch, const std::vector<std::vector<int32_t>>& ending) {
  for (int32_t index : ending[batch]) {
    BufferPlan& buffer = plan.buffers[index];
    graph.pool.deallocate(buffer.value);
    buffer.value = nullptr;
    const BatchPlan& writer = plan.batches[buffer.first_batch];
    for (int32_t i = writer.begin; i < writer.end; ++i) {
      NodeRecord& node = graph.nodes[plan.schedule.order[i]];
      node.flags &= static_cast<uint16_t>(~kComputed);
      const int32_t* arguments = graph.nodes.arguments_of(node);
      for (int32_t k = 0; k < node.argument_count; ++k) ++graph.readers[graph.nodes[arguments[k]].root];
    }
  }
}

void mark_computed(Graph& graph, const Plan& plan, const BatchPlan& batch) {
  for (int32_t i = batch.begin; i < batch.end; ++i) graph.nodes[plan.schedule.order[i]].flags |= kComputed;
}

void forget_readers(Graph& graph, const Plan& plan) {
  for (int32_t id : plan.schedule.order) {
    const NodeRecord& node = graph.nodes[id];
    const int32_t* arguments = graph.nodes.arguments_of(node);
    for (int32_t k = 0; k < node.argument_count; ++k) --graph.readers[graph.nodes[arguments[k]].root];
  }
}

void register_buffers(Graph& graph, Plan& plan) {
  const int32_t first = static_cast<int32_t>(graph.buffers.size());
  for (BufferPlan& buffer : plan.buffers) graph.buffers.push_back(&buffer);
  for (int32_t id : plan.schedule.order) graph.nodes.buffer[id] += first;
}

}  // namespace

void run_forward(Graph& graph, Plan& plan) {
  ForwardGuard guard(graph, plan);
  BatchBuilder builder(graph);
  const KernelTable& kernels = *cpu_backend().kernels[graph.options.dtype];
  builder.scratch.place(guard.allocate_scratch(plan.scratch_bytes), plan.scratch_bytes);
  const bool keep = graph.options.train != 0;
  std::vector<std::vector<int32_t>> ending(keep ? 0 : plan.batches.size());
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    if (keep)
      place_buffer(graph, plan, plan.buffers[i]);  // all before any kernel runs
    else if (plan.buffers[i].last_batch >= 0)
      ending[plan.buffers[i].last_batch].push_back(static_cast<int32_t>(i));
  }
  for (std::size_t b = 0; b < plan.batches.size(); ++b) {
    const BatchPlan& planned = plan.batches[b];
    const int32_t* members = plan.schedule.order.data() + planned.begin;
    const int64_t count = planned.end - planned.begin;
    place_buffer(graph, plan, plan.buffers[planned.buffer]);
    place_members(graph, plan, planned);
    const Batch& batch = builder.build(plan, planned, Phase::kForward);
    {
      Measure measure(graph, planned.op, true, count);
      kernels.forward[planned.op](batch);
    }
    if (graph.profiling) {
      graph.counters.profile[planned.op].gather_seconds += builder.gather_seconds;
      builder.gather_seconds = 0;
    }
    mark_computed(graph, plan, planned);
    if (graph.anomaly) check_forward(graph, members, count);
    if (!keep) release_after(graph, plan, static_cast<int32_t>(b), ending);
  }
  forget_readers(graph, plan);
  register_buffers(graph, plan);
  graph.counters.statistics.nodes += static_cast<int64_t>(plan.schedule.order.size());
  graph.counters.statistics.gathers += builder.gathers;
  graph.counters.statistics.gathered_bytes += builder.gathered_bytes;
  guard.dismiss();
}

// ---- backward ------------------------------------------------------------------------------------------

namespace {

class Backward {
 public:
  Backward(Graph& graph, int32_t loss) : graph_(graph), nodes_(graph.nodes), loss_(loss), builder_(graph) {}
  ~Backward() {
    if (scratch_) graph_.pool.deallocate(scratch_);
  }

  void run() {
    mark_reached();
    place_gradients();
    seed_loss();
    for (auto round = graph_.rounds.rbegin(); round != graph_.rounds.rend(); ++round) run_round(**round);
    for (std::size_t i = 0; i < graph_.parameters.size(); ++i)
      if (nodes_[graph_.parameter_nodes[i]].has(kReached) && graph_.parameters[i]->trainable)
        graph_.parameters[i]->mark_gradient();
    graph_.counters.statistics.gathers += builder_.gathers;
    graph_.counters.statistics.gathered_bytes += builder_.gathered_bytes;
  }

 private:
  // Which nodes the loss depends on through something that is trained.
  void mark_reached() {
    for (NodeRecord& node : nodes_.records) node.flags &= static_cast<uint16_t>(~kReached);
    nodes_[loss_].flags |= kReached;
    for (int32_t id = loss_; id >= 0; --id) {
      const NodeRecord& node = nodes_[id];
      if (!node.has(kReached) || !node.has(kRequiresGrad)) continue;
      nodes_.root_of(id).flags |= kReached;
      const int32_t* arguments = nodes_.arguments_of(node);
      for (int32_t k = 0; k < node.argument_count; ++k)
        if (nodes_[arguments[k]].has(kRequiresGrad)) nodes_[arguments[k]].flags |= kReached;
    }
  }

  bool active(int32_t id) const { return nodes_[id].has(kReached) && nodes_[id].has(kRequiresGrad); }

  // All memory before any kernel runs, so that running out of it leaves every gradient untouched.
  void place_gradients() {
    std::size_t sink_bytes = 0;
    int64_t scratch_bytes = 0;
    for (int32_t id = 0; id < nodes_.size(); ++id) {
      NodeRecord& node = nodes_[id];
      if (!node.has(kRequiresGrad))
        sink_bytes = std::max<std::size_t>(sink_bytes, int64_t{node.rows} * node.ld * graph_.element_bytes());
      if (node.root != id) continue;
      node.grad = nullptr;
      if (!node.has(kReached) || node.signature < 0) continue;
      place_buffer(nodes_.buffer[id]);
    }
    for (int32_t id = 0; id < nodes_.size(); ++id) {
      NodeRecord& node = nodes_[id];
      // A plan that was only looked at has left imagined places in nodes that were never computed.
      if (node.signature < 0 || !node.has(kComputed)) continue;
      const BufferPlan& buffer = *graph_.buffers[nodes_.buffer[id]];
      if (buffer.grad) node.grad = buffer.grad + (node.value - buffer.value);
    }
    place_sources();
    for (auto& round : graph_.rounds)
      scratch_bytes = std::max({scratch_bytes, round->scratch_bytes, round->shared_scratch_bytes});
    scratch_ = graph_.allocate(scratch_bytes + sink_bytes, "gathered operands of backward", nullptr);
    builder_.scratch.place(scratch_, scratch_bytes);
    builder_.sink = static_cast<char*>(scratch_) + scratch_bytes;
    std::memset(builder_.sink, 0, sink_bytes);
  }

  void place_buffer(int32_t index) {
    BufferPlan& buffer = *graph_.buffers[index];
    if (buffer.grad) return;
    buffer.grad = static_cast<char*>(graph_.allocate(buffer.bytes, "gradients", nullptr));
    cpu_backend().zero(buffer.grad, buffer.bytes);
  }

  void place_sources() {
    for (std::size_t i = 0; i < graph_.parameters.size(); ++i) {
      NodeRecord& node = nodes_[graph_.parameter_nodes[i]];
      if (node.has(kReached)) node.grad = static_cast<char*>(graph_.parameters[i]->dense_gradient());
    }
    for (NodeRecord& node : nodes_.records) {
      if (node.op != kOp_input || !node.has(kReached)) continue;
      const std::size_t bytes = node.elements() * graph_.element_bytes();
      node.grad = static_cast<char*>(graph_.allocate(bytes, "gradients of inputs", nullptr));
      graph_.input_gradients.push_back(node.grad);
      std::memset(node.grad, 0, bytes);
    }
  }

  void seed_loss() {
    NodeRecord& root = nodes_.root_of(loss_);
    if (!root.grad) return;  // a constant
    char* grad = root.grad + nodes_[loss_].offset * static_cast<int64_t>(graph_.element_bytes());
    if (graph_.options.dtype == LN_FLOAT64)
      *reinterpret_cast<double*>(grad) += 1;
    else
      *reinterpret_cast<float*>(grad) += 1;
  }

  void run_round(Plan& plan) {
    find_first_batches(plan);
    for (int32_t b = static_cast<int32_t>(plan.batches.size()) - 1; b >= 0; --b) {
      const BatchPlan& planned = plan.batches[b];
      for_active_runs(plan, planned, [&](const int32_t* members, int64_t count) {
        const bool whole = count == planned.end - planned.begin;
        run_kernel(whole ? builder_.build(plan, planned, Phase::kBackward)
                         : builder_.build(members, count, planned.signature, Phase::kBackward),
                   members, count, planned.op, Phase::kBackward);
      });
      // All gradients of the signature's results are complete once its earliest batch has run, and what
      // the shared arguments were made from ran earlier still.
      if (op_info(planned.op).has_shared && first_batch_[planned.signature] == b) run_shared(plan, planned.signature);
    }
  }

  void find_first_batches(const Plan& plan) {
    first_batch_.assign(graph_.signatures.size(), -1);
    for (int32_t b = static_cast<int32_t>(plan.batches.size()) - 1; b >= 0; --b)
      first_batch_[plan.batches[b].signature] = b;
  }

  // Members that the loss does not depend on stay out: their values may be anything.
  template <class Function>
  void for_active_runs(const Plan& plan, const BatchPlan& batch, const Function& function) {
    const int32_t* order = plan.schedule.order.data();
    for (int32_t i = batch.begin; i < batch.end;) {
      if (!active(order[i])) {
        ++i;
        continue;
      }
      int32_t end = i;
      while (end < batch.end && active(order[end])) ++end;
      function(order + i, end - i);
      i = end;
    }
  }

  void run_kernel(const Batch& batch, const int32_t* members, int64_t count, int op, Phase phase) {
    bool wanted = false;
    for (int k = 0; k < batch.argument_count; ++k) wanted = wanted || batch.arguments[k].wants_grad;
    if (!wanted) return;
    {
      Measure measure(graph_, op, false, count);
      const KernelTable& kernels = *cpu_backend().kernels[graph_.options.dtype];
      if (phase == Phase::kBackward) {
        kernels.backward[op](batch);
        builder_.scatter(batch);
      } else {
        Batch shared = batch;
        add_sparse_table(members[0], &shared);
        kernels.shared[op](shared);
      }
    }
    if (graph_.anomaly) check_backward(graph_, members, count);
  }

  void run_shared(const Plan& plan, int32_t signature) {
    shared_members_.clear();
    const int op = graph_.signatures.op(signature);
    for (const BatchPlan& batch : plan.batches) {
      if (batch.signature != signature) continue;
      shared_members_.insert(shared_members_.end(), plan.schedule.order.begin() + batch.begin,
                             plan.schedule.order.begin() + batch.end);
    }
    for (std::size_t i = 0; i < shared_members_.size();) {
      std::size_t end = i;
      while (end < shared_members_.size() && active(shared_members_[end])) ++end;
      if (end > i) {
        const int32_t* members = shared_members_.data() + i;
        const auto count = static_cast<int64_t>(end - i);
        run_kernel(builder_.build(members, count, signature, Phase::kShared), members, count, op, Phase::kShared);
      }
      i = end + 1;
    }
  }

  void add_sparse_table(int32_t member, Batch* batch) {
    const int32_t table = nodes_.arguments_of(nodes_[member])[0];
    for (std::size_t i = 0; i < graph_.parameters.size(); ++i) {
      if (graph_.parameter_nodes[i] != table || !graph_.parameters[i]->sparse()) continue;
      batch->sparse_table = graph_.parameters[i]->sparse_gradient();
      batch->sparse_row = [](void* rows, int64_t row) { return static_cast<SparseRows*>(rows)->row(row); };
    }
  }

  Graph& graph_;
  NodeStore& nodes_;
  const int32_t loss_;
  BatchBuilder builder_;
  void* scratch_ = nullptr;
  std::vector<int32_t> first_batch_;
  std::vector<int32_t> shared_members_;
};

}  // namespace

void release_gradients(Graph& graph) {
  for (BufferPlan* buffer : graph.buffers) {
    if (buffer->grad) graph.pool.deallocate(buffer->grad);
    buffer->grad = nullptr;
  }
  for (void* gradient : graph.input_gradients) graph.pool.deallocate(gradient);
  graph.input_gradients.clear();
  for (NodeRecord& node : graph.nodes.records) {
    node.grad = nullptr;
    node.flags &= static_cast<uint16_t>(~kReached);
  }
}

void run_backward(Graph& graph, int32_t loss) {
  // Gradients are added to parameters, which other graphs may share: one backward at a time.
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> lock(one_at_a_time);
  release_gradients(graph);
  try {
    Backward(graph, loss).run();
  } catch (...) {
    release_gradients(graph);
    throw;
  }
}

}  // namespace lazynet
