#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define LN_PAUSE() _mm_pause()
#else
#define LN_PAUSE() std::this_thread::yield()
#endif

namespace lazynet {
namespace {

// Cut into parts whose number depends on the work and the wanted threads only; whoever is free runs the next.
struct Task {
  RangeFunction function;
  void* context;
  int64_t count;
  int64_t parts;
  void run(int64_t part) const { function(context, count * part / parts, count * (part + 1) / parts); }
};

// The caller and the workers claim parts through one ticket, (generation, next part). A worker that wakes late
// fails to claim from a generation that is over, so nobody waits for a worker that the system has not
// scheduled. Workers wait spinning, because the next kernel follows within microseconds, then asleep.
class Workers {
 public:
  explicit Workers(int count) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { loop(); });
  }
  ~Workers() {
    stopping_.store(true);
    announce(Task{nullptr, nullptr, 0, 0});
    for (std::thread& thread : threads_) thread.join();
  }
  int count() const { return static_cast<int>(threads_.size()); }

  void run(const Task& task) {
    announce(task);
    work(ticket_.load(std::memory_order_acquire));
    while (completed_.load(std::memory_order_acquire) < task.parts) LN_PAUSE();
  }

 private:
  static constexpr int kSpins = 60000;
  static constexpr int kPartBits = 16;
  static constexpr uint64_t kPartMask = (uint64_t{1} << kPartBits) - 1;

  void announce(const Task& task) {
    const uint64_t generation = (ticket_.load(std::memory_order_relaxed) >> kPartBits) + 1;
    // A generation without parts to claim stands between two tasks. Whoever reads a field of the new task
    // (they are stored and read as release and acquire) can no longer claim from the old one.
    ticket_.store(generation << kPartBits | kPartMask, std::memory_order_release);
    function_.store(task.function, std::memory_order_release);
    context_.store(task.context, std::memory_order_release);
    count_.store(task.count, std::memory_order_release);
    parts_.store(task.parts, std::memory_order_release);
    completed_.store(0, std::memory_order_release);
    {
      // The lock orders the new generation against a worker that is about to sleep.
      std::lock_guard<std::mutex> lock(mutex_);
      ticket_.store((generation + 1) << kPartBits, std::memory_order_release);
    }
    if (sleeping_.load() > 0) wake_.notify_all();
  }

  // Runs parts of the generation of `ticket` until none is left.
  void work(uint64_t ticket) {
    const uint64_t generation = ticket >> kPartBits;
    while (ticket >> kPartBits == generation) {
      const int64_t part = static_cast<int64_t>(ticket & kPartMask);
      const Task task{function_.load(std::memory_order_acquire), context_.load(std::memory_order_acquire),
                      count_.load(std::memory_order_acquire), parts_.load(std::memory_order_acquire)};
      if (part >= task.parts) return;
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
      task.run(part);
      completed_.fetch_add(1, std::memory_order_release);
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }

  void loop() {
    uint64_t seen = 0;
    auto generation = [this] { return ticket_.load(std::memory_order_acquire) >> kPartBits; };
    while (!stopping_.load()) {
      for (int spin = 0; spin < kSpins && generation() == seen; ++spin) LN_PAUSE();
      if (generation() == seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1);
        wake_.wait(lock, [&] { return generation() != seen; });
        sleeping_.fetch_sub(1);
      }
      const uint64_t ticket = ticket_.load(std::memory_order_acquire);
      seen = ticket >> kPartBits;
      work(ticket);
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<RangeFunction> function_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> count_{0}, parts_{0}, completed_{0};
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stopping_{false};
};

int default_threads() { return std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, 64); }

std::atomic<int> wanted_threads{default_threads()};
std::mutex workers_mutex;          // held while a kernel uses the workers
Workers* workers = nullptr;        // never destroyed at exit: a static destructor may not join threads
thread_local bool inside = false;  // this thread is inside parallel_ranges

// A forked child has none of its parent's threads: it starts its own when it needs them.
void forget_workers() {
  workers = nullptr;
  new (&workers_mutex) std::mutex;
}
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, forget_workers);

}  // namespace

void set_num_threads(int threads) {
  if (threads < 1 || threads > 1024)
    fail(LN_VALUE_ERROR, "set_num_threads: ", threads, " is given; from 1 to 1024 is required");
  wanted_threads.store(threads);
}

int num_threads() { return wanted_threads.load(std::memory_order_relaxed); }

void parallel_ranges(int64_t count, int64_t grain, RangeFunction function, void* context) {
  const int threads = num_threads();
  const int64_t parts = std::min<int64_t>(threads, (count + grain - 1) / std::max<int64_t>(grain, 1));
  Task task{function, context, count, std::max<int64_t>(parts, 1)};
  if (parts <= 1) return function(context, 0, count);
  // The same cut whoever runs the parts: with the workers taken, this thread runs them one by one.
  std::unique_lock<std::mutex> lock(workers_mutex, std::defer_lock);
  if (inside || !lock.try_lock()) {
    for (int64_t part = 0; part < parts; ++part) task.run(part);
    return;
  }
  if (!workers || workers->count() != threads - 1) {
    delete workers;
    workers = new Workers(threads - 1);
  }
  inside = true;
  workers->run(task);
  inside = false;
}

}  // namespace lazynet
