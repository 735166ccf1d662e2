// The block that is running: its threads, who of them can go on, and what the others wait for.
#pragma once

#include <cstdint>
#include <vector>

#include "block.h"
#include "fiber.h"
#include "interface.h"

namespace lazynet::emulator {

struct Place {
  const char* file = "";
  int line = 0;
};
bool same(const Place& a, const Place& b);

constexpr int kLanes = 32;
constexpr int kNobody = -1;

struct Thread : View {
  enum class State : uint8_t { kNew, kGoing, kAtBarrier, kInWarp, kExited };
  State state;
  WarpKind kind;  // of the operation it waits in
  unsigned mask;  // of that operation
  uint32_t number, rank;
  Place place;  // where it waits
  Fiber* fiber;
};

// Lanes that are together in an operation, or wait for each other.
struct WarpGroup {
  unsigned mask = 0;  // 0: nobody uses this record
  unsigned arrived = 0;
  WarpKind kind = WarpKind::kSync;
  bool phase = false;  // which tag is used
  Place place;
  char tags[2];  // for the thread sanitizer
};

struct Warp {
  WarpGroup groups[kLanes];
  int used = 0;  // groups beyond are free
  unsigned existing = 0, exited = 0;
  uint64_t values[kLanes], results[kLanes];
  uint8_t sources[kLanes];
};

struct Problem {
  enum class Kind {
    kNone,
    kOtherBarrier,
    kNotInMask,
    kExitedMate,
    kOtherOperation,
    kNoSource,
    kSharedMemory,
    kAssertion,
    kMemory,
    kDivision,
    kEndless
  };
  Kind kind = Kind::kNone;
  uint32_t thread = 0;  // whose call found it
  int other = kNobody;  // the thread it does not agree with
  Place place, other_place;
  WarpKind operation = WarpKind::kSync;
  unsigned mask = 0;
  int source = 0;
  const char* condition = "";
  const void* instruction = nullptr;  // where a signal came
  const void* address = nullptr;      // that could not be accessed
};

struct SharedArray {
  const void* tag;
  void* memory;
  std::size_t bytes, alignment;
};

// One block at a time runs, whoever launches; the driver's lock sees to that.
struct BlockState {
  const Launch* launch;
  uint32_t count;  // of threads
  uint32_t alive;
  Thread threads[kMaxThreads];
  uint64_t ready[kMaxThreads / 64];  // by rank: can go on
  std::vector<uint32_t> order;       // rank -> thread
  Warp warps[kMaxThreads / kLanes];
  Thread* running;  // null between launches
  Fiber host;
  Problem problem;

  uint32_t at_barrier;
  bool barrier_phase;
  Place barrier_place;
  uint32_t barrier_first;  // the thread that came first
  char barrier_tags[2];

  std::vector<SharedArray> shared;
  const SharedArray* wanted;  // what a thread asks the host to make
  std::vector<void*> garbage;
  void* dynamic;
  std::size_t shared_bytes;
  char launch_tag;

  void set_ready(const Thread& thread) { ready[thread.rank / 64] |= uint64_t{1} << thread.rank % 64; }
  void clear_ready(const Thread& thread) { ready[thread.rank / 64] &= ~(uint64_t{1} << thread.rank % 64); }
  void set_all_ready();
  // The next in order that can go on, from `rank` on and around; null where none can.
  Thread* next(uint32_t rank);
  // Goes on with another thread, or with the host where there is none.
  void go_on(Thread& from, Thread* to);
  [[noreturn]] void fail(Problem::Kind kind, const Place& place, int other = kNobody, const Place& other_place = {});
};

extern BlockState block;

// What went wrong, for people; and where a thread is, as kernel, block and thread.
std::string describe_place();
std::string describe_problem();
std::string describe_deadlock();
const char* name_of(WarpKind kind);

}  // namespace lazynet::emulator
