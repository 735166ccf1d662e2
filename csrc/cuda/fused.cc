// Chains of elementwise operations of cells, in one kernel each.
//
// A kernel is written for what does not change from batch to batch: the operations, where operands come from and which
// gradients are wanted. It is found again by the bytes of that structure. A thread takes one element, or those of 16
// bytes where all addresses allow it, through the whole chain in registers; where the gradient of a column is wanted,
// which is a sum over the row, a warp takes a row. Each operand and result is read or written once: bound by memory,
// and for small batches by the time from the launch through one load and one store.
#include "fused.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transfer.h"

namespace lazynet::cuda {
namespace {

// What becomes of the gradient of an operand. Rows: added to each of those that want it.
enum class Gradient : uint8_t { kNone, kOverwrite, kAdd, kAddToRows };

// What a kernel is written for.
struct Structure {
  const Fused& fused;
  int dtype;
  bool backward;
  int width;  // elements that a thread handles at once
  Gradient gradients[kMostRegisters];

  // A warp a row.
  bool sums_rows() const {
    for (int k = 0; k < fused.operand_count; ++k)
      if (fused.operands[k].broadcast == kColumn && gradients[k] != Gradient::kNone) return true;
    return false;
  }
  std::string key() const {
    std::string key;
    key.reserve(6 + 4 * kMostRegisters);
    const auto add = [&](int byte) { key.push_back(static_cast<char>(byte)); };
    static_assert(kOpCount <= 256, "an operator is a byte");
    add(dtype), add(backward), add(width), add(fused.operand_count), add(fused.result_count), add(fused.op_count);
    for (int k = 0; k < fused.operand_count; ++k) {
      const FusedOperand& operand = fused.operands[k];
      add(operand.broadcast + 4 * (operand.value_rows != nullptr) + 8 * static_cast<int>(gradients[k]));
    }
    for (int i = 0; i < fused.result_count; ++i)
      add(fused.results[i].reg + 64 * (backward && fused.results[i].grad != nullptr));
    for (int i = 0; i < fused.op_count; ++i) {
      const FusedOp& op = fused.ops[i];
      add(op.op), add(op.a), add(op.b), add(op.result);
    }
    return key;
  }
};

// ---- the text of a kernel

template <class... Pieces>
std::string text_of(const Pieces&... pieces) {
  std::ostringstream text;
  (text << ... << pieces);
  return text.str();
}

// Names in the text, with the number of the register: r its value, g its gradient; x and d where they are read, q and
// o where an operand's gradient goes and what is there; s a sum over the row.
class Writer {
 public:
  explicit Writer(const Structure& structure)
      : structure_(structure), fused_(structure.fused), sums_rows_(structure.sums_rows()) {
    std::fill(std::begin(result_of_), std::end(result_of_), -1);
    for (int i = 0; i < fused_.result_count; ++i) result_of_[fused_.results[i].reg] = i;
    int attributes = 0;
    for (int i = 0; i < fused_.op_count; ++i) {
      const int count = op_info(fused_.ops[i].op).attribute_count;
      first_attribute_[i] = count > 0 ? attributes : 0;
      attributes += count;
    }
    attributes_ = std::max(attributes, 1);
    structure.backward ? plan_backward() : plan_forward();
  }

  // Empty where there is nothing to do: no gradient reaches an operand that wants one.
  std::string text() {
    write_values();
    structure_.backward ? write_gradients() : write_results();
    if (stores_.empty() && ends_.empty()) return {};
    elements_ += stores_;  // after all loads: the compiler does not know that their memory is another
    const char* type = structure_.dtype == LN_FLOAT64 ? "double" : "float";
    const std::string head =
        text_of("#include \"cuda/fused.h\"\n\nnamespace lazynet::cuda {\n\nusing T = ", type, ";\nusing V = Lanes<T, ",
                structure_.width, ">;\nusing Args = FusedArgs<T, ", fused_.operand_count + fused_.result_count, ", ",
                attributes_, ">;\n\nLN_BOUNDED_ENTRY(fused_", structure_.backward ? "backward_" : "forward_", type,
                ", Args, kFusedThreads) {\n");
    const char* rest = "  }\n}\n\n}  // namespace lazynet::cuda\n";
    if (sums_rows_)
      return head + "  for (int64_t row = warp_number(); row < args.head.rows; row += warp_count()) {\n" + starts_ +
             "    for (int64_t col = lane(); col < args.head.cols; col += kWarp) {\n" + elements_ + "    }\n" + ends_ +
             rest;
    return head +
           "  const int64_t groups = args.head.cols / V::kCount;\n"
           "  for (int64_t unit = thread_number(); unit < args.head.rows * groups; unit += thread_count()) {\n"
           "    const int64_t row = unit / groups, col = (unit - row * groups) * V::kCount;\n" +
           starts_ + elements_ + rest;
  }

 private:
  // ---- what is needed: registers' values, and gradients that lead to a wanted one

  void plan_forward() {
    for (int i = 0; i < fused_.result_count; ++i) needed_[fused_.results[i].reg] = true;
    need_arguments();
  }
  void plan_backward() {
    for (int k = 0; k < fused_.operand_count; ++k) leads_[k] = structure_.gradients[k] != Gradient::kNone;
    for (int i = 0; i < fused_.op_count; ++i) {
      const FusedOp& op = fused_.ops[i];
      leads_[op.result] = leads_[op.a] || (op.b >= 0 && leads_[op.b]);
    }
    for (int i = 0; i < fused_.result_count; ++i) {
      const FusedResult& result = fused_.results[i];
      if (result.grad && leads_[result.reg]) reached_[result.reg] = true;
    }
    for (int i = fused_.op_count - 1; i >= 0; --i) {
      const FusedOp& op = fused_.ops[i];
      if (!reached_[op.result]) continue;
      reached_[op.a] = reached_[op.a] || leads_[op.a];
      if (op.b >= 0) reached_[op.b] = reached_[op.b] || leads_[op.b];
      if (op_info(op.op).reads_arguments) need(op);
      if (op_info(op.op).reads_result) needed_[op.result] = true;
    }
    need_arguments();
  }
  void need(const FusedOp& op) {
    needed_[op.a] = true;
    if (op.b >= 0) needed_[op.b] = true;
  }
  void need_arguments() {
    for (int i = fused_.op_count - 1; i >= 0; --i)
      if (computes(fused_.ops[i])) need(fused_.ops[i]);
  }
  bool is_read(int reg) const { return structure_.backward && result_of_[reg] >= 0; }
  bool computes(const FusedOp& op) const { return needed_[op.result] && !is_read(op.result); }

  // ---- the text of the parts

  static std::string place(int number) { return text_of("args.places[", number, "]"); }
  int result_place(int reg) const { return fused_.operand_count + result_of_[reg]; }
  std::string formula(int i) const { return text_of(op_info(fused_.ops[i].op).name, "_formula"); }
  std::string attributes(int i) const { return text_of(", args.attributes + ", first_attribute_[i], ");\n"); }

  template <class... Pieces>
  void start(const Pieces&... pieces) {
    starts_ += text_of("    ", pieces..., "\n");
  }
  template <class... Pieces>
  void element(const Pieces&... pieces) {
    elements_ += text_of(sums_rows_ ? "      " : "    ", pieces...);
  }

  void write_values() {
    for (int k = 0; k < fused_.operand_count; ++k)
      if (needed_[k]) write_operand(k);
    for (int reg = fused_.operand_count; reg < fused_.register_count; ++reg) {
      if (!needed_[reg] || !is_read(reg)) continue;
      start("const T* const x", reg, " = value_row<T>(", place(result_place(reg)), ", row);");
      element("const V r", reg, " = load<V>(x", reg, " + col);\n");
    }
    for (int reg = fused_.operand_count; reg < fused_.register_count; ++reg) {
      if (!reached_[reg] || result_of_[reg] < 0 || !fused_.results[result_of_[reg]].grad) continue;
      start("const T* const d", reg, " = grad_row<T>(", place(result_place(reg)), ", row);");
      element("V g", reg, " = load<V>(d", reg, " + col);\n");
      made_[reg] = true;
    }
    for (int i = 0; i < fused_.op_count; ++i) {
      const FusedOp& op = fused_.ops[i];
      if (!computes(op)) continue;
      const int b = op.b >= 0 ? op.b : op.a;
      element("const V r", op.result, " = value<", formula(i), ">(r", op.a, ", r", b, attributes(i));
    }
  }

  void write_operand(int k) {
    const FusedOperand& operand = fused_.operands[k];
    const bool every_row = operand.broadcast == kFull || operand.broadcast == kColumn;
    if (operand.value_rows)
      start("const T* const x", k, " = listed_value_row<T>(args.head, ", place(k), ", ", k, ", row);");
    else
      start("const T* const x", k, " = value_row<T>(", place(k), every_row ? ", row);" : ", 0);");
    if (operand.broadcast == kFull || operand.broadcast == kRow)
      element("const V r", k, " = load<V>(x", k, " + col);\n");
    else
      start("const V r", k, " = spread<V>(x", k, ");");
  }

  void write_results() {
    for (int i = 0; i < fused_.result_count; ++i) {
      const int reg = fused_.results[i].reg;
      stores_ += text_of("    store(value_row<T>(", place(fused_.operand_count + i), ", row) + col, r", reg, ");\n");
    }
  }

  void write_gradients() {
    for (int i = fused_.op_count - 1; i >= 0; --i) {
      const FusedOp& op = fused_.ops[i];
      if (!reached_[op.result]) continue;
      write_gradient(i, 0, op.a);
      if (op.b >= 0) write_gradient(i, 1, op.b);
    }
    for (int k = 0; k < fused_.operand_count; ++k)
      if (structure_.gradients[k] != Gradient::kNone) write_operand_gradient(k);
  }

  void write_gradient(int i, int argument, int to) {
    if (!leads_[to]) return;
    const FusedOp& op = fused_.ops[i];
    const OpInfo& info = op_info(op.op);
    const std::string g = text_of("g", op.result);
    const std::string a = info.reads_arguments ? text_of("r", op.a) : g;
    const std::string b = info.reads_arguments && op.b >= 0 ? text_of("r", op.b) : g;
    const std::string y = info.reads_result ? text_of("r", op.result) : g;
    const std::string call = text_of("gradient<", formula(i), ", ", argument, ">(", a, ", ", b, ", ", y, ", ", g,
                                     ", args.attributes + ", first_attribute_[i], ")");
    if (made_[to])
      element("g", to, " = sum(g", to, ", ", call, ");\n");
    else
      element("V g", to, " = ", call, ";\n");
    made_[to] = true;
  }

  void write_operand_gradient(int k) {
    const Gradient kind = structure_.gradients[k];
    const bool listed = kind == Gradient::kAddToRows, adds = kind != Gradient::kOverwrite;
    if (!reached_[k] && adds) return;
    if (listed)
      start("T* const q", k, " = listed_grad_row<T>(args.head, ", place(k), ", ", k, ", row);");
    else
      start("T* const q", k, " = grad_row<T>(", place(k), ", row);");
    const std::string wanted = listed ? text_of("if (q", k, ") ") : "";
    if (fused_.operands[k].broadcast == kColumn) {
      start("T s", k, " = 0;");
      if (reached_[k]) element("s", k, " += g", k, ".at[0];\n");
      ends_ += text_of("    s", k, " = fold_warp<Add>(s", k, ");\n    if (lane() == 0",
                       listed ? text_of(" && q", k) : "", ") *q", k, adds ? " += s" : " = s", k, ";\n");
      return;
    }
    std::string made = reached_[k] ? text_of("g", k) : "V{}";
    if (adds) {
      if (listed)
        element("const V o", k, " = load_wanted<V>(q", k, ", col);\n");
      else
        element("const V o", k, " = load<V>(q", k, " + col);\n");
      made = text_of("sum(o", k, ", ", made, ")");
    }
    stores_ += text_of(sums_rows_ ? "      " : "    ", wanted, "store(q", k, " + col, ", made, ");\n");
  }

  const Structure& structure_;
  const Fused& fused_;
  const bool sums_rows_;
  int result_of_[kMostRegisters];  // register -> result, or -1
  int first_attribute_[kMostRegisters], attributes_;
  bool needed_[kMostRegisters] = {};               // values
  bool leads_[kMostRegisters] = {};                // to an operand whose gradient is wanted
  bool reached_[kMostRegisters] = {};              // gradients that are made
  bool made_[kMostRegisters] = {};                 // those that have a name already
  std::string starts_, elements_, stores_, ends_;  // before, in, last in, and after the loop over a row's elements
};

// The kernel of a structure, for all devices; null where there is nothing to do.
const Kernel* kernel_of(const Structure& structure) {
  static std::mutex mutex;
  static auto& kernels = *new std::unordered_map<std::string, std::unique_ptr<Kernel>>;  // devices outlive statics
  std::lock_guard<std::mutex> lock(mutex);
  const auto [place, missing] = kernels.try_emplace(structure.key());
  if (missing) {
    std::string text = Writer(structure).text();
    const char* name = structure.backward ? "fused_backward" : "fused_forward";
    if (!text.empty()) place->second = std::make_unique<Kernel>("fused", name, structure.dtype, "", std::move(text));
  }
  return place->second.get();
}

// ---- launches

// The addresses of rows: most often they lie one after another.
struct RowList {
  const void* const* rows;
  bool wanted = false;   // one at least is not null
  bool regular = false;  // rows are `ld` elements apart
  int64_t ld = 0;
  uintptr_t bits = 0;               // of all addresses, or'ed
  const void* on_device = nullptr;  // where they are not regular
};

template <class T>
class Launch {
 public:
  Launch(Queue& queue, const Fused& fused, bool backward)
      : queue_(queue), fused_(fused), structure_{fused, kDtype<T>, backward, 1, {}} {}

  void run() {
    if (fused_.rows == 0 || fused_.cols == 0) return;
    head_.rows = fused_.rows;
    head_.cols = fused_.cols;
    lists_.reserve(static_cast<std::size_t>(2 * fused_.operand_count));
    if (structure_.backward && !find_gradients()) return;
    for (int k = 0; k < fused_.operand_count; ++k) place_operand(k);
    for (int i = 0; i < fused_.result_count; ++i) place_result(i);
    const bool sums_rows = structure_.sums_rows();
    constexpr int kWidth = 16 / sizeof(T);
    if (!sums_rows && bits_ % 16 == 0 && fused_.cols % kWidth == 0 && fused_.register_count <= kMostWideRegisters)
      structure_.width = kWidth;
    const int64_t units = sums_rows ? fused_.rows * kWarp : fused_.rows * (fused_.cols / structure_.width);
    write_attributes();
    const Kernel* kernel = kernel_of(structure_);
    if (!kernel) return;
    queue_.launch(*kernel, blocks_for(units, kFusedThreads), kFusedThreads, 0, &args_, args_bytes_);
    add_deferred();
  }

 private:
  // More registers of 16 bytes would not stay in those of a thread.
  static constexpr int kMostWideRegisters = 32;

  static T* at(const void* address, int64_t element) { return static_cast<T*>(const_cast<void*>(address)) + element; }
  int64_t width_of(const FusedOperand& operand) const { return operand.broadcast == kColumn ? 1 : fused_.cols; }

  // ---- rows

  RowList& list_of(const void* const* rows) {
    for (RowList& list : lists_)
      if (list.rows == rows) return list;
    lists_.push_back({rows});
    RowList& list = lists_.back();
    const auto first = reinterpret_cast<uintptr_t>(rows[0]);
    const uintptr_t step = fused_.rows > 1 ? reinterpret_cast<uintptr_t>(rows[1]) - first : 0;
    uintptr_t all = 0, irregular = 0;
    for (int64_t i = 0; i < fused_.rows; ++i) {
      const auto address = reinterpret_cast<uintptr_t>(rows[i]);
      all |= address;
      irregular |= address ^ (first + static_cast<uintptr_t>(i) * step);
    }
    const auto bytes = static_cast<int64_t>(step);  // below zero where rows run backwards
    list.wanted = all != 0;
    list.regular = irregular == 0 && first != 0 && bytes % static_cast<int64_t>(sizeof(T)) == 0;
    list.ld = bytes / static_cast<int64_t>(sizeof(T));
    list.bits = all;
    return list;
  }
  const void* on_device(RowList* list) {
    if (!list->on_device) list->on_device = queue_.upload(list->rows, fused_.rows);
    return list->on_device;
  }

  // ---- gradients

  // Returns whether there is anything to do.
  bool find_gradients() {
    bool wanted = false;
    for (int k = 0; k < fused_.operand_count; ++k) {
      const FusedOperand& operand = fused_.operands[k];
      Gradient& gradient = structure_.gradients[k];
      if (operand.grad_rows) {
        gradient = Gradient::kAddToRows;
        wanted = wanted || list_of(operand.grad_rows).wanted;
      } else if (operand.grad) {
        gradient = operand.add ? Gradient::kAdd : Gradient::kOverwrite;
        wanted = true;
      }
    }
    if (wanted) defer();
    return wanted;
  }

  // Threads work in no order: gradients of operands that share memory, slices of one value, go to memory of their own,
  // and are added from there one after another.
  void defer() {
    bool deferred[kMostRegisters] = {};
    for (int k = 0; k < fused_.operand_count; ++k)
      for (int j = 0; j < k && adds(k); ++j)  // one that overwrites shares nothing
        if (adds(j) && meet(fused_.operands[j], fused_.operands[k])) deferred[j] = deferred[k] = true;
    int64_t elements = 0;
    for (int k = 0; k < fused_.operand_count; ++k) {
      if (!deferred[k]) continue;
      structure_.gradients[k] = Gradient::kOverwrite;
      deferred_.push_back({k, elements});
      elements += fused_.rows * width_of(fused_.operands[k]);
    }
    if (elements > 0) deferred_memory_ = queue_.scratch(static_cast<std::size_t>(elements) * sizeof(T));
  }

  bool adds(int k) const {
    return structure_.gradients[k] == Gradient::kAdd || structure_.gradients[k] == Gradient::kAddToRows;
  }
  // Whether two gradients share elements of a row; of matrices of one stride, else whether they meet at all.
  bool meet(const FusedOperand& a, const FusedOperand& b) const {
    const int64_t a_width = width_of(a), b_width = width_of(b);
    if (a.grad_rows || b.grad_rows)
      return a.grad_rows == b.grad_rows && a.first_col < b.first_col + b_width && b.first_col < a.first_col + a_width;
    const auto a_begin = reinterpret_cast<intptr_t>(a.grad), b_begin = reinterpret_cast<intptr_t>(b.grad);
    const auto size = static_cast<intptr_t>(sizeof(T));
    const intptr_t a_end = a_begin + ((fused_.rows - 1) * a.grad_ld + a_width) * size;
    const intptr_t b_end = b_begin + ((fused_.rows - 1) * b.grad_ld + b_width) * size;
    if (a_begin >= b_end || b_begin >= a_end) return false;
    if (a.grad_ld != b.grad_ld) return true;
    const intptr_t stride = a.grad_ld * size;
    const intptr_t apart = ((b_begin - a_begin) % stride + stride) % stride;
    return apart < a_width * size || apart + b_width * size > stride;
  }

  void add_deferred() {
    std::vector<Piece> pieces;
    for (const Deferred& deferred : deferred_) {
      const FusedOperand& operand = fused_.operands[deferred.operand];
      const int64_t width = width_of(operand);
      pieces.clear();
      if (!operand.grad_rows) pieces.push_back({nullptr, operand.grad, fused_.rows, width, operand.grad_ld});
      for (int64_t row = 0; operand.grad_rows && row < fused_.rows; ++row) {
        void* const start = operand.grad_rows[row];
        pieces.push_back({nullptr, start ? at(start, operand.first_col) : nullptr, 1, width, width});
      }
      scatter_add<T>(queue_, at(deferred_memory_, deferred.begin), width, pieces.data(),
                     static_cast<int64_t>(pieces.size()), false);
    }
  }

  // ---- arguments

  // What a thread may do in accesses of 16 bytes has none of the lower bits.
  void note_alignment(const void* address, int64_t ld) {
    bits_ |= reinterpret_cast<uintptr_t>(address) | static_cast<uintptr_t>(ld) * sizeof(T);
  }

  void place_operand(int k) {
    const FusedOperand& operand = fused_.operands[k];
    FusedPlace& place = args_.places[k];
    const bool whole = operand.broadcast == kFull || operand.broadcast == kRow;
    if (operand.value_rows) {
      RowList& list = list_of(operand.value_rows);
      place.value = list.regular ? at(list.rows[0], operand.first_col) : const_cast<void*>(on_device(&list));
      place.ld = list.regular ? list.ld : operand.first_col;
      if (!list.regular) head_.value_lists |= uint64_t{1} << k;
      if (whole) bits_ |= list.bits | static_cast<uintptr_t>(operand.first_col) * sizeof(T);
    } else {
      place.value = const_cast<void*>(operand.value);
      place.ld = operand.ld;
      if (whole) note_alignment(operand.value, operand.broadcast == kFull ? operand.ld : 0);
    }
    switch (structure_.gradients[k]) {
      case Gradient::kNone:
        return;
      case Gradient::kAddToRows: {
        RowList& list = list_of(operand.grad_rows);
        if (!list.wanted) return;
        place.grad = list.regular ? at(list.rows[0], operand.first_col) : const_cast<void*>(on_device(&list));
        place.grad_ld = list.regular ? list.ld : operand.first_col;
        if (!list.regular) head_.grad_lists |= uint64_t{1} << k;
        bits_ |= list.bits | static_cast<uintptr_t>(operand.first_col) * sizeof(T);
        return;
      }
      default:
        place.grad = operand.grad;
        place.grad_ld = operand.grad_ld;
        for (const Deferred& deferred : deferred_) {
          if (deferred.operand != k) continue;
          place.grad = at(deferred_memory_, deferred.begin);
          place.grad_ld = width_of(operand);
        }
        note_alignment(place.grad, place.grad_ld);
    }
  }

  void place_result(int i) {
    const FusedResult& result = fused_.results[i];
    args_.places[fused_.operand_count + i] = {result.value, const_cast<void*>(result.grad), result.ld, result.grad_ld};
    note_alignment(result.value, result.ld);
    if (structure_.backward && result.grad) note_alignment(result.grad, result.grad_ld);
  }

  // After the places that there are: kernels know how many.
  void write_attributes() {
    args_.head = head_;
    auto* to = reinterpret_cast<T*>(args_.places + fused_.operand_count + fused_.result_count);
    for (int i = 0; i < fused_.op_count; ++i) {
      const FusedOp& op = fused_.ops[i];
      for (int k = 0; k < op_info(op.op).attribute_count; ++k) *to++ = static_cast<T>(op.attributes[k]);
    }
    args_bytes_ = static_cast<std::size_t>(reinterpret_cast<char*>(to) - reinterpret_cast<char*>(&args_));
  }

  struct Deferred {
    int operand;
    int64_t begin;  // of its gradients in the memory
  };

  Queue& queue_;
  const Fused& fused_;
  Structure structure_;
  FusedHead head_{};
  FusedArgs<T, kMostRegisters, 2 * kMostRegisters> args_{};
  static_assert(sizeof(args_) <= 4096, "arguments of a kernel");
  std::size_t args_bytes_ = 0;
  uintptr_t bits_ = 0;
  std::vector<RowList> lists_;  // never grows beyond what is reserved: references stay
  std::vector<Deferred> deferred_;
  void* deferred_memory_ = nullptr;
};

}  // namespace

template <class T>
void fused_forward(Queue& queue, const Fused& fused) {
  Launch<T>(queue, fused, false).run();
}

template <class T>
void fused_backward(Queue& queue, const Fused& fused) {
  Launch<T>(queue, fused, true).run();
}

template void fused_forward<float>(Queue&, const Fused&);
template void fused_forward<double>(Queue&, const Fused&);
template void fused_backward<float>(Queue&, const Fused&);
template void fused_backward<double>(Queue&, const Fused&);

}  // namespace lazynet::cuda
