#include "observe/aclop.h"

#include <atomic>
#include <mutex>

#include "paddle/phi/core/enforce.h"
#include "runtime/acl.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace {

// The plugin's check of a return code (acl_error_msg in NPU_CHECK), with the last lines of the plugin's message.
void run(const std::string& kernel, const char* type) {
  const int code = aclopCompileAndExecute(type, 0, nullptr, nullptr, 0, nullptr, nullptr, nullptr, 0, 0, nullptr, nullptr);
  if (code == 0) return;
  PADDLE_THROW(common::errors::External(
      "ACL error, the error code is : %d. aclopCompileAndExecute refused %s, which paddle-custom-npu runs for the kernel "
      "'%s' (%s).",
      code, type, kernel,
      config().card == Card::k950 ? "VIRTUAL_NPU_CARD=950" : "VIRTUAL_NPU_FLOAT_STATUS=refused"));
}

}  // namespace

void before_aclop(const std::string& kernel, const char* type) {
  if (config().card == Card::k950) return run(kernel, type);
  static std::atomic<bool> is_allocated{false};
  if (is_allocated.load(std::memory_order_acquire)) return;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (is_allocated) return;
  run(kernel, "NPUAllocFloatStatus");
  run(kernel, "NPUClearFloatStatus");
  is_allocated.store(true, std::memory_order_release);
}

bool overflow_is_float_status() { return !config().float_status; }

void get_float_status() { run("check_finite_and_unscale", "NPUGetFloatStatus"); }

}  // namespace virtual_npu
