#include "observe/kernel_path.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace virtual_npu {
namespace {

struct Interfaces {
  bool aclnn = false, aclop = false;
};

Interfaces interfaces_of(const std::string& kernel) {
  static const auto* table = [] {
    static constexpr std::pair<const char*, const char*> kListed[] = {
#include "kernel_paths.inc"
    };
    auto* interfaces = new std::unordered_map<std::string_view, Interfaces>;
    for (const auto& [name, interface] : kListed) {
      Interfaces& entry = (*interfaces)[name];
      (std::string_view(interface) == "aclnn" ? entry.aclnn : entry.aclop) = true;
    }
    return interfaces;
  }();
  const auto row = table->find(kernel);
  return row == table->end() ? Interfaces() : row->second;
}

bool libopapi_is_gone() {
  static const bool is_gone = [] {
    const char* value = std::getenv("VIRTUAL_NPU_LIBOPAPI");
    return value && std::string_view(value) == "gone";
  }();
  return is_gone;
}

}  // namespace

const char* path_of(const std::string& kernel) {
  const Interfaces interfaces = interfaces_of(kernel);
  if (interfaces.aclnn && !(libopapi_is_gone() && interfaces.aclop)) return "aclnn";
  return interfaces.aclop ? "aclop" : "";
}

void check_path(const std::string& kernel) {
  if (!libopapi_is_gone()) return;
  const Interfaces interfaces = interfaces_of(kernel);
  if (!interfaces.aclnn) return;
  static std::once_flag is_reported;  // the plugin opens the library once (GetOpApiLibHandler)
  std::call_once(is_reported, [] {
    std::printf("dlopen libopapi.so failed, error:libopapi.so: cannot open shared object file: No such file or directory.\n");
    std::fflush(stdout);
  });
  if (interfaces.aclop) return;
  std::fprintf(stderr,
               "virtual npu: the kernel %s has no aclop form, so paddle-custom-npu calls a null pointer "
               "(VIRTUAL_NPU_LIBOPAPI=gone).\n",
               kernel.c_str());
  std::raise(SIGSEGV);
}

}  // namespace virtual_npu
