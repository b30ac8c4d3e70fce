#include "phi_kernels/collectives/ring.h"

#include <cstring>
#include <string>

#include "framework/paddle_release.h"
#include "paddle/phi/core/distributed/comm_context_manager.h"

namespace virtual_npu {

using phi::DenseTensor;
using Communicator = phi::distributed::XCCLCommContext;

namespace {

phi::ccl::CCLReduceOp as_xccl(phi::distributed::ReduceOp op) {
  switch (op) {
    case phi::distributed::ReduceOp::MAX:
      return phi::ccl::CCLReduceOp::MAX;
    case phi::distributed::ReduceOp::MIN:
      return phi::ccl::CCLReduceOp::MIN;
    case phi::distributed::ReduceOp::PRODUCT:
      return phi::ccl::CCLReduceOp::PRODUCT;
    case phi::distributed::ReduceOp::AVG:
      return phi::ccl::CCLReduceOp::AVG;
    default:
      return phi::ccl::CCLReduceOp::SUM;
  }
}

// Rows of a tensor [rows, width] as a tensor that shares its memory.
DenseTensor part(const DenseTensor& x, const Ring::Rows& rows) { return x.Slice(rows.first, rows.first + rows.count); }

}  // namespace

Ring::Ring(const phi::CustomContext& context, int ring) : context_(context) {
  const auto groups = phi::distributed::ProcessGroupMapFromGid::getInstance();
  if (groups->has(ring)) {
    group_ = groups->get(ring);
    return;
  }
  const auto& communicators = phi::distributed::CommContextManager::GetInstance();
  PADDLE_ENFORCE_EQ(communicators.Has(std::to_string(ring)), true,
                    common::errors::Unavailable(
                        "There is no group with number %d in this process. Create it with "
                        "paddle.distributed.new_group or fleet.init before the operator is called.",
                        ring));
  communicator_ = static_cast<const Communicator*>(communicators.Get(std::to_string(ring)));
}

Ring::Ring(const phi::CustomContext& context) : context_(context) {
  communicator_ = static_cast<const Communicator*>(context.GetCommContext());
  PADDLE_ENFORCE_NOT_NULL(communicator_, common::errors::Unavailable(
                                             "The operator has no communicator: its group (ring_id) does not exist in "
                                             "this process, or it has not communicated yet. Create it with "
                                             "fleet.init, and call paddle.distributed.barrier(group) once."));
}

int Ring::size() const { return group_ ? group_->GetSize() : communicator_->GetSize(); }

int Ring::rank() const { return group_ ? group_->GetRank() : communicator_->GetRank(); }

void Ring::all_reduce(phi::distributed::ReduceOp op, const DenseTensor& x, DenseTensor* out) const {
  if (x.numel() == 0) return;
  if (!group_) return communicator_->AllReduce(out, x, as_xccl(op), CurrentStream(context_));
  phi::distributed::AllreduceOptions options;
  options.reduce_op = op;
  group_->AllReduce(out, x, options, /*sync_op=*/true, /*use_calc_stream=*/true);
}

void Ring::all_gather(const DenseTensor& x, DenseTensor* out) const {
  if (x.numel() == 0) return;
  if (!group_) return communicator_->AllGather(out, x, CurrentStream(context_));
  group_->AllGather(out, x, /*sync_op=*/true, /*use_calc_stream=*/true);
}

void Ring::exchange(const DenseTensor& x, const std::vector<Rows>& sent, DenseTensor* out,
                    const std::vector<Rows>& received) const {
  PADDLE_ENFORCE_NOT_NULL(communicator_, common::errors::Unavailable("exchange requires a communicator."));
  const int64_t width = out->dims()[1];
  // Data that a rank sends to itself, in the order of sends and of receives.
  const size_t row = width * phi::SizeOf(x.dtype());
  size_t mine = 0;
  for (const Rows& target : received) {
    if (target.peer != rank()) continue;
    while (sent[mine].peer != rank()) ++mine;
    std::memcpy(static_cast<char*>(out->data()) + target.first * row,
                static_cast<const char*>(x.data()) + sent[mine++].first * row, target.count * row);
  }
  communicator_->GroupStart();
  for (const Rows& rows : sent)
    if (rows.peer != rank() && rows.count > 0)
      communicator_->Send(part(x, rows), rows.count * width, rows.peer, CurrentStream(context_));
  for (const Rows& rows : received) {
    if (rows.peer == rank() || rows.count == 0) continue;
    DenseTensor target = part(*out, rows);
    communicator_->Recv(&target, rows.count * width, rows.peer, CurrentStream(context_));
  }
  communicator_->GroupEnd();
}

}  // namespace virtual_npu
