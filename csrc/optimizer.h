// Optimizers: state a parameter, one update a step. Sparse parameters are updated in their touched rows only,
// state and weight decay included.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend.h"
#include "lazynet.h"
#include "parameter.h"

namespace lazynet {

class Optimizer {
 public:
  Optimizer(int kind, std::vector<std::shared_ptr<Parameter>> parameters);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void step(const ln_hyperparameters& hyperparameters, double scale);
  void* state(int index, int slot);  // allocated zero on first use; null when the kind has no such slot
  int64_t& steps(int index);

 private:
  struct Item {
    std::shared_ptr<Parameter> parameter;
    void* slots[2] = {nullptr, nullptr};
    int64_t steps = 0;
  };
  Item& item(int index);
  static void add_updates(Item& item, UpdateConstants* constants, std::vector<Update>* updates);

  int kind_;
  std::vector<Item> items_;
};

// The 2-norm of all gradients together.
double gradient_norm(const std::vector<std::shared_ptr<Parameter>>& parameters);

}  // namespace lazynet
