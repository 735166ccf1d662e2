#include "block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "block_state.h"
#include "faults.h"
#include "sanitizer.h"
#include "schedule.h"

namespace lazynet::emulator {

BlockState block;
const View* current_view = nullptr;
Grid current_grid{};

bool same(const Place& a, const Place& b) {
  return a.line == b.line && (a.file == b.file || !std::strcmp(a.file, b.file));
}

void BlockState::set_all_ready() {
  for (uint32_t rank = 0; rank < count; rank += 64)
    ready[rank / 64] = count - rank >= 64 ? ~uint64_t{0} : (uint64_t{1} << (count - rank)) - 1;
}

Thread* BlockState::next(uint32_t rank) {
  const uint32_t words = (count + 63) / 64;
  uint32_t word = rank / 64;
  if (word >= words) rank = word = 0;
  uint64_t bits = ready[word] & ~uint64_t{0} << rank % 64;
  for (uint32_t looked = 0; looked <= words; ++looked) {
    if (bits) return &threads[order[word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits))]];
    if (++word == words) word = 0;
    bits = ready[word];
  }
  return nullptr;
}

void BlockState::go_on(Thread& from, Thread* to) {
  if (to == &from) return;
  if (!to) {
    switch_fiber(*from.fiber, host);
    return;
  }
  if (to->state == Thread::State::kNew && !to->fiber) to->fiber = take_fiber();
  if (!to->fiber) {  // the host sees that threads are left and none waits
    switch_fiber(*from.fiber, host);
    return;
  }
  running = to;
  current_view = to;
  switch_fiber(*from.fiber, *to->fiber);
}

void BlockState::fail(Problem::Kind kind, const Place& place, int other, const Place& other_place) {
  problem.kind = kind;
  problem.thread = running->number;
  problem.place = place;
  problem.other = other;
  problem.other_place = other_place;
  switch_fiber(*running->fiber, host);
  __builtin_unreachable();
}

// A thread that is done leaves its stack to the next that has none, without a switch. The thread sanitizer needs a
// fiber for each thread.
void fiber_main() {
  for (;;) {
    Thread* thread = block.running;
    thread->state = Thread::State::kGoing;
    block.launch->entry(block.launch->argument);
    thread = block.running;
    release(&block.launch_tag);
    thread->state = Thread::State::kExited;
    block.warps[thread->number / kLanes].exited |= 1u << thread->lane;
    block.clear_ready(*thread);
    --block.alive;
    Thread* next = block.next(thread->rank);
    if (next && !next->fiber) {
      next->fiber = thread->fiber;
      thread->fiber = nullptr;
      block.running = next;
      current_view = next;
      continue;
    }
    Fiber* mine = thread->fiber;
    thread->fiber = nullptr;
    give_fiber(*mine);
    if (next) {
      block.running = next;
      current_view = next;
    }
    switch_fiber(*mine, next ? *next->fiber : block.host);
  }
}

void block_barrier(const char* file, int line) {
  Thread& thread = *block.running;
  Place place{file, line};
  if (block.at_barrier == 0) {
    block.barrier_place = place;
    block.barrier_first = thread.number;
  } else if (!same(place, block.barrier_place)) {
    block.fail(Problem::Kind::kOtherBarrier, place, static_cast<int>(block.barrier_first), block.barrier_place);
  }
  char* tag = &block.barrier_tags[block.barrier_phase];
  release(tag);
  thread.state = Thread::State::kAtBarrier;
  thread.place = place;
  if (++block.at_barrier < block.count) {
    block.clear_ready(thread);
    block.go_on(thread, block.next(thread.rank));
  } else {
    block.at_barrier = 0;
    block.barrier_phase = !block.barrier_phase;
    block.set_all_ready();
    block.go_on(thread, block.next(0));
  }
  thread.state = Thread::State::kGoing;
  acquire(tag);
}

void* static_shared(const void* tag, std::size_t bytes, std::size_t alignment) {
  for (;;) {
    for (SharedArray& array : block.shared)
      if (array.tag == tag) {
        acquire(&block.shared);
        return array.memory;
      }
    SharedArray wanted{tag, nullptr, bytes, alignment};
    if (block.shared_bytes + bytes > kStaticSharedLimit) block.fail(Problem::Kind::kSharedMemory, {});
    block.wanted = &wanted;
    switch_fiber(*block.running->fiber, block.host);
  }
}

void* dynamic_shared() { return block.dynamic; }

void assertion_failed(const char* condition, const char* file, int line) {
  block.problem.condition = condition;
  block.fail(Problem::Kind::kAssertion, {file, line});
}

namespace {

// Exactly as large as asked for, so that the address sanitizer sees the first byte beyond; filled with NaN.
void* make_shared(std::size_t bytes, std::size_t alignment) {
  void* memory = nullptr;
  if (alignment <= 16)
    memory = std::malloc(bytes);
  else if (posix_memalign(&memory, alignment, bytes) != 0)
    memory = nullptr;
  if (!memory) std::abort();
  std::memset(memory, 0xFF, bytes);
  return memory;
}

void start_threads(const Launch& launch, uint64_t block_number) {
  schedule().order(block.order, block.count, block_number + 1);
  Index3 at{0, 0, 0};
  for (uint32_t i = 0; i < block.count; ++i) {
    Thread& thread = block.threads[i];
    thread.thread = at;
    thread.lane = static_cast<int>(i % kLanes);
    thread.state = Thread::State::kNew;
    thread.number = i;
    thread.fiber = nullptr;
    if (++at.x == launch.block.x) {
      at.x = 0;
      if (++at.y == launch.block.y) {
        at.y = 0;
        ++at.z;
      }
    }
  }
  for (uint32_t rank = 0; rank < block.count; ++rank) block.threads[block.order[rank]].rank = rank;
  block.set_all_ready();
  for (uint32_t warp = 0; warp * kLanes < block.count; ++warp) {
    Warp& w = block.warps[warp];
    const uint32_t lanes = std::min<uint32_t>(kLanes, block.count - warp * kLanes);
    w.existing = lanes == kLanes ? ~0u : (1u << lanes) - 1;
    w.exited = 0;
    for (int g = 0; g < w.used; ++g) w.groups[g].mask = 0;
    w.used = 0;
  }
  block.alive = block.count;
  block.at_barrier = 0;
  block.problem = Problem();
  block.wanted = nullptr;
}

void make_tsan_fibers() {
  for (uint32_t i = 0; i < block.count; ++i) {
    Thread& thread = block.threads[i];
    thread.fiber = take_fiber();
    if (!thread.fiber) std::abort();
    renew_stack(*thread.fiber);
    thread.fiber->tsan_fiber = __tsan_create_fiber(0);
    const Index3 &t = thread.thread, &b = current_grid.block;
    __tsan_set_fiber_name(thread.fiber->tsan_fiber, ("CUDA thread (" + std::to_string(t.x) + "," + std::to_string(t.y) +
                                                     "," + std::to_string(t.z) + ") of block (" + std::to_string(b.x) +
                                                     "," + std::to_string(b.y) + "," + std::to_string(b.z) + ")")
                                                        .c_str());
  }
}

// With the thread sanitizer the blocks' accesses have no order before the launch ends, nor a release of memory.
void free_later(void* memory) {
  if (kTsan)
    block.garbage.push_back(memory);
  else
    std::free(memory);
}

// The threads of the block, to their end or to an error.
std::string run_threads() {
  static std::vector<Fiber*> fibers;  // of the thread sanitizer
  fibers.clear();
  if (kTsan) {
    make_tsan_fibers();
    for (uint32_t i = 0; i < block.count; ++i) fibers.push_back(block.threads[i].fiber);
  }
  Thread* first = block.next(0);
  if (!first->fiber) first->fiber = take_fiber();
  if (!first->fiber) return "no memory for the threads' stacks";
  block.running = first;
  current_view = first;
  for (;;) {
    switch_fiber(block.host, *block.running->fiber);
    if (!block.wanted) break;
    SharedArray array = *block.wanted;
    block.wanted = nullptr;
    array.memory = make_shared(array.bytes, array.alignment);
    block.shared_bytes += array.bytes;
    block.shared.push_back(array);
    release(&block.shared);
  }
  std::string text;
  if (block.problem.kind != Problem::Kind::kNone)
    text = describe_problem();
  else if (block.alive)
    text = describe_deadlock();
  for (uint32_t i = 0; block.alive && i < block.count; ++i) {
    Thread& thread = block.threads[i];
    if (!thread.fiber) continue;
    if (kTsan) {  // all that it did is before what the host does now
      __tsan_switch_to_fiber(thread.fiber->tsan_fiber, 1);
      release(&block.launch_tag);
      __tsan_switch_to_fiber(block.host.tsan_fiber, 1);
    }
    reset_fiber(*thread.fiber);
    give_fiber(*thread.fiber);
    thread.fiber = nullptr;
  }
  for (Fiber* fiber : fibers) {
    __tsan_destroy_fiber(fiber->tsan_fiber);
    fiber->tsan_fiber = nullptr;
  }
  return text;
}

std::string run_block(const Launch& launch, uint64_t number) {
  block.count = launch.block.x * launch.block.y * launch.block.z;
  current_grid = {
      {static_cast<unsigned>(number % launch.grid.x), static_cast<unsigned>(number / launch.grid.x % launch.grid.y),
       static_cast<unsigned>(number / launch.grid.x / launch.grid.y)},
      launch.block,
      launch.grid};
  block.dynamic = make_shared(launch.dynamic_bytes, 16);
  block.shared_bytes = 0;
  start_threads(launch, number);
  std::string text = run_threads();
  for (SharedArray& array : block.shared) free_later(array.memory);
  block.shared.clear();
  free_later(block.dynamic);
  block.dynamic = nullptr;
  return text;
}

}  // namespace

KernelError run(const Launch& launch) {
  const Watch watch;
  std::string text;
  if (kTsan) block.host.tsan_fiber = __tsan_get_current_fiber();
  block.launch = &launch;
  block.barrier_phase = false;
  const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  static std::vector<uint32_t> order;
  const bool shuffled = schedule().kind == Schedule::Kind::kSeed && blocks <= UINT32_MAX;
  if (shuffled) schedule().order(order, static_cast<uint32_t>(blocks), 0);
  for (uint64_t i = 0; i < blocks && text.empty(); ++i) {
    uint64_t number = schedule().kind == Schedule::Kind::kDown ? blocks - 1 - i : shuffled ? order[i] : i;
    text = run_block(launch, number);
    note_progress();
  }
  block.running = nullptr;
  acquire(&block.launch_tag);
  for (void* memory : block.garbage) std::free(memory);
  block.garbage.clear();
  if (text.empty()) return {CUDA_SUCCESS, text};
  switch (block.problem.kind) {
    case Problem::Kind::kAssertion:
      return {CUDA_ERROR_ASSERT, text};
    case Problem::Kind::kMemory:
      return {CUDA_ERROR_ILLEGAL_ADDRESS, text};
    case Problem::Kind::kEndless:
      return {CUDA_ERROR_LAUNCH_TIMEOUT, text};
    default:
      return {CUDA_ERROR_LAUNCH_FAILED, text};
  }
}

}  // namespace lazynet::emulator
