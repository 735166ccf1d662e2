#include "threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include <pthread.h>

#include "error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define LN_PAUSE() _mm_pause()
#else
#define LN_PAUSE() std::this_thread::yield()
#endif

namespace lazynet {
namespace {

struct Task {
  RangeFunction function;
  void* context;
  int64_t count;
  int64_t parts;
  void run(int64_t part) const { function(context, count * part / parts, count * (part + 1) / parts); }
};

// Workers wait for a new generation number: first spinning, because the next kernel follows within
// microseconds, then asleep.
class Workers {
 public:
  explicit Workers(int count) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this, i] { loop(i + 1); });
  }
  ~Workers() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  int count() const { return static_cast<int>(threads_.size()); }

  void run(const Task& task) {
    task_ = task;
    remaining_.store(count(), std::memory_order_relaxed);
    {
      // The lock orders the new generation against a worker that is about to sleep.
      std::lock_guard<std::mutex> lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (sleeping_.load() > 0) wake_.notify_all();
    task.run(0);
    while (remaining_.load(std::memory_order_acquire) > 0) LN_PAUSE();
  }

 private:
  static constexpr int kSpins = 4000;

  void loop(int part) {
    uint64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) LN_PAUSE();
      if (generation_.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
        sleeping_.fetch_sub(1);
      }
      seen = generation_.load(std::memory_order_acquire);
      if (stopping_) return;
      if (part < task_.parts) task_.run(part);
      remaining_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> remaining_{0};
  std::atomic<int> sleeping_{0};
  bool stopping_ = false;
  Task task_{};
};

int default_threads() { return std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, 64); }

std::atomic<int> wanted_threads{default_threads()};
std::mutex workers_mutex;            // held while a kernel uses the workers
Workers* workers = nullptr;          // never destroyed at exit: a static destructor may not join threads
thread_local bool inside = false;    // this thread is inside parallel_ranges

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
