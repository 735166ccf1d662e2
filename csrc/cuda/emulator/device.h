// The one device: its memory, streams, and the objects behind the handles.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "block.h"
#include "control.h"
#include "driver.h"
#include "memory.h"
#include "stream.h"

namespace lazynet::emulator {

// Handles are numbers that are never given twice: a handle of something destroyed is known as wrong.
template <class Handle, class Object>
class Table {
 public:
  Handle add(Object object) {
    const uintptr_t number = next_number();
    objects_.emplace(number, std::move(object));
    return reinterpret_cast<Handle>(number);
  }
  Object* find(Handle handle) {
    auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    return found == objects_.end() ? nullptr : &found->second;
  }
  void remove(Handle handle) { objects_.erase(reinterpret_cast<uintptr_t>(handle)); }
  std::size_t size() const { return objects_.size(); }
  template <class Condition>
  void remove_if(const Condition& condition) {
    for (auto each = objects_.begin(); each != objects_.end();)
      each = condition(each->second) ? objects_.erase(each) : std::next(each);
  }

 private:
  static uintptr_t next_number() {
    static uintptr_t last = 0x1000;
    return last += 16;
  }
  std::unordered_map<uintptr_t, Object> objects_;
};

struct Module {
  explicit Module(void* library) : library(library) {}
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  void* library;
};

struct Function {
  std::shared_ptr<Module> module;
  std::string name;
  Entry entry;
  std::size_t argument_bytes;
  std::size_t dynamic_limit = 48 << 10;
};

struct Event {
  std::shared_ptr<Record> record;  // null before the first recording
};

struct Blas {
  CUstream stream;
};

struct Device {
  std::mutex mutex;
  bool initialized = false;
  DeviceMemory memory;
  Queues queues{memory};
  std::unordered_map<void*, std::size_t> pinned;
  Table<CUstream, Stream*> streams;
  Table<CUevent, Event> events;
  Table<CUmodule, std::shared_ptr<Module>> modules;
  Table<CUfunction, std::shared_ptr<Function>> functions;
  Table<CUgraph, Graph> graphs;
  Table<CUgraphExec, Graph> graph_execs;
  Table<cublasHandle_t, Blas> blas;
  std::vector<std::shared_ptr<Capture>> captures;  // that are going on

  ln_emulator_statistics_t statistics{};
  CUresult error = CUDA_SUCCESS;  // of a kernel or a command; stays
  std::string error_text;
  CUresult refused = CUDA_SUCCESS;  // what a call returned last that could not be done, and why
  std::string refusal, refusal_text;

  void fail(CUresult code, const std::string& text);
  // Returns the code and keeps the text for cuGetErrorString() and ln_emulator_refusal().
  CUresult refuse(CUresult code, const std::string& text);

  // The stream of a handle that may take commands; null after a refusal, with its code.
  Stream* stream_of(CUstream handle, CUresult* code);
  bool check_range(CUdeviceptr address, std::size_t bytes, const char* what);
  // For a command that runs: whether its memory is still there; otherwise the device fails.
  bool still_there(CUdeviceptr address, std::size_t bytes, const char* what);
  // Refuses what a capture of this thread forbids.
  CUresult check_no_capture(const char* call);
};

Device& device();

// What a call needs before it may do anything.
enum class Needs { kNothing, kInitialized, kContext, kWorking };

CUresult check(Device& device, Needs needs);

// Runs function(device) under the lock. A call that needs a working device reports an error that it brings to light.
template <class Function>
CUresult call(Needs needs, const Function& function) {
  Device& d = device();
  std::lock_guard<std::mutex> lock(d.mutex);
  CUresult result = check(d, needs);
  if (result == CUDA_SUCCESS) result = function(d);
  if (result == CUDA_SUCCESS && needs == Needs::kWorking) result = d.error;
  return result;
}

}  // namespace lazynet::emulator
