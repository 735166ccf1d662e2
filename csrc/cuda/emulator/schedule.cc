#include "schedule.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace lazynet::emulator {

bool parse_seed(const char* text, uint64_t* seed) {
  if (std::strncmp(text, "seed:", 5) != 0 || text[5] < '0' || text[5] > '9') return false;
  char* end = nullptr;
  *seed = std::strtoull(text + 5, &end, 10);
  return *end == 0;
}

bool Schedule::parse(const char* text) {
  Schedule parsed;
  if (!std::strcmp(text, "up"))
    parsed.kind = Kind::kUp;
  else if (!std::strcmp(text, "down"))
    parsed.kind = Kind::kDown;
  else if (parse_seed(text, &parsed.seed))
    parsed.kind = Kind::kSeed;
  else
    return false;
  *this = parsed;
  return true;
}

void Schedule::order(std::vector<uint32_t>& numbers, uint32_t count, uint64_t salt) const {
  numbers.resize(count);
  std::iota(numbers.begin(), numbers.end(), 0u);
  if (kind == Kind::kDown) std::reverse(numbers.begin(), numbers.end());
  if (kind == Kind::kSeed) {
    Random random(seed ^ salt << 32);
    for (uint32_t i = count; i > 1; --i) std::swap(numbers[i - 1], numbers[random.below(i)]);
  }
}

Schedule& schedule() {
  static Schedule* chosen = [] {
    auto* made = new Schedule;
    const char* text = std::getenv("LN_EMULATOR_SCHEDULE");
    if (text && *text && !made->parse(text))
      std::fprintf(stderr, "LN_EMULATOR_SCHEDULE=%s: up, down or seed:N is expected; up is used\n", text);
    return made;
  }();
  return *chosen;
}

}  // namespace lazynet::emulator
