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

struct CannCalls {
  bool aclnn = false, aclop = false;  // the interfaces that it runs through
  const char* type = nullptr;         // of the aclop that it runs with every CANN
};

const CannCalls& cann_calls_of(const std::string& kernel) {
  static const auto* table = [] {
    static constexpr std::pair<const char*, std::string_view> kListed[] = {
#include "cann_calls.inc"
    };
    constexpr std::string_view kType = "type ";
    auto* calls = new std::unordered_map<std::string_view, CannCalls>;
    for (const auto& [name, word] : kListed) {
      CannCalls& entry = (*calls)[name];
      if (word == "aclnn") entry.aclnn = true;
      if (word == "aclop") entry.aclop = true;
      if (word.substr(0, kType.size()) == kType) entry.type = word.data() + kType.size();
    }
    return calls;
  }();
  static const CannCalls kNone;
  const auto row = table->find(kernel);
  return row == table->end() ? kNone : row->second;
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
  const CannCalls& calls = cann_calls_of(kernel);
  if (calls.aclnn && !(libopapi_is_gone() && calls.aclop)) return "aclnn";
  return calls.aclop ? "aclop" : "";
}

const char* aclop_of(const std::string& kernel) { return cann_calls_of(kernel).type; }

void check_path(const std::string& kernel) {
  if (!libopapi_is_gone()) return;
  const CannCalls& calls = cann_calls_of(kernel);
  if (!calls.aclnn) return;
  static std::once_flag is_reported;  // the plugin opens the library once (GetOpApiLibHandler)
  std::call_once(is_reported, [] {
    std::printf("dlopen libopapi.so failed, error:libopapi.so: cannot open shared object file: No such file or directory.\n");
    std::fflush(stdout);
  });
  if (calls.aclop) return;
  std::fprintf(stderr,
               "virtual npu: the kernel %s has no aclop form, so paddle-custom-npu calls a null pointer "
               "(VIRTUAL_NPU_LIBOPAPI=gone).\n",
               kernel.c_str());
  std::raise(SIGSEGV);
}

}  // namespace virtual_npu
