// A communicator: one rank's membership in a group, and the group's collectives.
//
// Paddle's interface (interface.cc) and the plugin's fused operators call these functions. A fused operator looks up
// the communicator of its `hcom` argument by name and enqueues work on the communicator's own stream, chunk by chunk,
// in the same order on every rank:
//
//   auto group = Communicator::find(hcom);                  // nullptr: not in this process
//   const auto stream = group->own_stream();
//   for (each chunk) {
//     compute(chunk);                                       // on the calling thread, while earlier chunks are sent
//     marks.push_back(group->all_reduce(chunk, chunk, count, FLOAT32, SUM, stream));
//   }
//   for (const Mark& mark : marks) mark.wait();             // throws StreamError; see raise() in runtime/stream.h
//
// The caller must keep buffers, including outputs, alive until their mark has passed. With a `stream`, calls return
// immediately; with nullptr, they return after completion. A call throws StreamError if the group is broken, because
// a rank called a different collective, has exited, or cannot arrive.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/members.h"
#include "collectives/point_to_point.h"
#include "runtime/stream.h"

namespace virtual_npu {

class Collective;
using StreamPointer = std::shared_ptr<Stream>;

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Waits until all ranks have joined.
  static std::shared_ptr<Communicator> join(const std::string& name, int ranks, int rank, int device);
  // The communicator of this name in this process, or nullptr.
  static std::shared_ptr<Communicator> find(const std::string& name);
  // Waits for pending work, up to VIRTUAL_NPU_COLLECTIVE_TIMEOUT, and leaves the group.
  void leave();

  const std::string& name() const { return members_.name(); }
  int rank() const { return members_.rank(); }
  int ranks() const { return members_.ranks(); }
  // A communication stream, created by the first call. Its work does not wait for the compute stream, which runs on
  // the calling thread.
  StreamPointer own_stream();

  // Counts are in elements: of the buffers for all_reduce, reduce and broadcast, of one rank's part for all_gather
  // (of `send`) and reduce_scatter (of `receive`). Buffers may be the same if their sizes allow it. reduce writes
  // `receive` only on the root.
  Mark all_reduce(const void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op,
                  StreamPointer stream);
  Mark reduce(const void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op, int root,
              StreamPointer stream);
  Mark broadcast(void* buffer, size_t count, C_DataType dtype, int root, StreamPointer stream);
  Mark all_gather(const void* send, void* receive, size_t count, C_DataType dtype, StreamPointer stream);
  // The same, but the parts are `distance` elements apart, and the caller provides this rank's part.
  Mark all_gather_others(const void* send, void* receive, size_t count, size_t distance, C_DataType dtype,
                         StreamPointer stream);
  Mark reduce_scatter(const void* send, void* receive, size_t count, C_DataType dtype, C_CCLReduceOp op,
                      StreamPointer stream);
  // Data to and from each rank, in bytes. A rank's part for itself is copied.
  struct Part {
    const void* send;
    size_t send_bytes;
    void* receive;
    size_t receive_bytes;
  };
  Mark all_to_all(std::vector<Part> parts, C_DataType dtype, StreamPointer stream);
  // Several transfers form one step and progress concurrently.
  Mark transfer(std::vector<Transfer> transfers, StreamPointer stream);

  explicit Communicator(const std::string& name, int ranks, int rank, int device);

 private:
  Mark all_gather(const void* send, void* receive, size_t count, size_t distance, bool with_own, C_DataType dtype,
                  StreamPointer stream);
  Call new_call(CallKind kind, size_t count, C_DataType dtype, C_CCLReduceOp op = SUM, int peer = 0);
  // Whether data from or to the root of a broadcast or reduce crosses the boundary of this rank's machine.
  bool crosses_to(int root);
  // Waits until the links have transferred the parts of all ranks, `bytes` each, of an all_gather or reduce_scatter:
  // first the parts of corresponding ranks between machines, then all parts inside the machine.
  void wait_for_parts(Collective& collective, size_t bytes);
  // Runs `work` on `stream` after all earlier work of this communicator on any stream. The order is locked.
  Mark issue(StreamPointer stream, std::function<void()> work);
  // In dry mode, `alone` replaces `work`.
  Mark issue_collective(Call call, StreamPointer stream, const std::function<void()>& alone,
                        std::function<void(const Call&)> work);

  Members members_;
  const int device_;
  std::mutex order_;  // of the calls
  Mark last_;
  uint64_t calls_ = 0;
  std::vector<uint64_t> sent_, received_;  // transfers to and from each rank
  std::shared_ptr<TransferBatch> batch_;  // the transfers since the last other call
  int buffer_ = 0;
  StreamPointer own_stream_;
};

}  // namespace virtual_npu
