// The contract that every allocator keeps, checked on the buddy allocator and on plain host memory; what is the
// buddy allocator's own; and a million random operations, each block carrying a pattern that must survive.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "../buddy_allocator.h"
#include "../error.h"
#include "check.h"

using namespace lazynet;

namespace {

constexpr std::size_t kUnit = BuddyAllocator::kMinimumBlock;

struct Block {
  unsigned char* memory;
  std::size_t size;
  unsigned char pattern;
  void fill() const { std::memset(memory, pattern, size); }
  bool intact() const {
    for (std::size_t i = 0; i < size; ++i)
      if (memory[i] != pattern) return false;
    return true;
  }
};

template <class Function>
bool throws(const Function& function) {
  try {
    function();
  } catch (const Error&) {
    return true;
  }
  return false;
}

// A resource that gives `budget` bytes and then none.
class LimitedMemory final : public MemoryResource {
 public:
  explicit LimitedMemory(std::size_t budget) : left(budget) {}
  void* allocate(std::size_t bytes) override {
    if (bytes > left) return nullptr;
    left -= bytes;
    return host_memory().allocate(bytes);
  }
  void deallocate(void* address, std::size_t bytes) override {
    left += bytes;
    host_memory().deallocate(address, bytes);
  }
  std::size_t left;
};

// ---- the contract

struct PlainAllocator {
  void* allocate(std::size_t bytes) { return host_memory().allocate(bytes); }
  void deallocate(void* address) { host_memory().deallocate(address, 0); }
};

template <class Allocator>
void test_contract(Allocator& allocator) {
  std::vector<Block> blocks;
  for (std::size_t size : {0, 1, 63, 64, 65, 255, 256, 257, 4096, 100000, 1 << 20, 5000000}) {
    auto* memory = static_cast<unsigned char*>(allocator.allocate(size));
    CHECK(memory != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % kAlignment == 0);
    for (const Block& other : blocks) CHECK(memory != other.memory);
    blocks.push_back({memory, size, static_cast<unsigned char>(blocks.size() + 1)});
    blocks.back().fill();
  }
  CHECK(allocator.allocate(SIZE_MAX) == nullptr);
  CHECK(allocator.allocate(SIZE_MAX / 2) == nullptr);
  for (const Block& block : blocks) {
    CHECK(block.intact());
    allocator.deallocate(block.memory);
  }
  void* again = allocator.allocate(5000000);
  CHECK(again != nullptr);
  allocator.deallocate(again);
}

// ---- the buddy allocator's own

void test_split_merge_and_tail() {
  BuddyAllocator pool(host_memory(), 64 * kUnit);
  void* a = pool.allocate(kUnit);
  void* b = pool.allocate(33 * kUnit);  // takes a block of 64 units in another chunk and gives 31 back
  pool.check();
  PoolStatistics now = pool.statistics();
  CHECK(now.bytes_in_use == 34 * kUnit && now.live_allocations == 2);
  void* c = pool.allocate(16 * kUnit);
  void* d = pool.allocate(8 * kUnit);
  CHECK(pool.statistics().bytes_reserved == now.bytes_reserved);  // the tails were enough
  for (void* each : {b, a, d, c}) {
    pool.deallocate(each);
    pool.check();
  }
  now = pool.statistics();
  CHECK(now.bytes_in_use == 0 && now.peak_bytes_in_use == 58 * kUnit && now.allocations == 4);
  CHECK(now.largest_free_block == 64 * kUnit);
  pool.reset_peak();
  CHECK(pool.statistics().peak_bytes_in_use == 0);
  pool.trim();
  CHECK(pool.statistics().bytes_reserved == 0 && pool.statistics().chunks == 0);
}

void test_limit_and_failing_resource() {
  BuddyAllocator pool(host_memory(), 16 * kUnit, 40 * kUnit);
  void* a = pool.allocate(16 * kUnit);
  void* b = pool.allocate(16 * kUnit);
  CHECK(a && b && pool.statistics().bytes_reserved == 32 * kUnit);
  CHECK(pool.allocate(16 * kUnit) == nullptr);
  CHECK(pool.statistics().bytes_in_use == 32 * kUnit);
  pool.check();
  void* small = pool.allocate(4 * kUnit);  // a smaller chunk than usual still fits below the limit
  CHECK(small != nullptr);
  pool.deallocate(a);
  pool.deallocate(b);
  pool.deallocate(small);
  CHECK(pool.allocate(32 * kUnit) != nullptr);  // free chunks that are too small make room for a larger one
  pool.check();
  pool.set_limit(0);
  CHECK(pool.allocate(1000 * kUnit) != nullptr);

  LimitedMemory memory(20 * kUnit);
  BuddyAllocator poor(memory, 16 * kUnit);
  CHECK(poor.allocate(10 * kUnit) != nullptr);
  CHECK(poor.allocate(16 * kUnit) == nullptr);
  CHECK(poor.allocate(4 * kUnit) != nullptr);
  poor.check();
}

void test_mistakes() {
  BuddyAllocator pool(host_memory());
  char outside = 0;
  auto* a = static_cast<char*>(pool.allocate(10 * kUnit));
  CHECK(throws([&] { pool.deallocate(&outside); }));
  CHECK(throws([&] { pool.deallocate(a + 1); }));
  CHECK(throws([&] { pool.deallocate(a + kUnit); }));
  CHECK(throws([&] { pool.deallocate(nullptr); }));
  pool.deallocate(a);
  CHECK(throws([&] { pool.deallocate(a); }));
  pool.check();
}

// ---- random operations

std::size_t random_size(std::mt19937_64& random) {
  switch (random() % 8) {
    case 0:
      return 0;
    case 1:
      return random() % 100000;
    case 2:
      return kUnit << random() % 8;
    default:
      return random() % 4000;
  }
}

void test_random_operations(int64_t operations) {
  std::mt19937_64 random(42);
  BuddyAllocator pool(host_memory(), 256 * kUnit, 24 << 20);
  std::vector<Block> live;
  std::size_t in_use = 0;
  auto rounded = [](std::size_t size) { return size == 0 ? kUnit : (size + kUnit - 1) / kUnit * kUnit; };
  for (int64_t i = 0; i < operations; ++i) {
    const bool grow = live.size() < 20 || (live.size() < 2000 && random() % 100 < (i / 50000 % 2 ? 40 : 60));
    if (grow) {
      const std::size_t size = random_size(random);
      auto* memory = static_cast<unsigned char*>(pool.allocate(size));
      if (!memory) continue;
      live.push_back({memory, size, static_cast<unsigned char>(random())});
      live.back().fill();
      in_use += rounded(size);
    } else {
      std::swap(live[random() % live.size()], live.back());
      CHECK(live.back().intact());
      pool.deallocate(live.back().memory);
      in_use -= rounded(live.back().size);
      live.pop_back();
    }
    if (i % 1000 == 0) CHECK(pool.statistics().bytes_in_use == in_use);
    if (i % 10000 == 0) pool.check();
    if (i % 100000 == 99999) pool.trim();
  }
  for (const Block& block : live) {
    CHECK(block.intact());
    pool.deallocate(block.memory);
  }
  pool.check();
  pool.trim();
  CHECK(pool.statistics().bytes_reserved == 0 && pool.statistics().live_allocations == 0);
}

}  // namespace

int main() {
  PlainAllocator plain;
  test_contract(plain);
  BuddyAllocator pool(host_memory());
  test_contract(pool);
  BuddyAllocator tiny(host_memory(), 1);
  test_contract(tiny);
  test_split_merge_and_tail();
  test_limit_and_failing_resource();
  test_mistakes();
  test_random_operations(1000000);
  std::printf("buddy_allocator: %ld checks passed\n", checks.load());
}
