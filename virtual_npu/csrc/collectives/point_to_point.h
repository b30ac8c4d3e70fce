// Sends and receives.
//
// A send completes when its data is in shared memory, even if it has not been received, so ranks that first send to
// each other and then receive do not wait for each other. A sender waits only when it is ahead of its receiver by more
// than kWaitingBytes or kMessages transfers; if two ranks wait like this for each other, deadlock.h detects it. A
// receive completes when its data has arrived.
//
// Transfers of a group call form a batch, as do consecutive transfers on a stream with a queue. While a transfer of a
// batch waits, later ones may progress, because Paddle's batch_isend_irecv intends them to be one step, in any order.
//
// HCCL is stricter: HcclSend blocks its stream until the data has been received. With VIRTUAL_NPU_SYNC_SENDS=1 a send
// completes when it is received, and only the transfers of a group call form a batch.
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
  bool buffered = !config().sync_sends;  // a send is done when its data are in the shared memory

  Call call;  // filled in when it is called
  bool written = false;  // of a send: into the shared memory ...
  uint32_t place = 0;    // ... as that message of its channel
  bool done = false;
  int64_t called = now(), over = 0;  // when it was called, and when the link has carried its data
  size_t bytes() const { return count * size_of(dtype); }
};

class TransferBatch {
 public:
  using Transfers = std::vector<std::shared_ptr<Transfer>>;

  // From the program's thread, while the batch may be in progress.
  void append(const Transfers& transfers);
  // Until all of `own`, which are part of this batch, are done and the link has carried them.
  void wait(Members& members, const Transfers& own);

 private:
  bool progress(Members& members);
  std::vector<int> waiting_for(const Transfers& own) const;

  std::mutex mutex_;
  Transfers transfers_;
  int64_t began_ = 0;  // when the batch's turn on its stream came
};

}  // namespace virtual_npu
