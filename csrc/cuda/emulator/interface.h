// What compiled kernels and the run time share: the run time exports it, kernels use it through emulator.h.
#pragma once

#include <cstddef>
#include <cstdint>

#define LN_EMULATOR_EXPORT __attribute__((visibility("default")))

namespace lazynet::emulator {

struct Index3 {
  unsigned x, y, z;
};

// What a CUDA thread knows of itself.
struct View {
  Index3 thread;
  int lane;
};
// What all threads of a block have in common.
struct Grid {
  Index3 block, block_dim, grid_dim;
};

extern LN_EMULATOR_EXPORT const View* current_view;
extern LN_EMULATOR_EXPORT Grid current_grid;

enum class WarpKind : uint8_t { kSync, kShuffle, kShuffleUp, kShuffleDown, kShuffleXor, kBallot, kAny, kAll };

LN_EMULATOR_EXPORT void block_barrier(const char* file, int line);

// Waits for the lanes of `mask`. Returns for shuffles the value of lane `source`, for votes the lanes whose value is
// not zero.
LN_EMULATOR_EXPORT uint64_t warp_operation(WarpKind kind, unsigned mask, uint64_t value, int source, const char* file,
                                           int line);

// The block's array of this tag; made, and filled with 0xFF, by the first thread that asks for it.
LN_EMULATOR_EXPORT void* static_shared(const void* tag, std::size_t bytes, std::size_t alignment);
LN_EMULATOR_EXPORT void* dynamic_shared();

[[noreturn]] LN_EMULATOR_EXPORT void assertion_failed(const char* condition, const char* file, int line);

}  // namespace lazynet::emulator
