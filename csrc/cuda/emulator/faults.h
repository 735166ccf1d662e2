// Kernels that touch memory that is not there, divide by zero or never end: they become errors of the launch. With a
// sanitizer, which ends the process, the kernel's place is added to its report.
#pragma once

#include <string>

namespace lazynet::emulator {

// While one exists the calling thread runs a kernel.
class Watch {
 public:
  Watch();
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
};

// A block has ended: the next one has all the time again.
void note_progress();

// The time that a block has, in seconds.
int time_limit();

// file:line of an instruction, or the library and the offset in it where nothing tells.
std::string source_of(const void* instruction);

}  // namespace lazynet::emulator
