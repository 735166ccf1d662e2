// The sanitizers' interfaces, where the process has a sanitizer: the same library serves with and without. It is itself
// never instrumented for the thread sanitizer, which would take its own records for the kernels' races.
#pragma once

#include <cstddef>

extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** save, const void* bottom, std::size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* save, const void** bottom, std::size_t* size);
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* address, std::size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* address, std::size_t bytes);
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void* fiber);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
__attribute__((weak)) void __tsan_set_fiber_name(void* fiber, const char* name);
__attribute__((weak)) void __tsan_acquire(void* address);
__attribute__((weak)) void __tsan_release(void* address);
}

namespace lazynet::emulator {

inline const bool kAsan = __asan_poison_memory_region != nullptr;
inline const bool kTsan = __tsan_create_fiber != nullptr;

// What happened before the release of a tag happens before what follows its acquisition.
inline void acquire(void* tag) {
  if (kTsan) __tsan_acquire(tag);
}
inline void release(void* tag) {
  if (kTsan) __tsan_release(tag);
}

}  // namespace lazynet::emulator
