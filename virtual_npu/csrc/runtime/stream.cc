#include "runtime/stream.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>

#include "runtime/clock.h"
#include "runtime/communication_time.h"
#include "runtime/config.h"
#include "runtime/deferral.h"

namespace virtual_npu {
namespace {

thread_local Stream* own_stream = nullptr;

std::atomic<int64_t>& work_under_way() {
  static auto* count = new std::atomic<int64_t>{0};
  return *count;
}

// With VIRTUAL_NPU_REALTIME=1, a thread that wakes up to communicate gets its core immediately. If it waited for the
// computing thread's time slice to end, every rank in the collective would wait as well.
void prepare_thread() {
  prctl(PR_SET_NAME, "npu-stream");
  prctl(PR_SET_TIMERSLACK, 1000);
  if (!config().realtime) return;
  sched_param first{};
  first.sched_priority = 1;
  if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first) == 0) return;
  const int error = errno;
  static std::once_flag reported;
  std::call_once(reported, [error] {
    std::fprintf(stderr,
                 "virtual npu: VIRTUAL_NPU_REALTIME=1 has no effect: %s. Grant the process CAP_SYS_NICE, or unset the "
                 "variable.\n",
                 std::strerror(error));
  });
}

}  // namespace

// Marks the calling thread as waiting for a stream. The thread holds the stream's mutex at construction and
// destruction. A waiting program thread counts as exposed communication, because streams with a queue communicate.
class Stream::Waiting {
 public:
  explicit Waiting(Stream* stream) : stream_(stream) {
    if (!own_stream) exposed_.emplace(communication_time().exposed);
    stream_->waiters_.push_back({std::this_thread::get_id(), own_stream});
  }
  ~Waiting() {
    auto& waiters = stream_->waiters_;
    const auto own = [](const Waiter& waiter) { return waiter.thread == std::this_thread::get_id(); };
    waiters.erase(std::find_if(waiters.begin(), waiters.end(), own));
  }

 private:
  Stream* stream_;
  std::optional<Timed> exposed_;
};

Stream::Ticket Stream::submit(std::function<void()> work) {
  if (config().defer) deferral::run_ahead();
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back({std::move(work), now()});
  work_under_way().fetch_add(1);
  const Ticket ticket = submitted_.load() + 1;
  submitted_.store(ticket, std::memory_order_release);
  if (!started_) {
    started_ = true;
    if (config().defer) deferral::add(shared_from_this());
    std::thread(work_off, shared_from_this()).detach();
  }
  changed_.notify_all();
  return ticket;
}

void Stream::run(const Work& work) {
  turn_ = std::max(work.submitted, over_);
  over_ = 0;
  std::string failure;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failed_) return;
  }
  try {
    work.run();
    if (!over_) over_ = now();
    return;
  } catch (const std::exception& error) {
    failure = error.what();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  failed_ = done_.load() + 1;
  failure_ = failure;
  std::fprintf(stderr, "virtual npu: %s\n", failure.c_str());  // the program may never request the result
}

void Stream::wait_for_work(std::unique_lock<std::mutex>& lock) {
  const auto is_queued = [this] { return stopped_ || !queue_.empty(); };
  changed_.wait(lock, is_queued);
  if (!config().defer) return;
  // Other ranks may need this work before their answer lets this process wait for it.
  constexpr std::chrono::seconds kLatestStart{1};
  changed_.wait_for(lock, kLatestStart, [this] { return stopped_ || released_ > done_.load(); });
}

void Stream::release(Ticket ticket) {
  if (!config().defer) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (released_ >= ticket) return;
  released_ = ticket;
  changed_.notify_all();
}

void Stream::work_off(std::shared_ptr<Stream> stream) {
  prepare_thread();
  own_stream = stream.get();
  std::unique_lock<std::mutex> lock(stream->mutex_);
  for (;;) {
    stream->wait_for_work(lock);
    if (stream->queue_.empty()) return;
    Work work = std::move(stream->queue_.front());
    stream->queue_.pop_front();
    lock.unlock();
    stream->run(work);
    work.run = nullptr;  // releases its resources before waiters learn that it is done
    lock.lock();
    stream->ended_ = stream->over_;
    stream->done_.fetch_add(1, std::memory_order_release);
    work_under_way().fetch_sub(1);
    stream->changed_.notify_all();
  }
}

void Stream::throw_failure(Ticket ticket) {
  if (!failed_ || ticket < failed_) return;
  heard_ = true;
  throw StreamError(failure_);
}

void Stream::wait(Ticket ticket) {
  if (ticket == 0 || own_stream == this) return;  // a stream's own work follows its earlier work
  release(ticket);
  std::unique_lock<std::mutex> lock(mutex_);
  if (!passed(ticket)) {
    Waiting waiting(this);
    changed_.wait(lock, [&] { return passed(ticket); });
  }
  if (own_stream) own_stream->turn_ = std::max(own_stream->turn_, ended_);
  throw_failure(ticket);
}

bool Stream::wait_for(Ticket ticket, double seconds) {
  release(ticket);
  std::unique_lock<std::mutex> lock(mutex_);
  if (passed(ticket)) return true;
  Waiting waiting(this);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return passed(ticket); });
}

void Stream::throw_unheard_failure() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!heard_) throw_failure(last());
}

void Stream::stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

bool Stream::holds_up(std::thread::id host) {
  std::vector<Waiter> waiters;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiters = waiters_;
  }
  for (const Waiter& waiter : waiters)
    if (waiter.stream ? waiter.stream != this && waiter.stream->holds_up(host) : waiter.thread == host) return true;
  return false;
}

namespace {

// Running program threads that have called collectives.
struct Callers {
  std::mutex mutex;
  std::vector<std::thread::id> threads;
};
Callers& callers() {
  static auto* callers = new Callers;
  return *callers;
}

// Created by a thread's first call and destroyed when the thread ends.
struct Caller {
  const std::thread::id thread = std::this_thread::get_id();

  Caller() {
    std::lock_guard<std::mutex> lock(callers().mutex);
    callers().threads.push_back(thread);
  }
  ~Caller() {
    std::lock_guard<std::mutex> lock(callers().mutex);
    auto& threads = callers().threads;
    threads.erase(std::find(threads.begin(), threads.end(), thread));
  }
};

}  // namespace

Stream* stream_of_this_thread() { return own_stream; }

void remember_caller() { thread_local const Caller caller; }

bool program_waits_for_this_thread() {
  std::vector<std::thread::id> threads;
  {
    std::lock_guard<std::mutex> lock(callers().mutex);
    threads = callers().threads;
  }
  return std::all_of(threads.begin(), threads.end(), [](std::thread::id thread) {
    return own_stream ? own_stream->holds_up(thread) : thread == std::this_thread::get_id();
  });
}

bool any_stream_is_busy() { return work_under_way().load(std::memory_order_relaxed) > 0; }

}  // namespace virtual_npu
