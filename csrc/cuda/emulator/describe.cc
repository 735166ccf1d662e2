// The texts of kernel errors: kernel, block, threads and source lines.
#include <cstdio>
#include <vector>

#include "block_state.h"
#include "faults.h"

namespace lazynet::emulator {

namespace {

std::string text_of(const Index3& at) {
  return "(" + std::to_string(at.x) + "," + std::to_string(at.y) + "," + std::to_string(at.z) + ")";
}

std::string text_of(const Place& place) { return std::string(place.file) + ":" + std::to_string(place.line); }

std::string thread_text(uint32_t number) { return "thread " + text_of(block.threads[number].thread); }

std::string mask_text(unsigned mask) {
  static const char digits[] = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) text += digits[mask >> shift & 15];
  return text;
}

std::string heading() {
  return std::string("kernel ") + block.launch->name + ", block " + text_of(current_grid.block) + ", ";
}

std::string operation_text(WarpKind kind, unsigned mask, const Place& place) {
  return std::string(name_of(kind)) + "(" + mask_text(mask) + ") at " + text_of(place);
}

// Threads that do the same.
struct Crowd {
  Thread::State state;
  WarpKind kind;
  unsigned mask;
  Place place;
  std::vector<uint32_t> threads;
  bool takes(const Thread& thread) const {
    if (state != thread.state) return false;
    if (state == Thread::State::kAtBarrier) return same(place, thread.place);
    if (state == Thread::State::kInWarp)
      return same(place, thread.place) && kind == thread.kind && mask == thread.mask &&
             threads[0] / kLanes == thread.number / kLanes;
    return true;
  }
};

std::string text_of(const Crowd& crowd) {
  const bool one = crowd.threads.size() == 1;
  std::string text = one ? thread_text(crowd.threads[0])
                         : std::to_string(crowd.threads.size()) + " threads from " +
                               text_of(block.threads[crowd.threads.front()].thread) + " to " +
                               text_of(block.threads[crowd.threads.back()].thread);
  switch (crowd.state) {
    case Thread::State::kAtBarrier:
      return text + (one ? " waits" : " wait") + " in __syncthreads() at " + text_of(crowd.place);
    case Thread::State::kInWarp:
      return text + (one ? " waits" : " wait") + " in " + operation_text(crowd.kind, crowd.mask, crowd.place);
    case Thread::State::kExited:
      return text + (one ? " has exited" : " have exited");
    default:
      return text + (one ? " has" : " have") + " no stack: the machine gives no more memory";
  }
}

}  // namespace

const char* name_of(WarpKind kind) {
  static const char* const names[] = {"__syncwarp",      "__shfl_sync",   "__shfl_up_sync", "__shfl_down_sync",
                                      "__shfl_xor_sync", "__ballot_sync", "__any_sync",     "__all_sync"};
  return names[static_cast<int>(kind)];
}

std::string describe_place() { return heading() + thread_text(block.running->number); }

std::string describe_problem() {
  const Problem& p = block.problem;
  std::string text = heading() + thread_text(p.thread) + ": ";
  const std::string operation = operation_text(p.operation, p.mask, p.place);
  switch (p.kind) {
    case Problem::Kind::kOtherBarrier:
      return text + "divergent barrier: it reaches __syncthreads() at " + text_of(p.place) + " while " +
             thread_text(static_cast<uint32_t>(p.other)) + " waits in the one at " + text_of(p.other_place);
    case Problem::Kind::kNotInMask:
      return text + operation + ": the mask does not name the calling lane";
    case Problem::Kind::kExitedMate:
      return text + operation + ": the mask names " + thread_text(static_cast<uint32_t>(p.other)) +
             ", which has exited";
    case Problem::Kind::kOtherOperation: {
      const Thread& other = block.threads[p.other];
      return text + "divergent warp: it calls " + operation + " while " + thread_text(other.number) + " waits in " +
             operation_text(other.kind, other.mask, p.other_place);
    }
    case Problem::Kind::kNoSource:
      return text + operation + ": it reads from lane " + std::to_string(p.source) +
             ", which the mask does not name or the block does not have";
    case Problem::Kind::kSharedMemory:
      return text + "the static shared arrays take more than " + std::to_string(kStaticSharedLimit) + " bytes";
    case Problem::Kind::kAssertion:
      return text + "assertion failed at " + text_of(p.place) + ": " + p.condition;
    case Problem::Kind::kMemory: {
      char address[32];
      std::snprintf(address, sizeof(address), "%p", p.address);
      return text + "no access to memory at " + address + ", at " + source_of(p.instruction);
    }
    case Problem::Kind::kDivision:
      return text + "an integer is divided by zero at " + source_of(p.instruction);
    case Problem::Kind::kEndless:
      return text + "the block has not ended within " + std::to_string(time_limit()) +
             " s (LN_EMULATOR_SECONDS); the thread is at " + source_of(p.instruction);
    case Problem::Kind::kNone:
      break;
  }
  return text;
}

std::string describe_deadlock() {
  std::vector<Crowd> crowds;
  for (uint32_t i = 0; i < block.count; ++i) {
    const Thread& thread = block.threads[i];
    Crowd* found = nullptr;
    for (Crowd& crowd : crowds)
      if (crowd.takes(thread)) found = &crowd;
    if (!found) {
      crowds.push_back({thread.state, thread.kind, thread.mask, thread.place, {}});
      found = &crowds.back();
    }
    found->threads.push_back(i);
  }
  std::string text = heading() + "deadlock: ";
  for (std::size_t i = 0; i < crowds.size(); ++i) text += (i ? "; " : "") + text_of(crowds[i]);
  return text;
}

}  // namespace lazynet::emulator
