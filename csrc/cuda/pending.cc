// Families whose launchers do not exist yet.
#include "../error.h"
#include "kernels.h"
#include "transfer.h"

#define LN_PENDING_elementwise 0
#define LN_PENDING_linear 0
#define LN_PENDING_embedding 0
#define LN_PENDING_shape 0
#define LN_PENDING_search 0
#define LN_PENDING_reduce 0
#define LN_PENDING_softmax 0
#define LN_PENDING_dropout 0
#define LN_PENDING_normalization 0
#define LN_PENDING_attention 0
#define LN_PENDING_convolution 0
#define LN_PENDING_crf 0
#define LN_PENDING_loss 0
#define LN_PENDING_linear_loss 0

namespace lazynet::cuda {

#define LN_IF_0(...)
#define LN_IF_1(...) __VA_ARGS__
#define LN_CONCAT(a, b) a##b
#define LN_IF(condition) LN_CONCAT(LN_IF_, condition)
#define LN_PENDING_FUNCTION(name)                      \
  template <class T>                                   \
  void name(Queue&, const Batch&) {                    \
    fail(LN_DEVICE_ERROR, #name " has no kernel yet"); \
  }
#define LN_KERNEL(name, family, ...) \
  LN_IF(LN_PENDING_##family)         \
  (LN_PENDING_FUNCTION(name##_forward) LN_PENDING_FUNCTION(name##_backward) LN_INSTANTIATE(name))
#define LN_SHARED(name, family, ...)                                                                           \
  LN_IF(LN_PENDING_##family)                                                                                   \
  (LN_PENDING_FUNCTION(name##_forward) LN_PENDING_FUNCTION(name##_backward) LN_PENDING_FUNCTION(name##_shared) \
       LN_INSTANTIATE_SHARED(name))
#define LN_EARLY(name, family, ...)                                                                            \
  LN_IF(LN_PENDING_linear_loss)                                                                                \
  (LN_PENDING_FUNCTION(name##_forward) LN_PENDING_FUNCTION(name##_backward) LN_PENDING_FUNCTION(name##_shared) \
       LN_INSTANTIATE_SHARED(name))
#include "../ops/ops.def"

}  // namespace lazynet::cuda
