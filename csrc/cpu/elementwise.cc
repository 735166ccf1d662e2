// Elementwise operators: one driver for all formulas, which handles how operands lie in memory and how they are
// broadcast.
#include "../ops/formulas.h"
#include "loops.h"

namespace lazynet::cpu::LN_UNIT {
namespace {

// An operand of a grid: its row r starts `step` * r elements in (0: one row for all), and has one
// element for all columns when `single`.
template <class T>
struct Line {
  T* value;
  T* grad;
  int64_t step;
  bool single;
  Line row(int64_t r) const { return {offset(value, r * step), offset(grad, r * step), step, single}; }
  Line from(int64_t column) const {
    return single ? *this : Line{offset(value, column), offset(grad, column), step, false};
  }
};
// A member, or part of a stretch.
template <class T>
struct Grid {
  int64_t rows, cols;
  Line<T> y, a, b;
  Grid row(int64_t r) const { return {1, cols, y.row(r), a.row(r), b.row(r)}; }
  Grid part(int64_t begin, int64_t end) const { return {1, end - begin, y.from(begin), a.from(begin), b.from(begin)}; }
};

template <class T>
Line<T> full_line(const Piece& piece) {
  return {value_of<T>(piece), grad_of<T>(piece), piece.ld, false};
}
template <class T>
Line<T> member_line(const Batch& batch, int argument, int64_t member, bool* one_span) {
  const Piece& piece = batch.arguments[argument].pieces[member];
  const Piece& result = batch.result.pieces[member];
  bool same_shape = piece.rows == result.rows && piece.cols == result.cols;
  int kind = same_shape ? int{kFull} : int{batch.broadcast[argument]};
  if (!(kind == kScalar || (kind == kFull && contiguous(piece)))) *one_span = false;
  bool steps = kind == kFull || kind == kColumn;
  return {value_of<T>(piece), grad_of<T>(piece), steps ? piece.ld : 0, kind == kColumn || kind == kScalar};
}
template <class T>
Grid<T> member_grid(const Batch& batch, int64_t member) {
  const Piece& result = batch.result.pieces[member];
  bool one_span = contiguous(result);
  Grid<T> grid{result.rows, result.cols, full_line<T>(result), {}, {nullptr, nullptr, 0, false}};
  grid.a = member_line<T>(batch, 0, member, &one_span);
  if (batch.argument_count > 1) grid.b = member_line<T>(batch, 1, member, &one_span);
  if (one_span) grid.cols *= grid.rows, grid.rows = 1;
  return grid;
}

// Part of a stretch.
template <class T>
Grid<T> run_grid(const Batch& batch, const Run& run, int64_t first, int64_t count) {
  auto line = [&](int k) {
    return Line<T>{static_cast<T*>(run.value[k]) + first, offset(static_cast<T*>(run.grad[k]), first), count, false};
  };
  const int64_t begin = run.begin + first;
  Grid<T> grid{1, count, full_line<T>(batch.result.matrix).from(begin), line(0), {nullptr, nullptr, 0, false}};
  if (batch.argument_count > 1) grid.b = line(1);
  return grid;
}

// Calls function(run, first, count) for parts of stretches that are all of the batch together; over the threads
// unless `serial`.
template <class Function>
void for_runs(const Batch& batch, bool serial, const Function& function) {
  auto range = [&](int64_t begin, int64_t end) {
    int64_t low = 0, high = batch.run_count;  // `begin` lies in one of runs low to high - 1
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (batch.runs[middle].begin <= begin ? low : high) = middle;
    }
    for (; low < batch.run_count && batch.runs[low].begin < end; ++low) {
      const Run& run = batch.runs[low];
      const int64_t first = begin > run.begin ? begin - run.begin : 0;
      const int64_t last = end < run.begin + run.elements ? end - run.begin : run.elements;
      function(run, first, last - first);
    }
  };
  const Run& last = batch.runs[batch.run_count - 1];
  if (serial)
    range(0, last.begin + last.elements);
  else
    parallel_for(last.begin + last.elements, kGrainElements, range);
}

// A formula with its attributes; by value, so that the compiler keeps them in registers.
template <class Formula, class T>
struct Elementwise {
  T p[Formula::kAttributes + 1];

  explicit Elementwise(const Batch& batch) : p{} {
    for (int i = 0; i < Formula::kAttributes; ++i) p[i] = static_cast<T>(batch.attributes[i]);
  }

  template <bool kSingleA, bool kSingleB>
  static void value_span(const Elementwise self, const Grid<T>& grid) {
    constexpr bool kHasB = Formula::kArguments == 2;
    const T *a = grid.a.value, *b = grid.b.value;
    T* y = grid.y.value;
    const T a0 = kSingleA ? *a : T(0), b0 = kHasB && kSingleB ? *b : T(0);
    const int64_t cols = grid.cols;
    LN_IVDEP
    for (int64_t i = 0; i < cols; ++i)
      y[i] = Formula::value(kSingleA ? a0 : a[i], kHasB && !kSingleB ? b[i] : b0, self.p);
  }

  // The gradient of argument kArgument as a function of the column; values are loaded only when the
  // formula may use them.
  template <int kArgument, bool kSingleA, bool kSingleB>
  struct GradientAt {
    Elementwise self;
    const T *a, *b, *y, *g;
    T a0, b0;
    static constexpr bool kReadsA = Formula::kReadsArguments;
    static constexpr bool kReadsB = Formula::kReadsArguments && Formula::kArguments == 2;
    GradientAt(const Elementwise& formula, const Grid<T>& grid)
        : self(formula),
          a(grid.a.value),
          b(grid.b.value),
          y(grid.y.value),
          g(grid.y.grad),
          a0(kReadsA && kSingleA ? *a : T(0)),
          b0(kReadsB && kSingleB ? *b : T(0)) {}
    __attribute__((always_inline)) T operator()(int64_t i) const {
      return Formula::template gradient<kArgument>(kReadsA && !kSingleA ? a[i] : a0, kReadsB && !kSingleB ? b[i] : b0,
                                                   Formula::kReadsResult ? y[i] : T(0), g[i], self.p);
    }
  };

  template <int kArgument, bool kSingleA, bool kSingleB>
  static void gradient_span(const Elementwise& self, const Grid<T>& grid) {
    const GradientAt<kArgument, kSingleA, kSingleB> at(self, grid);
    const int64_t cols = grid.cols;
    T* to = kArgument == 0 ? grid.a.grad : grid.b.grad;
    if constexpr (kArgument == 0 ? kSingleA : kSingleB) {
      *to += sum_over<T>(cols, at);
    } else {
      LN_IVDEP
      for (int64_t i = 0; i < cols; ++i) to[i] += at(i);
    }
  }

  // Calls span(self, row) for all rows, or for parts of the only row; over the threads unless rows
  // write to the same memory. Columns of one row are never split when they are summed.
  template <class Span>
  void for_spans(const Grid<T>& grid, bool summed, bool rows_apart, const Span& span) const {
    if (grid.rows * grid.cols == 0) return;
    if (grid.rows > 1 && rows_apart) {
      for_rows(grid.rows, grid.cols, [&](int64_t r) { span(*this, grid.row(r)); });
    } else if (grid.rows > 1 || summed) {
      for (int64_t r = 0; r < grid.rows; ++r) span(*this, grid.row(r));
    } else {
      parallel_for(grid.cols, kGrainElements, [&](int64_t begin, int64_t end) { span(*this, grid.part(begin, end)); });
    }
  }

  void forward(const Grid<T>& grid) const {
    if constexpr (Formula::kArguments == 1) {
      for_spans(grid, false, true, value_span<false, false>);
    } else {
      // Never both: one of them then has the shape of the result.
      for_spans(grid, false, true,
                grid.a.single ? value_span<true, false>
                              : (grid.b.single ? value_span<false, true> : value_span<false, false>));
    }
  }

  template <int kArgument>
  void backward(const Grid<T>& grid) const {
    const Line<T>& to = kArgument == 0 ? grid.a : grid.b;
    if (!to.grad) return;
    if constexpr (Formula::kArguments == 1) {
      for_spans(grid, false, true, gradient_span<0, false, false>);
    } else {
      for_spans(grid, to.single, to.step != 0,
                grid.a.single
                    ? gradient_span<kArgument, true, false>
                    : (grid.b.single ? gradient_span<kArgument, false, true> : gradient_span<kArgument, false, false>));
    }
  }
};

template <class Formula, class T>
void elementwise_forward(const Batch& batch) {
  using Kernel = Elementwise<Formula, T>;
  const Kernel formula(batch);
  if (batch.runs)
    for_runs(batch, false, [&](const Run& run, int64_t first, int64_t count) {
      Kernel::template value_span<false, false>(formula, run_grid<T>(batch, run, first, count));
    });
  else
    for_members(batch, false, [&](int64_t i) { formula.forward(member_grid<T>(batch, i)); });
}

// A pass an argument: the arguments may be the same node.
template <int kArgument, class Formula, class T>
void argument_backward(const Batch& batch) {
  using Kernel = Elementwise<Formula, T>;
  const Operand& operand = batch.arguments[kArgument];
  if (!operand.wants_grad) return;
  const Kernel formula(batch);
  if (batch.runs)
    for_runs(batch, operand.overlapping, [&](const Run& run, int64_t first, int64_t count) {
      Kernel::template gradient_span<kArgument, false, false>(formula, run_grid<T>(batch, run, first, count));
    });
  else
    for_members(batch, true, [&](int64_t i) { formula.template backward<kArgument>(member_grid<T>(batch, i)); });
}
template <class Formula, class T>
void elementwise_backward(const Batch& batch) {
  argument_backward<0, Formula, T>(batch);
  if constexpr (Formula::kArguments == 2) argument_backward<1, Formula, T>(batch);
}

}  // namespace

#define LN_UNARY(name, ...)                     \
  template <class T>                            \
  void name##_forward(const Batch& b) {         \
    elementwise_forward<name##_formula, T>(b);  \
  }                                             \
  template <class T>                            \
  void name##_backward(const Batch& b) {        \
    elementwise_backward<name##_formula, T>(b); \
  }                                             \
  LN_INSTANTIATE(name)
#define LN_BINARY LN_UNARY
#include "../ops/elementwise.def"
#undef LN_UNARY
#undef LN_BINARY

}  // namespace lazynet::cpu::LN_UNIT
