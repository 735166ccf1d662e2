// CHECK(condition): ends the program with file, line and condition where it does not hold.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>

inline std::atomic<long> checks{0};  // that held

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                        \
    }                                                                      \
    ++checks;                                                              \
  } while (0)
