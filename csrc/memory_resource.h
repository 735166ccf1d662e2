// Where memory comes from: host memory now, a device later. Thread-safe.
#pragma once

#include <cstddef>

namespace lazynet {

inline constexpr std::size_t kAlignment = 64;  // bytes; one cache line, one AVX-512 register
// The bytes that something takes where what follows it is to be aligned too.
template <class Size>
constexpr Size aligned(Size bytes) {
  constexpr auto unit = static_cast<Size>(kAlignment);
  return (bytes + unit - 1) / unit * unit;
}

class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  // Returns at least `bytes` bytes aligned to kAlignment, or nullptr when there are none.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* address, std::size_t bytes) = 0;
};

// The process's ordinary memory.
MemoryResource& host_memory();

}  // namespace lazynet
