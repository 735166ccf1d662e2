#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "sanitizer.h"

#if !defined(__x86_64__) && !defined(LN_EMULATOR_UCONTEXT)
#define LN_EMULATOR_UCONTEXT
#endif
#ifdef LN_EMULATOR_UCONTEXT
#include <ucontext.h>
#endif

namespace lazynet::emulator {

namespace {

constexpr std::size_t kStack = 128 << 10;  // twice that with a sanitizer, whose frames are larger
// The tops of stacks lie at different places of the page: at equal ones they would all want the same places of the
// cache.
constexpr std::size_t kColours = 31, kColour = 192;

Fiber* idle = nullptr;
Fiber* running = nullptr;   // the fiber that is being switched to
Fiber* previous = nullptr;  // the one that it is switched from
bool releasing = false;     // the next fiber to start only gives back its fake stack
std::size_t made = 0;

std::size_t stack_bytes() { return kAsan || kTsan ? 2 * kStack : kStack; }
std::size_t page() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void leave(Fiber& from, Fiber& to, bool for_good) {
  running = &to;
  previous = &from;
  if (kTsan && to.tsan_fiber) __tsan_switch_to_fiber(to.tsan_fiber, 1);  // 1: without an order of memory accesses
  if (kAsan) __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake_stack, to.bottom, to.size);
}

void arrive() {
  if (kAsan) __sanitizer_finish_switch_fiber(running->fake_stack, &previous->bottom, &previous->size);
}

void raw_switch(Fiber& from, Fiber& to);

}  // namespace

// The first function on every stack.
extern "C" __attribute__((no_sanitize("address"), visibility("hidden"))) void ln_emulator_fiber_start() {
  arrive();
  if (releasing) {
    Fiber *self = running, *back = previous;
    leave(*self, *back, true);
    raw_switch(*self, *back);
  }
  fiber_main();
  __builtin_trap();
}

#ifndef LN_EMULATOR_UCONTEXT

// Saves the registers that a call keeps on the stack, and the stack's pointer at *rdi; takes up those of rsi. An
// indirect jump is predicted, where a return to another stack would not be.
asm(R"(
  .pushsection .text
  .p2align 4
  .globl ln_emulator_switch
  .hidden ln_emulator_switch
  .type ln_emulator_switch, @function
ln_emulator_switch:
  .cfi_startproc
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
  .cfi_endproc
  .size ln_emulator_switch, .-ln_emulator_switch
  .p2align 4
  .type ln_emulator_first, @function
ln_emulator_first:
  .cfi_startproc
  .cfi_undefined rip
  call ln_emulator_fiber_start
  ud2
  .cfi_endproc
  .size ln_emulator_first, .-ln_emulator_first
  .globl ln_emulator_first
  .hidden ln_emulator_first
  .popsection
)");
extern "C" void ln_emulator_switch(void** save, void* load);
extern "C" void ln_emulator_first();

namespace {

void raw_switch(Fiber& from, Fiber& to) { ln_emulator_switch(&from.context, to.context); }

void prepare(Fiber& fiber, char* top) {
  constexpr int kSaved = 6;
  auto* frame = reinterpret_cast<std::uintptr_t*>(top) - 2;  // ends in a zero, where a walk of the stack stops
  frame[0] = frame[1] = 0;
  *--frame = reinterpret_cast<std::uintptr_t>(&ln_emulator_first);
  for (int i = 0; i < kSaved; ++i) *--frame = 0;
  fiber.context = frame;
}

}  // namespace

#else

namespace {

void raw_switch(Fiber& from, Fiber& to) {
  ucontext_t here;
  from.context = &here;
  swapcontext(&here, static_cast<ucontext_t*>(to.context));
}

// The first context lies on top of the stack itself.
void prepare(Fiber& fiber, char* top) {
  auto* first =
      reinterpret_cast<ucontext_t*>((reinterpret_cast<std::uintptr_t>(top) - sizeof(ucontext_t)) & ~std::uintptr_t{63});
  getcontext(first);
  first->uc_stack.ss_sp = fiber.memory + page();
  first->uc_stack.ss_size =
      static_cast<std::size_t>(reinterpret_cast<char*>(first) - (fiber.memory + page())) & ~std::size_t{63};
  first->uc_link = nullptr;
  makecontext(first, reinterpret_cast<void (*)()>(&ln_emulator_fiber_start), 0);
  fiber.context = first;
}

}  // namespace

#endif

void switch_fiber(Fiber& from, Fiber& to) {
  leave(from, to, false);
  raw_switch(from, to);
  arrive();
}

Fiber* take_fiber() {
  if (Fiber* fiber = idle) {
    idle = fiber->next_idle;
    return fiber;
  }
  void* memory = mmap(nullptr, page() + stack_bytes(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  mprotect(memory, page(), PROT_NONE);
  auto* fiber = new Fiber;
  fiber->memory = static_cast<char*>(memory);
  fiber->bottom = fiber->memory + page();
  fiber->size = stack_bytes();
  // The number decides the colour; a fiber keeps it.
  fiber->size -= made++ % kColours * kColour;
  reset_fiber(*fiber);
  return fiber;
}

void give_fiber(Fiber& fiber) {
  fiber.next_idle = idle;
  idle = &fiber;
}

void reset_fiber(Fiber& fiber) {
  char* top = fiber.memory + page() + fiber.size;
  if (kAsan) __asan_unpoison_memory_region(fiber.bottom, fiber.size);
  prepare(fiber, top);
  if (!fiber.fake_stack) return;
  Fiber host;
  releasing = true;
  switch_fiber(host, fiber);
  releasing = false;
  fiber.fake_stack = nullptr;
  prepare(fiber, top);
}

void renew_stack(Fiber& fiber) {
  mmap(fiber.memory + page(), stack_bytes(), PROT_READ | PROT_WRITE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK | MAP_FIXED, -1, 0);
  reset_fiber(fiber);
}

}  // namespace lazynet::emulator
