#include "bridge/reshard.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/paddle_release.h"
#include "paddle/phi/core/distributed/auto_parallel/dist_tensor.h"
#include "paddle/phi/core/distributed/auto_parallel/reshard/reshard_function.h"
#include "paddle/phi/core/distributed/auto_parallel/reshard/reshard_function_registry.h"
#include "paddle/phi/core/distributed/auto_parallel/reshard/reshard_utils.h"
#include "bridge/mesh_axis.h"
#include "observe/transfers.h"

namespace paddle::experimental {
phi::DenseTensor Trans2Contiguous(const phi::DenseTensor& tensor);  // the wheel lacks its header
}

namespace phi::distributed {
int64_t GetCurGlobalRank();
}

namespace virtual_npu {
namespace {

using phi::DenseTensor;
using phi::ReduceType;
using phi::distributed::DistTensor;
using phi::distributed::ProcessMesh;
using phi::distributed::ReshardFunction;
using phi::distributed::TensorDistAttr;
using ProcessIds = std::vector<int64_t>;

// A tensor's placement on one axis of its mesh.
struct AxisPlacement {
  int dim = -1;  // the sharded dimension, or -1
  std::optional<ReduceType> partial;

  bool operator==(const AxisPlacement& other) const { return dim == other.dim && partial == other.partial; }
};

std::vector<AxisPlacement> placements_of(const TensorDistAttr& attr) {
  if (paddle_release::is_co_shard(attr))
    PADDLE_THROW(common::errors::Unimplemented(
        "A dimension is sharded over two axes of a mesh (%s); accepted: one axis per dimension.", attr.to_string()));
  std::vector<AxisPlacement> found(attr.process_mesh().ndim());
  const std::vector<int64_t>& mapping = attr.dims_mapping();
  for (size_t dim = 0; dim < mapping.size(); ++dim)
    if (mapping[dim] >= 0) found[mapping[dim]].dim = int(dim);
  for (const auto& [axis, type] : attr.partial_status()) found[axis].partial = type;
  return found;
}

// The processes that differ from the current one only on one axis.
ProcessIds neighbours(const ProcessMesh& mesh, int axis) {
  const ProcessIds at = phi::distributed::GetCurRankCoordInMesh(mesh);
  ProcessIds ids;
  for (int64_t i = 0; i < mesh.shape()[axis]; ++i) {
    int64_t index = 0;
    for (int64_t other = 0; other < mesh.ndim(); ++other)
      index = index * mesh.shape()[other] + (other == axis ? i : at[other]);
    ids.push_back(mesh.process_ids()[index]);
  }
  return ids;
}

// Changes the placements on the axes of one mesh, one axis at a time.
class WithinMesh {
 public:
  WithinMesh(const phi::CustomContext& context, const ProcessMesh& mesh, const phi::DDim& dims, DenseTensor local,
             std::vector<AxisPlacement> from)
      : context_(context), mesh_(mesh), dims_(dims), local_(std::move(local)), now_(std::move(from)) {}

  DenseTensor change(const std::vector<AxisPlacement>& wanted) {
    const int axes = int(mesh_.ndim());
    for (int axis = 0; axis < axes; ++axis)
      if (now_[axis].partial && !(now_[axis] == wanted[axis])) reduce(axis, wanted[axis]);
    // Directly to the requested dimension unless another axis still shards it, otherwise via the whole tensor.
    for (int axis = 0; axis < axes; ++axis)
      if (now_[axis].dim >= 0 && !(now_[axis] == wanted[axis])) unshard(axis, wanted[axis]);
    for (int axis = 0; axis < axes; ++axis) {
      if (now_[axis] == wanted[axis] || is_one(axis)) continue;
      const MeshAxis along = on(axis);
      local_ = wanted[axis].partial ? along.term(local_, *wanted[axis].partial) : along.part(local_, wanted[axis].dim);
    }
    return local_;
  }

 private:
  bool is_one(int axis) const { return mesh_.shape()[axis] == 1; }

  MeshAxis on(int axis) const { return MeshAxis(context_, neighbours(mesh_, axis)); }

  bool is_split(int dim) const {
    for (const AxisPlacement& each : now_)
      if (each.dim == dim) return true;
    return false;
  }

  void reduce(int axis, const AxisPlacement& wanted) {
    const ReduceType type = *now_[axis].partial;
    if (wanted.dim >= 0 && !is_split(wanted.dim)) {
      if (!is_one(axis)) local_ = on(axis).reduce_scatter(local_, wanted.dim, type);
      now_[axis] = wanted;
    } else {
      if (!is_one(axis)) local_ = on(axis).reduce(local_, type);
      now_[axis] = AxisPlacement();
    }
  }

  void unshard(int axis, const AxisPlacement& wanted) {
    const int dim = now_[axis].dim;
    if (wanted.dim >= 0 && !is_split(wanted.dim)) {
      if (!is_one(axis)) local_ = on(axis).exchange(local_, dim, dims_[dim], wanted.dim);
      now_[axis] = wanted;
    } else {
      if (!is_one(axis)) local_ = on(axis).gather(local_, dim, dims_[dim]);
      now_[axis] = AxisPlacement();
    }
  }

  const phi::CustomContext& context_;
  const ProcessMesh& mesh_;
  const phi::DDim dims_;
  DenseTensor local_;
  std::vector<AxisPlacement> now_;
};

// The size of the current process's part.
phi::DDim local_dims(const phi::DDim& dims, const ProcessMesh& mesh, const std::vector<AxisPlacement>& placements) {
  const ProcessIds at = phi::distributed::GetCurRankCoordInMesh(mesh);
  phi::DDim local = dims;
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    const int dim = placements[axis].dim;
    if (dim >= 0) local[dim] = phi::distributed::BalancedSplit(dims[dim], mesh.shape()[axis])[at[axis]];
  }
  return local;
}

// Sends a local part from process `sources[i]` to `targets[i]` for every i. Returns the current process's new part.
DenseTensor move(const phi::CustomContext& context, const DenseTensor& part, const phi::DDim& dims,
                 phi::DataType dtype, const ProcessIds& sources, const ProcessIds& targets) {
  const int64_t self = phi::distributed::GetCurGlobalRank();
  DenseTensor held;
  for (size_t i = 0; i < sources.size(); ++i) {
    const int64_t source = sources[i], target = targets[i];
    if (source == target && self == source) held = part;
    if (source == target || (self != source && self != target)) continue;
    const ProcessIds pair = {std::min(source, target), std::max(source, target)};
    const auto& communicator = *static_cast<phi::distributed::XCCLCommContext*>(
        phi::distributed::CreateOrGetCommContext(context, pair));
    const int peer = 1 - communicator.GetRank();
    if (self == source) {
      count_transfer("send", 2, part);
      if (part.numel() > 0) communicator.Send(part, part.numel(), peer, CurrentStream(context));
    } else {
      held.Resize(dims);
      context.Alloc(&held, dtype);
      if (held.numel() > 0) communicator.Recv(&held, held.numel(), peer, CurrentStream(context));
    }
    context.Wait();
  }
  return held;
}

// For every process of `whole`, the process of its slice `part` with the same coordinates on the other axes.
ProcessIds counterparts(const ProcessMesh& whole, const ProcessMesh& part) {
  const int axis = phi::distributed::SubMeshDim(whole, part);
  int64_t inner = 1;
  for (int64_t i = axis + 1; i < whole.ndim(); ++i) inner *= whole.shape()[i];
  ProcessIds found;
  for (int64_t i = 0; i < whole.size(); ++i)
    found.push_back(part.process_ids()[i / (inner * whole.shape()[axis]) * inner + i % inner]);
  return found;
}

class NpuReshard final : public ReshardFunction {
 public:
  explicit NpuReshard(std::unique_ptr<ReshardFunction> upstream) : upstream_(std::move(upstream)) {}

  bool IsSuitable(const DistTensor& in, const TensorDistAttr& wanted) override { return upstream_->IsSuitable(in, wanted); }
  std::string Name() override { return upstream_->Name(); }

  void Eval(phi::DeviceContext* context, const DistTensor& in, const TensorDistAttr& wanted, DistTensor* out) override {
    const ProcessMesh &from = in.dist_attr().process_mesh(), &to = wanted.process_mesh();
    const bool spreads = Name() == "SubMeshToGlobalReshard";
    // Other cases are left to Paddle: they need no communication, or report that they need a CPU.
    if (!phi::CustomContext::classof(context) || (from.shape() != to.shape() && !spreads))
      return upstream_->Eval(context, in, wanted, out);
    const auto& npu = static_cast<const phi::CustomContext&>(*context);
    if (in.value().holder_ && in.value().holder_->size() == 0 && in.numel() > 0) return resize_dropped(in, wanted, out);
    DenseTensor local;
    if (phi::distributed::IsCurRankInMesh(from)) local = contiguous(in.value());
    std::vector<AxisPlacement> placements = placements_of(in.dist_attr());
    if (from != to) {
      const ProcessIds sources = spreads ? counterparts(to, from) : from.process_ids();
      if (spreads) placements = placements_of(wanted);
      const bool receives = phi::distributed::IsCurRankInMesh(to);
      const phi::DDim dims = receives ? local_dims(in.dims(), to, placements) : in.dims();
      local = move(npu, local, dims, in.dtype(), sources, to.process_ids());
    }
    if (phi::distributed::IsCurRankInMesh(to)) {
      WithinMesh within(npu, to, in.dims(), local, std::move(placements));
      SetValue(out, within.change(placements_of(wanted)));
    }
    SetDistProps(out, in.dims(), wanted);
  }

 private:
  // On custom devices, autograd frees tensors if the gradient needs only their sizes. Nothing has to be sent then.
  void resize_dropped(const DistTensor& in, const TensorDistAttr& wanted, DistTensor* out) {
    DenseTensor resized(in.value());
    resized.meta_.dims = local_dims(in.dims(), wanted.process_mesh(), placements_of(wanted));
    resized.meta_.strides = phi::DenseTensorMeta::calc_strides(resized.meta_.dims);
    SetValue(out, resized);
    SetDistProps(out, in.dims(), wanted);
  }

  static DenseTensor contiguous(const DenseTensor& tensor) {
    return tensor.meta().is_contiguous() ? tensor : paddle::experimental::Trans2Contiguous(tensor);
  }

  std::unique_ptr<ReshardFunction> upstream_;
};

}  // namespace

void install_reshard() {
  for (std::unique_ptr<ReshardFunction>& function : phi::distributed::GetReshardFunctionList())
    function = std::make_unique<NpuReshard>(std::move(function));
}

}  // namespace virtual_npu
