// The core through its C interface, for the sanitizers: random graphs under every policy against one node at a
// time, training and inference, errors in the middle of things, the scheduler's order and the planner's memory.
// Usage: test_core PATH-OF-BLAS PREFIX SUFFIX
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../lazynet.h"
#include "check.h"

namespace {

constexpr int kDim = 6, kWords = 11;

struct Model {
  ln_parameter* table = ln_parameter_create(kWords, kDim, LN_FLOAT64, 1, "table", nullptr);
  ln_parameter* weight = ln_parameter_create(kDim, 2 * kDim, LN_FLOAT64, 0, "weight", nullptr);
  ln_parameter* bias = ln_parameter_create(1, kDim, LN_FLOAT64, 0, "bias", nullptr);
  Model() {
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal(0, 0.5);
    for (auto [parameter, count] : {std::pair{table, kWords * kDim}, {weight, 2 * kDim * kDim}, {bias, kDim}})
      for (int i = 0; i < count; ++i) static_cast<double*>(ln_parameter_value(parameter))[i] = normal(random);
  }
  ~Model() {
    for (ln_parameter* parameter : {table, weight, bias}) ln_parameter_release(parameter);
  }
};

ln_graph* make_graph(bool train, const char* policy, bool eager = false, size_t limit = 0) {
  const ln_graph_options options{LN_FLOAT64, train, eager, 7, limit, 0, nullptr};
  ln_graph* graph = ln_graph_create(&options);
  CHECK(graph != nullptr);
  CHECK(ln_graph_set_policy(graph, policy) == LN_OK);
  return graph;
}

int op(const char* name) {
  const int id = ln_op_id(name);
  CHECK(id >= 0);
  return id;
}

// tanh([a b] W + bias) sigmoid(a), and what it was made of: two outputs.
struct Outputs {
  int64_t gated, inner;
};
Outputs gate(ln_graph* graph, const Model& model, int64_t a, int64_t b) {
  const double transpose = 1;
  const int64_t pair[] = {a, b};
  const int64_t arguments[] = {ln_add(graph, op("concat_cols"), pair, 2, nullptr, 0, nullptr, 0),
                               ln_parameter_handle(model.weight), ln_parameter_handle(model.bias)};
  const int64_t inner =
      ln_add1(graph, op("tanh"), ln_add(graph, op("linear"), arguments, 3, &transpose, 1, nullptr, 0));
  return {ln_add2(graph, op("mul"), inner, ln_add1(graph, op("sigmoid"), a)), inner};
}

ln_cell* make_cell(const Model& model) {
  ln_graph* graph = make_graph(true, "lookahead");
  const double zeros[kDim] = {};
  const int64_t inputs[] = {ln_add_input(graph, 1, kDim, zeros, 1), ln_add_input(graph, 1, kDim, zeros, 1)};
  const Outputs traced = gate(graph, model, inputs[0], inputs[1]);
  const int64_t outputs[] = {traced.gated, traced.inner};
  ln_cell* cell = ln_cell_create(graph, inputs, 2, outputs, 2, "gate");
  CHECK(cell != nullptr && std::strstr(ln_cell_text(cell, 1), "fused") != nullptr);
  ln_graph_release(graph);
  return cell;
}

// A random forest of small recurrences, some of them a cell or the nodes that it is made of; returns the loss.
int64_t build(ln_graph* graph, const Model& model, unsigned seed, const ln_cell* cell = nullptr) {
  std::mt19937 random(seed);
  auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const int64_t weight = ln_parameter_handle(model.weight), bias = ln_parameter_handle(model.bias);
  const double transpose = 1;
  std::vector<int64_t> rows, losses;
  for (int i = 0; i < 12; ++i)
    rows.push_back(ln_add1_id(graph, op("lookup"), ln_parameter_handle(model.table), pick(kWords)));
  for (int i = 0; i < 120; ++i) {
    const int64_t a = rows[pick(rows.size())], b = rows[pick(rows.size())], pair[] = {a, b};
    int64_t made = LN_FAILED;
    switch (pick(9)) {
      case 0:
        made = ln_add2(graph, op("add"), a, bias);
        break;
      case 1:
        made = ln_add2(graph, op("mul"), a, b);
        break;
      case 2:
        made = ln_add1(graph, op("tanh"), a);
        break;
      case 3: {
        const int64_t both = ln_add(graph, op("concat_cols"), pair, 2, nullptr, 0, nullptr, 0);
        const int64_t arguments[] = {both, weight, bias};
        made = ln_add(graph, op("linear"), arguments, 3, &transpose, 1, nullptr, 0);
        break;
      }
      case 4:
        made = ln_add1_x(graph, op("log_softmax"), a, 1);
        break;
      case 5:
        made = ln_add(graph, op("sum_nodes"), pair, 2, &transpose, 1, nullptr, 0);
        break;
      case 6: {
        const int64_t both = ln_add(graph, op("concat_cols"), pair, 2, nullptr, 0, nullptr, 0);
        made = ln_add_slice(graph, both, 0, 1, 2, kDim);
        break;
      }
      case 7:
        if (cell) {
          made = ln_add_cell(graph, ln_cell_number(cell), pair, 2) + 1;
          CHECK(made > 0);
          rows.push_back(made + 1);
        } else {
          const Outputs outputs = gate(graph, model, a, b);
          made = outputs.gated;
          rows.push_back(outputs.inner);
        }
        break;
      default:
        made = ln_add1_x(graph, op("dropout"), a, 0.3);
    }
    CHECK(made > 0);
    rows.push_back(made);
  }
  for (int i = 0; i < 10; ++i) {
    const double attributes[] = {-100, 0.1};
    const int64_t target = pick(kDim), logits = rows[rows.size() - 1 - pick(40)];
    losses.push_back(ln_add(graph, op("cross_entropy"), &logits, 1, attributes, 2, &target, 1));
  }
  const double sum = 0;
  return ln_add(graph, op("sum_nodes"), losses.data(), static_cast<int>(losses.size()), &sum, 1, nullptr, 0);
}

struct Result {
  double loss = 0;
  std::vector<double> gradient;
};

Result gradients_of(const Model& model) {
  Result result;
  const double* weight = static_cast<double*>(ln_parameter_gradient(model.weight));
  result.gradient.assign(weight, weight + 2 * kDim * kDim);
  std::vector<int32_t> rows(ln_parameter_touched(model.table));
  std::vector<double> values(rows.size() * kDim);
  CHECK(ln_parameter_sparse_gradient(model.table, rows.data(), values.data()) == LN_OK);
  result.gradient.insert(result.gradient.end(), values.begin(), values.end());
  for (ln_parameter* parameter : {model.table, model.weight, model.bias})
    CHECK(ln_parameter_zero_gradient(parameter) == LN_OK);
  return result;
}

Result train_once(ln_graph* graph, const Model& model, unsigned seed, const ln_cell* cell = nullptr) {
  CHECK(ln_graph_clear(graph) == LN_OK);
  CHECK(ln_graph_set_seed(graph, 7) == LN_OK);
  const int64_t loss = build(graph, model, seed, cell);
  CHECK(ln_graph_backward(graph, loss, 0) == LN_OK);
  Result result = gradients_of(model);
  CHECK(ln_node_value(graph, loss, &result.loss) == LN_OK);
  return result;
}

bool close(const Result& a, const Result& b) {
  bool same = std::abs(a.loss - b.loss) < 1e-9 && a.gradient.size() == b.gradient.size();
  for (size_t i = 0; same && i < a.gradient.size(); ++i) same = std::abs(a.gradient[i] - b.gradient[i]) < 1e-9;
  return same;
}

void test_policies() {
  const Model model;
  ln_graph* plain = make_graph(true, "none");
  for (const char* policy : {"depth", "agenda", "lookahead"}) {
    ln_graph* graph = make_graph(true, policy);
    ln_graph* eager = make_graph(true, policy, true);
    ln_graph* inference = make_graph(false, policy);
    for (unsigned seed = 0; seed < 20; ++seed) {
      const Result expected = train_once(plain, model, seed);
      CHECK(close(expected, train_once(graph, model, seed)));
      CHECK(close(expected, train_once(graph, model, seed)));  // the second time from the schedule cache
      CHECK(close(expected, train_once(eager, model, seed)));
      CHECK(ln_graph_clear(inference) == LN_OK);
      const int64_t loss = build(inference, model, seed);
      double once = 0, twice = 0;
      CHECK(ln_node_value(inference, loss, &once) == LN_OK);
      CHECK(ln_node_value(inference, loss, &twice) == LN_OK);
      CHECK(once == twice);
    }
    ln_graph_statistics statistics;
    CHECK(ln_graph_get_statistics(graph, &statistics) == LN_OK);
    CHECK(statistics.schedule_cache_hits == 0);  // every structure was seen at most twice
    for (ln_graph* each : {graph, eager, inference}) ln_graph_release(each);
  }
  ln_graph_release(plain);
}

void test_order_and_bound() {
  const Model model;
  ln_graph* graph = make_graph(true, "lookahead");
  build(graph, model, 3);
  CHECK(ln_plan_pending(graph, nullptr, 0) == LN_OK);
  ln_plan_summary summary;
  CHECK(ln_plan_get(graph, 0, &summary) == LN_OK);
  CHECK(!summary.executed && summary.batches >= summary.lower_bound && summary.lower_bound > 0);
  std::vector<int64_t> batch_of(ln_graph_node_count(graph), -1);
  for (int64_t b = 0; b < summary.batches; ++b) {
    ln_plan_batch batch;
    CHECK(ln_plan_batch_get(graph, 0, b, &batch) == LN_OK);
    std::vector<int32_t> members(batch.members);
    CHECK(ln_plan_members(graph, 0, b, members.data()) == LN_OK);
    for (int32_t id : members) batch_of[id] = b;
  }
  const int64_t version = ln_graph_version(graph) << 32;
  for (size_t id = 0; id < batch_of.size(); ++id) {
    if (batch_of[id] < 0) continue;
    int32_t arguments[16];
    const int64_t count = ln_node_arguments(graph, version | static_cast<int64_t>(id), arguments, 16);
    for (int64_t k = 0; k < std::min<int64_t>(count, 16); ++k) CHECK(batch_of[arguments[k]] < batch_of[id]);
  }
  ln_graph_release(graph);
}

void test_cells() {
  const Model model;
  ln_cell* cell = make_cell(model);
  ln_graph* plain = make_graph(true, "none");
  for (const char* policy : {"depth", "agenda", "lookahead", "none"}) {
    ln_graph* graph = make_graph(true, policy);
    for (unsigned seed = 0; seed < 20; ++seed)
      CHECK(close(train_once(graph, model, seed, cell), train_once(plain, model, seed)));
    ln_graph_release(graph);
  }
  ln_graph* inference = make_graph(false, "lookahead");
  double loss = 0;
  CHECK(ln_graph_set_seed(inference, 7) == LN_OK);
  CHECK(ln_node_value(inference, build(inference, model, 3, cell), &loss) == LN_OK);
  CHECK(std::abs(loss - train_once(plain, model, 3).loss) < 1e-9);
  // A graph keeps the cell that it uses.
  const int64_t placed = build(inference, model, 4, cell);
  ln_cell_release(cell);
  CHECK(ln_node_value(inference, placed, &loss) == LN_OK);
  ln_graph_release(inference);
  ln_graph_release(plain);
}

void test_mistakes() {
  const Model model;
  ln_graph* graph = make_graph(true, "agenda");
  const int64_t node = ln_add1_id(graph, op("lookup"), ln_parameter_handle(model.table), 3);
  CHECK(ln_add1_id(graph, op("lookup"), ln_parameter_handle(model.table), kWords) == LN_FAILED);
  CHECK(ln_error_status() == LN_INDEX_ERROR);
  CHECK(ln_add2(graph, op("add"), node, ln_parameter_handle(model.weight)) > 0 || ln_error_status() == LN_SHAPE_ERROR);
  CHECK(ln_graph_backward(graph, node, 0) == LN_SHAPE_ERROR);
  CHECK(ln_graph_clear(graph) == LN_OK);
  CHECK(ln_add1(graph, op("tanh"), node) == LN_FAILED && ln_error_status() == LN_STALE_NODE);
  CHECK(ln_add1(graph, op("tanh"), -5000) == LN_FAILED && ln_error_status() == LN_GRAPH_ERROR);
  CHECK(ln_add1(graph, 10000, node) == LN_FAILED && ln_error_status() == LN_VALUE_ERROR);
  CHECK(ln_graph_set_policy(graph, "best") == LN_VALUE_ERROR);
  ln_graph_release(graph);
}

// Running out of memory anywhere leaves the graph usable and parameters without half a gradient.
void test_out_of_memory() {
  const Model model;
  ln_graph* graph = make_graph(true, "agenda");
  const Result expected = train_once(graph, model, 5);
  int failures = 0;
  for (size_t limit = 1 << 12; limit <= 1 << 22; limit *= 2) {
    const ln_graph_options options{LN_FLOAT64, 1, 0, 7, limit, 1 << 12, nullptr};
    ln_graph* small = ln_graph_create(&options);
    const int64_t loss = build(small, model, 5);
    const int status = ln_graph_backward(small, loss, 0);
    CHECK(status == LN_OK || status == LN_OUT_OF_MEMORY);
    failures += status != LN_OK;
    const Result left = gradients_of(model);
    if (status == LN_OK) {
      double value = 0;
      CHECK(ln_node_value(small, loss, &value) == LN_OK && std::abs(value - expected.loss) < 1e-9);
    } else {
      for (double x : left.gradient) CHECK(x == 0);
      CHECK(ln_graph_set_memory_limit(small, 0) == LN_OK);
      CHECK(close(expected, train_once(small, model, 5)));
    }
    ln_graph_release(small);
  }
  CHECK(failures > 0);
  ln_graph_release(graph);
}

void test_threads() {
  const Model model;
  CHECK(ln_set_num_threads(3) == LN_OK);
  std::vector<double> losses(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < losses.size(); ++t)
    threads.emplace_back([&, t] {
      ln_graph* graph = make_graph(false, "lookahead");
      for (unsigned round = 0; round < 10; ++round) {
        CHECK(ln_graph_clear(graph) == LN_OK);
        CHECK(ln_graph_set_seed(graph, 7) == LN_OK);
        CHECK(ln_node_value(graph, build(graph, model, 9), &losses[t]) == LN_OK);
      }
      ln_graph_release(graph);
    });
  for (std::thread& thread : threads) thread.join();
  for (double loss : losses) CHECK(loss == losses[0]);
  CHECK(ln_set_num_threads(1) == LN_OK);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: test_core PATH-OF-BLAS [PREFIX [SUFFIX]]\n");
    return 2;
  }
  CHECK(ln_load_blas(argv[1], argc > 2 ? argv[2] : "", argc > 3 ? argv[3] : "") == LN_OK);
  test_policies();
  test_order_and_bound();
  test_cells();
  test_mistakes();
  test_out_of_memory();
  test_threads();
  std::printf("core: %ld checks passed\n", checks.load());
}
