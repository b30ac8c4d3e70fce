#include "observe/placement.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "paddle/phi/core/kernel_factory.h"

namespace virtual_npu {
namespace {

using Kernels = std::set<std::pair<std::string, std::string>>;  // {kernel, dtype}
using Listed = std::pair<const char*, const char*>;             // thousands of std::string would slow down compilation

// Kernels that paddle-custom-npu registers, extracted from its sources.
const Kernels& card_kernels() {
  static constexpr Listed kListed[] = {
#include "card_kernels.inc"
  };
  static const auto* kernels = new Kernels(std::begin(kListed), std::end(kListed));
  return *kernels;
}

// The kernels among these that the CANN documentation assigns to the AICPU, in addition to all of double precision.
const Kernels& aicpu_kernels() {
  static constexpr Listed kListed[] = {
#include "aicpu_kernels.inc"
  };
  static const auto* kernels = new Kernels(std::begin(kListed), std::end(kListed));
  return *kernels;
}

// Paddle has its own kernels for all custom devices, such as those of collectives. Which kernels depends on the
// release.
bool in_paddle(const std::string& name, phi::DataType dtype) {
  const auto& kernels = phi::KernelFactory::Instance().kernels();
  const auto found = kernels.find(name);
  if (found == kernels.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(), [&](const auto& one) {
    const phi::KernelKey& key = one.first;
    return key.backend() == phi::Backend::CUSTOM && key.layout() != phi::DataLayout::STRIDED &&
           (dtype == phi::DataType::ALL_DTYPE || key.dtype() == dtype);
  });
}

bool on_card(const std::string& name, phi::DataType dtype) {
  if (in_paddle(name, dtype)) return true;
  const auto& kernels = card_kernels();
  if (dtype != phi::DataType::ALL_DTYPE) return kernels.count({name, dtype_name(dtype)}) > 0;
  const auto any = kernels.lower_bound({name, ""});
  return any != kernels.end() && any->first == name;
}

}  // namespace

std::string dtype_name(phi::DataType dtype) {
  return dtype == phi::DataType::ALL_DTYPE ? "any" : phi::DataTypeToString(dtype);
}

const char* placement_name(Placement placement) {
  return placement == Placement::kNpu ? "npu" : placement == Placement::kAicpu ? "aicpu" : "host";
}

Placement placement_of(const std::string& name, phi::DataType dtype) {
  if (!on_card(name, dtype)) return Placement::kHost;
  const bool aicpu = is_double_precision(dtype) || aicpu_kernels().count({name, dtype_name(dtype)});
  return aicpu ? Placement::kAicpu : Placement::kNpu;
}

}  // namespace virtual_npu
