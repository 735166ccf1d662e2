// Warp operations: lanes leave their values with the warp; the last to come hands out the results.
#include "block_state.h"
#include "sanitizer.h"

namespace lazynet::emulator {

namespace {

// The group that waits with this mask, or a new one.
WarpGroup& group_of(Warp& warp, unsigned mask) {
  WarpGroup* unused = nullptr;
  for (int g = 0; g < warp.used; ++g) {
    if (warp.groups[g].mask == mask) return warp.groups[g];
    if (!warp.groups[g].mask && !unused) unused = &warp.groups[g];
  }
  if (!unused) unused = &warp.groups[warp.used++];
  unused->mask = mask;
  unused->arrived = 0;
  return *unused;
}

bool is_shuffle(WarpKind kind) { return kind >= WarpKind::kShuffle && kind <= WarpKind::kShuffleXor; }

void hand_out(Warp& warp, const WarpGroup& group, unsigned members) {
  if (is_shuffle(group.kind)) {
    for (unsigned left = members; left; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      warp.results[lane] = warp.values[warp.sources[lane]];
    }
    return;
  }
  uint64_t ballot = 0;
  for (unsigned left = members; left; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    if (warp.values[lane]) ballot |= uint64_t{1} << lane;
  }
  for (unsigned left = members; left; left &= left - 1) warp.results[__builtin_ctz(left)] = ballot;
}

}  // namespace

uint64_t warp_operation(WarpKind kind, unsigned mask, uint64_t value, int source, const char* file, int line) {
  Thread& thread = *block.running;
  const uint32_t first = thread.number / kLanes * kLanes;
  Warp& warp = block.warps[thread.number / kLanes];
  const unsigned members = mask & warp.existing, self = 1u << thread.lane;
  const Place place{file, line};

  block.problem.operation = kind;
  block.problem.mask = mask;
  if (!(mask & self)) block.fail(Problem::Kind::kNotInMask, place);
  if (unsigned gone = members & warp.exited)
    block.fail(Problem::Kind::kExitedMate, place, static_cast<int>(first) + __builtin_ctz(gone));
  if (is_shuffle(kind) && !(members >> (source & (kLanes - 1)) & 1)) {
    block.problem.source = source & (kLanes - 1);
    block.fail(Problem::Kind::kNoSource, place);
  }
  WarpGroup& group = group_of(warp, mask);
  if (!group.arrived) {
    group.kind = kind;
    group.place = place;
  } else if (group.kind != kind || !same(group.place, place)) {
    block.fail(Problem::Kind::kOtherOperation, place, static_cast<int>(first) + __builtin_ctz(group.arrived),
               group.place);
  }
  group.arrived |= self;
  warp.values[thread.lane] = value;
  warp.sources[thread.lane] = static_cast<uint8_t>(source & (kLanes - 1));
  thread.state = Thread::State::kInWarp;
  thread.kind = kind;
  thread.mask = mask;
  thread.place = place;
  char* tag = &group.tags[group.phase];
  release(tag);
  if (group.arrived != members) {
    block.clear_ready(thread);
    block.go_on(thread, block.next(thread.rank));
  } else {
    hand_out(warp, group, members);
    group.mask = 0;
    group.phase = !group.phase;
    uint32_t rank = thread.rank;
    for (unsigned left = members; left; left &= left - 1) {
      Thread& mate = block.threads[first + static_cast<uint32_t>(__builtin_ctz(left))];
      block.set_ready(mate);
      if (mate.rank < rank) rank = mate.rank;
    }
    block.go_on(thread, block.next(rank));
  }
  thread.state = Thread::State::kGoing;
  acquire(tag);
  return warp.results[thread.lane];
}

}  // namespace lazynet::emulator
