// Streams and events.
//
// The compute stream, which is the stream of Paddle's current context for the device, works on the calling thread:
// submitted work has finished when the call returns. Every other stream that receives work has a thread, which runs
// it in order, so communication overlaps with computation. An event is a position in a stream's queue.
//
// With VIRTUAL_NPU_DEFER, the compute stream has a thread as well, and work of any stream starts only when the program
// waits for it, when a query asks for it, or when the seeded order lets its stream run ahead.
//
// Work that throws fails its stream: all later work and events on the stream fail as well, and a host thread that
// waits for one of them receives the reason.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "paddle/phi/backends/device_ext.h"

namespace virtual_npu {

// The reason why a stream's work failed, for the user.
class StreamError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  // Tickets number the work of a stream in the order of submission, from 1.
  using Ticket = uint64_t;

  explicit Stream(int device) : device_(device) {}
  int device() const { return device_; }

  Ticket submit(std::function<void()> work);
  Ticket last() const { return submitted_.load(std::memory_order_acquire); }
  bool passed(Ticket ticket) const { return done_.load(std::memory_order_acquire) >= ticket; }
  bool busy() const { return !passed(last()); }

  // Waits until the stream has passed `ticket`. Throws StreamError if that work or earlier work failed.
  void wait(Ticket ticket);
  void drain() { wait(last()); }
  // Waits for at most `seconds`. Returns whether the stream has passed `ticket`. Does not throw.
  bool wait_for(Ticket ticket, double seconds);
  // Throws the failure of the stream if it has not been thrown yet.
  void throw_unheard_failure();
  // With VIRTUAL_NPU_DEFER: lets work up to `ticket` start.
  void release(Ticket ticket);
  // The thread exits when the queue is empty.
  void stop();

  // Whether the thread `host` waits for this stream, directly or through other streams that wait for it.
  bool holds_up(std::thread::id host);

  // For the current work, on the stream's thread: when the work was ready. It is ready when it has been submitted and
  // earlier work, and any work it waited for on another stream, has finished. The thread may have been scheduled
  // later.
  int64_t turn() const { return turn_; }
  // Sets the end of the current work to `time`, regardless of when the thread is scheduled again.
  void over_at(int64_t time) { over_ = time; }

 private:
  struct Work {
    std::function<void()> run;
    int64_t submitted;  // time of submission
  };
  struct Waiter {
    std::thread::id thread;
    Stream* stream;  // the stream of this thread; nullptr for a program thread
  };
  class Waiting;

  static void work_off(std::shared_ptr<Stream> stream);
  void wait_for_work(std::unique_lock<std::mutex>& lock);
  void run(const Work& work);
  void throw_failure(Ticket ticket);

  const int device_;
  std::atomic<Ticket> submitted_{0}, done_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  std::vector<Waiter> waiters_;
  bool started_ = false, stopped_ = false;
  Ticket released_ = 0;
  Ticket failed_ = 0;  // the first ticket whose work failed
  std::string failure_;
  bool heard_ = false;
  int64_t ended_ = 0;            // end of the last finished work
  int64_t turn_ = 0, over_ = 0;  // of the current work; used by the stream's thread only
};

// A position in a stream's queue. Without a stream, it counts as passed.
struct Mark {
  std::shared_ptr<Stream> stream;
  Stream::Ticket ticket = 0;

  bool passed() const { return !stream || stream->passed(ticket); }
  void wait() const {
    if (stream) stream->wait(ticket);
  }
};

std::shared_ptr<Stream> stream_of(C_Stream stream);
// Whether work for `stream` runs on the calling thread, because it is its device's compute stream.
bool is_compute_stream(C_Stream stream);
// Raises `error` as an exception of Paddle, which Python sees as RuntimeError.
[[noreturn]] void raise(const StreamError& error);
// Kernels run on the calling thread. A kernel launched on a stream with a queue waits until the queue is empty.
void before_kernel(C_Stream stream);
// With VIRTUAL_NPU_DEFER: waits for the device's compute stream, before an operator that computes at its launch.
void finish_deferred_work(int device);
// Whether any stream has pending work. If not, kernels need not check their stream.
bool any_stream_is_busy();

// The stream of the calling thread, or nullptr for a program thread.
Stream* stream_of_this_thread();

// Records that the program communicates from the calling thread.
void remember_caller();
// Whether all recorded threads are blocked until the calling thread, which is one of them or a stream's thread,
// proceeds.
bool program_waits_for_this_thread();

// Copies within and between devices keep the order of the stream. `device` is the destination.
constexpr char kDeviceToDevice[] = "MemcpyDtoD";
void copy_on_device(C_Stream stream, int device, void* to, const void* from, size_t size);

void fill_stream_interface(C_DeviceInterface* interface);

}  // namespace virtual_npu
