// The CPU as a backend whose kernels must not see gradients that share memory, and that makes no early gradients: what
// a device asks of the engine, checked in every call.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "../backend.h"
#include "../lazynet.h"
#include "../parameter.h"
#include "check.h"

namespace lazynet {

// Memory that may be touched only inside of the backend's functions.
class GuardedMemory final : public MemoryResource {
 public:
  GuardedMemory() {
    void* memory = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    begin_ = next_ = static_cast<char*>(memory);
  }
  ~GuardedMemory() override { munmap(begin_, kBytes); }
  void* allocate(std::size_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto* same = std::find_if(free_.data(), free_.data() + free_.size(), [&](auto& f) { return f.second == bytes; });
    if (same != free_.data() + free_.size()) {
      void* memory = same->first;
      free_.erase(free_.begin() + (same - free_.data()));
      return memory;
    }
    if (aligned(bytes) > kBytes - static_cast<std::size_t>(next_ - begin_)) return nullptr;
    return std::exchange(next_, next_ + aligned(bytes));
  }
  void deallocate(void* address, std::size_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.emplace_back(address, bytes);
  }
  void open() {  // kernels may call back
    ++open_;
    protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    if (--open_ == 0) protect(PROT_NONE);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 30;
  void protect(int how) {
    const auto used = static_cast<std::size_t>(next_ - begin_);
    if (used) CHECK(mprotect(begin_, (used + 4095) / 4096 * 4096, how) == 0);
  }
  int open_ = 0;
  char *begin_, *next_;
  std::vector<std::pair<void*, std::size_t>> free_;
  std::mutex mutex_;
};

class ApartBackend final : public Backend {
 public:
  // `guarded`: memory is closed to all but kernels, which then one thread at a time may call.
  ApartBackend(Backend& cpu, bool guarded) : cpu_(cpu), memory_(guarded ? new GuardedMemory : nullptr) {}
  const char* name() const override { return cpu_.name(); }
  MemoryResource& memory() override { return memory_ ? *memory_ : cpu_.memory(); }
  bool adds_in_turn() const override { return false; }
  bool makes_early_gradients() const override { return false; }

  void forward(int dtype, const Batch& batch) override {
    const Open open(*this);
    check_early(batch);
    Batch own = batch;
    if (batch.fault) {
      std::lock_guard<std::mutex> lock(mutex_);
      late_.push_back({batch.fault, std::make_unique<Fault>()});
      own.fault = late_.back().found.get();
    }
    cpu_.forward(dtype, own);
  }
  void backward(int dtype, const Batch& batch) override {
    const Open open(*this);
    check_early(batch);
    Ranges ranges(dtype);
    ranges.add(batch.result.matrix, -1);
    Batch own = batch;
    std::vector<std::vector<Piece>> pieces(4);
    std::vector<char> sink;
    for (int k = 0; k < batch.argument_count; ++k) {
      const Operand& operand = batch.arguments[k];
      CHECK(!operand.overlapping);
      if (!operand.wants_grad) continue;
      for (int64_t r = 0; r < batch.run_count; ++r)
        ranges.add({nullptr, batch.runs[r].grad[k], 1, batch.runs[r].elements, batch.runs[r].elements}, -1);
      if (batch.runs) continue;
      if (is_packed(batch.op, k)) {
        CHECK(operand.matrix.grad != nullptr || operand.matrix.rows * operand.matrix.cols == 0);
        ranges.add(operand.matrix, -1);
        continue;
      }
      if (operand.matrix.value) check_matrix(dtype, operand);
      pieces[k].assign(operand.pieces, operand.pieces + operand.count);
      own.arguments[k].pieces = pieces[k].data();
      for (const Piece& piece : pieces[k]) {
        if (piece.grad) {
          ranges.add(piece, -1);
        } else {
          sink.resize(std::max(sink.size(), static_cast<std::size_t>(piece.rows * std::max(piece.ld, piece.cols)) * 8));
          sinks_ += 1;
        }
      }
    }
    ranges.check();
    for (int k = 0; k < batch.argument_count; ++k)
      for (Piece& piece : pieces[k])
        if (!piece.grad) {
          piece.grad = sink.data();
          own.arguments[k].overlapping = true;
        }
    std::vector<char> kept, losses;
    if (batch.op == kOp_linear_cross_entropy && batch.arguments[0].wants_grad) {
      const Piece& x = batch.arguments[0].matrix;
      kept.resize(static_cast<std::size_t>(x.rows * x.cols) * 8);
      losses.resize(static_cast<std::size_t>(x.rows) * 8);
      Batch again = batch;
      again.kept = own.kept = kept.data();
      again.result.matrix.value = losses.data();
      cpu_.forward(dtype, again);
    }
    cpu_.backward(dtype, own);
  }
  void shared(int dtype, const Batch& batch) override {
    const Open open(*this);
    check_early(batch);
    Ranges ranges(dtype);
    for (int k = 0; k < batch.argument_count; ++k)
      if (batch.arguments[k].wants_grad) ranges.add(batch.arguments[k].pieces[0], -1);
    ranges.check();
    cpu_.shared(dtype, batch);
  }
  void settle() override {
    const Open open(*this);
    std::lock_guard<std::mutex> lock(mutex_);
    for (const Late& late : late_) *late.wanted = *late.found;
    late_.clear();
  }
  void finish() override {}
  void begin_step() override {}

  void gather(int dtype, const Piece* pieces, int64_t count, void* matrix, int64_t ld) override {
    const Open open(*this);
    cpu_.gather(dtype, pieces, count, matrix, ld);
  }
  void scatter_add(int dtype, const void* matrix, int64_t ld, const Piece* pieces, int64_t count,
                   bool overlapping) override {
    const Open open(*this);
    Ranges ranges(dtype);
    for (int64_t i = 0; i < count; ++i) {
      CHECK(pieces[i].cols == pieces[0].cols);
      if (pieces[i].grad) ranges.add(pieces[i], -1);
    }
    if (!overlapping) ranges.check();
    overlapping_ += overlapping;
    cpu_.scatter_add(dtype, matrix, ld, pieces, count, overlapping);
  }
  void fused_forward(int dtype, const Fused& fused) override {
    const Open open(*this);
    cpu_.fused_forward(dtype, fused);
  }
  void fused_backward(int dtype, const Fused& fused) override {
    const Open open(*this);
    CHECK(!fused.serial);
    Ranges ranges(dtype);
    const auto size = static_cast<int64_t>(element_size(dtype));
    for (int k = 0; k < fused.operand_count; ++k) {
      const FusedOperand& operand = fused.operands[k];
      const int64_t width = operand.broadcast == kColumn ? 1 : fused.cols;
      for (int64_t row = 0; row < fused.rows; ++row) {
        char* grad = operand.grad ? static_cast<char*>(operand.grad) + row * operand.grad_ld * size : nullptr;
        if (operand.grad_rows && operand.grad_rows[row])
          grad = static_cast<char*>(operand.grad_rows[row]) + operand.first_col * size;
        if (grad) ranges.add({nullptr, grad, 1, width, width}, row);
      }
    }
    ranges.check();
    cpu_.fused_backward(dtype, fused);
  }
  void add_column_sums(int dtype, const void* matrix, int64_t rows, int64_t cols, int64_t ld, bool all,
                       void* sums) override {
    const Open open(*this);
    cpu_.add_column_sums(dtype, matrix, rows, cols, ld, all, sums);
  }
  void zero(void* address, std::size_t bytes) override {
    const Open open(*this);
    cpu_.zero(address, bytes);
  }
  void add_one(int dtype, void* element) override {
    const Open open(*this);
    cpu_.add_one(dtype, element);
  }
  int64_t first_non_finite(int dtype, const void* matrix, int64_t rows, int64_t cols, int64_t ld) override {
    const Open open(*this);
    return cpu_.first_non_finite(dtype, matrix, rows, cols, ld);
  }
  void update(int dtype, int optimizer, const Update* updates, int64_t count) override {
    const Open open(*this);
    cpu_.update(dtype, optimizer, updates, count);
  }
  double sum_of_squares(int dtype, const Stretch* stretches, int64_t count) override {
    const Open open(*this);
    return cpu_.sum_of_squares(dtype, stretches, count);
  }
  void read(void* to, const void* from, std::size_t bytes) override {
    const Open open(*this);
    cpu_.read(to, from, bytes);
  }
  void write(void* to, const void* from, std::size_t bytes) override {
    const Open open(*this);
    cpu_.write(to, from, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    const Open open(*this);
    cpu_.copy(to, from, bytes);
  }
  void read_rows(void* to, const void* from, int64_t rows, int64_t row_bytes, int64_t stride) override {
    const Open open(*this);
    cpu_.read_rows(to, from, rows, row_bytes, stride);
  }

  // Calls of scatter_add() that said that pieces overlap; gradients that nobody wanted.
  int64_t overlapping() const { return overlapping_; }
  int64_t sinks() const { return sinks_; }

 private:
  class Open {
   public:
    explicit Open(ApartBackend& backend) : memory_(backend.memory_.get()) {
      if (memory_) memory_->open();
    }
    ~Open() {
      if (memory_) memory_->close();
    }

   private:
    GuardedMemory* memory_;
  };
  // Stretches of memory, of which only those of one row, unless that is -1, may share anything.
  class Ranges {
   public:
    explicit Ranges(int dtype) : size_(static_cast<int64_t>(element_size(dtype))) {}
    void add(const Piece& piece, int64_t row) {
      if (!piece.grad || piece.rows * piece.cols == 0) return;
      for (int64_t r = 0; r < piece.rows; ++r) {
        const char* begin = static_cast<const char*>(piece.grad) + r * piece.ld * size_;
        ranges_.push_back({begin, begin + piece.cols * size_, row});
      }
    }
    void check() {
      std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
      for (std::size_t i = 0; i < ranges_.size(); ++i)
        for (std::size_t j = i + 1; j < ranges_.size() && ranges_[j].begin < ranges_[i].end; ++j)
          CHECK(ranges_[i].row >= 0 && ranges_[i].row == ranges_[j].row);
    }

   private:
    struct Range {
      const char *begin, *end;
      int64_t row;
    };
    const int64_t size_;
    std::vector<Range> ranges_;
  };
  struct Late {
    Fault* wanted;
    std::unique_ptr<Fault> found;
  };

  static bool is_packed(int op, int k) {
    const auto& arguments = op_info(op).arguments;
    return arguments[std::min<std::size_t>(k, arguments.size() - 1)].packed;
  }
  static void check_early(const Batch& batch) {
    CHECK(!batch.kept);
    for (const void* early : batch.early) CHECK(!early);
  }
  // The gradients of the pieces are where their matrix says.
  static void check_matrix(int dtype, const Operand& operand) {
    const char* next = static_cast<char*>(operand.matrix.grad);
    CHECK(next != nullptr);
    const bool flat = operand.matrix.rows == 1 && operand.matrix.cols == operand.matrix.ld;
    for (int64_t i = 0; i < operand.count; ++i) {
      const Piece& piece = operand.pieces[i];
      if (piece.rows * piece.cols == 0) continue;
      CHECK(piece.grad == next);
      next += piece.rows * (flat ? piece.cols : piece.ld) * static_cast<int64_t>(element_size(dtype));
    }
  }

  Backend& cpu_;
  const std::unique_ptr<GuardedMemory> memory_;
  std::mutex mutex_;
  std::vector<Late> late_;
  std::atomic<int64_t> overlapping_{0}, sinks_{0};
};

}  // namespace lazynet
