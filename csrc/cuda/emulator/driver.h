// The part of CUDA's driver interface and of cuBLAS that libemulator.so stands in for, declared as CUDA declares it:
// what the core calls (csrc/cuda/driver.h), and what tests need to bring memory and kernels there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "interface.h"

extern "C" {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;

enum : CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_FILE_NOT_FOUND = 301,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_ILLEGAL_STATE = 401,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
  CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
  CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
  CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_CAPTURED_EVENT = 907,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
};

enum { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };

LN_EMULATOR_EXPORT CUresult cuInit(unsigned flags);
LN_EMULATOR_EXPORT CUresult cuGetErrorString(CUresult error, const char** text);
LN_EMULATOR_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal);
LN_EMULATOR_EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device);
LN_EMULATOR_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
LN_EMULATOR_EXPORT CUresult cuCtxSetCurrent(CUcontext context);

LN_EMULATOR_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image);
LN_EMULATOR_EXPORT CUresult cuModuleUnload(CUmodule module);
LN_EMULATOR_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name);
LN_EMULATOR_EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value);
LN_EMULATOR_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                           CUstream stream, void** parameters, void** extra);

LN_EMULATOR_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes);
LN_EMULATOR_EXPORT CUresult cuMemFree_v2(CUdeviceptr address);
LN_EMULATOR_EXPORT CUresult cuMemAllocHost_v2(void** address, std::size_t bytes);
LN_EMULATOR_EXPORT CUresult cuMemFreeHost(void* address);
LN_EMULATOR_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream);
LN_EMULATOR_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream);
LN_EMULATOR_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream);
LN_EMULATOR_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream stream);

LN_EMULATOR_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags);
LN_EMULATOR_EXPORT CUresult cuStreamDestroy_v2(CUstream stream);
LN_EMULATOR_EXPORT CUresult cuStreamSynchronize(CUstream stream);
LN_EMULATOR_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
LN_EMULATOR_EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags);
LN_EMULATOR_EXPORT CUresult cuEventDestroy_v2(CUevent event);
LN_EMULATOR_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream);
LN_EMULATOR_EXPORT CUresult cuEventSynchronize(CUevent event);

LN_EMULATOR_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
LN_EMULATOR_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph);
LN_EMULATOR_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags);
LN_EMULATOR_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
LN_EMULATOR_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec);
LN_EMULATOR_EXPORT CUresult cuGraphDestroy(CUgraph graph);

using cublasHandle_t = struct cublasContext*;
using cublasStatus_t = int;
enum : cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
};
enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 };

LN_EMULATOR_EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t* handle);
LN_EMULATOR_EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle);
LN_EMULATOR_EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, CUstream stream);
LN_EMULATOR_EXPORT cublasStatus_t cublasSetMathMode(cublasHandle_t handle, int mode);
LN_EMULATOR_EXPORT cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, std::size_t bytes);
LN_EMULATOR_EXPORT cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, int transpose_a, int transpose_b, int m, int n,
                                                 int k, const float* alpha, const float* a, int lda, const float* b,
                                                 int ldb, const float* beta, float* c, int ldc);
LN_EMULATOR_EXPORT cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, int transpose_a, int transpose_b, int m, int n,
                                                 int k, const double* alpha, const double* a, int lda, const double* b,
                                                 int ldb, const double* beta, double* c, int ldc);
}
