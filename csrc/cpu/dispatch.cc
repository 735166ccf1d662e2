// Chooses among the vector units that are compiled in. Compiled once, for the plainest machine.
#include <atomic>
#include <cstring>

#include "../error.h"
#include "unit.h"

namespace lazynet {

#define LN_DECLARE_UNIT(unit)    \
  namespace cpu::unit {          \
  const cpu::Unit* unit_table(); \
  }
#ifdef LN_HAVE_avx512
LN_DECLARE_UNIT(avx512)
#endif
#ifdef LN_HAVE_avx2
LN_DECLARE_UNIT(avx2)
#endif
#ifdef LN_HAVE_baseline
LN_DECLARE_UNIT(baseline)
#endif
#ifdef LN_HAVE_portable
LN_DECLARE_UNIT(portable)
#endif

namespace {

struct Candidate {
  const char* name;
  const cpu::Unit* (*table)();
  bool (*supported)();
};

#ifdef LN_HAVE_avx512
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("fma");
}
#endif
#ifdef LN_HAVE_avx2
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif
#if defined(LN_HAVE_baseline) || defined(LN_HAVE_portable)
bool always() { return true; }
#endif

// Widest first.
const Candidate kCandidates[] = {
#ifdef LN_HAVE_avx512
    {"avx512", cpu::avx512::unit_table, has_avx512},
#endif
#ifdef LN_HAVE_avx2
    {"avx2", cpu::avx2::unit_table, has_avx2},
#endif
#ifdef LN_HAVE_baseline
    {"baseline", cpu::baseline::unit_table, always},
#endif
#ifdef LN_HAVE_portable
    {"portable", cpu::portable::unit_table, always},
#endif
};

const Candidate* widest() {
  for (const Candidate& unit : kCandidates)
    if (unit.supported()) return &unit;
  fail(LN_VALUE_ERROR, "this build has no kernels for this processor");
}

std::atomic<const Candidate*>& chosen() {
  static std::atomic<const Candidate*> candidate{widest()};
  return candidate;
}

}  // namespace

const cpu::Unit& cpu::chosen_unit() { return *chosen().load(std::memory_order_acquire)->table(); }

const char* vector_unit() { return chosen().load(std::memory_order_acquire)->name; }

void set_vector_unit(const char* name) {
  for (const Candidate& unit : kCandidates) {
    if (std::strcmp(unit.name, name) != 0) continue;
    if (!unit.supported()) fail(LN_VALUE_ERROR, "this processor has no ", name);
    chosen().store(&unit, std::memory_order_release);
    return;
  }
  fail(LN_VALUE_ERROR, "no such vector unit in this build: ", name);
}

}  // namespace lazynet
