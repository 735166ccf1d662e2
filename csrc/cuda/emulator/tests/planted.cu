// Kernels with one fault each. The lines marked LINE(name) are those that reports have to name.
#include "arguments.h"

// Without a barrier between: wrong under some order of the threads, and a race.
LN_KERNEL_ENTRY(missing_barrier, Numbers) {
  LN_SHARED(float, shared, 64);
  const int i = static_cast<int>(threadIdx.x);
  shared[i] = static_cast<float>(i);
  args.values[i] = shared[63 - i];  // LINE(missing_barrier)
}

// The barrier before the second round lacks: who is fast writes what others have not read.
LN_KERNEL_ENTRY(missing_second_barrier, Numbers) {
  LN_SHARED(float, shared, 64);
  const int i = static_cast<int>(threadIdx.x);
  float value = 1;
  for (int round = 0; round < 2; ++round) {
    shared[i] = value + static_cast<float>(i);
    __syncthreads();
    value = shared[(i + 1) % 64];  // LINE(missing_second_barrier)
  }
  args.values[i] = value;
}

LN_KERNEL_ENTRY(missing_syncwarp, Numbers) {
  LN_DYNAMIC_SHARED(float, shared);
  const int i = static_cast<int>(threadIdx.x);
  shared[i] = static_cast<float>(i);
  args.values[i] = shared[i ^ 1];  // LINE(missing_syncwarp)
}

LN_KERNEL_ENTRY(not_atomic, Numbers) {
  args.values[0] += 1.0f;  // LINE(not_atomic)
}

// Threads of different blocks, with no race within one.
LN_KERNEL_ENTRY(blocks_race, Numbers) {
  if (threadIdx.x == 0) args.values[0] += 1.0f;  // LINE(blocks_race)
}

LN_KERNEL_ENTRY(barrier_after_exit, Numbers) {
  if (static_cast<int>(threadIdx.x) >= args.count) return;
  __syncthreads();  // LINE(barrier_after_exit)
}

LN_KERNEL_ENTRY(two_barriers, Numbers) {
  if (static_cast<int>(threadIdx.x) < args.count)
    __syncthreads();  // LINE(two_barriers)
  else
    __syncthreads();
}

LN_KERNEL_ENTRY(exited_lane, Numbers) {
  if (threadIdx.x % 32 == 7) return;
  args.values[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);  // LINE(exited_lane)
}

LN_KERNEL_ENTRY(missing_mate, Numbers) {
  if (threadIdx.x < 16)
    __syncwarp();  // LINE(missing_mate)
  else
    __syncthreads();
}

LN_KERNEL_ENTRY(not_in_mask, Numbers) {
  args.values[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 0);  // LINE(not_in_mask)
}

LN_KERNEL_ENTRY(source_not_in_mask, Numbers) {
  if (threadIdx.x < 16) args.values[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);  // LINE(source_not_in_mask)
}

LN_KERNEL_ENTRY(two_operations, Numbers) {
  if (threadIdx.x < 16)
    __syncwarp();  // LINE(two_operations)
  else
    args.values[0] = static_cast<float>(__ballot_sync(0xffffffffu, 1));
}

LN_KERNEL_ENTRY(failed_assertion, Numbers) {
  assert(static_cast<int>(threadIdx.x) < args.count);  // LINE(failed_assertion)
}

LN_KERNEL_ENTRY(too_much_shared, Numbers) {
  LN_SHARED(float, first, 8192);
  LN_SHARED(double, second, 4097);
  first[threadIdx.x] = static_cast<float>(second[threadIdx.x]);
  args.values[threadIdx.x] = first[threadIdx.x];
}

LN_KERNEL_ENTRY(beyond_global, Numbers) {
  const int i = static_cast<int>(threadIdx.x);
  if (i <= args.count) args.values[i] = 1;  // LINE(beyond_global)
}

LN_KERNEL_ENTRY(beyond_static, Numbers) {
  LN_SHARED(float, shared, 31);
  shared[threadIdx.x] = 1;  // LINE(beyond_static)
  __syncthreads();
  args.values[threadIdx.x] = shared[0];
}

LN_KERNEL_ENTRY(beyond_dynamic, Numbers) {
  LN_DYNAMIC_SHARED(float, shared);
  __syncthreads();
  args.values[threadIdx.x] = shared[threadIdx.x];  // LINE(beyond_dynamic)
}

LN_KERNEL_ENTRY(beyond_local, Numbers) {
  float local[4] = {1, 2, 3, 4};
  __syncwarp();
  args.values[threadIdx.x] = local[static_cast<int>(threadIdx.x) % args.count];  // LINE(beyond_local)
}

LN_KERNEL_ENTRY(misaligned, Numbers) {
  float4* values = reinterpret_cast<float4*>(args.values + 1);
  values[0] = make_float4(1, 2, 3, 4);  // LINE(misaligned)
}

LN_KERNEL_ENTRY(nowhere, Numbers) {
  float* values = args.values + (int64_t{1} << 50);
  if (static_cast<int>(threadIdx.x) == args.count) values[threadIdx.x] = 1;  // LINE(nowhere)
}

LN_KERNEL_ENTRY(divided_by_zero, Numbers) {
  args.values[threadIdx.x] =
      static_cast<float>(100 / (static_cast<int>(threadIdx.x) - args.count));  // LINE(divided_by_zero)
}

// Waits for a thread that waits for its turn.
LN_KERNEL_ENTRY(endless, Numbers) {
  volatile float* value = args.values;
  if (static_cast<int>(threadIdx.x) == args.count)
    while (*value != 1) continue;  // LINE(endless)
  __syncthreads();
  *value = 1;
}

// Uses up the stack.
__device__ static float deep(int depth) {
  volatile float local[256];
  local[depth % 256] = static_cast<float>(depth);
  return depth ? deep(depth - 1) + local[depth % 256] : 0;
}
LN_KERNEL_ENTRY(deep_recursion, Numbers) { args.values[threadIdx.x] = deep(args.count); }
