// The functions of the CUDA driver and of cuBLAS that the core calls, found in their shared libraries at run time: the
// core is built without CUDA, and tests put a stand-in in their place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lazynet::cuda {

// As in cuda.h and cublas_v2.h.
using Address = unsigned long long;
using Context = struct CUctx_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using CaptureGraph = struct CUgraph_st*;
using ReadyGraph = struct CUgraphExec_st*;
using Blas = struct cublasContext*;

#define LN_DRIVER_FUNCTIONS(X)                                                                        \
  X(init, cuInit, (unsigned flags))                                                                   \
  X(device, cuDeviceGet, (int* device, int ordinal))                                                  \
  X(retain_context, cuDevicePrimaryCtxRetain, (Context*, int device))                                 \
  X(set_context, cuCtxSetCurrent, (Context))                                                          \
  X(error_text, cuGetErrorString, (int error, const char** text))                                     \
  X(load_module, cuModuleLoadData, (Module*, const void* image))                                      \
  X(find_function, cuModuleGetFunction, (Function*, Module, const char* name))                        \
  X(launch, cuLaunchKernel,                                                                           \
    (Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned shared_bytes, Stream, void** parameters, void** extra))               \
  X(allocate_pinned, cuMemAllocHost_v2, (void**, std::size_t bytes))                                  \
  X(free_pinned, cuMemFreeHost, (void*))                                                              \
  X(upload, cuMemcpyHtoDAsync_v2, (Address to, const void* from, std::size_t bytes, Stream))          \
  X(download, cuMemcpyDtoHAsync_v2, (void* to, Address from, std::size_t bytes, Stream))              \
  X(copy, cuMemcpyDtoDAsync_v2, (Address to, Address from, std::size_t bytes, Stream))                \
  X(fill, cuMemsetD8Async, (Address to, unsigned char byte, std::size_t bytes, Stream))               \
  X(create_stream, cuStreamCreate, (Stream*, unsigned flags))                                         \
  X(destroy_stream, cuStreamDestroy_v2, (Stream))                                                     \
  X(wait_for_stream, cuStreamSynchronize, (Stream))                                                   \
  X(make_stream_wait, cuStreamWaitEvent, (Stream, Event, unsigned flags))                             \
  X(create_event, cuEventCreate, (Event*, unsigned flags))                                            \
  X(record_event, cuEventRecord, (Event, Stream))                                                     \
  X(wait_for_event, cuEventSynchronize, (Event))                                                      \
  X(destroy_event, cuEventDestroy_v2, (Event))                                                        \
  X(begin_capture, cuStreamBeginCapture_v2, (Stream, int mode))                                       \
  X(end_capture, cuStreamEndCapture, (Stream, CaptureGraph*))                                         \
  X(make_ready, cuGraphInstantiateWithFlags, (ReadyGraph*, CaptureGraph, unsigned long long flags))   \
  X(launch_graph, cuGraphLaunch, (ReadyGraph, Stream))                                                \
  X(destroy_ready, cuGraphExecDestroy, (ReadyGraph))                                                  \
  X(destroy_capture, cuGraphDestroy, (CaptureGraph))

#define LN_BLAS_FUNCTIONS(X)                                                                                     \
  X(blas_create, cublasCreate_v2, (Blas*))                                                                       \
  X(blas_destroy, cublasDestroy_v2, (Blas))                                                                      \
  X(blas_set_stream, cublasSetStream_v2, (Blas, Stream))                                                         \
  X(blas_set_math, cublasSetMathMode, (Blas, int mode))                                                          \
  X(blas_set_workspace, cublasSetWorkspace_v2, (Blas, void* workspace, std::size_t bytes))                       \
  X(gemm_float, cublasSgemm_v2,                                                                                  \
    (Blas, int transpose_a, int transpose_b, int m, int n, int k, const float* alpha, const float* a, int lda,   \
     const float* b, int ldb, const float* beta, float* c, int ldc))                                             \
  X(gemm_double, cublasDgemm_v2,                                                                                 \
    (Blas, int transpose_a, int transpose_b, int m, int n, int k, const double* alpha, const double* a, int lda, \
     const double* b, int ldb, const double* beta, double* c, int ldc))

struct Driver {
  // Loads both libraries; throws Error(LN_DEVICE_ERROR) that says what is missing.
  Driver(const std::string& driver, const std::string& blas);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

#define LN_DECLARE(name, symbol, arguments) int(*name) arguments;
  LN_DRIVER_FUNCTIONS(LN_DECLARE)
  LN_BLAS_FUNCTIONS(LN_DECLARE)
#undef LN_DECLARE

  // Throw Error(LN_DEVICE_ERROR) unless the result is success: check(driver.launch(...), "a kernel's launch").
  void check(int result, const char* what) const;
  void check_blas(int result, const char* what) const;
};

}  // namespace lazynet::cuda
