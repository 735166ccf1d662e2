// What the tests of the emulator share: the device made ready, kernels by name, device memory with a copy on the host.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../../tests/check.h"
#include "../control.h"
#include "../driver.h"

// The call succeeds; otherwise the program ends with what the driver says.
#define OK(call)                                                                                                     \
  do {                                                                                                               \
    const int code = (call);                                                                                         \
    if (code != 0) {                                                                                                 \
      std::fprintf(stderr, "%s:%d: %s: %d, %s; refused: %s\n", __FILE__, __LINE__, #call, code, ln_emulator_error(), \
                   ln_emulator_refusal());                                                                           \
      std::exit(1);                                                                                                  \
    }                                                                                                                \
    ++checks;                                                                                                        \
  } while (0)

inline void make_ready() {
  CUcontext context;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
}

// The folder of this program, where its kernels lie.
inline std::string folder() {
  char* path = realpath("/proc/self/exe", nullptr);
  std::string text = path ? path : "./";
  std::free(path);
  return text.substr(0, text.rfind('/') + 1);
}

class Kernels {
 public:
  explicit Kernels(const char* name) { OK(cuModuleLoadData(&module_, (folder() + name).c_str())); }
  ~Kernels() { cuModuleUnload(module_); }
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  CUfunction operator[](const char* name) const {
    CUfunction function;
    OK(cuModuleGetFunction(&function, module_, name));
    return function;
  }
  CUmodule module() const { return module_; }

 private:
  CUmodule module_;
};

struct Shape {
  unsigned x = 1, y = 1, z = 1;
};

template <class Args>
CUresult launch(CUfunction function, Shape grid, Shape block, const Args& args, CUstream stream,
                unsigned shared_bytes = 0) {
  Args copy = args;  // on the stack, gone when the kernel runs
  void* parameters[] = {&copy};
  const CUresult result = cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes,
                                         stream, parameters, nullptr);
  std::memset(static_cast<void*>(&copy), 0xEE, sizeof(copy));
  return result;
}

class Stream {
 public:
  explicit Stream(unsigned flags = CU_STREAM_NON_BLOCKING) { OK(cuStreamCreate(&stream_, flags)); }
  ~Stream() { cuStreamDestroy_v2(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const { return stream_; }
  void wait() { OK(cuStreamSynchronize(stream_)); }

 private:
  CUstream stream_;
};

class Event {
 public:
  explicit Event(unsigned flags = CU_EVENT_DISABLE_TIMING) { OK(cuEventCreate(&event_, flags)); }
  ~Event() { cuEventDestroy_v2(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator CUevent() const { return event_; }

 private:
  CUevent event_;
};

// Device memory; put() and get() wait for the stream.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t count) : count_(count) { OK(cuMemAlloc_v2(&address_, count * sizeof(T))); }
  explicit Buffer(const std::vector<T>& values, CUstream stream = nullptr) : Buffer(values.size()) {
    put(values, stream);
  }
  ~Buffer() { cuMemFree_v2(address_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void put(const std::vector<T>& values, CUstream stream = nullptr) {
    OK(cuMemcpyHtoDAsync_v2(address_, values.data(), values.size() * sizeof(T), stream));
    OK(cuStreamSynchronize(stream));
  }
  std::vector<T> get(CUstream stream = nullptr) const {
    std::vector<T> values(count_);
    OK(cuMemcpyDtoHAsync_v2(values.data(), address_, count_ * sizeof(T), stream));
    OK(cuStreamSynchronize(stream));
    return values;
  }
  T* data() const { return reinterpret_cast<T*>(address_); }
  CUdeviceptr address() const { return address_; }

 private:
  CUdeviceptr address_ = 0;
  std::size_t count_;
};
