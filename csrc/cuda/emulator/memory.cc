#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <iterator>

#include "sanitizer.h"

namespace lazynet::emulator {

namespace {

constexpr std::size_t kGranule = 512;  // allocations start at multiples, as the driver's do
// The machine's large pages: one is opened and closed as fast as a small one.
constexpr std::size_t kPage = std::size_t{2} << 20;

std::size_t rounded(std::size_t bytes, std::size_t unit = kGranule) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

DeviceMemory::DeviceMemory() : heap_(kAsan), protect_(true) {
  const char* text = std::getenv("LN_EMULATOR_PROTECT");
  if (text && !std::strcmp(text, "0")) protect_ = false;
  text = std::getenv("LN_EMULATOR_MEMORY");
  const long mebibytes = text ? std::atol(text) : 0;
  total_ = (mebibytes > 0 ? static_cast<std::size_t>(mebibytes) : std::size_t{16} << 10) << 20;
  if (heap_) return;
  total_ = rounded(total_, kPage);
  void* reserved = mmap(nullptr, total_ + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    total_ = 0;
    return;
  }
  base_ = rounded(reinterpret_cast<uintptr_t>(reserved), kPage);
  madvise(reinterpret_cast<void*>(base_), total_, MADV_HUGEPAGE);
}

uintptr_t DeviceMemory::find_place(std::size_t bytes) {
  for (auto hole = unused_.begin(); hole != unused_.end(); ++hole) {
    if (hole->second < bytes) continue;
    const uintptr_t address = hole->first;
    const std::size_t left = hole->second - bytes;
    unused_.erase(hole);
    if (left) unused_[address + bytes] = left;
    return address;
  }
  if (bytes > total_ - reached_) return 0;
  const uintptr_t address = base_ + reached_;
  reached_ += bytes;
  if (reached_ > mapped_) {
    const uintptr_t end = base_ + mapped_;
    mapped_ = rounded(reached_, kPage);
    mprotect(reinterpret_cast<void*>(end), base_ + mapped_ - end, PROT_READ | PROT_WRITE);
  }
  return address;
}

uintptr_t DeviceMemory::allocate(std::size_t bytes) {
  if (bytes > total_ || rounded(bytes) > total_ - used_) return 0;
  Opened opened(*this);
  uintptr_t address = 0;
  if (heap_) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, bytes) == 0) address = reinterpret_cast<uintptr_t>(memory);
  } else {
    address = find_place(rounded(bytes));
  }
  if (!address) return 0;
  std::memset(reinterpret_cast<void*>(address), 0xFF, bytes);
  live_[address] = bytes;
  used_ += rounded(bytes);
  return address;
}

bool DeviceMemory::free(uintptr_t address) {
  auto found = live_.find(address);
  if (found == live_.end()) return false;
  const std::size_t bytes = found->second;
  Opened opened(*this);
  live_.erase(found);
  used_ -= rounded(bytes);
  if (heap_) {
    std::free(reinterpret_cast<void*>(address));
    return true;
  }
  // Who still reads here finds NaN.
  std::memset(reinterpret_cast<void*>(address), 0xFF, bytes);
  auto hole = unused_.emplace(address, rounded(bytes)).first;
  auto after = std::next(hole);
  if (after != unused_.end() && hole->first + hole->second == after->first) {
    hole->second += after->second;
    unused_.erase(after);
  }
  if (hole != unused_.begin()) {
    auto before = std::prev(hole);
    if (before->first + before->second == hole->first) {
      before->second += hole->second;
      unused_.erase(hole);
    }
  }
  return true;
}

bool DeviceMemory::holds(uintptr_t address, std::size_t bytes) const {
  if (!bytes) return true;
  auto after = live_.upper_bound(address);
  if (after == live_.begin()) return false;
  auto found = std::prev(after);
  const std::size_t offset = address - found->first;
  return offset < found->second && bytes <= found->second - offset;
}

bool DeviceMemory::touches(uintptr_t address, std::size_t bytes) const {
  if (!bytes) return false;
  if (!heap_) return address < base_ + total_ && address + bytes > base_;
  auto after = live_.lower_bound(address + bytes);
  if (after == live_.begin()) return false;
  auto found = std::prev(after);
  return found->first + found->second > address;
}

void DeviceMemory::open() {
  if (opened_++ == 0) set_access(true);
}

void DeviceMemory::close() {
  if (--opened_ == 0) set_access(false);
}

void DeviceMemory::set_access(bool open) {
  if (!protect_) return;
  if (!heap_) {
    if (mapped_) mprotect(reinterpret_cast<void*>(base_), mapped_, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    return;
  }
  for (const auto& [address, bytes] : live_) {
    if (open)
      __asan_unpoison_memory_region(reinterpret_cast<void*>(address), bytes);
    else
      __asan_poison_memory_region(reinterpret_cast<void*>(address), bytes);
  }
}

}  // namespace lazynet::emulator
