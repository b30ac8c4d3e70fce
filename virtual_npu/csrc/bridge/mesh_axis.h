// The processes along one axis of a mesh, and the steps that change a tensor's placement on the axis.
#pragma once
#include <cstdint>
#include <vector>

#include "framework/paddle_release.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/common/reduce_type.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/distributed/xccl_comm_context.h"

namespace virtual_npu {

// phi::distributed::BalancedSplit splits a dimension over n processes, so the last shards may be smaller. Shards of
// different sizes are padded to the largest size for communication.
class MeshAxis {
 public:
  MeshAxis(const phi::CustomContext& context, const std::vector<int64_t>& process_ids);

  // Shard(dim) -> Replicate, by all_gather; `whole` is the size of the dimension.
  phi::DenseTensor gather(const phi::DenseTensor& part, int dim, int64_t whole) const;
  // Partial -> Replicate, by all_reduce.
  phi::DenseTensor reduce(const phi::DenseTensor& term, phi::ReduceType type) const;
  // Partial -> Shard(dim), by reduce_scatter.
  phi::DenseTensor reduce_scatter(const phi::DenseTensor& term, int dim, phi::ReduceType type) const;
  // Shard(from) -> Shard(to), by all_to_all; `whole` is the size of dimension `from`.
  phi::DenseTensor exchange(const phi::DenseTensor& part, int from, int64_t whole, int to) const;

  // Replicate -> Shard(dim), without communication.
  phi::DenseTensor part(const phi::DenseTensor& whole, int dim) const;
  // Replicate -> Partial, without communication: the first process keeps the values and the others have zeros. If the
  // reduction of equal values is the value itself, all processes keep the values.
  phi::DenseTensor term(const phi::DenseTensor& whole, phi::ReduceType type) const;

 private:
  int size() const { return communicator_->GetSize(); }
  int rank() const { return communicator_->GetRank(); }
  phi::DenseTensor empty(const phi::DenseTensor& like, int dim, int64_t size) const;
  phi::DenseTensor empty(const phi::DenseTensor& like) const;
  phi::DDim stacked(phi::DDim dims) const;  // of all processes' parts in one tensor
  CurrentStream stream() const { return CurrentStream(context_); }
  void finish() const { context_.Wait(); }  // before the host reads received data

  const phi::CustomContext& context_;
  const phi::distributed::XCCLCommContext* communicator_;
};

// The operation of a collective that reduces partial values. bool has no sum, so "any" is the maximum.
phi::ccl::CCLReduceOp reduce_operation(phi::ReduceType type);

// Sends part i of `sent` to process i and receives the part from process i into `received`. Parts may have any size.
void all_to_all(const phi::CustomContext& context, const phi::distributed::XCCLCommContext& communicator,
                const std::vector<phi::DenseTensor>& sent, const std::vector<phi::DenseTensor*>& received);

}  // namespace virtual_npu
