// Errors of the core: one exception type that carries a status code of lazynet.h.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "lazynet.h"

namespace lazynet {

class Error : public std::runtime_error {
 public:
  Error(ln_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  ln_status status() const { return status_; }

 private:
  ln_status status_;
};

// A NaN or infinity, and the node at which it was born.
class NonFinite : public Error {
 public:
  NonFinite(int32_t node, const std::string& message) : Error(LN_NON_FINITE, message), node_(node) {}
  int32_t node() const { return node_; }

 private:
  int32_t node_;
};

// Builds the message from its pieces: fail(LN_SHAPE_ERROR, "linear: x is ", shape, "; ...").
template <class... Pieces>
[[noreturn]] void fail(ln_status status, const Pieces&... pieces) {
  std::ostringstream text;
  (text << ... << pieces);
  throw Error(status, text.str());
}

}  // namespace lazynet
