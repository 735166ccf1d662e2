// Kernels that show what waiting costs.
#include "arguments.h"

LN_KERNEL_ENTRY(barriers, Numbers) {
  for (int i = 0; i < args.count; ++i) __syncthreads();
}

LN_KERNEL_ENTRY(shuffles, Numbers) {
  float value = static_cast<float>(threadIdx.x);
  for (int i = 0; i < args.count; ++i) value += __shfl_xor_sync(0xffffffffu, value, i & 31);
  args.values[threadIdx.x] = value;
}

LN_KERNEL_ENTRY(threads, Numbers) { args.values[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f; }

LN_KERNEL_ENTRY(adds, Numbers) { atomicAdd(&args.values[threadIdx.x % 8], 1.0f); }
