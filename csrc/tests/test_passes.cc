// What each pass of cells makes of a small program. That the numbers stay the same is tested by tests/test_cells.py on
// random programs.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../graph.h"
#include "../passes/passes.h"
#include "check.h"

using namespace lazynet;

namespace {

// Two inputs of 4 columns and a function of them, which is traced.
class Program {
 public:
  Program() : graph_(ln_graph_options{LN_FLOAT32, 1, 0, 0, 0, 0, nullptr}), a(input()), b(input()) {}
  int64_t apply(int op, std::vector<int64_t> arguments, std::vector<double> attributes = {}) {
    return graph_.add(op, arguments.data(), static_cast<int>(arguments.size()), attributes.data(),
                      static_cast<int>(attributes.size()), nullptr, 0);
  }
  int64_t parameter(int64_t rows, int64_t cols) {
    parameters_.push_back(create_parameter({rows, cols}, LN_FLOAT32, false, "weight", cpu_backend()));
    return -2 - int64_t{parameters_.back()->slot()};
  }
  int64_t slice(int64_t node, int col, int cols) { return graph_.add_slice(node, 0, 1, col, cols); }
  std::shared_ptr<Cell> trace(const std::vector<int64_t>& outputs) {
    std::vector<int32_t> ids;
    for (const int64_t output : outputs) ids.push_back(graph_.resolve(output));
    return trace_cell(graph_, {graph_.resolve(a), graph_.resolve(b)}, ids, "program");
  }

 private:
  int64_t input() {
    const std::vector<float> zeros(4);
    return graph_.add_input({1, 4}, zeros.data(), true);
  }
  Graph graph_;
  std::vector<std::shared_ptr<Parameter>> parameters_;

 public:
  const int64_t a, b;
};

std::vector<std::string> ops_of(const Cell& cell) {
  std::vector<std::string> names;
  for (const CellStep& step : cell.steps) names.emplace_back(step.is_fused() ? "fused" : op_info(step.op).name);
  return names;
}

using Names = std::vector<std::string>;

void test_merge_equal_steps() {
  Program program;
  const int64_t left = program.apply(kOp_tanh, {program.a}), right = program.apply(kOp_tanh, {program.a});
  auto cell =
      program.trace({program.apply(kOp_mul, {program.apply(kOp_exp, {left}), program.apply(kOp_exp, {right})})});
  merge_equal_steps(cell.get());
  CHECK((ops_of(*cell) == Names{"tanh", "exp", "mul"}));
  CHECK(cell->steps[2].arguments[0] == cell->steps[2].arguments[1]);

  // Other attributes, other arguments: other steps.
  Program other;
  const int64_t more = other.apply(kOp_add_scalar, {other.a}, {1.0}),
                most = other.apply(kOp_add_scalar, {other.a}, {2.0});
  auto different = other.trace({other.apply(kOp_mul, {more, most})});
  merge_equal_steps(different.get());
  CHECK((ops_of(*different) == Names{"add_scalar", "add_scalar", "mul"}));

  // An output that was merged is the one that is left.
  Program twice;
  auto both = twice.trace({twice.apply(kOp_tanh, {twice.b}), twice.apply(kOp_tanh, {twice.b})});
  merge_equal_steps(both.get());
  CHECK((ops_of(*both) == Names{"tanh"}) && both->outputs[0] == both->outputs[1]);
}

void test_remove_dead_steps() {
  Program program;
  const int64_t used = program.apply(kOp_tanh, {program.a});
  auto cell = program.trace({used, program.apply(kOp_exp, {program.apply(kOp_sin, {program.b})})});
  cell->outputs.pop_back();
  remove_dead_steps(cell.get());
  CHECK((ops_of(*cell) == Names{"tanh"}));
}

void test_sink_slices() {
  Program program;
  const int64_t sum = program.apply(kOp_tanh, {program.apply(kOp_add, {program.a, program.b})});
  const int64_t result = program.apply(kOp_mul, {program.slice(sum, 0, 2), program.slice(sum, 2, 2)});
  auto cell = program.trace({result});
  sink_slices(cell.get());
  remove_dead_steps(cell.get());
  CHECK((ops_of(*cell) == Names{"add", "add", "tanh", "tanh", "mul"}));
  for (const CellStep& step : cell->steps) CHECK(cell->values[step.result].cols == 2);

  // What is also read whole stays whole.
  Program whole;
  const int64_t kept = whole.apply(kOp_tanh, {whole.a});
  auto other = whole.trace({whole.slice(kept, 0, 2), kept});
  sink_slices(other.get());
  CHECK((ops_of(*other) == Names{"tanh"}));
}

void test_gather_concatenations() {
  Program program;
  const int64_t joined = program.apply(kOp_concat_cols, {program.a, program.b});
  auto cell = program.trace({program.apply(kOp_log_softmax, {joined}, {1.0})});
  gather_concatenations(cell.get());
  CHECK((ops_of(*cell) == Names{"log_softmax"}));
  const CellValue &a = cell->values[cell->inputs[0]], &b = cell->values[cell->inputs[1]];
  CHECK(a.root == b.root && a.col == 0 && b.col == 4);
  CHECK(cell->steps[0].arguments[0] == a.root);

  // The same input twice, or something that was computed, must be put together.
  Program twice;
  auto doubled = twice.trace({twice.apply(kOp_concat_cols, {twice.a, twice.a})});
  gather_concatenations(doubled.get());
  CHECK((ops_of(*doubled) == Names{"concat_cols"}));
}

void test_stack_linears() {
  Program program;
  const int64_t w = program.parameter(4, 3), v = program.parameter(4, 5), u = program.parameter(4, 5);
  const int64_t left = program.apply(kOp_linear, {program.a, w}, {0.0});
  const int64_t gate = program.apply(kOp_sigmoid, {left});
  const int64_t right = program.apply(kOp_linear, {program.a, v}, {0.0});
  const int64_t other = program.apply(kOp_linear, {program.b, u}, {0.0});
  auto cell = program.trace({gate, program.apply(kOp_mul, {right, other})});
  stack_linears(cell.get());
  CHECK((ops_of(*cell) == Names{"linear", "sigmoid", "linear", "mul"}));
  const CellStep& stack = cell->steps[0];
  CHECK(stack.stacked.size() == 2 && stack.arguments.size() == 3 && cell->steps[2].stacked.empty());
  CHECK(cell->values[stack.result].cols == 8);
  const CellValue &first = cell->values[stack.stacked[0].result], &second = cell->values[stack.stacked[1].result];
  CHECK(first.root == stack.result && first.col == 0 && second.root == stack.result && second.col == 3);

  // With a bias and without, or of another slice: other products.
  Program apart;
  const int64_t weight = apart.parameter(4, 4), bias = apart.parameter(1, 4), half = apart.parameter(2, 4);
  const int64_t x = apart.slice(apart.a, 0, 2), y = apart.slice(apart.a, 2, 2);
  auto separate = apart.trace({apart.apply(kOp_linear, {apart.a, weight}, {0.0}),
                               apart.apply(kOp_linear, {apart.a, weight, bias}, {0.0}),
                               apart.apply(kOp_linear, {x, half}, {0.0}), apart.apply(kOp_linear, {y, half}, {0.0})});
  stack_linears(separate.get());
  CHECK(separate->steps.size() == 4);
}

void test_fuse_elementwise() {
  Program program;
  const int64_t gate = program.apply(kOp_sigmoid, {program.apply(kOp_add, {program.a, program.b})});
  const int64_t mixed = program.apply(kOp_log_softmax, {program.apply(kOp_mul, {gate, program.a})}, {1.0});
  auto cell = program.trace({program.apply(kOp_exp, {program.apply(kOp_neg, {mixed})})});
  fuse_elementwise(cell.get());
  CHECK((ops_of(*cell) == Names{"fused", "log_softmax", "fused"}));
  CHECK(cell->steps[0].fused.size() == 3 && cell->steps[2].fused.size() == 2);
  // Memory gets what others read, and what backward would rather read than compute again: the sigmoid, not the sum.
  const std::vector<CellStep::Stored>& stored = cell->steps[0].stored;
  CHECK(stored.size() == 2 && stored[0].for_backward && !stored[1].for_backward);
}

}  // namespace

int main() {
  test_merge_equal_steps();
  test_remove_dead_steps();
  test_sink_slices();
  test_gather_concatenations();
  test_stack_linears();
  test_fuse_elementwise();
  std::printf("passes: %ld checks passed\n", checks.load());
}
