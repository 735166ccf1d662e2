// The work of one device, in the order in which it is asked for. Launches are recorded, and what they are told (pieces,
// ids, inputs) is written to pinned memory; now and then all of that is copied to the device at once, on a stream of
// its own, and the launches follow on the stream of work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../error.h"
#include "../kernel.h"
#include "../memory_resource.h"
#include "driver.h"
#include "replay.h"

namespace lazynet::cuda {

// What a queue needs of its device.
class Supplies;

// One kernel of a .cu file, or of generated source. Made once a place of launch, as a static object.
class Kernel {
 public:
  // `pick` chooses one row of elementwise.def, whose kernels then make a module of their own; its name precedes the
  // kernel's. `source`: the kernel's own text, which makes a module of its own; no two kernels have the same.
  Kernel(const char* family, const char* name, int dtype, const char* pick = "", std::string source = "");
  const std::string family, pick, source, entry;  // entry: pick_name_float
  const int dtype;
  const int number;  // of all kernels of the process
};

// A device-to-device product C = alpha op(A) op(B) + beta C of row-major matrices.
struct Product {
  bool transpose_a, transpose_b;
  int64_t m, n, k;  // C is m x n
  const void* a;
  int64_t lda;
  const void* b;
  int64_t ldb;
  double beta;  // 0: C is written, not read
  void* c;
  int64_t ldc;
};

class Queue {
 public:
  Queue(const Driver& driver, MemoryResource& memory, Supplies& supplies);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // ---- what launches are told

  // Room for `count` elements in the next upload: returns where to write them and sets where kernels will find them.
  template <class T>
  T* room(int64_t count, const T** device) {
    const Room made = reserve(static_cast<std::size_t>(count) * sizeof(T));
    *device = static_cast<const T*>(made.device);
    return static_cast<T*>(made.host);
  }
  // The address of a copy on the device. It and what room() gives are for the next launch that is recorded.
  template <class T>
  const T* upload(const T* data, int64_t count) {
    const T* device;
    T* host = room(count, &device);
    for (int64_t i = 0; i < count; ++i) host[i] = data[i];
    return device;
  }
  // Working memory for the launches recorded next, until scratch() is called again. What launchers call, as
  // add_column_sums(), has its own.
  enum class Scratch : uint8_t { kOfLauncher, kOfCallee };
  void* scratch(std::size_t bytes, Scratch whose = Scratch::kOfLauncher);

  // ---- work

  // `shared_bytes` of dynamic shared memory. Nothing is launched for 0 blocks.
  template <class Args>
  void launch(const Kernel& kernel, int64_t blocks, int threads, std::size_t shared_bytes, const Args& args) {
    static_assert(sizeof(Args) <= 4096, "longer arguments are uploaded");
    launch(kernel, blocks, threads, shared_bytes, &args, sizeof(Args));
  }
  // The same of arguments whose length only a generated kernel knows.
  void launch(const Kernel& kernel, int64_t blocks, int threads, std::size_t shared_bytes, const void* args,
              std::size_t bytes);
  void multiply(int dtype, const Product& product);
  void zero(void* address, std::size_t bytes);
  void copy(void* to, const void* from, std::size_t bytes);
  void write(void* to, const void* from, std::size_t bytes);  // from this process's memory
  // Where a kernel says what is wrong with a batch; `fault` is filled in by settle() and must exist until then.
  Fault* fault(Fault* fault);

  void flush();   // starts what is recorded
  void finish();  // and waits for it
  void read(void* to, const void* from, std::size_t bytes);
  void settle();  // starts all, and fills in faults

  void set_tensor_float(bool on);  // products of float32 in TF32
  // Everything up to a flush is then one piece of work, replayed where it comes again; a step begins where one does.
  void set_replay(bool on);
  void begin_step();
  int64_t launches() const { return launches_; }
  int64_t replays() const { return replays_; }
  int64_t uploaded_bytes() const { return uploaded_bytes_; }

 private:
  enum class Kind : uint8_t { kLaunch, kProduct, kZero, kCopy };
  struct Command {
    Kind kind;
    int dtype = 0;
    Function function = nullptr;
    unsigned blocks = 0, threads = 0, shared_bytes = 0;
    std::size_t arguments = 0;  // of a launch: where they start in arguments_
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
    Product product{};
  };
  struct Room {
    void* host;
    void* device;
  };
  struct Working {
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  // A piece of pinned memory and its double on the device.
  struct Chunk {
    char* host = nullptr;
    char* device = nullptr;
    std::size_t bytes = 0;
    Event done = nullptr;  // what reads it has run
    bool left = false;     // it is full, and what reads it may not be started yet
    bool in_flight = false;
  };
  void record(const Command& command);
  Room reserve(std::size_t bytes);
  void leave_for_chunk(std::size_t chunk_number, std::size_t bytes);
  void make_chunk(Chunk* chunk, std::size_t bytes);
  void mark_left_chunks();
  void free_chunk(Chunk* chunk);
  void upload_told();
  void run_all();
  void run_or_replay();
  std::string bytes_of_launches() const;
  void run(const Command& command);
  void run_product(int dtype, const Product& product);

  const Driver& driver_;
  MemoryResource& memory_;
  Supplies& supplies_;
  Stream work_ = nullptr, copies_ = nullptr;
  Event uploaded_ = nullptr;
  Blas blas_ = nullptr;
  void* blas_workspace_ = nullptr;
  std::vector<Command> commands_;
  std::vector<char> arguments_;
  std::vector<Chunk> chunks_;
  std::size_t chunk_ = 0;               // the one at hand
  std::size_t used_ = 0, flushed_ = 0;  // of it
  bool told_ = false;                   // something is written that no recorded command reads yet
  Working scratch_[2];
  Fault* faults_ = nullptr;  // on the device; without a fault before a batch gets one
  std::vector<Fault*> waiting_faults_;
  bool replaying_ = false, second_half_ = false;
  Replay replay_;
  int64_t launches_ = 0, replays_ = 0, uploaded_bytes_ = 0;
};

class Supplies {
 public:
  virtual ~Supplies() = default;
  // The function of a kernel, which may have to be compiled first.
  virtual Function find(const Kernel& kernel) = 0;
  // Whether these bytes are parts of one allocation, which is what one copy may go over.
  virtual bool in_one_allocation(const void* begin, std::size_t bytes) = 0;
};

}  // namespace lazynet::cuda
