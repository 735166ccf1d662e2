// What libemulator.so offers beside CUDA's own interfaces: settings, the texts of errors, statistics. Settings come
// from the environment too:
//   LN_EMULATOR_SCHEDULE  up (default), down, seed:N: the order of threads and blocks
//   LN_EMULATOR_STREAMS   late (default), early, seed:N: when queued commands run
//   LN_EMULATOR_PROTECT   0: the host may touch device memory
//   LN_EMULATOR_MEMORY    the device's memory in MiB, 16384 without it
//   LN_EMULATOR_SECONDS   how long a block may run until it counts as endless, 60 without it
#pragma once

#include <cstdint>

#include "interface.h"

extern "C" {

// Both return 0, or 1 for a text that they do not know, which changes nothing.
LN_EMULATOR_EXPORT int ln_emulator_set_schedule(const char* text);
LN_EMULATOR_EXPORT int ln_emulator_set_streams(const char* text);

// The kernel error that the driver reports, "" without one. As on a device it stays: every call that queues or waits
// returns its code, and what was queued is dropped, until it is cleared.
LN_EMULATOR_EXPORT const char* ln_emulator_error();
LN_EMULATOR_EXPORT void ln_emulator_clear_error();
// Why a call of the driver or of cuBLAS was last refused, "" before the first time. cuGetErrorString() says it too, of
// the driver's.
LN_EMULATOR_EXPORT const char* ln_emulator_refusal();

struct ln_emulator_statistics_t {
  int64_t launches, graph_launches;          // calls, not those that a capture recorded
  int64_t copies_to_device, copies_to_host;  // likewise
  int64_t synchronizations;                  // of streams and events
  int64_t kernels_run;                       // those of graphs too
  // What is there now; a reset leaves it.
  int64_t live_allocations, live_bytes, live_host_allocations;
  int64_t live_streams, live_events, live_graphs, live_modules;
  int64_t pending_commands;
};
LN_EMULATOR_EXPORT void ln_emulator_statistics(struct ln_emulator_statistics_t* statistics);
LN_EMULATOR_EXPORT void ln_emulator_reset_statistics();
}
