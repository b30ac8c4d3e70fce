#include "runtime/version_check.h"

#include <dlfcn.h>

#include <fstream>

#include "paddle/phi/core/kernel_factory.h"

namespace virtual_npu {
namespace {

// Each is one string with a marker, so `strings libpaddle-custom-npu.so` shows the Paddle that the plugin was built
// for.
constexpr char kVersionStamp[] = "virtual-npu built for paddle version=" BUILT_FOR_PADDLE_VERSION;
constexpr char kCommitStamp[] = "virtual-npu built for paddle commit=" BUILT_FOR_PADDLE_COMMIT;

std::string after_equals(const char* stamp) {
  const std::string text = stamp;
  return text.substr(text.find('=') + 1);
}

// The value of `name = '...'` in paddle/version/__init__.py, the only file in the wheel that states its version.
std::string version_field(const std::string& file, const std::string& name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, name.size(), name) != 0) continue;
    const size_t open = line.find('\''), close = line.rfind('\'');
    if (open != std::string::npos && close > open) return line.substr(open + 1, close - open - 1);
  }
  return "unknown";
}

}  // namespace

std::string foreign_paddle() {
  Dl_info core{};
  const void* symbol = reinterpret_cast<const void*>(&phi::KernelFactory::Instance);
  std::string root = dladdr(symbol, &core) && core.dli_fname ? core.dli_fname : "";
  root = root.substr(0, root.rfind("/libs/"));
  const std::string file = root + "/version/__init__.py";
  const std::string version = version_field(file, "full_version"), commit = version_field(file, "commit");
  const std::string built_version = after_equals(kVersionStamp), built_commit = after_equals(kCommitStamp);
  if (version == built_version && commit == built_commit) return "";
  return "the virtual NPU was built for paddlepaddle " + built_version + " (commit " + built_commit +
         "), but this is paddlepaddle " + version + " (commit " + commit +
         "). Install that version, or rebuild this project with the installed one.";
}

}  // namespace virtual_npu
