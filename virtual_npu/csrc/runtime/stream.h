// Streams and events.
//
// The compute stream, which is the one of Paddle's context for the device at that moment, works on the calling thread:
// what is submitted to it has finished when the call returns. Every other stream that is given work has a thread, which
// does it in order; this is how communication overlaps with computation. An event is a place in a stream's queue.
//
// Work that throws fails its stream: what is queued behind it and every event recorded behind it fail too, and a host
// thread that waits for one of them gets the reason.
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

// Why the work of a stream failed, for the user.
class StreamError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  // Tickets number the work of a stream from 1 in the order in which it was submitted.
  using Ticket = uint64_t;

  explicit Stream(int device) : device_(device) {}
  int device() const { return device_; }

  Ticket submit(std::function<void()> work);
  Ticket last() const { return submitted_.load(std::memory_order_acquire); }
  bool passed(Ticket ticket) const { return done_.load(std::memory_order_acquire) >= ticket; }
  bool busy() const { return !passed(last()); }

  // Waits until the stream has passed `ticket`; StreamError if that work, or work before it, failed.
  void wait(Ticket ticket);
  void drain() { wait(last()); }
  // Waits for at most `seconds`; whether the stream has passed `ticket`. Does not throw.
  bool wait_for(Ticket ticket, double seconds);
  // Throws the failure of the stream if it has not been thrown yet.
  void throw_unheard_failure();
  // The thread ends when the queue is empty.
  void stop();

  // Whether the thread `host` waits for this stream, by itself or through other streams that wait for it.
  bool holds_up(std::thread::id host);

  // Of the work under way, on the stream's thread: when its turn came, which is when it had been submitted and what is
  // before it, or what it waited for on another stream, was over. The thread itself may have got its core later.
  int64_t turn() const { return turn_; }
  // The work under way counts as over at `time`, not when the thread is scheduled again.
  void over_at(int64_t time) { over_ = time; }

 private:
  struct Work {
    std::function<void()> run;
    int64_t submitted;  // when
  };
  struct Waiter {
    std::thread::id thread;
    Stream* stream;  // whose thread it is; nullptr for a thread of the program
  };
  class Waiting;

  static void work_off(std::shared_ptr<Stream> stream);
  void run(const Work& work);
  void throw_failure(Ticket ticket);

  const int device_;
  std::atomic<Ticket> submitted_{0}, done_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  std::vector<Waiter> waiters_;
  bool started_ = false, stopped_ = false;
  Ticket failed_ = 0;  // the first ticket whose work failed
  std::string failure_;
  bool heard_ = false;
  int64_t ended_ = 0;            // when the last work that was done was over
  int64_t turn_ = 0, over_ = 0;  // of the work under way; of the thread alone
};

// A place in a stream's queue; none if the stream is empty, which everybody has passed.
struct Mark {
  std::shared_ptr<Stream> stream;
  Stream::Ticket ticket = 0;

  bool passed() const { return !stream || stream->passed(ticket); }
  void wait() const {
    if (stream) stream->wait(ticket);
  }
};

std::shared_ptr<Stream> stream_of(C_Stream stream);
// Whether work for `stream` is done on the calling thread: it is its device's compute stream.
bool is_compute_stream(C_Stream stream);
// Raises `error` as an exception of Paddle, which Python sees as RuntimeError.
[[noreturn]] void raise(const StreamError& error);
// Kernels work on the calling thread: one that is launched on a stream with a queue waits until that is empty.
void before_kernel(C_Stream stream);
// Whether any stream has work under way: while none has, kernels need not look at theirs.
bool any_stream_is_busy();

// The stream whose thread this is; nullptr for a thread of the program.
Stream* stream_of_this_thread();

// Notes that the program communicates from the calling thread.
void remember_caller();
// Whether all threads noted are blocked until the calling thread, one of them or a stream's, proceeds.
bool program_waits_for_this_thread();

// Copies within and between devices keep the order of the stream; `device` is the one that is copied to.
constexpr char kDeviceToDevice[] = "MemcpyDtoD";
void copy_on_device(C_Stream stream, int device, void* to, const void* from, size_t size);

void fill_stream_interface(C_DeviceInterface* interface);

}  // namespace virtual_npu
