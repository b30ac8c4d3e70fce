#include "dry/fake_process_group.h"

#include <cstring>

#include "collectives/call.h"
#include "collectives/reduction.h"
#include "dry/known_values.h"

namespace virtual_npu {
namespace dry {
namespace {

phi::DataType phi_type(C_DataType dtype) {
  switch (dtype) {
    case BOOL:
      return phi::DataType::BOOL;
    case UINT8:
      return phi::DataType::UINT8;
    case INT8:
      return phi::DataType::INT8;
    case INT16:
      return phi::DataType::INT16;
    case INT32:
      return phi::DataType::INT32;
    case INT64:
      return phi::DataType::INT64;
    default:
      return phi::DataType::FLOAT32;
  }
}

// The reduction of `ranks` equal terms.
void reduce_equal(const void* term, void* out, size_t count, C_DataType dtype, C_CCLReduceOp op, int ranks) {
  const std::vector<const void*> terms(ranks, term);
  reduce(dtype, op, terms.data(), ranks, count, out);
}

}  // namespace

void all_reduce(const void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op, int ranks) {
  const size_t bytes = count * size_of(dtype);
  if (!is_known(send, bytes)) return set_unknown(receive, bytes, phi_type(dtype), "all_reduce");
  reduce_equal(send, receive, count, dtype, op, ranks);
  set_known(receive, bytes);
}

void all_gather(const void* send, void* receive, size_t count, C_DataType dtype, int ranks) {
  const size_t bytes = count * size_of(dtype);
  if (!is_known(send, bytes)) return set_unknown(receive, bytes * ranks, phi_type(dtype), "all_gather");
  for (int rank = 0; rank < ranks; ++rank) std::memmove(static_cast<char*>(receive) + rank * bytes, send, bytes);
  set_known(receive, bytes * ranks);
}

void reduce_scatter(const void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op, int rank,
                    int ranks) {
  const size_t bytes = count * size_of(dtype);
  const char* own = static_cast<const char*>(send) + rank * bytes;
  if (!is_known(own, bytes)) return set_unknown(receive, bytes, phi_type(dtype), "reduce_scatter");
  reduce_equal(own, receive, count, dtype, op, ranks);
  set_known(receive, bytes);
}

void receive(void* to, size_t bytes, C_DataType dtype) { set_unknown(to, bytes, phi_type(dtype), "recv"); }

}  // namespace dry
}  // namespace virtual_npu
