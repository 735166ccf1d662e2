#include "optimizer.h"

#include <cmath>
#include <deque>
#include <map>
#include <utility>

#include "error.h"

namespace lazynet {
namespace {

int slots_of(int kind) { return kind == LN_ADAM || kind == LN_ADAMW ? 2 : 1; }

// What is done at once: all that is on one device and of one element type.
template <class Item>
using ByDevice = std::map<std::pair<Backend*, int>, std::vector<Item>>;
std::pair<Backend*, int> device_of(const Parameter& parameter) { return {&parameter.backend(), parameter.dtype()}; }

}  // namespace

Optimizer::Optimizer(int kind, std::vector<std::shared_ptr<Parameter>> parameters) : kind_(kind) {
  if (kind < LN_SGD || kind > LN_ADAMW) fail(LN_VALUE_ERROR, "optimizer: kind ", kind, " does not exist");
  for (auto& parameter : parameters) {
    Item item;
    item.parameter = std::move(parameter);
    items_.push_back(std::move(item));
  }
}

Optimizer::~Optimizer() {
  for (Item& item : items_)
    for (void* slot : item.slots)
      if (slot) item.parameter->backend().memory().deallocate(slot, item.parameter->bytes());
}

Optimizer::Item& Optimizer::item(int index) {
  if (index < 0 || index >= static_cast<int>(items_.size()))
    fail(LN_INDEX_ERROR, "optimizer: parameter ", index, " of ", items_.size());
  return items_[index];
}

void* Optimizer::state(int index, int slot) {
  Item& chosen = item(index);
  if (slot < 0 || slot >= slots_of(kind_)) return nullptr;
  if (!chosen.slots[slot]) {
    const std::size_t bytes = chosen.parameter->bytes();
    Backend& backend = chosen.parameter->backend();
    chosen.slots[slot] = backend.memory().allocate(bytes);
    if (!chosen.slots[slot])
      fail(LN_OUT_OF_MEMORY, "optimizer: ", bytes, " bytes of state for parameter ", chosen.parameter->name,
           " are not available on ", backend.name());
    backend.zero(chosen.slots[slot], bytes);
  }
  return chosen.slots[slot];
}

int64_t& Optimizer::steps(int index) { return item(index).steps; }

void Optimizer::step(const ln_hyperparameters& h, double scale) {
  const bool stateful = kind_ != LN_SGD || h.momentum != 0;
  for (std::size_t i = 0; i < items_.size() && stateful; ++i)  // all memory before any update
    if (items_[i].parameter->has_gradient())
      for (int slot = 0; slot < slots_of(kind_); ++slot) state(static_cast<int>(i), slot);
  std::deque<UpdateConstants> constants;
  ByDevice<Update> updates;
  std::vector<Item*> updated;
  for (Item& chosen : items_) {
    if (!chosen.parameter->has_gradient() || !chosen.parameter->trainable) continue;
    const int64_t step = chosen.steps + 1;
    const double t = static_cast<double>(step);
    constants.push_back({h.learning_rate, h.weight_decay, h.momentum, h.dampening, h.beta1, h.beta2, h.epsilon,
                         1 - std::pow(h.beta1, t), 1 - std::pow(h.beta2, t), scale, h.nesterov != 0, step == 1});
    add_updates(chosen, &constants.back(), &updates[device_of(*chosen.parameter)]);
    updated.push_back(&chosen);
  }
  // Nothing is changed before all that may fail for want of memory is done.
  for (Item* chosen : updated) {
    ++chosen->steps;
    chosen->parameter->begin_writing();
  }
  for (const auto& [device, list] : updates)
    device.first->update(device.second, kind_, list.data(), static_cast<int64_t>(list.size()));
  for (Item* chosen : updated) chosen->parameter->end_writing();
  for (Item& chosen : items_) chosen.parameter->zero_gradient();
  for (const auto& [device, list] : updates) device.first->settle();
}

void Optimizer::add_updates(Item& chosen, UpdateConstants* constants, std::vector<Update>* updates) {
  Parameter& parameter = *chosen.parameter;
  if (!parameter.sparse()) {
    updates->push_back({constants, parameter.shape().elements(), parameter.value(), parameter.dense_gradient(),
                        chosen.slots[0], chosen.slots[1]});
    return;
  }
  SparseRows& gradient = *parameter.sparse_gradient();
  const int64_t cols = parameter.shape().cols;
  const std::size_t row_bytes = cols * element_size(parameter.dtype());
  auto row_of = [&](void* base, int64_t row) { return base ? static_cast<char*>(base) + row * row_bytes : nullptr; };
  // A row that is touched for the first time has a zero buffer; dampening must not count as "later" there
  // only because another row was touched before.
  constants->first = false;
  for (std::size_t slot = 0; slot < gradient.rows().size(); ++slot) {
    const int64_t row = gradient.rows()[slot];
    updates->push_back({constants, cols, row_of(parameter.value(), row), gradient.at(static_cast<int64_t>(slot)),
                        row_of(chosen.slots[0], row), row_of(chosen.slots[1], row)});
  }
}

double gradient_norm(const std::vector<std::shared_ptr<Parameter>>& parameters) {
  ByDevice<Stretch> stretches;
  for (const auto& parameter : parameters) {
    if (!parameter->has_gradient()) continue;
    std::vector<Stretch>& list = stretches[device_of(*parameter)];
    if (parameter->sparse()) {
      SparseRows& rows = *parameter->sparse_gradient();
      list.push_back({rows.values(), static_cast<int64_t>(rows.rows().size()) * parameter->shape().cols});
    } else {
      list.push_back({parameter->dense_gradient(), parameter->shape().elements()});
    }
  }
  double sum = 0;
  for (const auto& [device, list] : stretches)
    sum += device.first->sum_of_squares(device.second, list.data(), static_cast<int64_t>(list.size()));
  return std::sqrt(sum);
}

}  // namespace lazynet
