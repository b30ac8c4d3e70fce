// The description of a rank's call, which ranks compare and show in their errors.
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
  kBatch,  // of sends and receives: of a description only, ranks compare each of them
};

// Lies in shared memory. Elements are counted as the interface counts them: those of one rank's part for all_gather and
// reduce_scatter, all that are sent for all_to_all.
struct Call {
  CallKind kind = CallKind::kNone;
  C_DataType dtype = UNDEFINED;
  C_CCLReduceOp reduce = SUM;
  int32_t peer = 0;     // the root, or the other end of a transfer
  uint64_t number = 0;  // from 1: of the collectives of a group, or of the transfers from one rank to another
  uint64_t count = 0;
  char line[232] = "";  // of the program: file.py:12
};

// "all_reduce(sum) of 1024 float32 (call 3) at train.py:12"
std::string describe(const Call& call);

// Whether two ranks made the same call. The sizes sent between each pair in an all_to_all are compared separately.
bool same(const Call& one, const Call& other);
// Whether the two ends of a transfer match.
bool fits(const Call& send, const Call& receive);

// "all_reduce"
const char* word_of(CallKind kind);
// HCCL's name for it: "hcom_allReduce_".
const char* hccl_name(CallKind kind);

size_t size_of(C_DataType dtype);
const char* name_of(C_DataType dtype);

}  // namespace virtual_npu
