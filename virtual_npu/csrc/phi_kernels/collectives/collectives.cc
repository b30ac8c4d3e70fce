// The collectives of static programs, over the xccl communicator of their ring.
//
// Paddle's wheel has all_reduce, all_gather and all_to_all for every custom device, but compiled from the code for
// gloo: they treat the xccl communicator as a gloo communicator and crash. The other collectives are missing.
#include <string>
#include <vector>

#include "framework/paddle_release.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/distributed/comm_context_manager.h"
#include "paddle/phi/core/distributed/utils.h"
#include "paddle/phi/core/distributed/xccl_comm_context.h"
#include "paddle/phi/core/kernel_registry.h"
#include "bridge/mesh_axis.h"
#include "observe/transfers.h"

namespace virtual_npu {
namespace {

using phi::DenseTensor;
using Communicator = phi::distributed::XCCLCommContext;

// The communicator of the operator's ring.
const Communicator& communicator(const phi::CustomContext& context) {
  const auto* found = static_cast<const Communicator*>(context.GetCommContext());
  PADDLE_ENFORCE_NOT_NULL(found, common::errors::Unavailable("This collective has no communicator, because its process "
                                                             "group was not set up for the device npu."));
  return *found;
}

const Communicator& communicator(int ring) {
  const auto& manager = phi::distributed::CommContextManager::GetInstance();
  const std::string name = std::to_string(ring);
  PADDLE_ENFORCE_EQ(manager.Has(name), true,
                    common::errors::Unavailable("There is no communicator for ring %d.", ring));
  return *static_cast<const Communicator*>(manager.Get(name));
}

const Communicator& counted(const char* kind, const phi::CustomContext& context, const DenseTensor& x) {
  const Communicator& found = communicator(context);
  count_transfer(kind, found.GetSize(), x);
  return found;
}

phi::ccl::CCLReduceOp operation(int reduce_type) { return reduce_operation(static_cast<phi::ReduceType>(reduce_type)); }

template <typename T>
void allocate(const phi::CustomContext& context, const phi::DDim& dims, DenseTensor* out) {
  out->Resize(dims);
  context.template Alloc<T>(out);
}

// The rank, followed by the sizes.
constexpr int kMaxRank = 9;
using Shape = std::vector<int64_t>;

DenseTensor shape_tensor(const phi::CustomContext& context) {
  DenseTensor shape;
  allocate<int64_t>(context, {kMaxRank + 1}, &shape);
  return shape;
}

template <typename T>
void send(const phi::CustomContext& context, const Communicator& peers, const DenseTensor& x, int peer,
          bool dynamic_shape) {
  count_transfer("send", 2, x);
  if (dynamic_shape) {
    DenseTensor shape = shape_tensor(context);
    auto* numbers = shape.data<int64_t>();
    numbers[0] = x.dims().size();
    for (int i = 0; i < x.dims().size(); ++i) numbers[i + 1] = x.dims()[i];
    peers.Send(shape, shape.numel(), peer, CurrentStream(context));
  }
  if (x.numel() > 0) peers.Send(x, x.numel(), peer, CurrentStream(context));
  context.Wait();  // afterwards, `shape` and, in a program, the memory of x may be reused
}

template <typename T>
void receive(const phi::CustomContext& context, const Communicator& peers, int peer, const std::vector<int>& dims,
             bool dynamic_shape, DenseTensor* out) {
  phi::DDim arriving = dims.empty() ? out->dims() : common::make_ddim(dims);
  if (dynamic_shape) {
    DenseTensor shape = shape_tensor(context);
    peers.Recv(&shape, shape.numel(), peer, CurrentStream(context));
    context.Wait();
    const auto* numbers = shape.data<int64_t>();
    arriving = common::make_ddim(Shape(numbers + 1, numbers + 1 + numbers[0]));
  }
  allocate<T>(context, arriving, out);
  if (out->numel() > 0) peers.Recv(out, out->numel(), peer, CurrentStream(context));
  context.Wait();
}

}  // namespace

template <typename T, typename Context>
void all_reduce(const Context& context, const DenseTensor& x, int reduce_type, DenseTensor* out) {
  allocate<T>(context, x.dims(), out);
  if (x.numel() > 0) counted("all_reduce", context, x).AllReduce(out, x, operation(reduce_type), CurrentStream(context));
}

template <typename T, typename Context>
void all_gather(const Context& context, const DenseTensor& x, int ranks, DenseTensor* out) {
  phi::DDim dims = x.dims();
  dims[0] *= ranks;
  allocate<T>(context, dims, out);
  if (x.numel() > 0) counted("all_gather", context, x).AllGather(out, x, CurrentStream(context));
}

template <typename T, typename Context>
void reduce_scatter(const Context& context, const DenseTensor& x, int ranks, DenseTensor* out) {
  phi::DDim dims = x.dims();
  PADDLE_ENFORCE_EQ(dims[0] % ranks, 0,
                    common::errors::InvalidArgument("reduce_scatter: x has %d rows for %d processes; accepted: a "
                                                    "multiple of the number of processes.", dims[0], ranks));
  dims[0] /= ranks;
  allocate<T>(context, dims, out);
  if (x.numel() > 0)
    counted("reduce_scatter", context, x).ReduceScatter(out, x, phi::ccl::CCLReduceOp::SUM, CurrentStream(context));
}

template <typename T, typename Context>
void broadcast(const Context& context, const DenseTensor& x, int root, DenseTensor* out) {
  allocate<T>(context, x.dims(), out);
  if (x.numel() == 0) return;
  const Communicator& ranks = communicator(context);
  if (ranks.GetRank() == root) count_transfer("broadcast", ranks.GetSize(), x);  // the others receive
  ranks.Broadcast(out, x, root, CurrentStream(context));
}

template <typename T, typename Context>
void reduce(const Context& context, const DenseTensor& x, int root, int reduce_type, DenseTensor* out) {
  allocate<T>(context, x.dims(), out);
  if (x.numel() == 0) return;
  const Communicator& ranks = communicator(context);
  if (ranks.GetRank() != root) count_transfer("reduce", ranks.GetSize(), x);  // the root receives
  ranks.Reduce(out, x, operation(reduce_type), root, CurrentStream(context));
}

// Process i receives rows i n / ranks to (i + 1) n / ranks.
template <typename T, typename Context>
void all_to_all(const Context& context, const DenseTensor& x, DenseTensor* out) {
  const Communicator& peers = communicator(context);
  const int ranks = peers.GetSize();
  PADDLE_ENFORCE_EQ(x.dims()[0] % ranks, 0,
                    common::errors::InvalidArgument("all_to_all: x has %d rows for %d processes; accepted: a multiple "
                                                    "of the number of processes.", x.dims()[0], ranks));
  allocate<T>(context, x.dims(), out);
  if (x.numel() == 0) return;
  count_transfer("all_to_all", ranks, x);
  const int64_t count = x.numel() / ranks;
  std::vector<DenseTensor> sent, received;
  std::vector<DenseTensor*> arriving;
  for (int i = 0; i < ranks; ++i) {
    sent.push_back(phi::distributed::GetPartialTensor(x, i * count, count));
    received.push_back(phi::distributed::GetPartialTensor(*out, i * count, count));
  }
  for (DenseTensor& piece : received) arriving.push_back(&piece);
  virtual_npu::all_to_all(static_cast<const phi::CustomContext&>(context), peers, sent, arriving);
}

template <typename T, typename Context>
void barrier(const Context& context, const DenseTensor& x, DenseTensor* out) {
  allocate<T>(context, x.dims(), out);
  communicator(context).AllReduce(out, x, phi::ccl::CCLReduceOp::SUM, CurrentStream(context));
  context.Wait();
}

template <typename T, typename Context>
void p_send(const Context& context, const DenseTensor& x, int peer, bool dynamic_shape) {
  send<T>(context, communicator(context), x, peer, dynamic_shape);
}

template <typename T, typename Context>
void p_recv(const Context& context, int peer, phi::DataType /*dtype*/, const std::vector<int>& out_shape,
            bool dynamic_shape, DenseTensor* out) {
  receive<T>(context, communicator(context), peer, out_shape, dynamic_shape, out);
}

template <typename T, typename Context>
void send_v2(const Context& context, const DenseTensor& x, int ring_id, bool dynamic_shape, int peer,
             bool /*use_calc_stream*/) {
  send<T>(context, communicator(ring_id), x, peer, dynamic_shape);
}

template <typename T, typename Context>
void recv_v2(const Context& context, int ring_id, bool dynamic_shape, int peer, const std::vector<int>& out_shape,
             phi::DataType /*dtype*/, bool /*use_calc_stream*/, DenseTensor* out) {
  receive<T>(context, communicator(ring_id), peer, out_shape, dynamic_shape, out);
}

}  // namespace virtual_npu

#define REGISTER_COLLECTIVE(name)                                                                                      \
  PD_REGISTER_PLUGIN_KERNEL(name, npu, ALL_LAYOUT, virtual_npu::name, float, double, int, int64_t, uint8_t, int8_t,     \
                            int16_t, bool, phi::dtype::float16, phi::dtype::bfloat16) {}

REGISTER_COLLECTIVE(all_reduce)
REGISTER_COLLECTIVE(all_gather)
REGISTER_COLLECTIVE(reduce_scatter)
REGISTER_COLLECTIVE(broadcast)
REGISTER_COLLECTIVE(reduce)
REGISTER_COLLECTIVE(all_to_all)
REGISTER_COLLECTIVE(p_send)
REGISTER_COLLECTIVE(p_recv)
REGISTER_COLLECTIVE(send_v2)
REGISTER_COLLECTIVE(recv_v2)
PD_REGISTER_PLUGIN_KERNEL(barrier, npu, ALL_LAYOUT, virtual_npu::barrier, int) {}
