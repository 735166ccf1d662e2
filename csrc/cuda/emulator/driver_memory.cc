// The driver's stand-in: memory and copies.
#include <cstdlib>
#include <cstring>

#include "device.h"

using namespace lazynet::emulator;

namespace {

// Host memory of a copy is read or written when the command runs: who reuses it too early gets wrong numbers.
CUresult add_copy(Device& d, const char* name, CUdeviceptr to, CUdeviceptr from, std::size_t bytes, bool device_to,
                  bool device_from, CUstream handle) {
  CUresult code;
  Stream* stream = d.stream_of(handle, &code);
  if (!stream) return code;
  if ((device_to && !d.check_range(to, bytes, name)) || (device_from && !d.check_range(from, bytes, name)))
    return CUDA_ERROR_INVALID_VALUE;
  if ((!device_to && (!to || d.memory.touches(to, bytes))) ||
      (!device_from && (!from || d.memory.touches(from, bytes))))
    return d.refuse(CUDA_ERROR_INVALID_VALUE, std::string(name) + ": the host's pointer is null or the device's");
  if (!stream->capture && !device_from) ++d.statistics.copies_to_device;
  if (!stream->capture && !device_to) ++d.statistics.copies_to_host;
  Command command;
  command.work = [&d, name, to, from, bytes, device_to, device_from] {
    if ((device_to && !d.still_there(to, bytes, name)) || (device_from && !d.still_there(from, bytes, name)))
      return false;
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return true;
  };
  d.queues.add(*stream, std::move(command));
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    if (!address || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = d.check_no_capture("cuMemAlloc")) return code;
    const uintptr_t memory = d.memory.allocate(bytes);
    if (!memory)
      return d.refuse(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc: " + std::to_string(bytes) + " bytes are not there");
    *address = memory;
    return CUDA_SUCCESS;
  });
}

// The driver would wait for the device here; a pool of memory, as programs have one above it, would not. Nobody waits:
// who frees what queued work needs is found out. Works after an error too, so that programs can clean up.
CUresult cuMemFree_v2(CUdeviceptr address) {
  return call(Needs::kContext, [&](Device& d) -> CUresult {
    if (!address) return CUDA_SUCCESS;
    if (CUresult code = d.check_no_capture("cuMemFree")) return code;
    if (d.memory.free(address)) return CUDA_SUCCESS;
    return d.refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFree: no live allocation starts at the address");
  });
}

CUresult cuMemAllocHost_v2(void** address, std::size_t bytes) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    if (!address || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = d.check_no_capture("cuMemAllocHost")) return code;
    void* memory = nullptr;
    if (posix_memalign(&memory, 4096, bytes) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memset(memory, 0xFF, bytes);
    d.pinned[memory] = bytes;
    *address = memory;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemFreeHost(void* address) {
  return call(Needs::kContext, [&](Device& d) -> CUresult {
    if (CUresult code = d.check_no_capture("cuMemFreeHost")) return code;
    if (!d.pinned.count(address))
      return d.refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost: no live allocation starts at the address");
    d.queues.finish_all();
    d.pinned.erase(address);
    std::free(address);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  return call(Needs::kWorking, [&](Device& d) {
    return add_copy(d, "cuMemcpyHtoDAsync", to, reinterpret_cast<uintptr_t>(from), bytes, true, false, stream);
  });
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return call(Needs::kWorking, [&](Device& d) {
    return add_copy(d, "cuMemcpyDtoHAsync", reinterpret_cast<uintptr_t>(to), from, bytes, false, true, stream);
  });
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return call(Needs::kWorking,
              [&](Device& d) { return add_copy(d, "cuMemcpyDtoDAsync", to, from, bytes, true, true, stream); });
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream handle) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    CUresult code;
    Stream* stream = d.stream_of(handle, &code);
    if (!stream) return code;
    if (!d.check_range(to, bytes, "cuMemsetD8Async")) return CUDA_ERROR_INVALID_VALUE;
    Command command;
    command.work = [&d, to, value, bytes] {
      if (!d.still_there(to, bytes, "cuMemsetD8Async")) return false;
      std::memset(reinterpret_cast<void*>(to), value, bytes);
      return true;
    };
    d.queues.add(*stream, std::move(command));
    return CUDA_SUCCESS;
  });
}
}
