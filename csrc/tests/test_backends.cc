// A backend whose kernels must not see gradients that share memory (apart_backend.h) against the CPU: operands that
// overlap in every way, random graphs, errors and want of memory.
// Usage: test_backends PATH-OF-BLAS PREFIX SUFFIX
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "../cell.h"
#include "../error.h"
#include "../graph.h"
#include "apart_backend.h"
#include "check.h"

using namespace lazynet;

namespace {

constexpr int kCols = 6;

// A graph on one backend, with inputs and parameters whose numbers depend on their order alone.
class Program {
 public:
  explicit Program(Backend& backend, std::size_t limit = 0, bool train = true)
      : backend_(backend), graph(ln_graph_options{LN_FLOAT64, train, 0, 7, limit, 1 << 12, nullptr}, backend) {}

  int64_t apply(int op, std::vector<int64_t> arguments, std::vector<double> attributes = {},
                std::vector<int64_t> payload = {}) {
    nodes.push_back(graph.add(op, arguments.data(), static_cast<int>(arguments.size()), attributes.data(),
                              static_cast<int>(attributes.size()), payload.data(),
                              static_cast<int64_t>(payload.size())));
    return nodes.back();
  }
  int64_t input(int64_t rows, int64_t cols = kCols, bool wanted = true) {
    const std::vector<double> numbers = draw(rows * cols);
    nodes.push_back(graph.add_input({rows, cols}, numbers.data(), wanted));
    return nodes.back();
  }
  int64_t parameter(int64_t rows, int64_t cols, bool sparse = false) {
    parameters.push_back(create_parameter({rows, cols}, LN_FLOAT64, sparse, "p", backend_));
    const std::vector<double> numbers = draw(rows * cols);
    backend_.write(parameters.back()->value(), numbers.data(), numbers.size() * sizeof(double));
    return -2 - int64_t{parameters.back()->slot()};
  }
  int64_t slice(int64_t node, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    return graph.add_slice(node, row, rows, col, cols);
  }
  // Of any nodes: the sum of squares of all their elements.
  int64_t loss(const std::vector<int64_t>& of) {
    std::vector<int64_t> parts;
    for (const int64_t node : of) {
      // Not multiplied by itself, so that the program alone has what overlaps.
      parts.push_back(apply(kOp_reduce_sum, {apply(kOp_pow_scalar, {node}, {2})}, {2}));
    }
    return apply(kOp_sum_nodes, parts, {0});
  }
  Shape shape(int64_t node) { return graph.nodes[graph.resolve(node)].shape(); }

  // The loss and all gradients that there are.
  std::vector<double> run(int64_t loss_node, bool retain) {
    graph.backward(loss_node, retain);
    std::vector<double> numbers(1);
    graph.read_value(loss_node, numbers.data());
    for (const int64_t node : nodes) {
      const NodeRecord& record = graph.nodes[graph.resolve(node)];
      if (!retain && record.op != kOp_input) continue;
      std::vector<double> gradient(static_cast<std::size_t>(shape(node).elements()));
      if (graph.read_gradient(node, gradient.data()))
        numbers.insert(numbers.end(), gradient.begin(), gradient.end());
      else
        numbers.push_back(-1);
    }
    for (const auto& parameter : parameters) append_gradient(*parameter, &numbers);
    return numbers;
  }

 private:
  std::vector<double> draw(int64_t count) {
    std::vector<double> numbers(static_cast<std::size_t>(count));
    for (double& x : numbers) x = std::uniform_real_distribution<double>(-1, 1)(random_);
    return numbers;
  }
  void append_gradient(Parameter& parameter, std::vector<double>* numbers) {
    const Shape shape = parameter.shape();
    std::vector<double> gradient(static_cast<std::size_t>(shape.elements()));
    if (!parameter.sparse()) {
      backend_.read(gradient.data(), parameter.dense_gradient(), gradient.size() * sizeof(double));
    } else {
      SparseRows& rows = *parameter.sparse_gradient();
      for (std::size_t i = 0; i < rows.rows().size(); ++i)
        backend_.read(gradient.data() + rows.rows()[i] * shape.cols, rows.at(static_cast<int64_t>(i)),
                      static_cast<std::size_t>(shape.cols) * sizeof(double));
    }
    numbers->insert(numbers->end(), gradient.begin(), gradient.end());
  }

  Backend& backend_;
  std::mt19937 random_{3};

 public:
  Graph graph;
  std::vector<int64_t> nodes;
  std::vector<std::shared_ptr<Parameter>> parameters;
  std::vector<std::shared_ptr<Cell>> cells;
};

bool close(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= 1e-11 * (1 + std::abs(a[i])))) return false;
  return true;
}

using Build = std::function<std::vector<int64_t>(Program&)>;

// Runs it on both backends; returns how often gradients overlapped.
int64_t compare(const char* name, const Build& build) {
  ApartBackend apart(cpu_backend(), true);
  for (const bool retain : {false, true}) {
    Program expected(cpu_backend()), made(apart);
    const int64_t expected_loss = expected.loss(build(expected)), made_loss = made.loss(build(made));
    const bool same = close(expected.run(expected_loss, retain), made.run(made_loss, retain));
    if (!same) std::fprintf(stderr, "%s: other gradients\n", name);
    CHECK(same);
  }
  return apart.overlapping();
}

void test_operators() {
  const auto overlaps = [](const char* name, const Build& build) { CHECK(compare(name, build) > 0); };
  const auto apart = [](const char* name, const Build& build) { CHECK(compare(name, build) == 0); };
  overlaps("a node twice", [](Program& p) {
    std::vector<int64_t> made;
    for (const int64_t rows : {1, 3, 2}) {
      const int64_t x = p.apply(kOp_tanh, {p.input(rows)});
      for (const int op : {kOp_mul, kOp_add, kOp_sub}) made.push_back(p.apply(op, {x, x}));
      made.push_back(p.apply(kOp_matmul, {x, x}, {0, 1}));
    }
    return made;
  });
  overlaps("views that overlap", [](Program& p) {
    const int64_t x = p.apply(kOp_tanh, {p.input(5)});
    const auto rows = [&](int64_t first) { return p.slice(x, first, 3, 0, kCols); };
    const auto cols = [&](int64_t first) { return p.slice(x, 0, 5, first, 3); };
    return std::vector<int64_t>{p.apply(kOp_mul, {rows(0), rows(1)}),
                                p.apply(kOp_mul, {rows(2), rows(1)}),
                                p.apply(kOp_div, {cols(0), p.apply(kOp_exp, {cols(1)})}),
                                p.apply(kOp_mul, {cols(3), cols(2)}),
                                p.apply(kOp_softmax, {cols(2)}, {1, INFINITY, INFINITY}),
                                p.apply(kOp_softmax, {cols(1)}, {1, INFINITY, INFINITY})};
  });
  apart("views that do not", [](Program& p) {
    const int64_t x = p.apply(kOp_tanh, {p.input(200)});
    std::vector<int64_t> made;
    for (int64_t row = 0; row < 200; row += 2)
      made.push_back(p.apply(kOp_mul, {p.slice(x, row, 1, 0, kCols), p.slice(x, row + 1, 1, 0, kCols)}));
    return made;
  });
  overlaps("one node of many members", [](Program& p) {
    const int64_t bias = p.apply(kOp_tanh, {p.input(1)}), one = p.apply(kOp_exp, {p.input(1, 1)});
    std::vector<int64_t> made;
    for (const int64_t rows : {2, 1, 4}) {
      const int64_t x = p.input(rows);
      made.push_back(p.apply(kOp_add, {x, bias}));
      made.push_back(p.apply(kOp_mul, {x, one}));
      made.push_back(p.apply(kOp_sigmoid, {bias}));
      made.push_back(p.apply(kOp_dropout, {bias}, {0.3}));
    }
    return made;
  });
  overlaps("a parameter of all members", [](Program& p) {
    const int64_t bias = p.parameter(1, kCols), table = p.parameter(9, kCols);
    std::vector<int64_t> made;
    for (const int64_t rows : {2, 1, 4}) {
      made.push_back(p.apply(kOp_add, {p.input(rows), bias}));
      made.push_back(p.apply(kOp_mul, {p.slice(table, rows, 2, 1, 3), p.slice(table, 1, 2, 2, 3)}));
    }
    return made;
  });
  overlaps("lists", [](Program& p) {
    const int64_t x = p.apply(kOp_tanh, {p.input(2)}), y = p.input(2), constant = p.input(2, kCols, false);
    const int64_t part = p.slice(x, 0, 2, 1, kCols - 1);
    return std::vector<int64_t>{p.apply(kOp_concat_cols, {x, y, x}),        p.apply(kOp_concat_cols, {x, constant, y}),
                                p.apply(kOp_concat_rows, {x, x, constant}), p.apply(kOp_concat_rows, {y, x}),
                                p.apply(kOp_sum_nodes, {x, x, y}, {1}),     p.apply(kOp_sum_nodes, {constant, y}, {1}),
                                p.apply(kOp_concat_cols, {part, x, part})};
  });
  overlaps("linear", [](Program& p) {
    const int64_t w = p.parameter(kCols, 4), b = p.parameter(1, 4), constant = p.input(3, kCols, false);
    const int64_t x = p.apply(kOp_tanh, {p.input(3)}), y = p.apply(kOp_tanh, {p.input(5)});
    std::vector<int64_t> made;
    for (const int64_t a : {x, y, x, constant, p.slice(y, 1, 3, 0, kCols), constant})
      made.push_back(p.apply(kOp_linear, {a, w, b}, {0}));
    return made;
  });
  overlaps("attention", [](Program& p) {
    std::vector<int64_t> made;
    for (const int64_t rows : {3, 5}) {
      const int64_t x = p.apply(kOp_tanh, {p.input(rows, 12)});
      const int64_t q = p.slice(x, 0, rows, 0, 6), k = p.slice(x, 0, rows, 6, 6), v = p.slice(x, 0, rows, 3, 6);
      made.push_back(p.apply(kOp_attention, {q, k, v}, {2, 0.5, INFINITY, INFINITY, 0}));
      made.push_back(p.apply(kOp_attention, {x, x, x}, {2, 0.5, INFINITY, 0, 0}));
    }
    return made;
  });
  for (const bool repeated : {false, true})
    compare("linear_cross_entropy", [&](Program& p) {
      const int64_t w = p.parameter(kCols, 4), b = p.parameter(1, 4), constant = p.input(2, kCols, false);
      const int64_t x = p.apply(kOp_tanh, {p.input(2)}), y = p.apply(kOp_tanh, {p.input(5, 2 * kCols)});
      std::vector<int64_t> of = {x, constant, p.slice(y, 1, 2, 2, kCols)}, made;
      if (repeated) of.insert(of.end(), {x, p.slice(y, 2, 2, 4, kCols)});
      for (const int64_t a : of) made.push_back(p.apply(kOp_linear_cross_entropy, {a, w, b}, {0, -100, 0.1}, {1, 3}));
      return made;
    });
  compare("linear_cross_entropy of columns", [&](Program& p) {
    const int64_t w = p.parameter(kCols, 4), y = p.apply(kOp_tanh, {p.input(4, 2 * kCols)});
    const int64_t transposed = p.parameter(4, kCols);
    std::vector<int64_t> made;
    // Values that lie one below another where gradients do not.
    for (const bool wanted : {true, false})
      made.push_back(p.apply(kOp_linear_cross_entropy,
                             {p.slice(p.input(2, 2 * kCols, wanted), 0, 2, 3, kCols), transposed}, {1, -100, 0},
                             {2, 0}));
    for (int64_t row = 0; row < 4; row += 2)
      made.push_back(
          p.apply(kOp_linear_cross_entropy, {p.slice(y, row, 2, 3, kCols), w}, {0, -100, 0}, {row, 3 - row}));
    return made;
  });
  compare("shared arguments", [](Program& p) {
    const int64_t transitions = p.parameter(kCols, kCols), ends = p.parameter(1, kCols), table = p.parameter(8, kCols);
    const int64_t sparse = p.parameter(90, 3, true);
    std::vector<int64_t> made;
    for (const int64_t rows : {2, 4}) {
      const int64_t x = p.apply(kOp_tanh, {p.input(rows)});
      made.push_back(p.apply(kOp_crf_log_partition, {x, transitions, ends, ends}));
      made.push_back(p.apply(kOp_layer_norm, {x, ends, ends}, {1e-5}));
      made.push_back(p.apply(kOp_linear, {x, p.slice(table, 0, 6, 0, kCols), p.slice(table, 5, 1, 0, kCols)}, {0}));
      made.push_back(p.apply(kOp_lookup, {sparse}, {}, {1, rows, 1}));
      made.push_back(p.apply(kOp_lookup, {table}, {}, {7, 7, 0}));
      for (int64_t id = 0; id < 80; ++id) made.push_back(p.apply(kOp_lookup, {sparse}, {}, {id}));
    }
    return made;
  });
  compare("what the loss does not depend on", [](Program& p) {
    const int64_t x = p.apply(kOp_tanh, {p.input(3)});
    std::vector<int64_t> made, left;
    for (int i = 0; i < 9; ++i) {
      const int64_t y = p.apply(kOp_mul, {x, p.slice(x, i % 3, 1, 0, kCols)});
      const int64_t z = p.apply(kOp_concat_cols, {y, x, y});
      (i % 3 ? made : left).push_back(z);
    }
    return made;
  });
}

// tanh([a b] W) sigmoid(a) + c, and more outputs of what is read twice.
std::shared_ptr<Cell> make_cell(Program& p, int64_t w, int kind) {
  const std::vector<double> zeros(kCols);
  Graph& graph = p.graph;
  std::vector<int64_t> in;
  for (int i = 0; i < 3; ++i) in.push_back(graph.add_input({1, kCols}, zeros.data(), true));
  const auto add = [&](int op, std::vector<int64_t> arguments, std::vector<double> attributes = {}) {
    return graph.add(op, arguments.data(), static_cast<int>(arguments.size()), attributes.data(),
                     static_cast<int>(attributes.size()), nullptr, 0);
  };
  std::vector<int64_t> out;
  if (kind == 0) {
    const int64_t made = add(kOp_tanh, {add(kOp_linear, {add(kOp_concat_cols, {in[0], in[1]}), w}, {0})});
    out = {add(kOp_add, {add(kOp_mul, {made, add(kOp_sigmoid, {in[0]})}), in[2]}), made};
  } else if (kind == 1) {  // elementwise alone: no input is gathered
    const int64_t first = graph.add_slice(in[2], 0, 1, 0, 1);
    out = {add(kOp_mul, {add(kOp_mul, {in[0], add(kOp_tanh, {in[1]})}), add(kOp_sigmoid, {first})})};
  } else {  // lists that hold a value more than once
    const int64_t x = add(kOp_tanh, {in[0]});
    const int64_t sum = add(kOp_sum_nodes, {x, in[1], x}, {0});
    out = {add(kOp_concat_cols, {x, sum, x, graph.add_slice(x, 0, 1, 1, 3), in[2]})};
  }
  std::vector<int32_t> inputs, outputs;
  for (const int64_t node : in) inputs.push_back(graph.resolve(node));
  for (const int64_t node : out) outputs.push_back(graph.resolve(node));
  std::shared_ptr<Cell> cell = trace_cell(graph, inputs, outputs, "cell");
  optimize_cell(cell.get());
  place_values(cell.get());
  return cell;
}

void test_cells() {
  for (int kind = 0; kind < 3; ++kind)
    for (const bool inactive : {false, true}) {
      const int64_t overlapping = compare("cells", [&](Program& p) {
        const int64_t w = p.parameter(2 * kCols, kCols);
        p.cells.push_back(make_cell(p, w, kind));
        const Cell& cell = *p.cells.back();
        const int64_t x = p.apply(kOp_tanh, {p.input(2)}), wide = p.apply(kOp_exp, {p.input(4, 2 * kCols)});
        const int64_t constant = p.input(2, kCols, false);
        std::vector<int64_t> made, states = {x, constant, p.slice(wide, 0, 2, 0, kCols), p.slice(wide, 1, 2, 1, kCols)};
        for (std::size_t i = 0; i < 8; ++i) {
          const int64_t arguments[] = {states[i % 4], states[(i / 2 + 1) % 4], states[(i * i) % 4]};
          const int64_t placed = p.graph.add_cell(cell.id, arguments, 3);
          const int64_t node = cell.outputs.size() > 1 ? placed + 1 : placed;
          if (!inactive || i % 3) made.push_back(node);
          if (i % 3 == 0 && kind < 2) states[i % 4] = node;
        }
        return made;
      });
      CHECK(overlapping > 0);
    }
}

// Random operators on random nodes and views of few shapes.
std::vector<int64_t> build_random(Program& p, unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const int64_t w = p.parameter(kCols, kCols), b = p.parameter(1, kCols);
  std::vector<int64_t> nodes;
  for (int i = 0; i < 6; ++i) nodes.push_back(p.input(1 + i % 3, kCols, i != 4));
  for (int i = 0; i < 80; ++i) {
    const int64_t x = nodes[pick(nodes.size())], y = nodes[pick(nodes.size())];
    const int64_t rows = p.shape(x).rows;
    const bool fits = p.shape(y) == p.shape(x) || p.shape(y).rows == 1;
    int64_t made = x;
    switch (pick(11)) {
      case 0:
        made = p.apply(kOp_tanh, {x});
        break;
      case 1:
        made = p.apply(kOp_mul, {x, fits ? y : x});
        break;
      case 2:
        made = p.apply(kOp_add, {x, pick(2) ? b : x});
        break;
      case 3:
        made = p.apply(kOp_linear, {x, w, b}, {0});
        break;
      case 4:
        made = p.apply(kOp_tanh, {p.apply(kOp_concat_rows, {x, y, x})});
        made = p.slice(made, static_cast<int64_t>(pick(2)), 1 + static_cast<int64_t>(pick(2)), 0, kCols);
        break;
      case 5:
        if (rows > 1) made = p.slice(x, static_cast<int64_t>(pick(2)), rows - 1, 0, kCols);
        break;
      case 6: {
        const int64_t wide = p.apply(kOp_concat_cols, {x, x});
        made = p.slice(wide, 0, rows, static_cast<int64_t>(pick(kCols)), kCols);
        break;
      }
      case 7:
        made = p.apply(kOp_softmax, {x}, {1, INFINITY, INFINITY});
        break;
      case 8:
        made = p.apply(kOp_matmul, {p.apply(kOp_matmul, {x, y}, {0, 1}), y}, {0, 0});
        made = p.apply(kOp_tanh, {made});
        break;
      case 9:
        made = p.apply(kOp_dropout, {x}, {0.25});
        break;
      default:
        made = p.apply(kOp_layer_norm, {x, b}, {1e-5});
    }
    nodes.push_back(made);
  }
  std::vector<int64_t> ends;
  for (int i = 0; i < 12; ++i) ends.push_back(nodes[nodes.size() - 1 - pick(30)]);
  return ends;
}

void test_random() {
  int64_t overlapping = 0;
  for (unsigned seed = 0; seed < 40; ++seed)
    overlapping += compare("random", [&](Program& p) { return build_random(p, seed); });
  CHECK(overlapping > 0);
}

// Ids out of range are told at the end of forward, by the first batch that found one.
void test_faults() {
  ApartBackend apart(cpu_backend(), true);
  for (Backend* backend : {&cpu_backend(), static_cast<Backend*>(&apart)})
    for (const bool train : {true, false})
      for (const bool anomaly : {false, true}) {
        Program p(*backend, 0, train);
        p.graph.anomaly = anomaly;
        const int64_t table = p.parameter(4, kCols);
        const double numbers[] = {1, 7, 3};
        const int64_t ids = p.graph.add_input({1, 3}, numbers, false);
        const int64_t good = p.graph.add_slice(ids, 0, 1, 0, 1), bad = p.graph.add_slice(ids, 0, 1, 1, 1);
        const int64_t found = p.apply(kOp_lookup_ids, {table, good}), lost = p.apply(kOp_lookup_ids, {table, bad});
        const int64_t after = p.apply(kOp_lookup_ids, {table, p.apply(kOp_add_scalar, {lost}, {100})});
        const int64_t wanted[] = {found, after};
        std::string message;
        try {
          p.graph.forward(wanted, 2);
        } catch (const Error& error) {
          message = error.what();
        }
        CHECK(message.find("id 7 ") != std::string::npos);
        CHECK(!p.graph.computed(p.graph.resolve(found)));
        double value[kCols];
        p.graph.read_value(found, value);  // alone it can be read
      }
}

// Nothing is half done where memory ends.
void test_out_of_memory() {
  ApartBackend apart(cpu_backend(), true);
  int failures = 0, successes = 0;
  for (std::size_t limit = 1 << 13; limit <= 1 << 20; limit += limit / 4) {
    Program p(apart, limit);
    try {
      const int64_t loss = p.loss(build_random(p, 5));
      p.graph.backward(loss, false);
      ++successes;
    } catch (const Error& error) {
      CHECK(error.status() == LN_OUT_OF_MEMORY);
      ++failures;
      for (const auto& parameter : p.parameters) {
        CHECK(!parameter->has_gradient());
        std::vector<double> gradient(static_cast<std::size_t>(parameter->shape().elements()));
        apart.read(gradient.data(), parameter->dense_gradient(), gradient.size() * sizeof(double));
        for (const double x : gradient) CHECK(x == 0);
      }
    }
  }
  CHECK(failures > 0 && successes > 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: test_backends PATH-OF-BLAS [PREFIX [SUFFIX]]\n");
    return 2;
  }
  CHECK(ln_load_blas(argv[1], argc > 2 ? argv[2] : "", argc > 3 ? argv[3] : "") == LN_OK);
  test_operators();
  test_cells();
  test_random();
  test_faults();
  test_out_of_memory();
  std::printf("backends: %ld checks passed\n", checks.load());
}
