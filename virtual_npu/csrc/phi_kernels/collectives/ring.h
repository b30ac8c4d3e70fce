// The process group of one of fleet's collective operators, on the compute stream.
#pragma once
#include <vector>

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/distributed/collective/process_group.h"
#include "paddle/phi/core/distributed/types.h"
#include "paddle/phi/core/distributed/xccl_comm_context.h"

namespace virtual_npu {

// The group with number `ring`: dygraph's process group, which sets up its communicator at first use, or the
// communicator created for a program.
class Ring {
 public:
  Ring(const phi::CustomContext& context, int ring);
  // For an operator whose kernel does not receive the number.
  explicit Ring(const phi::CustomContext& context);

  int size() const;
  int rank() const;

  // `out` is already allocated and may share memory with `x`.
  void all_reduce(phi::distributed::ReduceOp op, const phi::DenseTensor& x, phi::DenseTensor* out) const;
  // out: x of all ranks, concatenated.
  void all_gather(const phi::DenseTensor& x, phi::DenseTensor* out) const;

  // Rows [first, first + count) of a tensor [rows, width], sent to or received from a rank.
  struct Rows {
    int peer;
    int64_t first, count;
  };
  // Sends rows of x and receives rows of out concurrently. Rows that a rank keeps are in both lists, in the same
  // order.
  void exchange(const phi::DenseTensor& x, const std::vector<Rows>& sent, phi::DenseTensor* out,
                const std::vector<Rows>& received) const;

 private:
  const phi::CustomContext& context_;
  phi::distributed::ProcessGroup* group_ = nullptr;
  const phi::distributed::XCCLCommContext* communicator_ = nullptr;
};

}  // namespace virtual_npu
