// One launch of a kernel: its blocks one after another, the threads of a block as fibers that run in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "driver.h"

namespace lazynet::emulator {

constexpr unsigned kMaxThreads = 1024;
constexpr std::size_t kStaticSharedLimit = 48 << 10;

using Entry = void (*)(const void* argument);

struct Launch {
  Entry entry;
  const char* name;
  Index3 grid, block;
  std::size_t dynamic_bytes;
  const void* argument;
};

struct KernelError {
  CUresult code;  // CUDA_SUCCESS where the launch went well
  std::string text;
};

// Runs the launch to its end or to its first error, which drops all threads that are not done.
KernelError run(const Launch& launch);

}  // namespace lazynet::emulator
