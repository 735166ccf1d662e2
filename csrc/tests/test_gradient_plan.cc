// Places of gradients: none that live together overlap, and memory is used again.
#include <cstdio>
#include <random>
#include <vector>

#include "../gradient_plan.h"
#include "../memory_resource.h"
#include "check.h"

namespace lazynet {
namespace {

void test_random() {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lifetimes;
    int64_t all = 0;
    for (unsigned i = 0, count = random() % 60; i < count; ++i) {
      const auto first = static_cast<int32_t>(random() % 40);
      lifetimes.push_back({random() % 5 ? static_cast<int64_t>(random() % 5000) : 0, first,
                           first + static_cast<int32_t>(random() % 10), -1});
      all += (lifetimes.back().bytes + 63) / 64 * 64;
    }
    const int64_t total = place(&lifetimes);
    CHECK(total <= all);
    for (std::size_t i = 0; i < lifetimes.size(); ++i) {
      const Lifetime& a = lifetimes[i];
      CHECK(a.offset % static_cast<int64_t>(kAlignment) == 0 && a.offset >= 0 && a.offset + a.bytes <= total);
      for (std::size_t j = 0; j < i; ++j) {
        const Lifetime& b = lifetimes[j];
        const bool together = a.first <= b.last && b.first <= a.last && a.bytes > 0 && b.bytes > 0;
        CHECK(!together || a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset);
      }
    }
  }
}

void test_chain() {
  std::vector<Lifetime> lifetimes;
  for (int32_t i = 0; i < 100; ++i) lifetimes.push_back({640, i, i + 1, -1});
  CHECK(place(&lifetimes) == 2 * 640);
  std::vector<Lifetime> none;
  CHECK(place(&none) == 0);
}

}  // namespace
}  // namespace lazynet

int main() {
  lazynet::test_random();
  lazynet::test_chain();
  std::printf("gradient plan: %ld checks passed\n", checks.load());
}
