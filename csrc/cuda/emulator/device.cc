#include "device.h"

#include <dlfcn.h>

#include <algorithm>
#include <thread>

namespace lazynet::emulator {

Module::~Module() { dlclose(library); }

Device& device() {
  static Device* only = new Device;  // lives to the end: kernels' libraries may outlive static objects
  return *only;
}

void Device::fail(CUresult code, const std::string& text) {
  if (error != CUDA_SUCCESS) return;
  error = code;
  error_text = text;
}

CUresult Device::refuse(CUresult code, const std::string& text) {
  refused = code;
  refusal = text;
  return code;
}

Stream* Device::stream_of(CUstream handle, CUresult* code) {
  *code = CUDA_SUCCESS;
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number <= 1) {  // 1: the legacy stream by name
    for (const auto& capture : captures) {
      if (!capture->origin->blocking) continue;
      capture->invalid = true;
      *code = refuse(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                     "the legacy stream waits for a stream that is being captured: use streams of your own");
      return nullptr;
    }
    return &queues.legacy();
  }
  Stream** found = streams.find(handle);
  if (!found) {
    *code = refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream, or it has been destroyed");
    return nullptr;
  }
  if ((*found)->capture && (*found)->capture->invalid) {
    *code = refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "an earlier error has made the stream's capture invalid");
    return nullptr;
  }
  return *found;
}

bool Device::check_range(CUdeviceptr address, std::size_t bytes, const char* what) {
  if (memory.holds(address, bytes)) return true;
  refuse(CUDA_ERROR_INVALID_VALUE, std::string(what) + ": " + std::to_string(bytes) + " bytes at " +
                                       std::to_string(address) + " lie in no live allocation");
  return false;
}

bool Device::still_there(CUdeviceptr address, std::size_t bytes, const char* what) {
  if (memory.holds(address, bytes)) return true;
  fail(CUDA_ERROR_ILLEGAL_ADDRESS, std::string(what) + ": its memory has been freed before it ran");
  return false;
}

CUresult Device::check_no_capture(const char* name) {
  for (const auto& capture : captures) {
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    if (capture->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && capture->thread != std::this_thread::get_id()) continue;
    capture->invalid = true;
    return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, std::string(name) + " while a stream is being captured");
  }
  return CUDA_SUCCESS;
}

}  // namespace lazynet::emulator

using lazynet::emulator::device;

namespace {

// A lock for functions that are no calls of the driver.
std::lock_guard<std::mutex> locked() { return std::lock_guard<std::mutex>(device().mutex); }

}  // namespace

extern "C" {

int ln_emulator_set_schedule(const char* text) {
  auto lock = locked();
  return text && lazynet::emulator::schedule().parse(text) ? 0 : 1;
}

int ln_emulator_set_streams(const char* text) {
  auto lock = locked();
  return text && device().queues.policy().parse(text) ? 0 : 1;
}

const char* ln_emulator_error() {
  auto lock = locked();
  return device().error_text.c_str();
}

const char* ln_emulator_refusal() {
  auto lock = locked();
  return device().refusal.c_str();
}

void ln_emulator_clear_error() {
  auto lock = locked();
  device().error = CUDA_SUCCESS;
  device().error_text.clear();
  device().queues.drop();
}

void ln_emulator_statistics(ln_emulator_statistics_t* statistics) {
  auto lock = locked();
  auto& d = device();
  *statistics = d.statistics;
  auto number = [](std::size_t count) { return static_cast<int64_t>(count); };
  statistics->live_allocations = number(d.memory.count());
  statistics->live_bytes = number(d.memory.used());
  statistics->live_host_allocations = number(d.pinned.size());
  statistics->live_streams = number(d.streams.size());
  statistics->live_events = number(d.events.size());
  statistics->live_graphs = number(d.graphs.size() + d.graph_execs.size());
  statistics->live_modules = number(d.modules.size());
  statistics->pending_commands = number(d.queues.pending());
}

void ln_emulator_reset_statistics() {
  auto lock = locked();
  device().statistics = {};
}
}
