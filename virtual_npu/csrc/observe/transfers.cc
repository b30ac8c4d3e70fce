#include "observe/transfers.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>

namespace virtual_npu {
namespace {

// kind, processes, dtype, shape
using Transfer = std::tuple<std::string, int, std::string, std::string>;

std::mutex mutex;

std::map<Transfer, long>& calls() {
  static auto* counted = new std::map<Transfer, long>;
  return *counted;
}

std::string text(const phi::DDim& dims) {
  std::ostringstream out;
  for (int i = 0; i < dims.size(); ++i) out << (i ? "x" : "") << dims[i];
  return out.str();
}

}  // namespace

void count_transfer(const char* kind, int processes, const phi::DenseTensor& sent) {
  Transfer transfer{kind, processes, phi::DataTypeToString(sent.dtype()), text(sent.dims())};
  std::lock_guard<std::mutex> lock(mutex);
  ++calls()[std::move(transfer)];
}

}  // namespace virtual_npu

extern "C" {

// One line per transfer: "kind processes dtype shape calls", with shapes such as 2x16 and "-" for a scalar. Returns the
// length of the full text; the output is truncated to `size` bytes including the terminating zero.
size_t virtual_npu_transfers(char* out, size_t size) {
  using namespace virtual_npu;
  std::ostringstream lines;
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [transfer, times] : calls()) {
    const auto& [kind, processes, dtype, shape] = transfer;
    lines << kind << ' ' << processes << ' ' << dtype << ' ' << (shape.empty() ? "-" : shape) << ' ' << times << '\n';
  }
  const std::string all = lines.str();
  if (size > 0) {
    const size_t copied = std::min(all.size(), size - 1);
    std::memcpy(out, all.data(), copied);
    out[copied] = 0;
  }
  return all.size();
}

void virtual_npu_reset_transfers() {
  std::lock_guard<std::mutex> lock(virtual_npu::mutex);
  virtual_npu::calls().clear();
}

}
