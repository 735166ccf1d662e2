// Device memory: one reservation of addresses that the host can touch only while it is open. With the address sanitizer
// each allocation comes from the heap instead, with red zones, and is poisoned while closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace lazynet::emulator {

class DeviceMemory {
 public:
  DeviceMemory();
  // 0 where memory lacks. New memory is filled with 0xFF.
  uintptr_t allocate(std::size_t bytes);
  // Whether `address` was the start of a live allocation.
  bool free(uintptr_t address);
  // Whether the range lies in one live allocation; a range of no bytes always does.
  bool holds(uintptr_t address, std::size_t bytes) const;
  // Whether the range touches device memory at all.
  bool touches(uintptr_t address, std::size_t bytes) const;

  void open();
  void close();

  std::size_t used() const { return used_; }
  std::size_t count() const { return live_.size(); }

 private:
  void set_access(bool open);
  uintptr_t find_place(std::size_t bytes);  // while the memory is open

  const bool heap_;
  bool protect_;
  std::size_t total_, used_ = 0;
  uintptr_t base_ = 0;
  std::size_t reached_ = 0;  // bytes from base_ on that have ever been given out
  std::size_t mapped_ = 0;   // and those that are opened with them: whole pages
  int opened_ = 0;
  std::map<uintptr_t, std::size_t> live_;    // address -> bytes as asked for
  std::map<uintptr_t, std::size_t> unused_;  // holes between base_ and base_ + reached_
};

class Opened {
 public:
  explicit Opened(DeviceMemory& memory) : memory_(memory) { memory_.open(); }
  ~Opened() { memory_.close(); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  DeviceMemory& memory_;
};

}  // namespace lazynet::emulator
