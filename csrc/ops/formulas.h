// The rows of elementwise.def as structs of inline formulas. A unary operator is one whose `b` is never read.
#pragma once

#include "math.h"

namespace lazynet::LN_CODE {

static constexpr bool has_letter(const char* text, char letter) {
  for (; *text; ++text)
    if (*text == letter) return true;
  return false;
}
static constexpr int count_words(const char* text) {
  int words = *text ? 1 : 0;
  for (; *text; ++text) words += *text == ' ';
  return words;
}

#define LN_FORMULA_TRAITS(argument_count, attributes, reads)      \
  static constexpr int kArguments = argument_count;               \
  static constexpr int kAttributes = count_words(attributes);     \
  static constexpr bool kReadsArguments = has_letter(reads, 'a'); \
  static constexpr bool kReadsResult = has_letter(reads, 'r');

#define LN_UNARY(name, attributes, reads, value_formula, gradient_formula)                    \
  struct name##_formula {                                                                     \
    LN_FORMULA_TRAITS(1, attributes, reads)                                                   \
    template <class T>                                                                        \
    LN_INLINE T value([[maybe_unused]] T x, T, [[maybe_unused]] const T* p) {                 \
      return value_formula;                                                                   \
    }                                                                                         \
    template <int kArgument, class T>                                                         \
    LN_INLINE T gradient([[maybe_unused]] T x, T, [[maybe_unused]] T y, [[maybe_unused]] T g, \
                         [[maybe_unused]] const T* p) {                                       \
      return gradient_formula;                                                                \
    }                                                                                         \
  };
#define LN_BINARY(name, attributes, reads, value_formula, gradient_a, gradient_b)                                \
  struct name##_formula {                                                                                        \
    LN_FORMULA_TRAITS(2, attributes, reads)                                                                      \
    template <class T>                                                                                           \
    LN_INLINE T value([[maybe_unused]] T a, [[maybe_unused]] T b, [[maybe_unused]] const T* p) {                 \
      return value_formula;                                                                                      \
    }                                                                                                            \
    template <int kArgument, class T>                                                                            \
    LN_INLINE T gradient([[maybe_unused]] T a, [[maybe_unused]] T b, [[maybe_unused]] T y, [[maybe_unused]] T g, \
                         [[maybe_unused]] const T* p) {                                                          \
      if constexpr (kArgument == 0)                                                                              \
        return gradient_a;                                                                                       \
      else                                                                                                       \
        return gradient_b;                                                                                       \
    }                                                                                                            \
  };
#include "elementwise.def"
#undef LN_UNARY
#undef LN_BINARY

}  // namespace lazynet::LN_CODE
