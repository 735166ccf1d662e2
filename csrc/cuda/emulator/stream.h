// Streams are queues of commands. When a queued command runs is the emulator's choice, within the order that streams
// and events give.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "capture.h"
#include "memory.h"
#include "schedule.h"

namespace lazynet::emulator {

struct Stream;

// One recording of an event.
struct Record {
  bool done = false;
  Stream* stream = nullptr;
  // Of a recording within a capture: it never happens, but orders the nodes.
  std::shared_ptr<Capture> capture;
  std::vector<int> nodes;
};

struct Command {
  Work work;                         // may be none
  std::shared_ptr<Record> awaited;   // is done before
  std::shared_ptr<Record> recorded;  // is done with the command
  uint64_t number = 0;               // counts all commands in the order in which they were queued
};

struct Stream {
  bool blocking = true;  // ordered with the legacy stream
  bool destroyed = false;
  std::deque<Command> queue;
  std::shared_ptr<Capture> capture;
  std::vector<int> last;  // the captured nodes that the next one comes after
};

struct StreamPolicy {
  // Early: at once. Late: when somebody waits for it. Seed: now and then.
  enum class Kind { kEarly, kLate, kSeed };
  Kind kind = Kind::kLate;
  Random random{0};
  bool parse(const char* text);
};

class Queues {
 public:
  explicit Queues(DeviceMemory& memory);
  Stream& legacy() { return *streams_[0]; }
  Stream* create(bool blocking);
  // What is queued still runs, when it has to.
  void destroy(Stream& stream);

  // Queues the command; in a capture it becomes a node instead.
  void add(Stream& stream, Command command);

  void finish(Record& record);
  void finish(Stream& stream);
  void finish_all();

  // Runs the nodes of a graph, in an order that their dependencies allow.
  bool run(const std::vector<GraphNode>& nodes);

  void drop();
  std::size_t pending() const;
  StreamPolicy& policy() { return policy_; }

 private:
  void step(Stream& stream);
  void run_before(Stream& other, uint64_t number);
  void stir();
  void forget_destroyed();

  DeviceMemory& memory_;
  StreamPolicy policy_;
  std::vector<std::unique_ptr<Stream>> streams_;  // the legacy stream comes first
  uint64_t number_ = 0;
};

}  // namespace lazynet::emulator
