#include "memory_resource.h"

#include <cstdlib>

namespace lazynet {
namespace {

class HostMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes) override {
    std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (rounded < bytes) return nullptr;  // wrapped around
    return std::aligned_alloc(kAlignment, rounded ? rounded : kAlignment);
  }
  void deallocate(void* address, std::size_t) override { std::free(address); }
};

}  // namespace

MemoryResource& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace lazynet
