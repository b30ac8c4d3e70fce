#include "collectives/interface.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <vector>

#include "paddle/phi/core/enforce.h"
#include "checks/launch.h"
#include "checks/synchronizations.h"
#include "collectives/communicator.h"
#include "collectives/reduction.h"
#include "collectives/store.h"
#include "runtime/config.h"
#include "runtime/device.h"

struct C_CCLComm_st {
  std::shared_ptr<virtual_npu::Communicator> communicator;
};

namespace virtual_npu {
namespace {

constexpr size_t kIdSize = 96;
constexpr size_t kNameSize = 128;  // of Paddle's buffer

// Sends and receives between group_start and group_end form one step. Other collectives run immediately, because each
// of them is one step anyway.
struct Grouped {
  C_CCLComm communicator;
  C_Stream stream;
  std::vector<Transfer> transfers;
};
thread_local int group_depth = 0;
thread_local std::vector<Grouped> grouped;

// Throws an exception instead of returning a status, because Paddle would show only the status number.
template <typename Work>
C_Status done(const Work& work) {
  try {
    work();
  } catch (const std::invalid_argument& error) {
    PADDLE_THROW(common::errors::InvalidArgument("%s", error.what()));
  } catch (const std::runtime_error& error) {
    raise(StreamError(error.what()));
  }
  return C_SUCCESS;
}

// Returns nullptr if the work runs on the calling thread. A deferred kernel that communicates runs on its stream's thread.
StreamPointer queue_of(C_Stream stream) {
  if (config().defer && stream_of(stream).get() == stream_of_this_thread()) return nullptr;
  if (!is_compute_stream(stream) || config().defer) return stream_of(stream);
  before_kernel(stream);
  return nullptr;
}

void check_reduction(const char* kind, C_DataType dtype, C_CCLReduceOp op) {
  const std::string reason = reason_against_reduction(dtype, op);
  if (!reason.empty())
    throw std::invalid_argument(std::string(kind) + " of " + name_of(dtype) + " is not supported: " + reason + ".");
}

C_Status get_unique_id_size(size_t* size) {
  *size = kIdSize;
  return C_SUCCESS;
}
C_Status get_unique_id(C_CCLRootId* id) {
  return done([&] {
    std::memset(id->data, 0, id->sz);
    if (config().dry) return;  // no other process joins
    close_a_connection_to_the_store();
    std::snprintf(static_cast<char*>(id->data), id->sz, "%s", Segment::create().c_str());
  });
}
C_Status get_comm_name(C_CCLComm communicator, char* name) {
  std::snprintf(name, kNameSize, "%s", communicator->communicator->name().c_str());
  return C_SUCCESS;
}

// In dry mode, groups only need distinct names.
std::string next_dry_name() {
  static std::atomic<int> count{0};
  return "dry-" + std::to_string(++count);
}

C_Status comm_init_rank(size_t ranks, C_CCLRootId* id, size_t rank, C_CCLComm* communicator) {
  return done([&] {
    if (config().dry) {
      *communicator = new C_CCLComm_st{Communicator::join(next_dry_name(), int(ranks), int(rank), current_device())};
      return;
    }
    if (ranks < 1 || ranks > size_t(kMaxRanks) || rank >= ranks)
      throw std::invalid_argument("A group of virtual NPUs has 1 to " + std::to_string(kMaxRanks) +
                                  " ranks; received rank " + std::to_string(rank) + " of " +
                                  std::to_string(ranks) + ".");
    const std::string name(static_cast<const char*>(id->data), strnlen(static_cast<const char*>(id->data), id->sz));
    *communicator = new C_CCLComm_st{Communicator::join(name, int(ranks), int(rank), current_device())};
  });
}
// Also called by destructors.
C_Status destroy_comm(C_CCLComm communicator) {
  if (!communicator) return C_SUCCESS;
  communicator->communicator->leave();
  delete communicator;
  return C_SUCCESS;
}

// The memory that a collective reads and writes, for the checks.
void check_memory(CallKind kind, C_Stream stream, const void* send, size_t sent, const void* receive, size_t received) {
  checks::queues_work();
  if (!config().checks) return;
  std::vector<checks::Range> ranges;
  if (sent) ranges.push_back({send, sent, false, "its input"});
  if (received) ranges.push_back({receive, received, true, "its output"});
  checks::use_memory(word_of(kind), stream, ranges);
}

C_Status all_reduce(void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op, C_CCLComm comm,
                    C_Stream stream) {
  return done([&] {
    check_reduction("all_reduce", dtype, op);
    const size_t bytes = count * size_of(dtype);
    check_memory(CallKind::kAllReduce, stream, send, bytes, receive, bytes);
    comm->communicator->all_reduce(send, receive, count, dtype, op, queue_of(stream));
  });
}
C_Status broadcast(void* buffer, size_t count, C_DataType dtype, size_t root, C_CCLComm comm, C_Stream stream) {
  return done([&] {
    const size_t bytes = count * size_of(dtype);
    const bool sends = comm->communicator->rank() == int(root);
    check_memory(CallKind::kBroadcast, stream, buffer, sends ? bytes : 0, buffer, sends ? 0 : bytes);
    comm->communicator->broadcast(buffer, count, dtype, int(root), queue_of(stream));
  });
}
C_Status reduce_to_root(void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op, size_t root,
                        C_CCLComm comm, C_Stream stream) {
  return done([&] {
    check_reduction("reduce", dtype, op);
    const size_t bytes = count * size_of(dtype);
    check_memory(CallKind::kReduce, stream, send, bytes, receive, comm->communicator->rank() == int(root) ? bytes : 0);
    comm->communicator->reduce(send, receive, count, dtype, op, int(root), queue_of(stream));
  });
}
C_Status all_gather(void* send, void* receive, size_t count, C_DataType dtype, C_CCLComm comm, C_Stream stream) {
  return done([&] {
    const size_t bytes = count * size_of(dtype);
    check_memory(CallKind::kAllGather, stream, send, bytes, receive, bytes * comm->communicator->ranks());
    comm->communicator->all_gather(send, receive, count, dtype, queue_of(stream));
  });
}
C_Status reduce_scatter(void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op, C_CCLComm comm,
                        C_Stream stream) {
  return done([&] {
    check_reduction("reduce_scatter", dtype, op);
    const size_t bytes = count * size_of(dtype);
    check_memory(CallKind::kReduceScatter, stream, send, bytes * comm->communicator->ranks(), receive, bytes);
    comm->communicator->reduce_scatter(send, receive, count, dtype, op, queue_of(stream));
  });
}
C_Status all_to_all(const void** send, const size_t* send_count, const C_DataType* send_dtype, void** receive,
                    const size_t* receive_count, const C_DataType* receive_dtype, size_t, size_t ranks, C_CCLComm comm,
                    C_Stream stream) {
  return done([&] {
    std::vector<Communicator::Part> parts;
    for (size_t i = 0; i < ranks; ++i)
      parts.push_back({send[i], send_count[i] * size_of(send_dtype[i]), receive[i],
                       receive_count[i] * size_of(receive_dtype[i])});
    for (const Communicator::Part& part : parts)
      check_memory(CallKind::kAllToAll, stream, part.send, part.send_bytes, part.receive, part.receive_bytes);
    comm->communicator->all_to_all(std::move(parts), send_dtype[0], queue_of(stream));
  });
}

C_Status group_start() {
  ++group_depth;
  return C_SUCCESS;
}
C_Status group_end() {
  if (group_depth == 0) throw std::logic_error("xccl_group_end without xccl_group_start");
  if (--group_depth > 0) return C_SUCCESS;
  std::vector<Grouped> all;
  all.swap(grouped);
  return done([&] {
    if (all.size() == 1)
      return void(all[0].communicator->communicator->transfer(std::move(all[0].transfers), queue_of(all[0].stream)));
    // Communicators are processed one at a time, possibly in a different order on other ranks: the peer receives what
    // is sent first.
    for (const bool send : {true, false})
      for (const Grouped& one : all) {
        std::vector<Transfer> part;
        std::copy_if(one.transfers.begin(), one.transfers.end(), std::back_inserter(part),
                     [send](const Transfer& transfer) { return transfer.send == send; });
        for (Transfer& transfer : part) transfer.buffered = true;
        if (!part.empty()) one.communicator->communicator->transfer(std::move(part), queue_of(one.stream));
      }
  });
}
void transfer(Transfer transfer, C_CCLComm comm, C_Stream stream) {
  if (group_depth == 0) {
    comm->communicator->transfer({std::move(transfer)}, queue_of(stream));
    return;
  }
  for (Grouped& one : grouped)
    if (one.communicator == comm && one.stream == stream) return one.transfers.push_back(std::move(transfer));
  grouped.push_back({comm, stream, {std::move(transfer)}});
}
Transfer transfer_of(bool send, void* data, size_t count, C_DataType dtype, size_t peer) {
  Transfer one;
  one.send = send;
  one.data = static_cast<char*>(data);
  one.count = count;
  one.dtype = dtype;
  one.peer = int(peer);
  return one;
}
C_Status send(void* data, size_t count, C_DataType dtype, size_t to, C_CCLComm comm, C_Stream stream) {
  return done([&] {
    check_memory(CallKind::kSend, stream, data, count * size_of(dtype), nullptr, 0);
    transfer(transfer_of(true, data, count, dtype, to), comm, stream);
  });
}
C_Status receive(void* data, size_t count, C_DataType dtype, size_t from, C_CCLComm comm, C_Stream stream) {
  return done([&] {
    check_memory(CallKind::kReceive, stream, nullptr, 0, data, count * size_of(dtype));
    transfer(transfer_of(false, data, count, dtype, from), comm, stream);
  });
}

}  // namespace

void fill_collective_interface(C_DeviceInterface* interface) {
  interface->xccl_get_comm_name = get_comm_name;
  interface->xccl_get_unique_id_size = get_unique_id_size;
  interface->xccl_get_unique_id = get_unique_id;
  interface->xccl_comm_init_rank = comm_init_rank;
  interface->xccl_destroy_comm = destroy_comm;
  interface->xccl_all_reduce = all_reduce;
  interface->xccl_broadcast = broadcast;
  interface->xccl_reduce = reduce_to_root;
  interface->xccl_all_gather = all_gather;
  interface->xccl_reduce_scatter = reduce_scatter;
  interface->xccl_group_start = group_start;
  interface->xccl_group_end = group_end;
  interface->xccl_send = send;
  interface->xccl_recv = receive;
  interface->xccl_all_to_all = all_to_all;
}

}  // namespace virtual_npu
