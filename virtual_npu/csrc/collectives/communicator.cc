#include "collectives/communicator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

#include "collectives/collective.h"
#include "observe/source_line.h"
#include "dry/fake_process_group.h"
#include "observe/journal.h"
#include "observe/profiler/recording.h"
#include "runtime/communication_time.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Communicator>> communicators;
};
Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

template <typename T>
char* bytes_of(T* buffer) {
  return static_cast<char*>(const_cast<void*>(static_cast<const void*>(buffer)));
}

// The links used by a task, with the names in a card's profile.
std::string names_of(bool hccs, bool rdma) {
  return hccs && rdma ? "HCCS, RDMA" : rdma ? "RDMA" : "HCCS";
}

std::string links_of_collective(const Members& members) {
  return names_of(members.ranks_here() > 1, members.machines() > 1);
}

std::string links_of(const TransferBatch::Transfers& transfers, Members& members) {
  const auto through = [&](LinkKind link) {
    return std::any_of(transfers.begin(), transfers.end(),
                       [&](const auto& one) { return members.link_to(one->peer) == link; });
  };
  return names_of(through(LinkKind::kHccs), through(LinkKind::kRdma));
}

profiler::Task task_of(const Call& call, int device, const Members& members, std::string links) {
  profiler::Task task = profiler::new_task(hccl_name(call.kind), profiler::TaskType::kHccl, device);
  task.group = members.name();
  task.ranks = members.ranks();
  task.links = std::move(links);
  task.number = call.number;
  task.elements = call.count;
  task.bytes = call.count * size_of(call.dtype);
  task.wire_dtype = name_of(call.dtype);
  if (profiler::with_call_sites()) task.call_site = call.line;
  return task;
}

void journal_call(const Call& call, const Members& members, const Stream* stream) {
  if (!journal::is_kept()) return;
  journal::collective({word_of(call.kind), members.name(), name_of(call.dtype), members.ranks(), call.peer, call.count,
                       call.count * size_of(call.dtype), stream});
}

// The call that describes transfers of one step: the only transfer, or the total number of elements.
Call described(const TransferBatch::Transfers& transfers) {
  Call call = transfers.front()->call;
  if (transfers.size() > 1) call.kind = CallKind::kBatch;
  for (size_t i = 1; i < transfers.size(); ++i) call.count += transfers[i]->call.count;
  return call;
}

}  // namespace

std::shared_ptr<Communicator> Communicator::join(const std::string& name, int ranks, int rank, int device) {
  remember_caller();
  auto made = std::make_shared<Communicator>(name, ranks, rank, device);
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().communicators[name] = made;
  return made;
}

std::shared_ptr<Communicator> Communicator::find(const std::string& name) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  const auto found = registry().communicators.find(name);
  return found == registry().communicators.end() ? nullptr : found->second.lock();
}

Communicator::Communicator(const std::string& name, int ranks, int rank, int device)
    : members_(name, ranks, rank), device_(device), sent_(ranks), received_(ranks) {}

void Communicator::leave() {
  Mark last;
  {
    std::lock_guard<std::mutex> lock(order_);
    last = last_;
  }
  if (last.stream && !last.stream->wait_for(last.ticket, config().collective_timeout)) members_.give_up();
  if (own_stream_) own_stream_->stop();
  members_.leave();
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().communicators.erase(name());
}

StreamPointer Communicator::own_stream() {
  std::lock_guard<std::mutex> lock(order_);
  if (!own_stream_) own_stream_ = std::make_shared<Stream>(device_);
  return own_stream_;
}

Call Communicator::new_call(CallKind kind, size_t count, C_DataType dtype, C_CCLReduceOp op, int peer) {
  if (peer < 0 || peer >= ranks())
    throw std::invalid_argument("Rank " + std::to_string(peer) + " does not exist in the " + members_.describe_group() +
                                ".");
  Call call;
  call.kind = kind;
  call.dtype = dtype;
  call.reduce = op;
  call.peer = peer;
  call.count = count;
  const std::string line = source_line();
  const size_t room = sizeof(call.line) - 1;  // keep the end of a long path, which is more informative
  std::strcpy(call.line, line.c_str() + (line.size() > room ? line.size() - room : 0));
  return call;
}

Mark Communicator::issue(StreamPointer stream, std::function<void()> work) {
  members_.check();
  if (!stream) {
    last_.wait();
    const Timed busy(communication_time().busy), exposed(communication_time().exposed);
    work();
    return {};
  }
  const Mark before = last_.stream == stream ? Mark{} : last_;
  // Keeps the communicator alive until its work is done.
  const auto self = shared_from_this();
  last_ = {stream, stream->submit([self, before, work = std::move(work)] {
             before.wait();
             const Timed busy(communication_time().busy, stream_of_this_thread()->turn());
             work();
           })};
  return last_;
}

Mark Communicator::issue_collective(Call call, StreamPointer stream, const std::function<void()>& alone,
                                    std::function<void(const Call&)> work) {
  std::lock_guard<std::mutex> lock(order_);
  remember_caller();
  members_.check();
  call.number = ++calls_;
  batch_ = nullptr;
  journal_call(call, members_, stream.get());
  if (config().dry) {
    alone();
    return {};
  }
  std::function<void()> task = [call, work = std::move(work)] { work(call); };
  if (profiler::recording())
    task = profiler::recorded(task_of(call, device_, members_, links_of_collective(members_)), stream.get(),
                              std::move(task));
  return issue(std::move(stream), std::move(task));
}

bool Communicator::crosses_to(int root) {
  return members_.machines() > 1 && (rank() == root || members_.link_to(root) == LinkKind::kRdma);
}

void Communicator::wait_for_parts(Collective& collective, size_t bytes) {
  const size_t rdma = (members_.machines() - 1) * bytes;
  const size_t hccs = (members_.ranks_here() - 1) * members_.machines() * bytes;
  collective.wait_for_links({hccs, hccs}, {rdma, rdma});
}

Mark Communicator::all_reduce(const void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op,
                              StreamPointer stream) {
  const Call call = new_call(CallKind::kAllReduce, count, dtype, op);
  const auto alone = [=] { dry::all_reduce(send, receive, count, dtype, op, ranks()); };
  return issue_collective(call, std::move(stream), alone, [=](const Call& call) {
    Collective collective(members_, buffer_, call);
    collective.all_reduce(bytes_of(send), bytes_of(receive));
    const size_t bytes = count * size_of(dtype), here = members_.ranks_here(), machines = members_.machines();
    // Reduced and gathered inside each machine. Each rank exchanges one part of the tensor between machines.
    const size_t hccs = 2 * (here - 1) * bytes / here, rdma = 2 * (machines - 1) * (bytes / here) / machines;
    collective.wait_for_links({hccs, hccs}, {rdma, rdma});
  });
}

Mark Communicator::reduce(const void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op, int root,
                          StreamPointer stream) {
  const Call call = new_call(CallKind::kReduce, count, dtype, op, root);
  const auto alone = [=] {
    if (rank() == root) dry::all_reduce(send, receive, count, dtype, op, ranks());
  };
  return issue_collective(call, std::move(stream), alone, [=](const Call& call) {
    Collective collective(members_, buffer_, call);
    collective.reduce(bytes_of(send), bytes_of(receive));
    const Traffic bytes = rank() == root ? Traffic{0, count * size_of(dtype)} : Traffic{count * size_of(dtype), 0};
    collective.wait_for_links(ranks() > 1 ? bytes : Traffic{}, crosses_to(root) ? bytes : Traffic{});
  });
}

Mark Communicator::broadcast(void* buffer, size_t count, C_DataType dtype, int root, StreamPointer stream) {
  const Call call = new_call(CallKind::kBroadcast, count, dtype, SUM, root);
  const auto alone = [] {};  // all ranks have the data
  return issue_collective(call, std::move(stream), alone, [=](const Call& call) {
    Collective collective(members_, buffer_, call);
    collective.broadcast(bytes_of(buffer));
    const Traffic bytes = rank() == root ? Traffic{count * size_of(dtype), 0} : Traffic{0, count * size_of(dtype)};
    collective.wait_for_links(ranks() > 1 ? bytes : Traffic{}, crosses_to(root) ? bytes : Traffic{});
  });
}

Mark Communicator::all_gather(const void* send, void* receive, size_t count, C_DataType dtype, StreamPointer stream) {
  return all_gather(send, receive, count, count, true, dtype, std::move(stream));
}

Mark Communicator::all_gather_others(const void* send, void* receive, size_t count, size_t distance, C_DataType dtype,
                                     StreamPointer stream) {
  return all_gather(send, receive, count, distance, false, dtype, std::move(stream));
}

Mark Communicator::all_gather(const void* send, void* receive, size_t count, size_t distance, bool with_own,
                              C_DataType dtype, StreamPointer stream) {
  const Call call = new_call(CallKind::kAllGather, count, dtype);
  const size_t apart = distance * size_of(dtype);
  const auto alone = [=] {
    if (with_own) return dry::all_gather(send, receive, count, dtype, ranks());
    for (int part = 0; part < ranks(); ++part)
      if (part != rank()) dry::receive(bytes_of(receive) + part * apart, count * size_of(dtype), dtype);
  };
  return issue_collective(call, std::move(stream), alone, [=](const Call& call) {
    Collective collective(members_, buffer_, call);
    collective.all_gather(bytes_of(send), bytes_of(receive), apart, with_own);
    wait_for_parts(collective, count * size_of(dtype));
  });
}

Mark Communicator::reduce_scatter(const void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op,
                                  StreamPointer stream) {
  const Call call = new_call(CallKind::kReduceScatter, count, dtype, op);
  const auto alone = [=] { dry::reduce_scatter(send, receive, count, dtype, op, rank(), ranks()); };
  return issue_collective(call, std::move(stream), alone, [=](const Call& call) {
    Collective collective(members_, buffer_, call);
    collective.reduce_scatter(bytes_of(send), bytes_of(receive));
    wait_for_parts(collective, count * size_of(dtype));
  });
}

Mark Communicator::all_to_all(std::vector<Part> parts, C_DataType dtype, StreamPointer stream) {
  size_t total = 0;
  Traffic hccs, rdma;
  for (int peer = 0; peer < ranks(); ++peer) {
    total += parts[peer].send_bytes / size_of(dtype);
    if (peer == rank()) continue;
    Traffic& link = members_.link_to(peer) == LinkKind::kHccs ? hccs : rdma;
    link.out += parts[peer].send_bytes;
    link.in += parts[peer].receive_bytes;
  }
  const Call call = new_call(CallKind::kAllToAll, total, dtype);
  const auto alone = [&] {
    for (const Part& part : parts) dry::receive(part.receive, part.receive_bytes, dtype);
  };
  return issue_collective(call, std::move(stream), alone, [=](const Call& call) {
    const char* send[kMaxRanks];
    char* receive[kMaxRanks];
    RankSlot::Made& own = members_.own_slot().made(call.number);
    for (int peer = 0; peer < ranks(); ++peer) {
      send[peer] = bytes_of(parts[peer].send);
      receive[peer] = bytes_of(parts[peer].receive);
      own.sent[peer] = parts[peer].send_bytes;
      own.received[peer] = parts[peer].receive_bytes;
    }
    Collective collective(members_, buffer_, call);
    collective.all_to_all(send, receive);
    collective.wait_for_links(hccs, rdma, true);
  });
}

Mark Communicator::transfer(std::vector<Transfer> transfers, StreamPointer stream) {
  TransferBatch::Transfers own;
  for (Transfer& one : transfers) {
    one.call = new_call(one.send ? CallKind::kSend : CallKind::kReceive, one.count, one.dtype, SUM, one.peer);
    own.push_back(std::make_shared<Transfer>(std::move(one)));
  }
  std::lock_guard<std::mutex> lock(order_);
  remember_caller();
  members_.check();
  for (const auto& one : own) {
    one->call.number = one->send ? ++sent_[one->peer] : ++received_[one->peer];
    journal_call(one->call, members_, stream.get());
    if (config().dry && !one->send) dry::receive(one->data, one->bytes(), one->dtype);
  }
  if (config().dry) return {};
  // Other work on the stream ends a batch, because later transfers may depend on that work.
  const bool continues =
      !config().sync_sends && batch_ && stream && last_.stream == stream && stream->last() == last_.ticket;
  if (!continues) batch_ = std::make_shared<TransferBatch>();
  const auto batch = batch_;
  batch->append(own);
  if (continues) members_.ring(rank());
  std::function<void()> task = [this, batch, own] { batch->wait(members_, own); };
  if (profiler::recording())
    task = profiler::recorded(task_of(described(own), device_, members_, links_of(own, members_)), stream.get(),
                              std::move(task));
  return issue(std::move(stream), std::move(task));
}

}  // namespace virtual_npu
