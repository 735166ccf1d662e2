// Which gradients that one kernel call adds to share memory.
#pragma once

#include <cstdint>
#include <vector>

#include "node_store.h"

namespace lazynet {

// Tells whether nodes that get gradients share memory. Views of one node do only where they overlap.
class OverlapCheck {
 public:
  // `every_root`: meets() will be asked.
  OverlapCheck(const NodeStore& nodes, bool every_root)
      : nodes_(nodes), stamp_(nodes.records.size(), 0), meeting_(every_root ? nodes.records.size() : 0, 0) {}
  void start();
  void add(int32_t id) {
    if (nodes_[id].root != id) return add_view(id);
    if (stamp_[id] == current_) note(id);
    stamp_[id] = current_;
  }
  bool finish();
  // After finish(): whether nodes that lie in this one's memory do, or may.
  bool meets(int32_t root) const { return meeting_[root] == current_; }

 private:
  static constexpr std::ptrdiff_t kCompared = 64;  // with each view, on average; of more it is taken for granted
  struct View {
    int32_t root;
    int64_t row, rows, col, cols;
  };
  static bool meet(const View& a, const View& b);
  static bool any_meet(View* begin, View* end);
  void add_view(int32_t id);
  void note(int32_t root);

  const NodeStore& nodes_;
  std::vector<int32_t> stamp_;    // a root: added as a whole
  std::vector<int32_t> meeting_;  // a root: see meets(); empty where nobody asks
  int32_t current_ = 0;
  bool overlapping_ = false;
  std::vector<View> views_;
};

// Memory for gradients that are kept apart: a matrix for all pieces of equal cols and stride, one below another.
class ApartLayout {
 public:
  struct Group {
    int64_t cols, ld, rows;
    int64_t bytes(int64_t element_size) const;  // rounded up to the alignment
  };
  void clear() { groups_.clear(); }
  // Where a piece lies: the number of its group, and its first row there. The stride of a single row is its length.
  struct Place {
    std::size_t group;
    int64_t row;
  };
  Place add(int64_t rows, int64_t cols, int64_t ld);
  const std::vector<Group>& groups() const { return groups_; }
  int64_t bytes(int64_t element_size) const;

 private:
  std::vector<Group> groups_;
};

}  // namespace lazynet
