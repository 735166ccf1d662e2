// Fibers: stacks of their own on which CUDA threads run in turn.
#pragma once

#include <cstddef>

namespace lazynet::emulator {

struct Fiber {
  void* context = nullptr;  // where it goes on; see the switch
  char* memory = nullptr;   // a guard page and the stack; null for the host's own stack
  Fiber* next_idle = nullptr;
  // For the sanitizers: the stack's place, the frames that the address sanitizer keeps elsewhere, and the thread
  // sanitizer's fiber.
  const void* bottom = nullptr;
  std::size_t size = 0;
  void* fake_stack = nullptr;
  void* tsan_fiber = nullptr;
};

// What every fiber runs; it never returns. The user of fibers defines it.
void fiber_main();

void switch_fiber(Fiber& from, Fiber& to);

// A fiber from the pool, or a new one; null where memory lacks.
Fiber* take_fiber();
void give_fiber(Fiber& fiber);
// Forgets what ran on a fiber that is not running, so that it starts anew.
void reset_fiber(Fiber& fiber);
// The same, and the thread sanitizer takes its stack for new memory of the calling thread.
void renew_stack(Fiber& fiber);

}  // namespace lazynet::emulator
