#include "faults.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "block_state.h"
#include "sanitizer.h"

namespace lazynet::emulator {

namespace {

constexpr int kTimeIsUp = SIGXCPU;
constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE};
struct sigaction previous_actions[NSIG];

std::mutex mutex;
std::atomic<bool> watching{false};
pthread_t watched;  // the thread that runs a kernel
std::atomic<uint64_t> progress{0};

bool runs_kernel() { return watching && pthread_equal(watched, pthread_self()); }

// Where a signal has interrupted a thread.
struct Interrupted {
  explicit Interrupted(const void* context) {
    [[maybe_unused]] const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    instruction = reinterpret_cast<const char*>(machine.gregs[REG_RIP]);
    stack = reinterpret_cast<const char*>(machine.gregs[REG_RSP]);
#elif defined(__aarch64__)
    instruction = reinterpret_cast<const char*>(machine.pc);
    stack = reinterpret_cast<const char*>(machine.sp);
#endif
  }
  // Whether that was a CUDA thread, and not the run time between them.
  bool is_thread() const {
    constexpr std::ptrdiff_t kBeyond = 1 << 20;  // of a stack that is used up
    if (!block.running || !block.running->fiber) return false;
    const Fiber& fiber = *block.running->fiber;
    const auto* bottom = static_cast<const char*>(fiber.bottom);
    return !stack || (stack > bottom - kBeyond && stack <= bottom + fiber.size);
  }
  const char *instruction = nullptr, *stack = nullptr;
};

// Kernels hold no locks and are never taken up again: the handler leaves for the host's stack.
void handle(int signal, siginfo_t* info, void* context) {
  const Interrupted interrupted(context);
  if (!runs_kernel() || !interrupted.is_thread()) {
    // Not a kernel's: whoever handled it before does, as the instruction is tried again.
    if (signal != kTimeIsUp) sigaction(signal, &previous_actions[signal], nullptr);
    return;
  }
  block.problem.instruction = interrupted.instruction;
  block.problem.address = info->si_addr;
  block.fail(signal == kTimeIsUp ? Problem::Kind::kEndless
             : signal == SIGFPE  ? Problem::Kind::kDivision
                                 : Problem::Kind::kMemory,
             {});
}

void install(int signal, int flags) {
  struct sigaction action{};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | flags;
  sigaction(signal, &action, &previous_actions[signal]);
}

// A stack that is used up leaves the handler none: it needs one of its own, on each thread.
void have_signal_stack() {
  constexpr std::size_t kBytes = 64 << 10;
  thread_local std::unique_ptr<char[]> memory;
  stack_t present{};
  if (memory || sigaltstack(nullptr, &present) != 0 || !(present.ss_flags & SS_DISABLE)) return;
  memory.reset(new char[kBytes]);
  stack_t wanted{};
  wanted.ss_sp = memory.get();
  wanted.ss_size = kBytes;
  sigaltstack(&wanted, nullptr);
}

void wait_for_slow_blocks() {
  uint64_t seen = 0;
  for (int seconds = 0;; ++seconds) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    std::lock_guard<std::mutex> lock(mutex);
    if (!watching || progress != seen) {
      seen = progress;
      seconds = 0;
    }
    if (seconds < time_limit()) continue;
    if (!kTsan) {
      pthread_kill(watched, kTimeIsUp);
      seconds = 0;
      continue;
    }
    // The thread sanitizer keeps signals back.
    block.problem.kind = Problem::Kind::kEndless;
    block.problem.thread = block.running->number;
    std::fprintf(stderr, "%s\n", describe_problem().c_str());
    _exit(1);
  }
}

// Called by a sanitizer that ends the process.
void add_to_report() {
  if (!runs_kernel() || !block.running) return;
  const std::string text = "  in " + describe_place() + "\n";
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

// Each sanitizer's library has a callback of its own.
void join_reports() {
  std::vector<std::string> names;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        const std::string name = info->dlpi_name;
        if (name.find("san.so") != std::string::npos) static_cast<std::vector<std::string>*>(found)->push_back(name);
        return 0;
      },
      &names);
  for (const std::string& name : names) {
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
    void* set = library ? dlsym(library, "__sanitizer_set_death_callback") : nullptr;
    if (set) reinterpret_cast<void (*)(void (*)())>(set)(add_to_report);
  }
}

void prepare() {
  if (kAsan)
    join_reports();
  else if (!kTsan)
    for (int signal : kFaults) install(signal, SA_ONSTACK);
  if (!kTsan) install(kTimeIsUp, 0);
  std::thread(wait_for_slow_blocks).detach();
}

}  // namespace

Watch::Watch() {
  static std::once_flag once;
  std::call_once(once, prepare);
  have_signal_stack();
  std::lock_guard<std::mutex> lock(mutex);
  watched = pthread_self();
  watching = true;
  note_progress();
}

Watch::~Watch() {
  std::lock_guard<std::mutex> lock(mutex);
  watching = false;
}

void note_progress() { progress.fetch_add(1, std::memory_order_relaxed); }

int time_limit() {
  static const int seconds = [] {
    const char* text = std::getenv("LN_EMULATOR_SECONDS");
    const int wanted = text ? std::atoi(text) : 0;
    return wanted > 0 ? wanted : 60;
  }();
  return seconds;
}

std::string source_of(const void* instruction) {
  Dl_info library;
  if (!instruction || !dladdr(instruction, &library) || !library.dli_fname) return "an unknown place";
  char offset[32];
  std::snprintf(
      offset, sizeof(offset), "0x%zx",
      static_cast<std::size_t>(static_cast<const char*>(instruction) - static_cast<const char*>(library.dli_fbase)));
  const std::string file = library.dli_fname;
  char line[1024] = "";
  if (file.find('\'') == std::string::npos) {
    if (FILE* pipe = popen(("addr2line -e '" + file + "' " + offset + " 2>/dev/null").c_str(), "r")) {
      if (!std::fgets(line, sizeof(line), pipe)) line[0] = 0;
      pclose(pipe);
    }
  }
  line[std::strcspn(line, " \n")] = 0;
  return line[0] && line[0] != '?' ? line : file + "+" + offset;
}

}  // namespace lazynet::emulator
