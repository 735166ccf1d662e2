#include "overlap_check.h"

#include <algorithm>

#include "memory_resource.h"

namespace lazynet {

void OverlapCheck::start() {
  ++current_;
  overlapping_ = false;
  views_.clear();
}

void OverlapCheck::note(int32_t root) {
  overlapping_ = true;
  if (!meeting_.empty()) meeting_[root] = current_;
}

void OverlapCheck::add_view(int32_t id) {
  const NodeRecord& node = nodes_[id];
  const NodeRecord& root = nodes_[node.root];
  const bool grid = root.cols > 0 && node.ld == root.cols;
  views_.push_back(grid ? View{node.root, node.offset / root.cols, node.rows, node.offset % root.cols, node.cols}
                        : View{node.root, 0, root.rows, 0, root.cols});
}

bool OverlapCheck::finish() {
  if (views_.empty() || (overlapping_ && meeting_.empty())) return overlapping_;
  std::sort(views_.begin(), views_.end(), [](const View& a, const View& b) { return a.root < b.root; });
  for (std::size_t begin = 0, end; begin < views_.size(); begin = end) {
    const int32_t root = views_[begin].root;
    for (end = begin; end < views_.size() && views_[end].root == root;) ++end;
    if (stamp_[root] != current_ && !any_meet(views_.data() + begin, views_.data() + end)) continue;
    note(root);
    if (meeting_.empty()) return true;
  }
  return overlapping_;
}

bool OverlapCheck::any_meet(View* begin, View* end) {
  std::sort(begin, end, [](const View& a, const View& b) { return a.row < b.row; });
  std::ptrdiff_t left = kCompared * (end - begin);
  for (View* a = begin; a != end; ++a)
    for (View* b = a + 1; b != end && b->row < a->row + a->rows; ++b)
      if (meet(*a, *b) || --left == 0) return true;
  return false;
}

bool OverlapCheck::meet(const View& a, const View& b) {
  return a.row < b.row + b.rows && b.row < a.row + a.rows && a.col < b.col + b.cols && b.col < a.col + a.cols;
}

int64_t ApartLayout::Group::bytes(int64_t element_size) const { return aligned(rows * ld * element_size); }

ApartLayout::Place ApartLayout::add(int64_t rows, int64_t cols, int64_t ld) {
  if (rows <= 1) ld = cols;
  std::size_t g = 0;
  while (g < groups_.size() && (groups_[g].cols != cols || groups_[g].ld != ld)) ++g;
  if (g == groups_.size()) groups_.push_back({cols, ld, 0});
  const Place place{g, groups_[g].rows};
  groups_[g].rows += rows;
  return place;
}

int64_t ApartLayout::bytes(int64_t element_size) const {
  int64_t bytes = 0;
  for (const Group& group : groups_) bytes += group.bytes(element_size);
  return bytes;
}

}  // namespace lazynet
