// The tables of this vector unit's kernels, in the order of ops.def, and of what else it does.
#include "transfer.h"

namespace lazynet::cpu::LN_UNIT {

template <class T>
static constexpr KernelTable make_table() {
  return {
#include "../ops/kernel_table.def"
  };
}

extern const KernelTable kernels_float, kernels_double;
const KernelTable kernels_float = make_table<float>();
const KernelTable kernels_double = make_table<double>();

const Unit* unit_table();
const Unit* unit_table() {
  static const Unit table = {
      {&kernels_float, &kernels_double},
      {gather<float>, gather<double>},
      {scatter_add<float>, scatter_add<double>},
      {fused_forward<float>, fused_forward<double>},
      {fused_backward<float>, fused_backward<double>},
      {add_column_sums<float>, add_column_sums<double>},
      zero,
      {first_non_finite<float>, first_non_finite<double>},
      {update<float>, update<double>},
      {sum_of_squares<float>, sum_of_squares<double>},
  };
  return &table;
}

}  // namespace lazynet::cpu::LN_UNIT
