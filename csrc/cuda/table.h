// Launchers by operator.
#pragma once

#include "../kernel.h"
#include "../ops/op.h"

namespace lazynet::cuda {

class Queue;
using Launcher = void (*)(Queue&, const Batch&);

struct Table {
  Launcher forward[kOpCount];
  Launcher backward[kOpCount];
  Launcher shared[kOpCount];
};

const Table& table(int dtype);

}  // namespace lazynet::cuda
