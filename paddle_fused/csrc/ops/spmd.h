// Pieces of SPMD rules: how an operator's tensors lie on a mesh of devices under auto-parallel.
//
// A rule receives the inputs' placements and the operator's attributes, and returns those that the inputs must have and
// those that the outputs will have. A dims mapping holds, for each dimension, the mesh axis that splits it, or -1.
// The gradient's rule receives the forward's attributes, so the gradient operator must declare them, too.
#pragma once
#include <algorithm>
#include <vector>

#include "paddle/phi/api/ext/spmd_infer.h"

namespace paddle_fused::ops {

using DimsMapping = std::vector<int64_t>;
using phi::distributed::DistMetaTensor;
using phi::distributed::SpmdInfo;
using phi::distributed::TensorDistAttr;

constexpr int64_t kWhole = -1;

inline DimsMapping mapping_of(const DistMetaTensor& x) { return x.dist_attr().dims_mapping(); }
inline DimsMapping whole(size_t rank) { return DimsMapping(rank, kWhole); }

// A tensor on the mesh of `x`, placed by `mapping`; nothing is partial.
inline TensorDistAttr placed(const DistMetaTensor& x, const DimsMapping& mapping) {
  TensorDistAttr attr(x.dist_attr());
  attr.set_dims_mapping(mapping);
  attr.set_default_dynamic_dims(static_cast<int64_t>(mapping.size()));
  attr.clean_partial_status();
  return attr;
}

// The same, each device holding a term of a sum along the mesh axes that `split` uses.
inline TensorDistAttr partial_sum(const DistMetaTensor& x, const DimsMapping& mapping, const DimsMapping& split) {
  TensorDistAttr attr = placed(x, mapping);
  std::vector<int64_t> axes;
  for (int64_t axis : split)
    if (axis != kWhole) axes.push_back(axis);
  attr.set_partial_status(axes);
  return attr;
}

// A mapping that keeps the dimensions before `rank - dims` and has the last `dims` whole.
inline DimsMapping last_dims_whole(DimsMapping mapping, size_t dims) {
  std::fill(mapping.end() - std::min(dims, mapping.size()), mapping.end(), kWhole);
  return mapping;
}

// A mapping that has the first `dims` dimensions whole and keeps those behind them.
inline DimsMapping first_dims_whole(DimsMapping mapping, size_t dims) {
  std::fill(mapping.begin(), mapping.begin() + std::min(dims, mapping.size()), kWhole);
  return mapping;
}

}  // namespace paddle_fused::ops
