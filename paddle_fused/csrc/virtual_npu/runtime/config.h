// The VIRTUAL_NPU_* environment variables, read once when the plugin is loaded.
#pragma once
#include <cstddef>
#include <string>

namespace virtual_npu {

struct Config {
  int devices = 8;             // VIRTUAL_NPU_DEVICES: 1..16 (Paddle keeps memory statistics for 16 devices)
  size_t memory_bytes = 0;     // VIRTUAL_NPU_MEMORY_GB: capacity of each device
  bool strict = false;         // VIRTUAL_NPU_STRICT: refuse kernels that a card leaves to the host CPU
  bool bridge = true;          // VIRTUAL_NPU_BRIDGE: show Paddle's CPU kernels as npu kernels
  bool trace = false;          // VIRTUAL_NPU_TRACE: print every kernel as it runs
};

// Throws std::invalid_argument with a sentence if a variable cannot be understood.
const Config& config();

}  // namespace virtual_npu
