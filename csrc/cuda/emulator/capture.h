// Graphs: commands that a capture recorded, with what each comes after.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace lazynet::emulator {

// Returns whether it went well.
using Work = std::function<bool()>;

struct GraphNode {
  Work work;
  std::vector<int> after;  // numbers of earlier nodes
};

struct Stream;

struct Capture {
  std::vector<GraphNode> nodes;
  Stream* origin = nullptr;
  std::vector<Stream*> streams;  // the origin and those that joined through events
  int mode = 0;
  std::thread::id thread;
  bool invalid = false;
};

// Whether every node comes before one of `last`.
bool all_joined(const std::vector<GraphNode>& nodes, const std::vector<int>& last);

struct Graph {
  std::shared_ptr<const std::vector<GraphNode>> nodes;
};

}  // namespace lazynet::emulator
