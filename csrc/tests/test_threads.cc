// The workers, for the thread sanitizer: every element is covered once, whoever runs the parts, with two threads
// that want the workers at once and with the number of workers changing in between.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "../threads.h"
#include "check.h"

using namespace lazynet;

namespace {

// Rounds of work whose parts write to memory of their own, which the caller then reads.
void run_rounds(unsigned seed, int rounds) {
  std::mt19937 random(seed);
  std::vector<int64_t> seen;
  for (int round = 0; round < rounds; ++round) {
    const int64_t count = random() % 200, grain = 1 + random() % 40;
    seen.assign(count, 0);
    parallel_for(count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) seen[i] += i + round;
    });
    for (int64_t i = 0; i < count; ++i) CHECK(seen[i] == i + round);
  }
}

// Work inside work runs on the thread that asks for it.
void run_nested() {
  std::vector<int64_t> seen(64, 0);
  parallel_for(8, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      parallel_for(8, 1, [&](int64_t first, int64_t last) {
        for (int64_t j = first; j < last; ++j) ++seen[i * 8 + j];
      });
  });
  for (const int64_t times : seen) CHECK(times == 1);
}

}  // namespace

int main() {
  constexpr int kRounds = 5000;
  for (const int threads : {1, 2, 3, 5}) {
    set_num_threads(threads);
    std::thread other([] { run_rounds(1, kRounds); });
    run_rounds(2, kRounds);
    other.join();
    run_nested();
  }
  std::printf("threads: passed\n");
}
