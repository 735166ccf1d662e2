// Schedules that come again: what was launched is captured as a CUDA graph at the second time and is one launch from
// then on. It is the same work where every byte of the launches is the same; what they are told may differ.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "driver.h"

namespace lazynet::cuda {

class Replay {
 public:
  explicit Replay(const Driver& driver) : driver_(driver) {}
  ~Replay() { clear(); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // The graph of launches with these bytes, or null.
  ReadyGraph find(const std::string& launches);
  // Whether they were seen before, so that a capture is likely to pay.
  bool seen(const std::string& launches);
  // Captures what run() starts on the stream, for later; returns the graph, which has not run yet.
  template <class Run>
  ReadyGraph capture(const std::string& launches, Stream stream, const Run& run) {
    constexpr int kThreadLocal = 1;
    driver_.check(driver_.begin_capture(stream, kThreadLocal), "a capture");
    CaptureGraph captured = nullptr;
    try {
      run();
    } catch (...) {
      driver_.end_capture(stream, &captured);
      if (captured) driver_.destroy_capture(captured);
      throw;
    }
    driver_.check(driver_.end_capture(stream, &captured), "a capture");
    ReadyGraph ready = nullptr;
    const int result = driver_.make_ready(&ready, captured, 0);
    driver_.destroy_capture(captured);
    driver_.check(result, "making a graph ready");
    keep(launches, ready);
    return ready;
  }
  void clear();

 private:
  static constexpr std::size_t kMostGraphs = 64, kMostSeen = 4096;
  using Entry = std::pair<std::string, ReadyGraph>;
  void keep(const std::string& launches, ReadyGraph graph);

  const Driver& driver_;
  std::list<Entry> entries_;  // the latest used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_launches_;
  std::unordered_set<std::size_t> seen_;  // hashes
};

}  // namespace lazynet::cuda
