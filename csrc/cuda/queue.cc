#include "queue.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace lazynet::cuda {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr std::size_t kChunks = 4;
constexpr std::size_t kCommandsPerFlush =
    64;  // enough that uploads cost little, few enough that the device starts soon
constexpr std::size_t kBlasWorkspace = std::size_t{32} << 20;  // cuBLAS's own for the largest devices
constexpr int64_t kMostFaults = 1024;
constexpr unsigned kNonBlocking = 1, kNoTiming = 2;

std::atomic<int> next_kernel{0};

Address address(const void* pointer) { return reinterpret_cast<Address>(pointer); }
std::size_t rounded(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

Kernel::Kernel(const char* family_, const char* name, int dtype_, const char* pick_, std::string source_)
    : family(family_),
      pick(pick_),
      source(std::move(source_)),
      entry((*pick_ ? std::string(pick_) + '_' : std::string()) + name + (dtype_ == LN_FLOAT64 ? "_double" : "_float")),
      dtype(dtype_),
      number(next_kernel++) {}

Queue::Queue(const Driver& driver, MemoryResource& memory, Supplies& supplies)
    : driver_(driver), memory_(memory), supplies_(supplies), replay_(driver) {
  driver_.check(driver_.create_stream(&work_, kNonBlocking), "making a stream");
  driver_.check(driver_.create_stream(&copies_, kNonBlocking), "making a stream");
  driver_.check(driver_.create_event(&uploaded_, kNoTiming), "making an event");
  driver_.check_blas(driver_.blas_create(&blas_), "starting cuBLAS");
  driver_.check_blas(driver_.blas_set_stream(blas_, work_), "cuBLAS's stream");
  blas_workspace_ = memory_.allocate(kBlasWorkspace);
  if (blas_workspace_)
    driver_.check_blas(driver_.blas_set_workspace(blas_, blas_workspace_, kBlasWorkspace), "cuBLAS's memory");
  chunks_.resize(kChunks);
  leave_for_chunk(0, 0);
}

Queue::~Queue() {
  driver_.wait_for_stream(work_);
  // Whoever takes memory back may flush: nothing is left to do.
  commands_.clear();
  used_ = flushed_ = 0;
  for (Chunk& chunk : chunks_) free_chunk(&chunk);
  for (const Working& working : scratch_)
    if (working.memory) memory_.deallocate(working.memory, working.bytes);
  if (faults_) memory_.deallocate(faults_, kMostFaults * sizeof(Fault));
  driver_.blas_destroy(blas_);
  if (blas_workspace_) memory_.deallocate(blas_workspace_, kBlasWorkspace);
  driver_.destroy_event(uploaded_);
  driver_.destroy_stream(copies_);
  driver_.destroy_stream(work_);
}

// ---- chunks

void Queue::make_chunk(Chunk* chunk, std::size_t bytes) {
  void* host = nullptr;
  driver_.check(driver_.allocate_pinned(&host, bytes), "allocating pinned memory");
  chunk->host = static_cast<char*>(host);
  chunk->device = static_cast<char*>(memory_.allocate(bytes));
  chunk->bytes = bytes;
  if (!chunk->device) fail(LN_OUT_OF_MEMORY, "cuda: ", bytes, " bytes for uploads are not available");
  if (!chunk->done) driver_.check(driver_.create_event(&chunk->done, kNoTiming), "making an event");
}

void Queue::free_chunk(Chunk* chunk) {
  if (chunk->host) driver_.free_pinned(chunk->host);
  if (chunk->device) memory_.deallocate(chunk->device, chunk->bytes);
  if (chunk->done) driver_.destroy_event(chunk->done);
  *chunk = Chunk{};
}

// Leaves the chunk at hand for another, with room for `bytes`.
void Queue::leave_for_chunk(std::size_t chunk_number, std::size_t bytes) {
  chunks_[chunk_].left = chunks_[chunk_].host != nullptr;
  if (!told_) mark_left_chunks();
  chunk_ = chunk_number;
  // One launch is told more than all chunks hold.
  if (chunks_[chunk_].left) chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(chunk_), Chunk{});
  Chunk& chunk = chunks_[chunk_];
  if (chunk.in_flight) driver_.check(driver_.wait_for_event(chunk.done), "waiting for the device");
  chunk.in_flight = false;
  used_ = flushed_ = 0;
  if (chunk.bytes >= bytes && chunk.host) return;
  free_chunk(&chunk);
  make_chunk(&chunk, std::max(kChunk, rounded(bytes)));
}

// All that reads full chunks is started.
void Queue::mark_left_chunks() {
  for (Chunk& chunk : chunks_) {
    if (!chunk.left) continue;
    driver_.check(driver_.record_event(chunk.done, work_), "recording an event");
    chunk.left = false;
    chunk.in_flight = true;
  }
}

Queue::Room Queue::reserve(std::size_t bytes) {
  if (used_ + bytes > chunks_[chunk_].bytes) {
    flush();
    leave_for_chunk((chunk_ + 1) % chunks_.size(), bytes);
  }
  Chunk& chunk = chunks_[chunk_];
  const Room room{chunk.host + used_, chunk.device + used_};
  used_ = std::min(used_ + rounded(bytes), chunk.bytes);
  told_ = true;
  return room;
}

void* Queue::scratch(std::size_t bytes, Scratch whose) {
  Working& working = scratch_[static_cast<int>(whose)];
  if (bytes <= working.bytes) return working.memory;
  const std::size_t grown = std::max(bytes, 2 * working.bytes);
  void* made = memory_.allocate(grown);
  if (!made) fail(LN_OUT_OF_MEMORY, "cuda: ", grown, " bytes of working memory are not available");
  if (working.memory) {
    finish();  // what is recorded works there
    memory_.deallocate(working.memory, working.bytes);
  }
  working = {made, grown};
  return made;
}

// ---- recording

void Queue::record(const Command& command) {
  commands_.push_back(command);
  told_ = false;
  if (commands_.size() >= kCommandsPerFlush && !replaying_) flush();
}

void Queue::launch(const Kernel& kernel, int64_t blocks, int threads, std::size_t shared_bytes, const void* args,
                   std::size_t bytes) {
  if (blocks <= 0) return;
  if (blocks > INT32_MAX) fail(LN_INTERNAL_ERROR, "cuda: ", kernel.entry, " would need ", blocks, " blocks");
  Command command{Kind::kLaunch};
  command.function = supplies_.find(kernel);
  command.blocks = static_cast<unsigned>(blocks);
  command.threads = static_cast<unsigned>(threads);
  command.shared_bytes = static_cast<unsigned>(shared_bytes);
  command.arguments = arguments_.size();
  arguments_.resize(arguments_.size() + rounded(bytes));
  command.bytes = bytes;
  std::memcpy(arguments_.data() + command.arguments, args, bytes);
  record(command);
}

void Queue::multiply(int dtype, const Product& product) {
  const Product& p = product;
  if (p.m == 0 || p.n == 0 || (p.k == 0 && p.beta == 1)) return;
  if (p.k == 0) {  // not a case for cuBLAS
    if (p.beta != 0) fail(LN_INTERNAL_ERROR, "cuda: a product of nothing is scaled");
    const std::size_t element = dtype == LN_FLOAT64 ? 8 : 4, row = static_cast<std::size_t>(p.n) * element;
    if (p.ldc == p.n) return zero(p.c, static_cast<std::size_t>(p.m) * row);
    for (int64_t i = 0; i < p.m; ++i)
      zero(static_cast<char*>(p.c) + static_cast<std::size_t>(i * p.ldc) * element, row);
    return;
  }
  for (int64_t size : {p.m, p.n, p.k, p.lda, p.ldb, p.ldc})
    if (size > INT32_MAX) fail(LN_DEVICE_ERROR, "cuda: cuBLAS multiplies no matrices with a side of ", size);
  Command command{Kind::kProduct};
  command.dtype = dtype;
  command.product = product;
  record(command);
}

void Queue::zero(void* to, std::size_t bytes) {
  if (bytes == 0) return;
  Command command{Kind::kZero};
  command.to = to;
  command.bytes = bytes;
  record(command);
}

void Queue::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  Command command{Kind::kCopy};
  command.to = to;
  command.from = from;
  command.bytes = bytes;
  record(command);
}

void Queue::write(void* to, const void* from, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t part = std::min(bytes - done, kChunk);
    const Room room = reserve(part);
    std::memcpy(room.host, static_cast<const char*>(from) + done, part);
    char* target = static_cast<char*>(to) + done;
    // Inputs come one after another and lie one after another: one copy moves them all.
    Command* last = commands_.empty() ? nullptr : &commands_.back();
    if (last && last->kind == Kind::kCopy && static_cast<char*>(last->to) + last->bytes == target &&
        static_cast<const char*>(last->from) + last->bytes == room.device &&
        supplies_.in_one_allocation(last->to, last->bytes + part) &&
        supplies_.in_one_allocation(last->from, last->bytes + part))
      last->bytes += part, told_ = false;
    else
      copy(target, room.device, part);
    done += part;
  }
}

Fault* Queue::fault(Fault* fault) {
  if (static_cast<int64_t>(waiting_faults_.size()) == kMostFaults) settle();
  if (!faults_) {
    void* memory = memory_.allocate(kMostFaults * sizeof(Fault));
    if (!memory) fail(LN_OUT_OF_MEMORY, "cuda: no memory for errors of kernels");
    faults_ = static_cast<Fault*>(memory);
    const std::vector<Fault> none(kMostFaults);
    write(faults_, none.data(), kMostFaults * sizeof(Fault));
  }
  waiting_faults_.push_back(fault);
  return faults_ + waiting_faults_.size() - 1;
}

// ---- running

void Queue::flush() {
  upload_told();
  // Also when one fails: what follows it would work on garbage.
  struct Forget {
    Queue& queue;
    ~Forget() {
      queue.commands_.clear();
      queue.arguments_.clear();
    }
  } forget{*this};
  if (replaying_ && !commands_.empty())
    run_or_replay();
  else
    run_all();
  if (!told_) mark_left_chunks();
}

void Queue::upload_told() {
  Chunk& chunk = chunks_[chunk_];
  if (used_ == flushed_) return;
  driver_.check(driver_.upload(address(chunk.device + flushed_), chunk.host + flushed_, used_ - flushed_, copies_),
                "an upload");
  driver_.check(driver_.record_event(uploaded_, copies_), "recording an event");
  driver_.check(driver_.make_stream_wait(work_, uploaded_, 0), "ordering streams");
  uploaded_bytes_ += static_cast<int64_t>(used_ - flushed_);
  flushed_ = used_;
}

void Queue::run_all() {
  for (const Command& command : commands_) run(command);
}

void Queue::run_or_replay() {
  const std::string launches = bytes_of_launches();
  ReadyGraph graph = replay_.find(launches);
  if (!graph) {
    if (!replay_.seen(launches)) return run_all();
    graph = replay_.capture(launches, work_, [&] { run_all(); });
  }
  driver_.check(driver_.launch_graph(graph, work_), "a graph's launch");
  ++replays_;
}

std::string Queue::bytes_of_launches() const {
  std::string bytes;
  const auto add = [&](const auto&... values) {
    (bytes.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
  };
  for (std::size_t i = 0; i < commands_.size(); ++i) {
    const Command& c = commands_[i];
    const Product& p = c.product;
    add(c.kind, c.dtype);
    if (c.kind == Kind::kLaunch) {
      add(c.function, c.blocks, c.threads, c.shared_bytes, c.bytes);
      bytes.append(arguments_.data() + c.arguments, c.bytes);
    } else if (c.kind == Kind::kProduct) {
      add(p.transpose_a, p.transpose_b, p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc);
    } else {
      add(c.to, c.from, c.bytes);
    }
  }
  return bytes;
}

void Queue::run(const Command& command) {
  switch (command.kind) {
    case Kind::kLaunch: {
      void* parameters[] = {arguments_.data() + command.arguments};
      driver_.check(driver_.launch(command.function, command.blocks, 1, 1, command.threads, 1, 1, command.shared_bytes,
                                   work_, parameters, nullptr),
                    "a kernel's launch");
      ++launches_;
      return;
    }
    case Kind::kProduct:
      run_product(command.dtype, command.product);
      ++launches_;
      return;
    case Kind::kZero:
      return driver_.check(driver_.fill(address(command.to), 0, command.bytes, work_), "zeroing memory");
    case Kind::kCopy:
      return driver_.check(driver_.copy(address(command.to), address(command.from), command.bytes, work_), "a copy");
  }
}

// cuBLAS takes matrices column by column: the transpose of each, so that the factors change places.
void Queue::run_product(int dtype, const Product& p) {
  const int m = static_cast<int>(p.n), n = static_cast<int>(p.m), k = static_cast<int>(p.k);
  const int lda = static_cast<int>(std::max<int64_t>(p.ldb, 1)), ldb = static_cast<int>(std::max<int64_t>(p.lda, 1));
  const int ldc = static_cast<int>(std::max<int64_t>(p.ldc, 1));
  if (dtype == LN_FLOAT64) {
    const double alpha = 1, beta = p.beta;
    driver_.check_blas(
        driver_.gemm_double(blas_, p.transpose_b, p.transpose_a, m, n, k, &alpha, static_cast<const double*>(p.b), lda,
                            static_cast<const double*>(p.a), ldb, &beta, static_cast<double*>(p.c), ldc),
        "a product");
  } else {
    const float alpha = 1, beta = static_cast<float>(p.beta);
    driver_.check_blas(
        driver_.gemm_float(blas_, p.transpose_b, p.transpose_a, m, n, k, &alpha, static_cast<const float*>(p.b), lda,
                           static_cast<const float*>(p.a), ldb, &beta, static_cast<float*>(p.c), ldc),
        "a product");
  }
}

void Queue::finish() {
  flush();
  driver_.check(driver_.wait_for_stream(work_), "work on the device");
}

void Queue::read(void* to, const void* from, std::size_t bytes) {
  flush();
  if (bytes) driver_.check(driver_.download(to, address(from), bytes, work_), "a download");
  driver_.check(driver_.wait_for_stream(work_), "work on the device");
}

void Queue::settle() {
  flush();
  if (waiting_faults_.empty()) return;
  std::vector<Fault> found(waiting_faults_.size());
  const std::vector<Fault*> waiting = std::move(waiting_faults_);
  waiting_faults_.clear();
  read(found.data(), faults_, found.size() * sizeof(Fault));
  const Fault none;
  for (std::size_t i = 0; i < found.size(); ++i) {
    *waiting[i] = found[i];
    if (found[i].member >= 0) write(faults_ + i, &none, sizeof none);
  }
}

void Queue::set_replay(bool on) {
  flush();
  replaying_ = on;
  if (on) return;
  finish();
  replay_.clear();
}

// The same launches are told things in the same places.
void Queue::begin_step() {
  if (!replaying_) return;
  flush();
  // In turn, so that the step before may still be running.
  second_half_ = !second_half_;
  leave_for_chunk(second_half_ ? chunks_.size() / 2 : 0, 0);
}

void Queue::set_tensor_float(bool on) {
  flush();
  driver_.check_blas(driver_.blas_set_math(blas_, on ? 3 : 0), "cuBLAS's precision");
}

}  // namespace lazynet::cuda
