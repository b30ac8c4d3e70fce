#include "observe/refusal.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <utility>

#include "observe/journal.h"
#include "observe/placement.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace {

// The chosen call: the `remaining`-th call of `name` from now on.
struct ChosenCall {
  std::mutex mutex;
  std::atomic<bool> is_chosen{false};  // read by every kernel call
  std::string name;
  int remaining = 0;

  // `text` is a kernel name or kernel:number.
  explicit ChosenCall(const std::string& text) {
    const size_t colon = text.find(':');
    choose(text.substr(0, colon), colon == std::string::npos ? 1 : std::atoi(text.c_str() + colon + 1));
  }

  void choose(const std::string& kernel, int call) {
    std::lock_guard<std::mutex> lock(mutex);
    name = kernel;
    remaining = call;
    is_chosen = !kernel.empty() && call > 0;
  }

  bool take(const std::string& kernel) {
    if (!is_chosen.load(std::memory_order_relaxed)) return false;
    std::lock_guard<std::mutex> lock(mutex);
    if (!is_chosen || kernel != name || --remaining > 0) return false;
    is_chosen = false;
    return true;
  }
};

ChosenCall& chosen_call() {
  static auto* call = new ChosenCall(config().refuse);
  return *call;
}

thread_local std::string unread_messages, returned_message;

// In CANN's format: 2025-02-16-12:18:25.258.321.
std::string time_now() {
  using namespace std::chrono;
  const auto now = system_clock::now();
  const std::time_t seconds = system_clock::to_time_t(now);
  std::tm local{};
  localtime_r(&seconds, &local);
  const auto us = duration_cast<microseconds>(now.time_since_epoch()).count() % 1000000;
  char date[32], text[48];
  std::strftime(date, sizeof(date), "%Y-%m-%d-%H:%M:%S", &local);
  std::snprintf(text, sizeof(text), "%s.%03d.%03d", date, int(us / 1000), int(us % 1000));
  return text;
}

}  // namespace

bool refuses_call(const std::string& name, phi::DataType dtype) {
  if (!chosen_call().take(name)) return false;
  // The format of CANN's messages, which do not name the operator (op_log.h of opbase).
  unread_messages += (unread_messages.empty() ? "EZ1001: [PID: " : "\nEZ1001: [PID: ") + std::to_string(getpid()) + "] " +
                     time_now() + " Tensor self not implemented for " + dtype_name(dtype) +
                     " (VIRTUAL_NPU_REFUSE).\n        TraceBack (most recent call last):\n";
  if (journal::is_kept()) journal::mark("refused " + name);
  return true;
}

}  // namespace virtual_npu

// From now on, refuses the `call`-th call of this kernel, or none with call = 0.
extern "C" void virtual_npu_refuse(const char* kernel, int call) { virtual_npu::chosen_call().choose(kernel, call); }

// CANN's function: returns and clears the calling thread's error message, or nullptr. The text is valid until the
// next call on the same thread.
extern "C" const char* aclGetRecentErrMsg() {
  using namespace virtual_npu;
  if (unread_messages.empty()) return nullptr;
  returned_message = std::exchange(unread_messages, std::string());
  return returned_message.c_str();
}
