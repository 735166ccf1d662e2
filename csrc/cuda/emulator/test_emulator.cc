// Kernels on the emulator: correct ones give what the host computes, under every order of threads; ones with a fault
// are found out. `test_emulator defect NAME` runs a kernel with a fault and prints what the driver says of it.
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>

#include "tests/arguments.h"
#include "tests/harness.h"

namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
#endif
#ifdef __SANITIZE_THREAD__
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

std::vector<float> some_numbers(int count) {
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) numbers[static_cast<std::size_t>(i)] = static_cast<float>(i * 7919 % 101) / 8 - 5;
  return numbers;
}

// ---- correct kernels

void test_saxpy(const Kernels& kernels) {
  Stream stream;
  const int count = kTsan ? 64 : 4000;
  const std::vector<float> x = some_numbers(count);
  std::vector<float> y(x.rbegin(), x.rend());
  Buffer<float> device_x(x), device_y(y);
  const unsigned blocks = static_cast<unsigned>(count / 4 + 31) / 32;
  OK(launch(kernels["saxpy"], {blocks}, {32}, Saxpy{count, 0.5f, device_x.data(), device_y.data()}, stream));
  for (int i = 0; i < count; ++i) y[static_cast<std::size_t>(i)] += 0.5f * x[static_cast<std::size_t>(i)];
  CHECK(device_y.get(stream) == y);
}

void test_sums(const Kernels& kernels) {
  Stream stream;
  const int count = kTsan ? 300 : 5000;
  const std::vector<float> values = some_numbers(count);
  const double expected = std::accumulate(values.begin(), values.end(), 0.0);
  Buffer<float> device_values(values);
  const unsigned blocks = kTsan ? 2 : 5;
  for (const char* name : {"block_sum", "warp_sum"}) {
    Buffer<float> sums(blocks);
    OK(launch(kernels[name], {blocks}, {kReduceThreads}, Reduce{count, device_values.data(), sums.data()}, stream));
    const std::vector<float> parts = sums.get(stream);
    // The same bits under every order.
    static std::map<std::string, std::vector<float>> first;
    CHECK(first.emplace(name, parts).first->second == parts);
    CHECK(std::abs(std::accumulate(parts.begin(), parts.end(), 0.0) - expected) < 1e-2);
  }
}

void test_transpose(const Kernels& kernels) {
  Stream stream;
  const int rows = kTsan ? 9 : 37, cols = kTsan ? 10 : 50;
  const std::vector<float> from = some_numbers(rows * cols);
  Buffer<float> device_from(from), to(from.size());
  constexpr unsigned side = 8;
  const Shape grid{static_cast<unsigned>(cols + 7) / side, static_cast<unsigned>(rows + 7) / side};
  OK(launch(kernels["transpose"], grid, {side, side}, Transpose{rows, cols, device_from.data(), to.data()}, stream,
            side * (side + 1) * sizeof(float)));
  const std::vector<float> got = to.get(stream);
  for (int row = 0; row < rows; ++row)
    for (int col = 0; col < cols; ++col)
      CHECK(got[static_cast<std::size_t>(col * rows + row)] == from[static_cast<std::size_t>(row * cols + col)]);
}

void test_atomics(const Kernels& kernels) {
  Stream stream;
  const int count = kTsan ? 70 : 1000;
  std::vector<int> values(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = i * 37 % 1009 + 3;
  Buffer<int> device_values(values), histogram(std::vector<int>(kBins, 0)), ends(std::vector<int>{0, 1 << 30});
  Buffer<float> float_sum(std::vector<float>{0});
  Buffer<double> double_sum(std::vector<double>{0});
  Buffer<unsigned long long> swapped(std::vector<unsigned long long>{0});
  OK(launch(kernels["atomics"], {static_cast<unsigned>(count + 63) / 64}, {64},
            Atomics{count, device_values.data(), histogram.data(), float_sum.data(), double_sum.data(), ends.data(),
                    ends.data() + 1, swapped.data()},
            stream));
  std::vector<int> expected(kBins, 0);
  for (int value : values) ++expected[static_cast<std::size_t>(value % kBins)];
  const int sum = std::accumulate(values.begin(), values.end(), 0);
  CHECK(histogram.get(stream) == expected);
  CHECK(float_sum.get()[0] == static_cast<float>(sum) && double_sum.get()[0] == sum);
  CHECK(swapped.get()[0] == static_cast<unsigned long long>(sum));
  CHECK(ends.get()[0] == *std::max_element(values.begin(), values.end()));
  CHECK(ends.get()[1] == *std::min_element(values.begin(), values.end()));
}

void test_lanes(const Kernels& kernels) {
  Stream stream;
  const int count = 40;  // a warp and a quarter
  Buffer<int> out(static_cast<std::size_t>(count * kLaneResults));
  OK(launch(kernels["lanes"], {1}, {count}, Lanes{out.data()}, stream));
  const std::vector<int> got = out.get(stream);
  for (int i = 0; i < count; ++i) {
    const int* result = &got[static_cast<std::size_t>(i * kLaneResults)];
    const int base = i / 8 * 8, lane = i % 8;
    CHECK(result[0] == base + 3);
    CHECK(result[1] == (lane ? i - 1 : i));
    CHECK(result[2] == (lane < 6 ? i + 2 : i));
    CHECK(result[3] == (i ^ 4));
    int ballot = 0;
    for (int other = base; other < base + 8; ++other) ballot |= (other % 3 == 0) << other % 32;
    CHECK(result[4] == ballot);
    CHECK(result[5] == (base == 0 ? 2 : 0) + (i < 16));
    CHECK(result[6] == (lane < 2 ? i ^ 1 : 0) + (lane == 1 || lane == 2 ? base + 2 : 0));
    CHECK(result[7] == i);
  }
  Buffer<int> box(64);
  OK(launch(kernels["exchange"], {1}, {64}, Lanes{box.data()}, stream));
  const std::vector<int> exchanged = box.get(stream);
  for (int i = 0; i < 64; ++i) CHECK(exchanged[static_cast<std::size_t>(i)] == i + 4);
}

void test_places(const Kernels& kernels) {
  Stream stream;
  Buffer<int> out(2 * 3 * 2 * 24);
  OK(launch(kernels["places"], {2, 3, 2}, {4, 3, 2}, Lanes{out.data()}, stream));
  const std::vector<int> got = out.get(stream);
  for (int i = 0; i < 12 * 24; ++i) CHECK(got[static_cast<std::size_t>(i)] == i / 24 * 1000 + i % 24);
}

void test_functions(const Kernels& kernels) {
  Stream stream;
  Buffer<float> out(11);
  OK(launch(kernels["functions"], {1}, {1}, Functions{0.75f, out.data()}, stream));
  const float expected[] = {0, 1, 0.375f, 0.75f, 4 + 4 + 31, 3, 3 + 4 + 1.5f, 2, 1, 0, 1.5f + 4};
  const std::vector<float> got = out.get(stream);
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) < 1e-6f);
}

// ---- kernels with a fault

struct Defect {
  const char* name;
  unsigned blocks, threads;
  int count;
  unsigned shared_bytes;
  const char* words;  // which the report contains besides kernel, block and line
  const char* thread;
  enum { kEmulator, kPlain, kAsan, kTsan } found_by;  // kPlain: not where a sanitizer keeps the signal
};
constexpr Defect kDefects[] = {
    {"barrier_after_exit", 2, 64, 40, 0, "deadlock: 40 threads from (0,0,0) to (39,0,0) wait in __syncthreads()",
     "24 threads from (40,0,0) to (63,0,0) have exited", Defect::kEmulator},
    {"two_barriers", 1, 64, 40, 0, "divergent barrier", "thread (40,0,0)", Defect::kEmulator},
    {"exited_lane", 1, 32, 0, 0, "the mask names thread (7,0,0), which has exited", "thread (8,0,0)",
     Defect::kEmulator},
    {"missing_mate", 1, 32, 0, 0, "deadlock: 16 threads from (0,0,0) to (15,0,0) wait in __syncwarp(0xffffffff)",
     "16 threads from (16,0,0) to (31,0,0) wait in __syncthreads()", Defect::kEmulator},
    {"not_in_mask", 1, 32, 0, 0, "the mask does not name the calling lane", "thread (16,0,0)", Defect::kEmulator},
    {"source_not_in_mask", 1, 32, 0, 0, "it reads from lane 20", "thread (0,0,0)", Defect::kEmulator},
    {"two_operations", 1, 32, 0, 0, "divergent warp", "thread (16,0,0)", Defect::kEmulator},
    {"failed_assertion", 1, 32, 20, 0, "assertion failed", "thread (20,0,0)", Defect::kEmulator},
    {"endless", 1, 32, 5, 0, "the block has not ended within 1 s", "thread (5,0,0)", Defect::kEmulator},
    {"nowhere", 1, 32, 3, 0, "no access to memory at", "thread (3,0,0)", Defect::kPlain},
    {"divided_by_zero", 1, 32, 3, 0, "an integer is divided by zero", "thread (3,0,0)", Defect::kPlain},
    {"deep_recursion", 1, 32, 100000, 0, "no access to memory at", "thread (0,0,0)", Defect::kPlain},
    {"beyond_global", 1, 64, 32, 0, "heap-buffer-overflow", "thread (32,0,0)", Defect::kAsan},
    {"beyond_static", 1, 32, 0, 0, "heap-buffer-overflow", "thread (31,0,0)", Defect::kAsan},
    {"beyond_dynamic", 1, 32, 0, 31 * 4, "heap-buffer-overflow", "thread (31,0,0)", Defect::kAsan},
    {"beyond_local", 1, 32, 5, 0, "index 4 out of bounds", "thread (4,0,0)", Defect::kAsan},
    {"misaligned", 1, 1, 0, 0, "misaligned address", "thread (0,0,0)", Defect::kAsan},
    {"nowhere", 1, 32, 3, 0, "SEGV", "thread (3,0,0)", Defect::kAsan},
    {"divided_by_zero", 1, 32, 3, 0, "division by zero", "thread (3,0,0)", Defect::kAsan},
    {"missing_barrier", 1, 64, 0, 0, "data race", "CUDA thread (32,0,0)", Defect::kTsan},
    {"missing_second_barrier", 1, 64, 0, 0, "data race", "CUDA thread (", Defect::kTsan},
    {"missing_syncwarp", 1, 32, 0, 32 * 4, "data race", "CUDA thread (", Defect::kTsan},
    {"not_atomic", 1, 8, 0, 0, "data race", "CUDA thread (1,0,0)", Defect::kTsan},
    {"blocks_race", 3, 4, 0, 0, "data race", "CUDA thread (0,0,0) of block (1,0,0)", Defect::kTsan},
};

int run_defect(const char* name) {
  make_ready();
  Kernels kernels("planted.so");
  Stream stream;
  Buffer<float> values(32);
  for (const Defect& defect : kDefects) {
    if (std::strcmp(defect.name, name)) continue;
    CUresult code = launch(kernels[name], {defect.blocks}, {defect.threads}, Numbers{defect.count, values.data()},
                           stream, defect.shared_bytes);
    if (code == CUDA_SUCCESS) code = cuStreamSynchronize(stream);
    const char* text = nullptr;
    cuGetErrorString(code, &text);
    std::printf("%d %s\n", code, text);
    if (code != CUDA_SUCCESS) CHECK(!std::strcmp(text, ln_emulator_error()));
    return code != CUDA_SUCCESS;
  }
  // The host must not touch device memory.
  if (!std::strcmp(name, "host_access")) std::printf("read %f\n", static_cast<double>(*values.data()));
  return 0;
}

// What this program prints with the arguments, and whether it ended with success.
std::string output_of(const std::string& arguments, bool* success) {
  const std::string command = "LN_EMULATOR_SECONDS=1 " + folder() + "test_emulator " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  CHECK(pipe != nullptr);
  std::string text;
  char part[4096];
  while (std::size_t bytes = fread(part, 1, sizeof(part), pipe)) text.append(part, bytes);
  const int status = pclose(pipe);
  *success = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return text;
}

// planted.cu:N of the line with this mark.
std::string place_of(const char* name) {
  std::ifstream source("csrc/cuda/emulator/tests/planted.cu");
  std::string line;
  for (int number = 1; std::getline(source, line); ++number)
    if (line.find("LINE(" + std::string(name) + ")") != std::string::npos)
      return "planted.cu:" + std::to_string(number);
  return "no such mark in the source";
}

bool is_found(const Defect& defect) {
  switch (defect.found_by) {
    case Defect::kPlain:
      return !kAsan && !kTsan;
    case Defect::kAsan:
      return kAsan;
    case Defect::kTsan:
      return kTsan;
    default:
      return true;
  }
}

void test_defects() {
  for (const Defect& defect : kDefects) {
    if (!is_found(defect)) continue;
    bool success;
    const std::string text = output_of("defect " + std::string(defect.name), &success);
    const bool race = defect.found_by == Defect::kTsan;
    std::vector<std::string> expected{defect.words, defect.thread,
                                      race ? std::string(defect.name) + "_body" : "kernel " + std::string(defect.name),
                                      race ? "of block (" : ", block (0,0,0), "};
    // The thread sanitizer keeps the signal back that tells the line; a stack ends on one line or another.
    const std::string name = defect.name;
    if (name != "deep_recursion" && !(kTsan && name == "endless")) expected.push_back(place_of(defect.name));
    for (const std::string& part : expected) {
      if (!success && text.find(part) != std::string::npos) continue;
      std::fprintf(stderr, "%s: \"%s\" was expected in the report:\n%s\n", defect.name, part.c_str(), text.c_str());
      std::exit(1);
    }
    ++checks;
  }
  bool success;
  output_of("defect host_access", &success);
  CHECK(!success);
}

// Without the thread sanitizer a missing barrier shows only in the results: under one order or another.
void test_orders(const Kernels& kernels) {
  Stream stream;
  Buffer<float> values(64);
  for (const char* name : {"missing_barrier", "missing_second_barrier", "missing_syncwarp"}) {
    int wrong = 0;
    for (const char* schedule : {"up", "down", "seed:1"}) {
      CHECK(ln_emulator_set_schedule(schedule) == 0);
      OK(launch(kernels[name], {1}, {64}, Numbers{0, values.data()}, stream, 64 * sizeof(float)));
      const std::vector<float> got = values.get(stream);
      for (int i = 0; i < 64; ++i) {
        float expected = static_cast<float>(63 - i);
        if (!std::strcmp(name, "missing_syncwarp")) expected = static_cast<float>(i ^ 1);
        if (!std::strcmp(name, "missing_second_barrier"))
          expected = static_cast<float>(1 + (i + 1) % 64 + (i + 2) % 64);
        if (!(got[static_cast<std::size_t>(i)] == expected)) {
          ++wrong;
          break;
        }
      }
    }
    CHECK(wrong > 0);
    CHECK(ln_emulator_set_schedule("up") == 0);
  }
  CHECK(ln_emulator_set_schedule("sideways") == 1 && ln_emulator_set_schedule("seed:x") == 1);
}

// After an error the device reports it to every call until it is cleared; then it works as before.
void test_recovery(const Kernels& planted, const Kernels& kernels) {
  Stream stream;
  Buffer<float> values(64);
  for (int round = 0; round < 3; ++round) {
    CHECK(std::string(ln_emulator_error()).empty());
    CUresult code = launch(planted["barrier_after_exit"], {3}, {64}, Numbers{40, values.data()}, stream);
    if (code == CUDA_SUCCESS) code = cuStreamSynchronize(stream);
    CHECK(code == CUDA_ERROR_LAUNCH_FAILED && cuStreamSynchronize(stream) == CUDA_ERROR_LAUNCH_FAILED);
    CHECK(std::string(ln_emulator_error()).find("kernel barrier_after_exit, block (") == 0);
    ln_emulator_clear_error();
    code = launch(planted["failed_assertion"], {1}, {64}, Numbers{round, values.data()}, stream);
    if (code == CUDA_SUCCESS) code = cuStreamSynchronize(stream);
    CHECK(code == CUDA_ERROR_ASSERT);
    ln_emulator_clear_error();
    code = launch(planted["too_much_shared"], {1}, {64}, Numbers{0, values.data()}, stream);
    if (code == CUDA_SUCCESS) code = cuStreamSynchronize(stream);
    CHECK(code == CUDA_ERROR_LAUNCH_FAILED);
    ln_emulator_clear_error();
    test_sums(kernels);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3 && !std::strcmp(arguments[1], "defect")) return run_defect(arguments[2]);
  make_ready();
  {
    const Kernels kernels("correct.so"), planted("planted.so");
    for (const char* schedule : {"up", "down", "seed:1", "seed:2"}) {
      CHECK(ln_emulator_set_schedule(schedule) == 0);
      test_saxpy(kernels);
      test_sums(kernels);
      test_transpose(kernels);
      test_atomics(kernels);
      test_lanes(kernels);
      test_places(kernels);
      test_functions(kernels);
    }
    CHECK(ln_emulator_set_schedule("up") == 0);
    if (!kTsan) test_orders(planted);
    test_recovery(planted, kernels);
  }
  test_defects();
  std::printf("emulator: %ld checks\n", checks.load());
  return 0;
}
