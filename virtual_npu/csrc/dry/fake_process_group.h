// Dry mode: the collectives of a fake process group. All other ranks are assumed to have the same values as this
// rank, so known values stay known (known_values.h). For unknown values, only the size matters. Arguments are as in
// collectives/communicator.h.
#pragma once
#include <cstddef>
#include <vector>

#include "paddle/phi/backends/device_ext.h"

namespace virtual_npu {
namespace dry {

void all_reduce(const void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op, int ranks);
void all_gather(const void* send, void* receive, size_t count, C_DataType dtype, int ranks);
void reduce_scatter(const void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op, int rank,
                    int ranks);
// Receives from another rank, whose values are unknown.
void receive(void* to, size_t bytes, C_DataType dtype);

}  // namespace dry
}  // namespace virtual_npu
