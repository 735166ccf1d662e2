// In which order threads of a block and blocks of a grid run.
#pragma once

#include <cstdint>
#include <vector>

namespace lazynet::emulator {

// A small generator of random numbers; the same seed gives the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0xd1b54a32d192ed03u) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  uint64_t below(uint64_t limit) { return limit ? next() % limit : 0; }

 private:
  uint64_t state_;
};

struct Schedule {
  enum class Kind { kUp, kDown, kSeed };
  Kind kind = Kind::kUp;
  uint64_t seed = 0;

  // Whether `text` is up, down or seed:N.
  bool parse(const char* text);
  // The numbers 0..count-1 in this order; `salt` makes different orders of one seed.
  void order(std::vector<uint32_t>& numbers, uint32_t count, uint64_t salt) const;
};

// What LN_EMULATOR_SCHEDULE says, until something else is set.
Schedule& schedule();

// The number after "seed:", or false.
bool parse_seed(const char* text, uint64_t* seed);

}  // namespace lazynet::emulator
