#include "collectives/call.h"

namespace virtual_npu {
namespace {

const char* reduction_name(C_CCLReduceOp reduce) {
  switch (reduce) {
    case SUM: return "sum";
    case AVG: return "avg";
    case MAX: return "max";
    case MIN: return "min";
    default: return "prod";
  }
}

std::string kind_of(const Call& call) {
  const std::string word = word_of(call.kind), peer = std::to_string(call.peer);
  switch (call.kind) {
    case CallKind::kAllReduce: case CallKind::kReduceScatter: return word + "(" + reduction_name(call.reduce) + ")";
    case CallKind::kReduce: return word + "(" + reduction_name(call.reduce) + ") to rank " + peer;
    case CallKind::kSend: return word + " to rank " + peer;
    case CallKind::kBroadcast: case CallKind::kReceive: return word + " from rank " + peer;
    default: return word;
  }
}

}  // namespace

const char* word_of(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce: return "all_reduce";
    case CallKind::kReduce: return "reduce";
    case CallKind::kBroadcast: return "broadcast";
    case CallKind::kAllGather: return "all_gather";
    case CallKind::kReduceScatter: return "reduce_scatter";
    case CallKind::kAllToAll: return "all_to_all";
    case CallKind::kSend: return "send";
    case CallKind::kReceive: return "recv";
    default: return "nothing";
  }
}

const char* hccl_name(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce: return "hcom_allReduce_";
    case CallKind::kReduce: return "hcom_reduce_";
    case CallKind::kBroadcast: return "hcom_broadcast_";
    case CallKind::kAllGather: return "hcom_allGather_";
    case CallKind::kReduceScatter: return "hcom_reduceScatter_";
    case CallKind::kAllToAll: return "hcom_alltoallv_";
    case CallKind::kSend: return "hcom_send_";
    case CallKind::kReceive: return "hcom_receive_";
    case CallKind::kBatch: return "hcom_batchSendRecv_";
    case CallKind::kNone: break;
  }
  return "";
}

size_t size_of(C_DataType dtype) {
  switch (dtype) {
    case BOOL: case UINT8: case INT8: return 1;
    case UINT16: case INT16: case FLOAT16: case BFLOAT16: return 2;
    case UINT32: case INT32: case FLOAT32: return 4;
    case COMPLEX128: return 16;
    default: return 8;
  }
}

const char* name_of(C_DataType dtype) {
  switch (dtype) {
    case BOOL: return "bool";
    case UINT8: return "uint8";
    case UINT16: return "uint16";
    case UINT32: return "uint32";
    case UINT64: return "uint64";
    case INT8: return "int8";
    case INT16: return "int16";
    case INT32: return "int32";
    case INT64: return "int64";
    case FLOAT16: return "float16";
    case FLOAT32: return "float32";
    case FLOAT64: return "float64";
    case BFLOAT16: return "bfloat16";
    case COMPLEX64: return "complex64";
    case COMPLEX128: return "complex128";
    default: return "elements of no type";
  }
}

std::string describe(const Call& call) {
  if (call.kind == CallKind::kNone) return "no call";
  const bool transfer = call.kind == CallKind::kSend || call.kind == CallKind::kReceive;
  return kind_of(call) + " of " + std::to_string(call.count) + " " + name_of(call.dtype) + " (" +
         (transfer ? "transfer " : "call ") + std::to_string(call.number) + ") at " + call.line;
}

bool same(const Call& one, const Call& other) {
  return one.kind == other.kind && one.dtype == other.dtype && one.reduce == other.reduce && one.peer == other.peer &&
         one.number == other.number && (one.kind == CallKind::kAllToAll || one.count == other.count);
}

bool fits(const Call& send, const Call& receive) {
  return send.dtype == receive.dtype && send.count == receive.count && send.number == receive.number;
}

}  // namespace virtual_npu
