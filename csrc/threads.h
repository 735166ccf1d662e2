// The worker threads that kernels share. Work is cut by count of threads alone, never by timing, so that a
// given number of threads gives the same bits every run.
#pragma once

#include <cstdint>

namespace lazynet {

void set_num_threads(int threads);
int num_threads();

using RangeFunction = void (*)(void* context, int64_t begin, int64_t end);
// Calls function(context, begin, end) on disjoint ranges that cover [0, count), on at most count / grain
// threads. Called from a thread that is itself a worker, or while another graph's kernel holds the
// workers, it runs everything on the calling thread.
void parallel_ranges(int64_t count, int64_t grain, RangeFunction function, void* context);

template <class Function>
void parallel_for(int64_t count, int64_t grain, const Function& function) {
  if (count <= 0) return;
  if (count <= grain || num_threads() == 1) {
    function(int64_t{0}, count);
    return;
  }
  parallel_ranges(
      count, grain,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<const Function*>(context))(begin, end); },
      const_cast<Function*>(&function));
}

}  // namespace lazynet
