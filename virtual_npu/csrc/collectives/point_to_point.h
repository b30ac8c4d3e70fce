// Sends and receives.
//
// A send completes when its data is in shared memory, even before it is received, so ranks may first send to each
// other and then receive. A sender waits only if it is ahead of its receiver by more than kWaitingBytes or kMessages
// transfers; if two ranks wait for each other like this, deadlock.h detects it. A receive completes when its data has
// arrived.
//
// The transfers of a group call form a batch, as do consecutive transfers on a stream with a queue. While a transfer
// of a
// batch waits, later ones may progress: Paddle's batch_isend_irecv defines them as one step, in any order.
//
// HCCL is stricter: HcclSend blocks its stream until the data has been received. With VIRTUAL_NPU_SYNC_SENDS=1, a
// send completes when it is received, and only the transfers of a group call form a batch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/members.h"
#include "runtime/config.h"

namespace virtual_npu {

struct Transfer {
  bool send = false;
  char* data = nullptr;
  size_t count = 0;
  C_DataType dtype = UNDEFINED;
  int peer = 0;
  bool buffered = !config().sync_sends;  // a send completes when its data is in shared memory

  Call call;  // filled in by the call
  bool written = false;  // of a send: whether its data is in shared memory
  uint32_t place = 0;    // the number of its message in the channel
  bool done = false;
  int64_t called = now(), over = 0;  // the time of the call, and the time when the link has transferred the data
  size_t bytes() const { return count * size_of(dtype); }
};

class TransferBatch {
 public:
  using Transfers = std::vector<std::shared_ptr<Transfer>>;

  // Called on the program's thread, possibly while the batch is in progress.
  void append(const Transfers& transfers);
  // Waits until all of `own`, which belong to this batch, are done and the link has transferred them.
  void wait(Members& members, const Transfers& own);

 private:
  bool progress(Members& members);
  std::vector<int> waiting_for(const Transfers& own) const;

  std::mutex mutex_;
  Transfers transfers_;
  int64_t began_ = 0;  // when the batch started on its stream
};

}  // namespace virtual_npu
