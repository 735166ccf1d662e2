#include "stream.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace lazynet::emulator {

bool StreamPolicy::parse(const char* text) {
  uint64_t seed = 0;
  if (!std::strcmp(text, "early"))
    kind = Kind::kEarly;
  else if (!std::strcmp(text, "late"))
    kind = Kind::kLate;
  else if (parse_seed(text, &seed))
    kind = Kind::kSeed;
  else
    return false;
  random = Random(seed);
  return true;
}

Queues::Queues(DeviceMemory& memory) : memory_(memory) {
  streams_.push_back(std::make_unique<Stream>());
  const char* text = std::getenv("LN_EMULATOR_STREAMS");
  if (text && *text && !policy_.parse(text))
    std::fprintf(stderr, "LN_EMULATOR_STREAMS=%s: early, late or seed:N is expected; late is used\n", text);
}

Stream* Queues::create(bool blocking) {
  streams_.push_back(std::make_unique<Stream>());
  streams_.back()->blocking = blocking;
  return streams_.back().get();
}

void Queues::destroy(Stream& stream) {
  stream.destroyed = true;
  forget_destroyed();
}

void Queues::forget_destroyed() {
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                [](const auto& stream) { return stream->destroyed && stream->queue.empty(); }),
                 streams_.end());
}

void Queues::add(Stream& stream, Command command) {
  if (stream.capture) {
    stream.capture->nodes.push_back({std::move(command.work), stream.last});
    stream.last = {static_cast<int>(stream.capture->nodes.size()) - 1};
    return;
  }
  command.number = ++number_;
  if (command.recorded) command.recorded->stream = &stream;
  stream.queue.push_back(std::move(command));
  if (policy_.kind == StreamPolicy::Kind::kEarly)
    finish(stream);
  else
    stir();
}

// Runs the stream's first command, and before it what it has to wait for. Commands wait only for ones that were queued
// earlier, so this ends.
void Queues::step(Stream& stream) {
  if (stream.queue.front().awaited) finish(*stream.queue.front().awaited);
  if (stream.queue.empty()) return;  // an error has dropped everything
  const uint64_t number = stream.queue.front().number;
  if (&stream == &legacy()) {
    for (std::size_t i = 1; i < streams_.size(); ++i)
      if (streams_[i]->blocking) run_before(*streams_[i], number);
  } else if (stream.blocking) {
    run_before(legacy(), number);
  }
  if (stream.queue.empty()) return;
  Command command = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (command.work && !command.work()) drop();
  if (command.recorded) command.recorded->done = true;
}

void Queues::run_before(Stream& other, uint64_t number) {
  while (!other.queue.empty() && other.queue.front().number < number) step(other);
}

void Queues::finish(Record& record) {
  Opened opened(memory_);
  while (!record.done && record.stream) step(*record.stream);
}

void Queues::finish(Stream& stream) {
  if (stream.queue.empty()) return;
  Opened opened(memory_);
  stir();
  while (!stream.queue.empty()) step(stream);
}

void Queues::finish_all() {
  if (!pending()) return;
  Opened opened(memory_);
  const auto count = streams_.size();
  for (std::size_t i = 0; i < count; ++i) {
    stir();
    Stream& stream = *streams_[schedule().kind == Schedule::Kind::kDown ? count - 1 - i : i];
    while (!stream.queue.empty()) step(stream);
  }
  forget_destroyed();
}

// A random few commands of random streams.
void Queues::stir() {
  if (policy_.kind != StreamPolicy::Kind::kSeed) return;
  Opened opened(memory_);
  for (uint64_t left = policy_.random.below(4); left; --left) {
    Stream& stream = *streams_[policy_.random.below(streams_.size())];
    if (!stream.queue.empty()) step(stream);
  }
}

bool Queues::run(const std::vector<GraphNode>& nodes) {
  const int count = static_cast<int>(nodes.size());
  std::vector<int> waits(nodes.size(), 0), ready;
  std::vector<std::vector<int>> followers(nodes.size());
  for (int i = 0; i < count; ++i) {
    for (int before : nodes[i].after) followers[before].push_back(i);
    waits[i] = static_cast<int>(nodes[i].after.size());
    if (!waits[i]) ready.push_back(i);
  }
  while (!ready.empty()) {
    auto chosen = std::min_element(ready.begin(), ready.end());
    if (policy_.kind == StreamPolicy::Kind::kLate) chosen = std::max_element(ready.begin(), ready.end());
    if (policy_.kind == StreamPolicy::Kind::kSeed)
      chosen = ready.begin() + static_cast<std::ptrdiff_t>(policy_.random.below(ready.size()));
    const int node = *chosen;
    ready.erase(chosen);
    if (nodes[node].work && !nodes[node].work()) return false;
    for (int follower : followers[node])
      if (--waits[follower] == 0) ready.push_back(follower);
  }
  return true;
}

void Queues::drop() {
  for (auto& stream : streams_) {
    for (Command& command : stream->queue)
      if (command.recorded) command.recorded->done = true;
    stream->queue.clear();
  }
}

std::size_t Queues::pending() const {
  std::size_t count = 0;
  for (const auto& stream : streams_) count += stream->queue.size();
  return count;
}

bool all_joined(const std::vector<GraphNode>& nodes, const std::vector<int>& last) {
  std::vector<bool> reached(nodes.size(), false);
  std::vector<int> open = last;
  while (!open.empty()) {
    const int node = open.back();
    open.pop_back();
    if (reached[node]) continue;
    reached[node] = true;
    open.insert(open.end(), nodes[node].after.begin(), nodes[node].after.end());
  }
  return std::find(reached.begin(), reached.end(), false) == reached.end();
}

}  // namespace lazynet::emulator
