#include "ops/flash_attention_spmd.h"

#include "ops/attention_layout.h"

namespace paddle_fused::ops::flash_attention {
namespace {

// The mesh axes that split batch and heads. A layout that merges heads and head size keeps them whole, because the
// operator's num_heads counts all of them.
struct Split {
  AttentionLayout layout;
  int64_t batch = kWhole, head = kWhole;

  Split(const std::string& name, const DistMetaTensor& query, const DistMetaTensor& key, const DistMetaTensor& value) {
    const DimsMapping q = mapping_of(query), k = mapping_of(key), v = mapping_of(value);
    const AttentionLayout* found = find_attention_layout(name);
    const bool fits = found && q.size() == found->rank && k.size() == found->rank && v.size() == found->rank;
    // What does not fit stays whole; the operator refuses it.
    layout = fits ? *found : AttentionLayout{"", q.size(), -1, 0, -1};
    if (!layout.varlen())
      for (const DimsMapping& mapping : {q, k, v})
        if (batch == kWhole) batch = mapping[layout.batch];
    // A query head works with one key head: split alike and evenly, or not at all.
    if (!layout.merged() && q[layout.head] == k[layout.head] && q[layout.head] == v[layout.head] &&
        q[layout.head] != batch && divides(q[layout.head], query) && divides(q[layout.head], key))
      head = q[layout.head];
  }

  // Whether a mesh axis gives each device equally many of the heads; a number that is not known yet passes.
  bool divides(int64_t axis, const DistMetaTensor& x) const {
    if (axis == kWhole) return true;
    const int64_t heads = x.dims()[layout.head];
    return heads < 0 || heads % x.dist_attr().process_mesh().dim_size(axis) == 0;
  }
  // query, key, value, out and their gradients
  DimsMapping tokens() const {
    DimsMapping mapping = whole(layout.rank);
    if (!layout.varlen()) mapping[layout.batch] = batch;
    if (!layout.merged()) mapping[layout.head] = head;
    return mapping;
  }
  DimsMapping statistics() const {
    if (layout.varlen()) return {kWhole, head, kWhole};
    return {batch, head, kWhole, kWhole};
  }
  // bias and mask: what is broadcast is whole
  DimsMapping scores(const DistMetaTensor& x) const {
    DimsMapping mapping = whole(x.dims().size());
    if (mapping.size() == 4 && x.dims()[0] != 1) mapping[0] = batch;
    if (mapping.size() == 4 && x.dims()[1] != 1) mapping[1] = head;
    return mapping;
  }
  // prefix; an input without elements stands for a missing one, and Paddle cannot split it
  DimsMapping sequences(const DistMetaTensor& x) const {
    return {layout.varlen() || x.dims()[0] == 0 ? kWhole : batch};
  }
  // The axes that split what a broadcast bias' gradient is summed over.
  DimsMapping summed(const DistMetaTensor& bias) const {
    const DimsMapping kept = scores(bias);
    if (kept.size() != 4) return {};
    return {kept[0] == kWhole ? batch : kWhole, kept[1] == kWhole ? head : kWhole};
  }
};

bool present(const DistMetaTensor& x) { return x.initialized(); }

// An optional input that is missing has no place on the mesh.
TensorDistAttr placed_if_present(const DistMetaTensor& x, const DimsMapping& mapping) {
  return present(x) ? placed(x, mapping) : TensorDistAttr();
}

}  // namespace

SpmdInfo infer_spmd(const DistMetaTensor& query, const DistMetaTensor& key, const DistMetaTensor& value,
                    const DistMetaTensor& bias, const DistMetaTensor& mask, const DistMetaTensor& query_ends,
                    const DistMetaTensor& key_ends, const DistMetaTensor& prefix, const DistMetaTensor& seed,
                    const std::string& layout, int64_t /*num_heads*/, float /*scale*/, float /*dropout*/,
                    int /*sparse_mode*/, int64_t /*pre_tokens*/, int64_t /*next_tokens*/) {
  const Split split(layout, query, key, value);
  const DimsMapping tokens = split.tokens();
  return {{placed(query, tokens), placed(key, tokens), placed(value, tokens),
           placed_if_present(bias, present(bias) ? split.scores(bias) : DimsMapping()),
           placed_if_present(mask, present(mask) ? split.scores(mask) : DimsMapping()),
           placed_if_present(query_ends, whole(1)), placed_if_present(key_ends, whole(1)),
           placed_if_present(prefix, present(prefix) ? split.sequences(prefix) : DimsMapping()),
           placed_if_present(seed, whole(1))},
          {placed(query, tokens), placed(query, split.statistics()), placed(query, split.statistics()),
           placed(query, whole(1))}};
}

SpmdInfo infer_gradient_spmd(const DistMetaTensor& query, const DistMetaTensor& key, const DistMetaTensor& value,
                             const DistMetaTensor& bias, const DistMetaTensor& mask, const DistMetaTensor& query_ends,
                             const DistMetaTensor& key_ends, const DistMetaTensor& prefix, const DistMetaTensor& out,
                             const DistMetaTensor& softmax_max, const DistMetaTensor& softmax_sum,
                             const DistMetaTensor& seed_offset, const DistMetaTensor& out_grad,
                             const std::string& layout, int64_t num_heads, float scale, float dropout, int sparse_mode,
                             int64_t pre_tokens, int64_t next_tokens) {
  const Split split(layout, query, key, value);
  const DimsMapping tokens = split.tokens();
  SpmdInfo info = infer_spmd(query, key, value, bias, mask, query_ends, key_ends, prefix, DistMetaTensor(), layout,
                             num_heads, scale, dropout, sparse_mode, pre_tokens, next_tokens);
  info.first.pop_back();  // the seed: the gradient reads seed_offset instead
  for (const TensorDistAttr& attr :
       {placed(out, tokens), placed(softmax_max, split.statistics()), placed(softmax_sum, split.statistics()),
        placed(seed_offset, whole(1)), placed(out_grad, tokens)})
    info.first.push_back(attr);
  info.second = {placed(query, tokens), placed(key, tokens), placed(value, tokens),
                 present(bias) ? partial_sum(bias, split.scores(bias), split.summed(bias)) : TensorDistAttr()};
  return info;
}

}  // namespace paddle_fused::ops::flash_attention
