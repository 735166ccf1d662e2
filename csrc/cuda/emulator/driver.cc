// The driver's stand-in: the device, contexts, modules and launches.
#include "driver.h"

#include <dlfcn.h>

#include <climits>
#include <cstdlib>
#include <cstring>

#include "device.h"

namespace lazynet::emulator {

namespace {

constexpr int kOptInSharedBytes = 163 << 10;
const CUcontext kContext = reinterpret_cast<CUcontext>(uintptr_t{0x100});
thread_local bool has_context = false;

struct ErrorText {
  CUresult code;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {CUDA_SUCCESS, "no error"},
    {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
    {CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
    {CUDA_ERROR_FILE_NOT_FOUND, "file not found"},
    {CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"},
    {CUDA_ERROR_ASSERT, "device-side assert triggered"},
    {CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
     "attempt to terminate a thread-local capture sequence from another thread"},
};

const ErrorText* find_error(CUresult code) {
  for (const ErrorText& error : kErrors)
    if (error.code == code) return &error;
  return nullptr;
}

struct Attribute {
  int number, value;
};
constexpr Attribute kAttributes[] = {
    {16, 4},  // multiprocessors
    {75, 8},  // compute capability
    {76, 0},
    {97, kOptInSharedBytes},  // shared memory of a block that asks for it
};

CUresult load_module(Device& d, CUmodule* module, const char* path) {
  // Kernels take the run time's symbols from here, even where this library was loaded for itself alone.
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&cuInit), &self) && self.dli_fname)
    dlopen(self.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  char* absolute = realpath(path, nullptr);
  if (!absolute) return d.refuse(CUDA_ERROR_FILE_NOT_FOUND, "cuModuleLoadData: no file of the image's name");
  void* library = dlopen(absolute, RTLD_NOW | RTLD_LOCAL);
  std::free(absolute);
  if (!library) {
    const char* reason = dlerror();
    return d.refuse(CUDA_ERROR_INVALID_IMAGE, std::string("cuModuleLoadData: ") + (reason ? reason : "no reason"));
  }
  *module = d.modules.add(std::make_shared<Module>(library));
  return CUDA_SUCCESS;
}

CUresult find_function(Device& d, CUfunction* function, CUmodule module, const char* name) {
  auto* found = d.modules.find(module);
  if (!found) return d.refuse(CUDA_ERROR_INVALID_HANDLE, "cuModuleGetFunction: no such module");
  void* entry = dlsym((*found)->library, name);
  void* bytes = dlsym((*found)->library, (std::string(name) + "_argument_bytes").c_str());
  if (!entry || !bytes)
    return d.refuse(CUDA_ERROR_NOT_FOUND, std::string("cuModuleGetFunction: the module has no kernel ") + name);
  auto made = std::make_shared<Function>();
  made->module = *found;
  made->name = name;
  made->entry = reinterpret_cast<Entry>(entry);
  made->argument_bytes = *static_cast<const std::size_t*>(bytes);
  *function = d.functions.add(made);
  return CUDA_SUCCESS;
}

bool fits(Index3 grid, Index3 block) {
  for (unsigned each : {grid.x, grid.y, grid.z, block.x, block.y, block.z})
    if (!each) return false;
  if (grid.x > INT_MAX || grid.y > 65535 || grid.z > 65535) return false;
  if (block.x > 1024 || block.y > 1024 || block.z > 64) return false;
  return uint64_t{block.x} * block.y * block.z <= kMaxThreads;
}

CUresult launch(Device& d, CUfunction handle, Index3 grid, Index3 block, std::size_t shared_bytes,
                CUstream stream_handle, void** parameters, void** extra) {
  auto* found = d.functions.find(handle);
  if (!found) return d.refuse(CUDA_ERROR_INVALID_HANDLE, "cuLaunchKernel: no such function, or its module is unloaded");
  std::shared_ptr<Function> function = *found;
  const std::string heading = "cuLaunchKernel of " + function->name + ": ";
  if (!fits(grid, block))
    return d.refuse(CUDA_ERROR_INVALID_VALUE, heading + "the grid or the block is empty or too large");
  if (shared_bytes > function->dynamic_limit)
    return d.refuse(CUDA_ERROR_INVALID_VALUE,
                    heading + std::to_string(shared_bytes) + " bytes of dynamic shared memory where " +
                        std::to_string(function->dynamic_limit) + " are allowed; see cuFuncSetAttribute");
  if (extra || !parameters || !parameters[0])
    return d.refuse(CUDA_ERROR_INVALID_VALUE, heading + "one parameter, the kernel's struct, is expected");
  CUresult code;
  Stream* stream = d.stream_of(stream_handle, &code);
  if (!stream) return code;
  // Exactly as large as the struct, so that the address sanitizer sees the first byte beyond.
  std::shared_ptr<void> argument(std::malloc(function->argument_bytes), std::free);
  if (!argument) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memcpy(argument.get(), parameters[0], function->argument_bytes);
  if (!stream->capture) ++d.statistics.launches;
  Command command;
  command.work = [&d, function, grid, block, shared_bytes, argument] {
    ++d.statistics.kernels_run;
    const KernelError error = run({function->entry, function->name.c_str(), grid, block, shared_bytes, argument.get()});
    if (error.code != CUDA_SUCCESS) d.fail(error.code, error.text);
    return error.code == CUDA_SUCCESS;
  };
  d.queues.add(*stream, std::move(command));
  return CUDA_SUCCESS;
}

}  // namespace

CUresult check(Device& d, Needs needs) {
  if (needs >= Needs::kInitialized && !d.initialized)
    return d.refuse(CUDA_ERROR_NOT_INITIALIZED, "cuInit has not been called");
  if (needs >= Needs::kContext && !has_context)
    return d.refuse(CUDA_ERROR_INVALID_CONTEXT, "the thread has no current context; see cuCtxSetCurrent");
  return needs >= Needs::kWorking ? d.error : CUDA_SUCCESS;
}

}  // namespace lazynet::emulator

using namespace lazynet::emulator;

extern "C" {

CUresult cuInit(unsigned flags) {
  return call(Needs::kNothing, [&](Device& d) -> CUresult {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    d.initialized = true;
    return CUDA_SUCCESS;
  });
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  return call(Needs::kNothing, [&](Device& d) -> CUresult {
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    const ErrorText* found = find_error(error);
    *text = found ? found->text : nullptr;
    // The whole story of a kernel's error, and of the last call that was refused.
    if (error != CUDA_SUCCESS && error == d.error)
      *text = d.error_text.c_str();
    else if (found && error != CUDA_SUCCESS && error == d.refused)
      *text = (d.refusal_text = std::string(found->text) + ": " + d.refusal).c_str();
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return call(Needs::kInitialized, [&](Device&) -> CUresult {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
    *device = 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  return call(Needs::kInitialized, [&](Device& d) -> CUresult {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
    for (const Attribute& known : kAttributes)
      if (known.number == attribute) {
        *value = known.value;
        return CUDA_SUCCESS;
      }
    return d.refuse(CUDA_ERROR_INVALID_VALUE,
                    "cuDeviceGetAttribute: the emulator does not know attribute " + std::to_string(attribute));
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return call(Needs::kInitialized, [&](Device&) -> CUresult {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
    *context = kContext;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return call(Needs::kInitialized, [&](Device&) -> CUresult {
    if (context && context != kContext) return CUDA_ERROR_INVALID_CONTEXT;
    has_context = context != nullptr;
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return call(Needs::kContext, [&](Device& d) -> CUresult {
    if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
    return load_module(d, module, static_cast<const char*>(image));
  });
}

CUresult cuModuleUnload(CUmodule module) {
  return call(Needs::kContext, [&](Device& d) -> CUresult {
    auto* found = d.modules.find(module);
    if (!found) return d.refuse(CUDA_ERROR_INVALID_HANDLE, "cuModuleUnload: no such module");
    d.queues.finish_all();
    std::shared_ptr<Module> unloaded = *found;
    d.functions.remove_if([&](const auto& function) { return function->module == unloaded; });
    d.modules.remove(module);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return call(Needs::kContext, [&](Device& d) -> CUresult {
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    return find_function(d, function, module, name);
  });
}

CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
  return call(Needs::kContext, [&](Device& d) -> CUresult {
    auto* found = d.functions.find(handle);
    if (!found) return d.refuse(CUDA_ERROR_INVALID_HANDLE, "cuFuncSetAttribute: no such function");
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > kOptInSharedBytes)
      return d.refuse(CUDA_ERROR_INVALID_VALUE, "cuFuncSetAttribute: no such attribute, or a value beyond its range");
    (*found)->dynamic_limit = static_cast<std::size_t>(value);
    return CUDA_SUCCESS;
  });
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters,
                        void** extra) {
  return call(Needs::kWorking, [&](Device& d) {
    return launch(d, function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, parameters,
                  extra);
  });
}
}
