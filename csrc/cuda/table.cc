// The launchers in the order of ops.def.
#include "table.h"

#include "kernels.h"

namespace lazynet::cuda {
namespace {

template <class T>
constexpr Table make_table() {
  return {
#include "../ops/kernel_table.def"
  };
}

}  // namespace

const Table& table(int dtype) {
  static constexpr Table kTables[] = {make_table<float>(), make_table<double>()};
  return kTables[dtype];
}

}  // namespace lazynet::cuda
