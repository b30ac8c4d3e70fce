// The VIRTUAL_NPU_* environment variables, read once when the plugin is loaded.
#pragma once
#include <cstddef>
#include <string>

namespace virtual_npu {

enum class Card { k910B, k910C, k950 };

// Bits of Config::checks.
enum Check : unsigned { kCheckRace = 1, kCheckInit = 2, kCheckMemory = 4 };

struct Config {
  int devices = 8;             // VIRTUAL_NPU_DEVICES: 1..16 (Paddle keeps memory statistics for 16 devices)
  size_t memory_bytes = 0;     // VIRTUAL_NPU_MEMORY_GB: capacity of each device
  bool strict = false;         // VIRTUAL_NPU_STRICT: refuse kernels that a card runs on the host CPU
  bool bridge = true;          // VIRTUAL_NPU_BRIDGE: run Paddle's CPU kernels as npu kernels
  bool trace = false;          // VIRTUAL_NPU_TRACE: print every kernel call
  unsigned defer = 0;          // VIRTUAL_NPU_DEFER: the seed of runtime/deferral.h; 0: kernels compute at their launch
  unsigned checks = 0;         // VIRTUAL_NPU_CHECK: the checks of memory accesses, bits of Check
  bool counts_waits = false;   // VIRTUAL_NPU_CHECK=sync: count the waits of the host, checks/synchronizations.h
  bool warns = true;           // VIRTUAL_NPU_AICPU_WARNINGS: warn about float64; aicpu_warnings.py reads it as well
  bool dry = false;            // VIRTUAL_NPU_DRY: account for memory and operators without computing
  std::string journal;         // VIRTUAL_NPU_JOURNAL: the file of observe/journal.h, or empty
  double link_gbps = 0;        // VIRTUAL_NPU_LINK_GBPS: GB/s of a device's link, per direction; 0: no limit
  double link_us = 0;          // VIRTUAL_NPU_LINK_US: latency of every collective in microseconds
  double rdma_gbps = 0;        // VIRTUAL_NPU_RDMA_GBPS: GB/s of a device's port to other machines, per direction; 0: no limit
  double rdma_us = 0;          // VIRTUAL_NPU_RDMA_US: latency of every collective between machines in microseconds
  bool realtime = false;       // VIRTUAL_NPU_REALTIME: real-time scheduling of stream threads
  bool sync_sends = false;     // VIRTUAL_NPU_SYNC_SENDS: a send completes when its data has been received
  double collective_timeout = 5;  // VIRTUAL_NPU_COLLECTIVE_TIMEOUT: seconds until a rank that cannot arrive is an error
  double collective_limit = 600;  // VIRTUAL_NPU_COLLECTIVE_LIMIT: seconds until any missing rank is an error
  std::string refuse;          // VIRTUAL_NPU_REFUSE: kernel:number of the call in observe/refusal.h, or empty
  Card card = Card::k910B;     // VIRTUAL_NPU_CARD
  bool float_status = true;    // VIRTUAL_NPU_FLOAT_STATUS: whether the chip has the FloatStatus operators (observe/aclop.h)
};

// Throws std::invalid_argument with a message for the user if a variable is invalid.
const Config& config();

inline bool is_checked(Check check) { return config().checks & check; }

}  // namespace virtual_npu
