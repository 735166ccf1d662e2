// The structs that kernels of the tests take, for the kernels and for the host.
#pragma once

struct Saxpy {
  int count;  // a multiple of four
  float factor;
  const float* x;
  float* y;
};

constexpr int kReduceThreads = 128;
struct Reduce {
  int count;
  const float* values;
  float* sums;  // one of each block
};

struct Transpose {
  int rows, cols;
  const float* from;
  float* to;
};

constexpr int kBins = 7;
struct Atomics {
  int count;
  const int* values;
  int* histogram;
  float* float_sum;
  double* double_sum;
  int *largest, *smallest;
  unsigned long long* swapped;
};

constexpr int kLaneResults = 8;
struct Lanes {
  int* out;
};

struct Functions {
  float x;
  float* out;
};

// Of the kernels with a fault.
struct Numbers {
  int count;
  float* values;
};
