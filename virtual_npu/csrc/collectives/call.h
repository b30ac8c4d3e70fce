// The description of a rank's call, for comparison between ranks and for error messages.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "paddle/phi/backends/device_ext.h"

namespace virtual_npu {

enum class CallKind : int32_t {
  kNone,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSend,
  kReceive,
  kBatch,  // of sends and receives; for descriptions only, because ranks compare the individual transfers
};

// In shared memory. The count is in elements, as in the interface: of one rank's part for all_gather and
// reduce_scatter, of everything that is sent for all_to_all.
struct Call {
  CallKind kind = CallKind::kNone;
  C_DataType dtype = UNDEFINED;
  C_CCLReduceOp reduce = SUM;
  int32_t peer = 0;     // the root, or the other end of a transfer
  uint64_t number = 0;  // counts the collectives of a group, or the transfers from one rank to another, from 1
  uint64_t count = 0;
  char line[232] = "";  // program line: file.py:12
};

// "all_reduce(sum) of 1024 float32 (call 3) at train.py:12"
std::string describe(const Call& call);

// Whether two ranks made the same call. The sizes of an all_to_all between each pair are compared separately.
bool same(const Call& one, const Call& other);
// Whether the two ends of a transfer match.
bool fits(const Call& send, const Call& receive);

// "all_reduce"
const char* word_of(CallKind kind);
// The name in HCCL: "hcom_allReduce_".
const char* hccl_name(CallKind kind);

size_t size_of(C_DataType dtype);
const char* name_of(C_DataType dtype);

}  // namespace virtual_npu
