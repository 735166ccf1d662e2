// Signatures: all that must agree for two nodes to run in one batch, as a small integer. Equality is by the
// full key; the hash only finds it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernel.h"
#include "ops/op.h"

namespace lazynet {

class SignatureTable {
 public:
  SignatureTable() { clear(); }

  // The signature of a node of `op` with these arguments; a new number for a new key. `ids` are the argument
  // nodes: shared ones belong to the key.
  int32_t intern(const OpInfo& op, const int32_t* ids, const Shape* shapes, int count, const Shape& result,
                 const double* attributes);
  void clear();

  int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  int op(int32_t signature) const { return entries_[signature].op; }
  const double* attributes(int32_t signature) const { return attributes_.data() + entries_[signature].attributes; }
  // How each argument of a flat operator is spread over the result.
  const uint8_t* broadcast(int32_t signature) const { return entries_[signature].broadcast; }
  // shared(id): what to write for a node that belongs to the key.
  std::string text(int32_t signature, const std::function<std::string(int32_t)>& shared) const;

 private:
  struct Entry {
    uint64_t hash;
    uint32_t key_begin, key_end;  // in keys_
    uint32_t attributes;          // in attributes_
    int32_t op;
    uint8_t broadcast[4];
  };
  void grow();

  std::vector<Entry> entries_;
  std::vector<int64_t> keys_;
  std::vector<double> attributes_;
  std::vector<int32_t> slots_;  // open addressing; -1 is empty
  std::vector<int64_t> key_;    // scratch of intern()
};

Broadcast broadcast_of(const Shape& argument, const Shape& result);

}  // namespace lazynet
