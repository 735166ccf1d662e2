// Kernels without a fault: what they compute is compared with the host.
#include "arguments.h"

__device__ inline int thread_of_grid() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

LN_KERNEL_ENTRY(saxpy, Saxpy) {
  int i = thread_of_grid();
  if (i >= args.count / 4) return;
  float4 x = reinterpret_cast<const float4*>(args.x)[i];
  float4& y = reinterpret_cast<float4*>(args.y)[i];
  y = make_float4(fmaf(args.factor, x.x, y.x), fmaf(args.factor, x.y, y.y), fmaf(args.factor, x.z, y.z),
                  fmaf(args.factor, x.w, y.w));
}

__device__ float thread_sum(const Reduce& args) {
  float sum = 0;
  for (int i = thread_of_grid(); i < args.count; i += static_cast<int>(gridDim.x * blockDim.x)) sum += args.values[i];
  return sum;
}

template <int kThreads>
__device__ void block_sum_of(const Reduce& args) {
  LN_SHARED(float, partial, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  partial[thread] = thread_sum(args);
  for (int half = kThreads / 2; half; half /= 2) {
    __syncthreads();
    if (thread < half) partial[thread] += partial[thread + half];
  }
  if (thread == 0) args.sums[blockIdx.x] = partial[0];
}
LN_KERNEL_ENTRY(block_sum, Reduce) { block_sum_of<kReduceThreads>(args); }

__device__ __forceinline__ float warp_total(float value) {
  for (int offset = warpSize / 2; offset; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

LN_KERNEL_ENTRY(warp_sum, Reduce) {
  LN_SHARED(float, partial, 32);
  const int thread = static_cast<int>(threadIdx.x);
  float sum = warp_total(thread_sum(args));
  if (thread % warpSize == 0) partial[thread / warpSize] = sum;
  __syncthreads();
  if (thread < warpSize) {
    sum = warp_total(thread < static_cast<int>(blockDim.x) / warpSize ? partial[thread] : 0.0f);
    if (thread == 0) args.sums[blockIdx.x] = sum;
  }
}

// A tile of blockDim.x columns and rows, padded by a column, in dynamic shared memory.
LN_KERNEL_ENTRY(transpose, Transpose) {
  LN_DYNAMIC_SHARED(float, tile);
  const int side = static_cast<int>(blockDim.x);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  int row = static_cast<int>(blockIdx.y) * side + y, col = static_cast<int>(blockIdx.x) * side + x;
  if (row < args.rows && col < args.cols) tile[y * (side + 1) + x] = __ldg(args.from + row * args.cols + col);
  __syncthreads();
  row = static_cast<int>(blockIdx.x) * side + y;
  col = static_cast<int>(blockIdx.y) * side + x;
  if (row < args.cols && col < args.rows) args.to[row * args.rows + col] = tile[x * (side + 1) + y];
}

LN_KERNEL_ENTRY(atomics, Atomics) {
  const int i = thread_of_grid();
  if (i >= args.count) return;
  const int value = args.values[i];
  atomicAdd(&args.histogram[value % kBins], 1);
  atomicAdd(args.float_sum, static_cast<float>(value));
  atomicAdd(args.double_sum, static_cast<double>(value));
  atomicMax(args.largest, value);
  atomicMin(args.smallest, value);
  // A sum by compare and swap. A first look by a plain read would be a race.
  unsigned long long old = 0, seen;
  do {
    seen = old;
    old = atomicCAS(args.swapped, seen, seen + static_cast<unsigned long long>(value));
  } while (old != seen);
}

// Each group of `width` lanes by itself, the lanes of a partly filled warp too.
LN_KERNEL_ENTRY(lanes, Lanes) {
  const int i = static_cast<int>(threadIdx.x), lane = i % warpSize, width = 8;
  const unsigned mask = 0xffu << lane / width * width;
  int* out = args.out + i * kLaneResults;
  out[0] = __shfl_sync(mask, i, 3, width);
  out[1] = __shfl_up_sync(mask, i, 1, width);
  out[2] = __shfl_down_sync(mask, i, 2, width);
  out[3] = static_cast<int>(__shfl_xor_sync(mask, static_cast<double>(i), 4, width));
  out[4] = static_cast<int>(__ballot_sync(mask, i % 3 == 0));
  out[5] = __any_sync(mask, i == 5) * 2 + __all_sync(mask, i < 16);
  // Two masks that share lanes, taken up by different lanes first.
  int sum = 0;
  if (lane % width < 2) sum += __shfl_xor_sync(3u << lane / width * width, i, 1);
  if (lane % width == 1 || lane % width == 2)
    sum += __shfl_sync(6u << lane / width * width, i, lane / width * width + 2);
  out[6] = sum;
  __syncwarp();
  out[7] = static_cast<int>(__shfl_down_sync(__activemask(), static_cast<long long>(i) << 33, 0) >> 33);
}

// Neighbours exchange through shared memory with nothing but __syncwarp between.
LN_KERNEL_ENTRY(exchange, Lanes) {
  LN_SHARED(int, box, 64);
  const int i = static_cast<int>(threadIdx.x);
  int value = i;
  for (int round = 0; round < 4; ++round) {
    box[i] = value;
    __syncwarp();
    value = box[i ^ 1] + 1;
    __syncwarp();
  }
  args.out[i] = value;
}

LN_KERNEL_ENTRY(places, Lanes) {
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  args.out[block * threads + thread] = static_cast<int>(block * 1000 + thread);
}

LN_KERNEL_ENTRY(functions, Functions) {
  float* out = args.out;
  const float x = args.x;
  *out++ = __expf(x) - expf(x);
  *out++ = rsqrtf(x) * sqrtf(x);
  *out++ = __fdividef(x, 2.0f);
  *out++ = __int_as_float(__float_as_int(x));
  *out++ = static_cast<float>(__popc(0xf0u) + __ffs(8) + __clz(1));
  *out++ = static_cast<float>(__umulhi(0x80000000u, 6u));
  *out++ = static_cast<float>(max(2, 3ll) + min(5u, 4u)) + max(1.5f, 1);
  *out++ = max(NAN, 2.0f);
  *out++ = isnan(logf(-x)) && isinf(-logf(0.0f)) ? 1.0f : 0.0f;
  *out++ = fmaxf(tanhf(x), fminf(erff(x), erfcf(x))) - tanhf(x);
  double2 pair = make_double2(rsqrt(4.0), exp(0.0));
  int4 numbers = make_int4(1, 2, 3, 4);
  *out++ = static_cast<float>(pair.x + pair.y) + static_cast<float>(numbers.w);
  static_assert(sizeof(float4) == 16 && alignof(float4) == 16 && alignof(float2) == 8 && alignof(double2) == 16, "");
}
