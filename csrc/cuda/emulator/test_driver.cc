// The driver's and cuBLAS's stand-ins: what is queued runs in the order that streams and events give and no earlier
// than it may, graphs do again what was captured, products are right, wrong calls are refused with a reason.
#include "tests/arguments.h"
#include "tests/harness.h"

namespace {

using Floats = std::vector<float>;

ln_emulator_statistics_t statistics() {
  ln_emulator_statistics_t now;
  ln_emulator_statistics(&now);
  return now;
}

// What the driver says of an error's code.
std::string text_of(CUresult error) {
  const char* text = nullptr;
  OK(cuGetErrorString(error, &text));
  return text;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Adds x to y; `count` is a multiple of four.
void add(const Kernels& kernels, const Buffer<float>& x, const Buffer<float>& y, int count, CUstream stream) {
  OK(launch(kernels["saxpy"], {1}, {32}, Saxpy{count, 1.0f, x.data(), y.data()}, stream));
}

// A copy's source on the host is read when the copy runs, as with pinned memory.
void test_late_copies() {
  Stream stream;
  Buffer<float> buffer(4);
  Floats source{1, 2, 3, 4};
  for (const char* policy : {"early", "late"}) {
    CHECK(ln_emulator_set_streams(policy) == 0);
    OK(cuMemcpyHtoDAsync_v2(buffer.address(), source.data(), 16, stream));
    source[0] += 1;
    CHECK(buffer.get(stream)[0] == source[0] - (std::strcmp(policy, "early") ? 0 : 1));
  }
  CHECK(ln_emulator_set_streams("tomorrow") == 1);
}

// Without the event the second stream may come first; with it, never.
void test_events(const Kernels& kernels) {
  const Floats zeros(4, 0), ones(4, 1), twos(4, 2);
  bool early = false;
  for (int seed = 0; seed < 20; ++seed) {
    CHECK(ln_emulator_set_streams(("seed:" + std::to_string(seed)).c_str()) == 0);
    for (bool ordered : {false, true}) {
      Stream first, second;
      Event event, last;
      Buffer<float> x(zeros), y(zeros);
      OK(cuMemcpyHtoDAsync_v2(x.address(), ones.data(), 16, first));
      OK(cuEventRecord(event, first));
      if (ordered) OK(cuStreamWaitEvent(second, event, 0));
      add(kernels, x, y, 4, second);
      OK(cuEventRecord(last, second));
      OK(cuEventSynchronize(last));
      const float got = y.get(second)[0];
      CHECK(got == 1 || (!ordered && got == 0));
      early = early || got == 0;
      first.wait();
    }
  }
  CHECK(early);
  // Streams that are not "non-blocking" keep the order of the legacy stream.
  Stream blocking(CU_STREAM_DEFAULT);
  Buffer<float> x(zeros), y(zeros);
  OK(cuMemcpyHtoDAsync_v2(x.address(), twos.data(), 16, blocking));
  add(kernels, x, y, 4, nullptr);
  CHECK(y.get(nullptr) == twos);
}

void test_graphs(const Kernels& kernels) {
  for (const char* policy : {"late", "early", "seed:3"}) {
    CHECK(ln_emulator_set_streams(policy) == 0);
    Stream stream, side;
    Event fork, joined;
    Buffer<float> x(Floats(4, 1)), y(Floats(4, 0)), z(4);
    ln_emulator_reset_statistics();
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    add(kernels, x, y, 4, stream);
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(side, fork, 0));
    OK(cuMemcpyDtoDAsync_v2(z.address(), y.address(), 16, side));
    OK(cuEventRecord(joined, side));
    OK(cuStreamWaitEvent(stream, joined, 0));
    OK(cuMemsetD8Async(x.address(), 0, 4, stream));
    CUgraph graph;
    CUgraphExec ready;
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&ready, graph, 0));
    OK(cuGraphDestroy(graph));
    CHECK(statistics().kernels_run == 0 && statistics().launches == 0);
    for (int i = 0; i < 3; ++i) OK(cuGraphLaunch(ready, stream));
    CHECK(y.get(stream) == (Floats{1, 3, 3, 3}) && z.get(stream) == (Floats{1, 3, 3, 3}));
    CHECK(statistics().kernels_run == 3 && statistics().graph_launches == 3);
    OK(cuGraphExecDestroy(ready));

    // Waiting spoils a capture, and so does work of others that it does not come after.
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    add(kernels, x, y, 4, stream);
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(side, fork, 0));
    add(kernels, x, y, 4, side);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, 16) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
}

template <class T, class Gemm>
void test_products(const Gemm& gemm) {
  Stream stream;
  cublasHandle_t handle;
  OK(cublasCreate_v2(&handle));
  OK(cublasSetStream_v2(handle, stream));
  OK(cublasSetMathMode(handle, 3));
  Buffer<char> workspace(64);
  OK(cublasSetWorkspace_v2(handle, reinterpret_cast<void*>(workspace.address()), 64));
  const int m = 5, n = 3, k = 4, padding = 2;
  for (int transposed = 0; transposed < 4; ++transposed) {
    const bool ta = transposed & 1, tb = transposed & 2;
    const int lda = (ta ? k : m) + padding, ldb = (tb ? n : k) + padding, ldc = m + padding;
    const auto a_at = [&](int i, int p) { return static_cast<std::size_t>(ta ? p + i * lda : i + p * lda); };
    const auto b_at = [&](int p, int j) { return static_cast<std::size_t>(tb ? j + p * ldb : p + j * ldb); };
    std::vector<T> a(40, 99), b(40, 99), c(static_cast<std::size_t>(ldc * n), 7);
    for (int p = 0; p < k; ++p) {
      for (int i = 0; i < m; ++i) a[a_at(i, p)] = static_cast<T>(i + 10 * p);
      for (int j = 0; j < n; ++j) b[b_at(p, j)] = static_cast<T>(p - 3 * j);
    }
    Buffer<T> da(a), db(b), dc(c);
    for (T beta : {T(1), T(0)}) {
      const T alpha = T(0.5);
      OK(gemm(handle, ta, tb, m, n, k, &alpha, da.data(), lda, db.data(), ldb, &beta, dc.data(), ldc));
      const std::vector<T> got = dc.get(stream);
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < ldc; ++i) {
          T& value = c[static_cast<std::size_t>(i + j * ldc)];
          if (i < m) {
            value *= beta;
            for (int p = 0; p < k; ++p) value += alpha * a[a_at(i, p)] * b[b_at(p, j)];
          }
          CHECK(got[static_cast<std::size_t>(i + j * ldc)] == value);
        }
    }
    const T one = 1;
    CHECK(gemm(handle, ta, tb, m, n, k, &one, da.data(), 1, db.data(), ldb, &one, dc.data(), ldc) != 0);
    CHECK(gemm(handle, ta, tb, m, n, 40, &one, da.data(), 40, db.data(), 40, &one, dc.data(), ldc) != 0);
  }
  OK(cublasDestroy_v2(handle));
}

void test_refusals(const Kernels& kernels) {
  Stream stream;
  Buffer<float> buffer(4);
  const Numbers args{0, buffer.data()};
  CUfunction function;
  CUmodule module;
  CUdeviceptr address;
  int value;
  float host[8];
  OK(cuDeviceGetAttribute(&value, 75, 0));
  CHECK(value == 8);
  CHECK(cuDeviceGet(&value, 1) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuModuleGetFunction(&function, kernels.module(), "nothing") == CUDA_ERROR_NOT_FOUND);
  CHECK(contains(text_of(CUDA_ERROR_NOT_FOUND), "no kernel nothing"));
  CHECK(cuModuleLoadData(&module, "nowhere.so") == CUDA_ERROR_FILE_NOT_FOUND);
  function = kernels["places"];
  CHECK(launch(function, {1}, {2000}, args, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(launch(function, {0}, {32}, args, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(launch(function, {1}, {1}, args, stream, 100 << 10) == CUDA_ERROR_INVALID_VALUE);
  CHECK(contains(text_of(CUDA_ERROR_INVALID_VALUE), "cuLaunchKernel of places: 102400 bytes of dynamic shared memory"));
  OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10));
  OK(launch(function, {1}, {1}, Lanes{reinterpret_cast<int*>(buffer.data())}, stream, 100 << 10));
  CHECK(cuMemcpyDtoHAsync_v2(host, buffer.address(), sizeof(host), stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(contains(text_of(CUDA_ERROR_INVALID_VALUE), "lie in no live allocation"));
  CHECK(cuMemcpyDtoHAsync_v2(buffer.data(), buffer.address(), 16, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAlloc_v2(&address, std::size_t{1} << 60) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemFree_v2(buffer.address() + 4) == CUDA_ERROR_INVALID_VALUE);
  stream.wait();

  // Memory that is given back before the work on it has run.
  CHECK(ln_emulator_set_streams("late") == 0);
  OK(cuMemAlloc_v2(&address, 16));
  OK(cuMemsetD8Async(address, 0, 16, stream));
  OK(cuMemFree_v2(address));
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(contains(text_of(CUDA_ERROR_ILLEGAL_ADDRESS), "freed before it ran"));
  ln_emulator_clear_error();
  CUstream gone;
  {
    Stream other;
    gone = other;
  }
  CHECK(cuStreamSynchronize(gone) == CUDA_ERROR_INVALID_HANDLE);
}

void test_pinned() {
  void* memory = nullptr;
  OK(cuMemAllocHost_v2(&memory, 100));
  CHECK(statistics().live_host_allocations == 1);
  OK(cuMemFreeHost(memory));
  CHECK(cuMemFreeHost(memory) == CUDA_ERROR_INVALID_VALUE);
}

}  // namespace

int main() {
  CUcontext context;
  CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_NOT_INITIALIZED);
  make_ready();
  {
    const Kernels kernels("correct.so");
    test_late_copies();
    test_events(kernels);
    test_graphs(kernels);
    test_products<float>(cublasSgemm_v2);
    test_products<double>(cublasDgemm_v2);
    test_refusals(kernels);
    test_pinned();
  }
  const ln_emulator_statistics_t left = statistics();
  CHECK(left.live_allocations == 0 && left.live_bytes == 0 && left.live_host_allocations == 0);
  CHECK(left.live_streams == 0 && left.live_events == 0 && left.live_graphs == 0 && left.live_modules == 0);
  CHECK(left.pending_commands == 0);
  std::printf("driver: %ld checks\n", checks.load());
  return 0;
}
