// The nodes of a graph, in the order in which they were built, which is a topological order.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/op.h"

namespace lazynet {

enum NodeFlag : uint16_t {
  kComputed = 1,      // the value is there
  kRequiresGrad = 2,  // a trainable parameter, or an input that asked for it, lies behind it
  kTarget = 4,        // asked for by name: its value stays until the graph is cleared
  kReached = 8,       // the loss of the last backward depends on it
  kSparseTable = 16,  // a parameter whose gradient is kept for touched rows only
};

// One cache line a node: scheduling, planning and running visit arguments in no order, and each visit needs
// several of these at once.
struct NodeRecord {
  int16_t op;
  uint16_t flags;
  int32_t signature;  // -1 for views and sources
  int32_t rows, cols;
  int32_t argument_begin, argument_count;
  int32_t payload_begin, payload_count;
  int32_t root;    // the node in whose memory the value lies: itself, unless it is a view
  int32_t ld;      // row stride, elements
  int64_t offset;  // of the first element from the root's, elements
  char* value;     // roots only: address of the first element, once placed
  char* grad;      // the same for gradients, during and after backward

  Shape shape() const { return {rows, cols}; }
  int64_t elements() const { return int64_t{rows} * cols; }
  bool has(uint16_t flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(NodeRecord) == 64, "a node is a cache line");

struct NodeStore {
  std::vector<NodeRecord> records;
  std::vector<int32_t> arguments;
  std::vector<int64_t> payload;
  std::vector<int32_t> buffer;  // a node: the buffer that its root's value lies in, -1 for sources

  int32_t size() const { return static_cast<int32_t>(records.size()); }
  NodeRecord& operator[](int32_t id) { return records[id]; }
  const NodeRecord& operator[](int32_t id) const { return records[id]; }
  const int32_t* arguments_of(const NodeRecord& node) const { return arguments.data() + node.argument_begin; }
  const int64_t* payload_of(const NodeRecord& node) const { return payload.data() + node.payload_begin; }
  NodeRecord& root_of(int32_t id) { return records[records[id].root]; }
  const NodeRecord& root_of(int32_t id) const { return records[records[id].root]; }
  void clear() {
    records.clear();
    arguments.clear();
    payload.clear();
    buffer.clear();
  }
};

}  // namespace lazynet
