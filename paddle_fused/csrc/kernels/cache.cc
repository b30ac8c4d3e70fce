#include "kernels/cache.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace paddle_fused::kernels {
namespace {

// No processor has much more than this per core. A small virtual machine may report the whole cache of its host, most
// of which is used by others.
constexpr int64_t kMostOfACore = int64_t{16} << 20;

// Linux lists the caches of a core by level, with sizes such as "32768K". sysconf is the fallback: on virtual machines,
// it may count the cache once per core of the host.
int64_t last_cache_bytes() {
  int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    int64_t size = 0;
    char unit = 0;
    if (file >> size >> unit) largest = std::max(largest, unit == 'M' ? size << 20 : size << 10);
  }
#if defined(_SC_LEVEL3_CACHE_SIZE)
  if (largest == 0) largest = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
#endif
  constexpr int64_t kUsual = int64_t{32} << 20;
  const int64_t cores = std::max<int64_t>(1, sysconf(_SC_NPROCESSORS_CONF));
  return std::min(largest ? largest : kUsual, cores * kMostOfACore);
}

}  // namespace

bool outgrows_cache(int64_t bytes) {
  static const int64_t cache = last_cache_bytes();
  return bytes >= cache;
}

}  // namespace paddle_fused::kernels
