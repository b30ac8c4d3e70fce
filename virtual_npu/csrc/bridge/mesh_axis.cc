#include "bridge/mesh_axis.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "framework/paddle_release.h"
#include "paddle/phi/backends/device_manager.h"
#include "paddle/phi/core/distributed/auto_parallel/reshard/reshard_utils.h"
#include "observe/transfers.h"

namespace virtual_npu {
namespace {

using phi::DenseTensor;
using phi::ReduceType;

// A contiguous tensor as [outer, size, inner bytes] around one of its dimensions.
struct Around {
  int64_t outer = 1, size, inner;

  Around(const DenseTensor& tensor, int dim) : size(tensor.dims()[dim]), inner(phi::SizeOf(tensor.dtype())) {
    for (int i = 0; i < tensor.dims().size(); ++i) (i < dim ? outer : inner) *= i == dim ? 1 : tensor.dims()[i];
  }
};

// Device memory is host memory.
const char* bytes(const DenseTensor& tensor) { return static_cast<const char*>(tensor.data()); }
char* bytes(DenseTensor* tensor) { return static_cast<char*>(tensor->data()); }

// to[:, to_begin : to_begin + count, :] = from[:, from_begin : from_begin + count, :]
void copy(char* to, int64_t to_size, int64_t to_begin, const char* from, int64_t from_size, int64_t from_begin,
          int64_t count, int64_t outer, int64_t inner) {
  if (count == 0 || inner == 0) return;
  for (int64_t i = 0; i < outer; ++i)
    std::memcpy(to + (i * to_size + to_begin) * inner, from + (i * from_size + from_begin) * inner, count * inner);
}

// The partition of a dimension: sizes and start positions of its parts.
struct Split {
  std::vector<int64_t> sizes, begins;
  explicit Split(int64_t whole, int parts) : sizes(phi::distributed::BalancedSplit(whole, parts)), begins(parts, 0) {
    std::partial_sum(sizes.begin(), sizes.end() - 1, begins.begin() + 1);
  }
  int64_t largest() const { return sizes.front(); }
  bool even() const { return sizes.front() == sizes.back(); }
};

bool keeps_equal_values(ReduceType type) { return type != ReduceType::kRedSum && type != ReduceType::kRedProd; }

}  // namespace

phi::ccl::CCLReduceOp reduce_operation(ReduceType type) {
  if (type == ReduceType::kRedAny) return phi::ccl::CCLReduceOp::MAX;
  if (type == ReduceType::kRedAll) return phi::ccl::CCLReduceOp::MIN;
  return phi::ccl::ToXCCLReduceOp(static_cast<int>(type));
}

void all_to_all(const phi::CustomContext& context, const phi::distributed::XCCLCommContext& communicator,
                const std::vector<DenseTensor>& sent, const std::vector<DenseTensor*>& received) {
  const size_t ranks = sent.size();
  std::vector<const void*> from(ranks);
  std::vector<void*> to(ranks);
  std::vector<size_t> sent_counts(ranks), received_counts(ranks);
  const std::vector<phi::DataType> types(ranks, sent[0].dtype());
  for (size_t i = 0; i < ranks; ++i) {
    from[i] = sent[i].data();
    to[i] = received[i]->data();
    sent_counts[i] = size_t(sent[i].numel());
    received_counts[i] = size_t(received[i]->numel());
  }
  phi::DeviceManager::CCLAllToAll(communicator.GetDeviceType(), from.data(), sent_counts.data(), types.data(),
                                  to.data(), received_counts.data(), types.data(), size_t(communicator.GetRank()),
                                  ranks, communicator.GetXcclComm(), CurrentStream(context));
}

MeshAxis::MeshAxis(const phi::CustomContext& context, const std::vector<int64_t>& process_ids)
    : context_(context),
      communicator_(static_cast<phi::distributed::XCCLCommContext*>(
          phi::distributed::CreateOrGetCommContext(context, process_ids))) {}

DenseTensor MeshAxis::empty(const DenseTensor& like) const {
  DenseTensor tensor;
  tensor.Resize(like.dims());
  context_.Alloc(&tensor, like.dtype());
  return tensor;
}

DenseTensor MeshAxis::empty(const DenseTensor& like, int dim, int64_t size) const {
  DenseTensor tensor;
  phi::DDim dims = like.dims();
  dims[dim] = size;
  tensor.Resize(dims);
  context_.Alloc(&tensor, like.dtype());
  return tensor;
}

phi::DDim MeshAxis::stacked(phi::DDim dims) const {
  dims[0] *= size();
  return dims;
}

DenseTensor MeshAxis::gather(const DenseTensor& part, int dim, int64_t whole) const {
  const Split cut(whole, size());
  DenseTensor gathered = empty(part, dim, whole);
  if (gathered.numel() == 0) return gathered;
  const Around view(part, dim);
  const int64_t block = view.outer * cut.largest() * view.inner;
  DenseTensor sent = part;
  if (view.size != cut.largest()) {
    sent = empty(part, dim, cut.largest());
    std::memset(bytes(&sent), 0, block);
    copy(bytes(&sent), cut.largest(), 0, bytes(part), view.size, 0, view.size, view.outer, view.inner);
  }
  const bool in_place = view.outer == 1 && cut.even();  // the parts are contiguous
  DenseTensor blocks = in_place ? gathered : DenseTensor();
  blocks.Resize(stacked(sent.dims()));
  if (!in_place) context_.Alloc(&blocks, part.dtype());
  count_transfer("all_gather", size(), sent);
  communicator_->AllGather(&blocks, sent, stream());
  finish();
  if (in_place) return gathered;
  for (int i = 0; i < size(); ++i)
    copy(bytes(&gathered), whole, cut.begins[i], bytes(blocks) + i * block, cut.largest(), 0, cut.sizes[i], view.outer,
         view.inner);
  return gathered;
}

DenseTensor MeshAxis::reduce(const DenseTensor& term, ReduceType type) const {
  DenseTensor reduced = empty(term);
  if (term.numel() == 0) return reduced;
  count_transfer("all_reduce", size(), term);
  communicator_->AllReduce(&reduced, term, reduce_operation(type), stream());
  finish();
  return reduced;
}

DenseTensor MeshAxis::reduce_scatter(const DenseTensor& term, int dim, ReduceType type) const {
  const Split cut(term.dims()[dim], size());
  if (term.numel() == 0) return empty(term, dim, cut.sizes[rank()]);
  const Around view(term, dim);
  DenseTensor reduced = empty(term, dim, cut.largest());
  const bool in_place = view.outer == 1 && cut.even();
  const int64_t block = view.outer * cut.largest() * view.inner;
  DenseTensor blocks = in_place ? term : DenseTensor();
  blocks.Resize(stacked(reduced.dims()));
  if (!in_place) {
    context_.Alloc(&blocks, term.dtype());
    std::memset(bytes(&blocks), 0, block * size());
    for (int i = 0; i < size(); ++i)
      copy(bytes(&blocks) + i * block, cut.largest(), 0, bytes(term), view.size, cut.begins[i], cut.sizes[i],
           view.outer, view.inner);
  }
  count_transfer("reduce_scatter", size(), blocks);
  communicator_->ReduceScatter(&reduced, blocks, reduce_operation(type), stream());
  finish();
  if (cut.sizes[rank()] == cut.largest()) return reduced;
  DenseTensor own = empty(term, dim, cut.sizes[rank()]);
  copy(bytes(&own), cut.sizes[rank()], 0, bytes(reduced), cut.largest(), 0, cut.sizes[rank()], view.outer, view.inner);
  return own;
}

DenseTensor MeshAxis::exchange(const DenseTensor& part, int from, int64_t whole, int to) const {
  const Split rows(whole, size()), columns(part.dims()[to], size());
  std::vector<DenseTensor> sent, received;
  std::vector<DenseTensor*> arriving;
  const Around source(part, to);
  for (int i = 0; i < size(); ++i) {
    sent.push_back(empty(part, to, columns.sizes[i]));
    copy(bytes(&sent[i]), columns.sizes[i], 0, bytes(part), source.size, columns.begins[i], columns.sizes[i],
         source.outer, source.inner);
    received.push_back(empty(sent[i], from, rows.sizes[i]));
    if (columns.sizes[i] != columns.sizes[rank()])
      received[i] = empty(received[i], to, columns.sizes[rank()]);
  }
  for (DenseTensor& piece : received) arriving.push_back(&piece);
  count_transfer("all_to_all", size(), part);
  all_to_all(context_, *communicator_, sent, arriving);
  finish();
  DenseTensor joined = empty(received[rank()], from, whole);
  const Around target(joined, from);
  for (int i = 0; i < size(); ++i)
    copy(bytes(&joined), whole, rows.begins[i], bytes(received[i]), rows.sizes[i], 0, rows.sizes[i], target.outer,
         target.inner);
  return joined;
}

DenseTensor MeshAxis::part(const DenseTensor& whole, int dim) const {
  const Split cut(whole.dims()[dim], size());
  const int64_t size = cut.sizes[rank()];
  DenseTensor own = empty(whole, dim, size);
  const Around view(whole, dim);
  copy(bytes(&own), size, 0, bytes(whole), view.size, cut.begins[rank()], size, view.outer, view.inner);
  return own;
}

DenseTensor MeshAxis::term(const DenseTensor& whole, ReduceType type) const {
  if (type == ReduceType::kRedProd)
    PADDLE_THROW(common::errors::Unimplemented(
        "A tensor cannot be converted to factors of a product; accepted reductions: sum, avg, max, min, any, all."));
  DenseTensor own = empty(whole);
  const size_t size = whole.numel() * phi::SizeOf(whole.dtype());
  if (size == 0) return own;
  if (rank() == 0 || keeps_equal_values(type))
    std::memcpy(bytes(&own), bytes(whole), size);
  else
    std::memset(bytes(&own), 0, size);
  return own;
}

}  // namespace virtual_npu
