// One element of an optimizer's update, the same on every backend.
#pragma once

#include "math.h"
#ifndef LN_DEVICE_CODE
#include "../backend.h"
#include "../lazynet.h"
#endif

namespace lazynet::LN_CODE {

// The constants of one update, rounded once.
template <class T>
struct UpdateNumbers {
  T rate, scale, decay;  // the gradient is multiplied by scale; decay times the value is added to it
  T epsilon;
  T kept, fresh, from_buffer,
      from_gradient;  // SGD: of the momentum buffer, of a gradient in it; what the step is made of
  T beta1, fresh1, beta2, fresh2, root, shrink;  // Adam: 1 / sqrt(correction2); AdamW: what is left of the value
};

#ifndef LN_DEVICE_CODE
template <class T>
LN_INLINE UpdateNumbers<T> numbers_of(int optimizer, const UpdateConstants& h) {
  UpdateNumbers<T> n{};
  const bool adam = optimizer == LN_ADAM || optimizer == LN_ADAMW, decoupled = optimizer == LN_ADAMW;
  n.rate = static_cast<T>(adam ? h.learning_rate / h.correction1 : h.learning_rate);
  n.scale = static_cast<T>(h.scale);
  n.decay = decoupled ? T(0) : static_cast<T>(h.weight_decay);
  n.epsilon = static_cast<T>(h.epsilon);
  n.kept = h.first ? T(0) : static_cast<T>(h.momentum);
  n.fresh = h.first ? T(1) : static_cast<T>(1 - h.dampening);
  n.from_buffer = h.nesterov ? static_cast<T>(h.momentum) : T(1);
  n.from_gradient = h.nesterov ? T(1) : T(0);
  n.beta1 = static_cast<T>(h.beta1);
  n.fresh1 = static_cast<T>(1 - h.beta1);
  n.beta2 = static_cast<T>(h.beta2);
  n.fresh2 = static_cast<T>(1 - h.beta2);
  n.root = adam ? static_cast<T>(1 / __builtin_sqrt(h.correction2)) : T(0);
  n.shrink = decoupled ? static_cast<T>(1 - h.learning_rate * h.weight_decay) : T(1);
  return n;
}
#endif

template <class T>
LN_INLINE void step_sgd(const UpdateNumbers<T>& n, T& value, T grad) {
  value -= n.rate * (grad * n.scale + n.decay * value);
}

// The step is momentum * buffer + g with Nesterov's, else the buffer.
template <class T>
LN_INLINE void step_momentum(const UpdateNumbers<T>& n, T& value, T& buffer, T grad) {
  const T g = grad * n.scale + n.decay * value;
  buffer = n.kept * buffer + n.fresh * g;
  value -= n.rate * (n.from_gradient * g + n.from_buffer * buffer);
}

template <class T>
LN_INLINE void step_adagrad(const UpdateNumbers<T>& n, T& value, T& squares, T grad) {
  const T g = grad * n.scale + n.decay * value;
  squares += g * g;
  value -= n.rate * g / (m::sqrt(squares) + n.epsilon);
}

template <class T>
LN_INLINE void step_adam(const UpdateNumbers<T>& n, T& value, T& first, T& second, T grad) {
  const T g = grad * n.scale + n.decay * value;
  first = n.beta1 * first + n.fresh1 * g;
  second = n.beta2 * second + n.fresh2 * g * g;
  value = value * n.shrink - n.rate * first / (m::sqrt(second) * n.root + n.epsilon);
}

}  // namespace lazynet::LN_CODE
