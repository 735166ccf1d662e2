// The launchers in the order of ops.def.
#include "table.h"

#include "kernels.h"

namespace lazynet::cuda {
namespace {

template <class T>
constexpr Table make_table() {
  return {
      {
#define LN_KERNEL(name, ...) name##_forward<T>,
#define LN_SHARED(name, ...) name##_forward<T>,
#define LN_COMPOSITE(name, ...) nullptr,
#define LN_VIEW(name, ...) nullptr,
#define LN_SOURCE(name, ...) nullptr,
#include "../ops/ops.def"
      },
      {
#define LN_KERNEL(name, ...) name##_backward<T>,
#define LN_SHARED(name, ...) name##_backward<T>,
#define LN_COMPOSITE(name, ...) nullptr,
#define LN_VIEW(name, ...) nullptr,
#define LN_SOURCE(name, ...) nullptr,
#include "../ops/ops.def"
      },
      {
#define LN_KERNEL(name, ...) nullptr,
#define LN_SHARED(name, ...) name##_shared<T>,
#define LN_COMPOSITE(name, ...) nullptr,
#define LN_VIEW(name, ...) nullptr,
#define LN_SOURCE(name, ...) nullptr,
#include "../ops/ops.def"
      },
  };
}

}  // namespace

const Table& table(int dtype) {
  static constexpr Table kTables[] = {make_table<float>(), make_table<double>()};
  return kTables[dtype];
}

}  // namespace lazynet::cuda
